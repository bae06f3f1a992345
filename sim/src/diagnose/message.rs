//! What an out-of-memory message alone says of the cause.
//!
//! Every figure of a message is rounded to two decimals of its unit, so a comparison can hang on the last digit; then the answer
//! is that it does. And a message says what was *tried*: a segment, which for small and middling requests is larger than what was
//! asked for.

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB};

use super::verdict::Verdict;
use crate::message::{OutOfMemoryMessage, Size};

/// How sure a comparison of rounded figures is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Certainty {
    /// It is so.
    Yes,
    /// It is not so.
    No,
    /// The figures are equal to within what their rounding hides.
    LastDigit,
}

impl Certainty {
    /// Whether `left` is at least `right`.
    #[must_use]
    pub fn at_least(left: Size, right: Size) -> Certainty {
        if left.bytes.saturating_sub(left.within) >= right.bytes.saturating_add(right.within) {
            Certainty::Yes
        } else if left.bytes.saturating_add(left.within) < right.bytes.saturating_sub(right.within) {
            Certainty::No
        } else {
            Certainty::LastDigit
        }
    }

    /// A word for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Certainty::Yes => "yes",
            Certainty::No => "no",
            Certainty::LastDigit => "last_digit",
        }
    }
}

/// What a message says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageDiagnosis {
    /// The message.
    pub message: OutOfMemoryMessage,
    /// The smallest and the largest block that the request may have needed, under the default sizes of segments.
    pub block_bytes: (u64, u64),
    /// Whether reserved and unallocated bytes alone are at least what was tried.
    pub unallocated_suffices: Certainty,
    /// What must be there at once: what is allocated and what was tried.
    pub needed: Size,
    /// What the process could have: what it had reserved and what the device had free, and no more than its limit.
    pub available: Size,
    /// Whether that suffices.
    pub available_suffices: Certainty,
    /// What neither this allocator had reserved nor was free: other processes, and CUDA's own some 500 MiB.
    pub held_by_others: Size,
    /// What it was.
    pub verdict: Verdict,
}

/// Diagnoses from a message alone.
#[must_use]
pub fn diagnose_message(message: OutOfMemoryMessage) -> MessageDiagnosis {
    let OutOfMemoryMessage { tried, total, free, limit, allocated, reserved, unallocated, .. } = message;
    let least_bytes = smallest_block(tried);
    let needed = allocated.plus(tried);
    let reachable = reserved.plus(free);
    let available = limit.filter(|limit| limit.bytes < reachable.bytes).unwrap_or(reachable);
    let unallocated_suffices = Certainty::at_least(unallocated, tried);
    let available_suffices = Certainty::at_least(available, needed);
    let least = Size { bytes: least_bytes, within: 0 };
    let may_suffice = Certainty::at_least(available, allocated.plus(least)) != Certainty::No;
    let verdict = match (unallocated_suffices, available_suffices) {
        (Certainty::Yes, _) | (_, Certainty::Yes) => Verdict::Fragmentation,
        // The request was smaller than the segment that was tried, perhaps by enough.
        (_, Certainty::No) if !may_suffice => Verdict::Capacity,
        _ => Verdict::Undecided,
    };
    MessageDiagnosis {
        block_bytes: (least_bytes, tried.bytes.saturating_add(tried.within)),
        unallocated_suffices,
        needed,
        available,
        available_suffices,
        held_by_others: total.minus(reachable),
        verdict,
        message,
    }
}

/// The smallest block for which a segment of this size is tried; the segment itself, if no rule gives such a segment.
fn smallest_block(tried: Size) -> u64 {
    let policy = PyTorch::new(Settings::default());
    let (least, most) = (tried.bytes.saturating_sub(tried.within), tried.bytes.saturating_add(tried.within));
    let is_tried = |block: u64| policy.segment_for(Bytes(block)).is_some_and(|segment| (least..=most).contains(&segment.get()));
    // Where another segment begins to be tried (spec 1.6): at each of the classes, and above them after every granule.
    let granule = least.checked_next_multiple_of(2 * MIB).map_or(0, |segment| segment.saturating_sub(2 * MIB));
    [1, MIB + 1, 10 * MIB, granule.saturating_add(1)].into_iter().filter(|&block| is_tried(block)).min().unwrap_or(tried.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn diagnosed(text: &str) -> MessageDiagnosis {
        diagnose_message(OutOfMemoryMessage::parse(text).expect("a message"))
    }

    fn old(tried: &str, allocated: &str, free: &str, reserved: &str) -> MessageDiagnosis {
        diagnosed(&format!(
            "CUDA out of memory. Tried to allocate {tried} (GPU 2; 39.59 GiB total capacity; {allocated} already allocated; \
             {free} free; {reserved} reserved in total by PyTorch)"
        ))
    }

    /// C4 of the documents' scenarios.
    #[test]
    fn what_is_reserved_and_unallocated_would_have_sufficed() {
        let c4 = old("4.88 GiB", "28.60 GiB", "3.92 GiB", "33.95 GiB");
        assert_eq!(c4.message.unallocated.to_string(), "5.35 GiB");
        assert_eq!((c4.verdict, c4.unallocated_suffices), (Verdict::Fragmentation, Certainty::Yes));
        assert_eq!(c4.held_by_others.to_string(), "1.72 GiB");
        // The smallest request for which 4.88 GiB are tried is at most a granule smaller.
        let (least, most) = c4.block_bytes;
        assert!(least < c4.message.tried.bytes && c4.message.tried.bytes < most && most - least < 16 << 20, "{least} {most}");
    }

    #[test]
    fn a_full_device_is_capacity() {
        let full = old("4.88 GiB", "38.60 GiB", "0.02 GiB", "38.95 GiB");
        assert_eq!((full.verdict, full.available_suffices), (Verdict::Capacity, Certainty::No));
        let short_bytes = full.needed.bytes - full.available.bytes;
        assert!(short_bytes.abs_diff(451 * GIB / 100) <= full.needed.within + full.available.within, "{short_bytes}");
    }

    /// Neither the cache nor the device has room for it, both together do.
    #[test]
    fn memory_in_two_places_is_fragmentation() {
        let split = old("4.88 GiB", "28.60 GiB", "3.92 GiB", "30.60 GiB");
        assert_eq!((split.unallocated_suffices, split.available_suffices), (Certainty::No, Certainty::Yes));
        assert_eq!(split.verdict, Verdict::Fragmentation);
    }

    #[test]
    fn what_hangs_on_the_last_digit_is_said_to() {
        let edge = old("4.88 GiB", "28.60 GiB", "0.00 GiB", "33.48 GiB");
        assert_eq!((edge.unallocated_suffices, edge.verdict), (Certainty::LastDigit, Verdict::Undecided));
        assert_eq!(old("4.88 GiB", "28.60 GiB", "0.00 GiB", "33.52 GiB").verdict, Verdict::Fragmentation);
        assert_eq!(old("4.88 GiB", "28.60 GiB", "0.00 GiB", "33.43 GiB").verdict, Verdict::Capacity);
    }

    /// 20 MiB are tried for anything from 1 to 10 MiB.
    #[test]
    fn a_request_smaller_than_its_segment_leaves_it_open() {
        let middling = old("20.00 MiB", "28.60 GiB", "0 bytes", "28.61 GiB");
        assert_eq!((middling.block_bytes.0, middling.verdict), (MIB + 1, Verdict::Undecided));
        assert_eq!(old("20.00 MiB", "28.60 GiB", "0 bytes", "28.60 GiB").block_bytes.0, MIB + 1);
        assert_eq!(old("2.00 MiB", "28.60 GiB", "0 bytes", "28.70 GiB").block_bytes.0, 1);
    }

    #[test]
    fn a_limit_counts_if_it_is_tighter_than_the_device() {
        let text = "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 130.00 GiB \
            is free. 6.00 GiB allowed; Of the allocated memory 5.50 GiB is allocated by PyTorch, and 256.00 MiB is reserved by \
            PyTorch but unallocated.";
        let limited = diagnosed(text);
        assert_eq!((limited.available.bytes, limited.verdict), (6 * GIB, Verdict::Capacity));
    }
}
