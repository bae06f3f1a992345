//! What an out-of-memory message alone says about the cause.
//!
//! Every figure in a message is rounded to two decimals of its unit. If a comparison depends on the last digit, the answer says
//! so. The message states the size that was *tried*: that of a segment, which for small and medium requests is larger than the
//! request.
//!
//! The message counts the free bytes of private pools as allocated (spec 2.13). They are not live, so they are subtracted here,
//! but they can serve only these pools.
//!
//! Where a part of the message is missing ([`diagnose_partial`]), a verdict is reached only if no missing figure could change it;
//! each of them may have any value that the rest allows.

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB};
use parkade_recording::message::{OutOfMemoryMessage, PartialMessage, Size};

/// The result of comparing rounded figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Certainty {
    /// It is so.
    Yes,
    /// It is not so.
    No,
    /// The figures are equal to within their rounding.
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

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Certainty::Yes => "yes",
            Certainty::No => "no",
            Certainty::LastDigit => "last_digit",
        }
    }
}

/// Why the request failed, as far as a message tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageVerdict {
    /// The live bytes and the size tried exceed the memory.
    Capacity,
    /// They would have fitted, but the free bytes were in the wrong places.
    Fragmentation,
    /// They would have fitted only with the free bytes of private pools.
    PrivatePools,
    /// The device had that much free, and the limit that the message states allowed it: something else refused.
    DeviceHadRoom,
    /// The figures are not precise enough to tell.
    Undecided,
}

impl MessageVerdict {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MessageVerdict::Capacity => "capacity",
            MessageVerdict::Fragmentation => "fragmentation",
            MessageVerdict::PrivatePools => "private_pools",
            MessageVerdict::DeviceHadRoom => "device_had_room",
            MessageVerdict::Undecided => "undecided",
        }
    }
}

/// What an out-of-memory message says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageDiagnosis {
    /// The message.
    pub message: OutOfMemoryMessage,
    /// The smallest and the largest block, in bytes, that the request may have needed, under the default segment sizes.
    pub block_bytes: (u64, u64),
    /// Live bytes: what the message calls allocated, less the free bytes of private pools.
    pub live: Size,
    /// Reserved bytes that are not live, those of private pools included.
    pub empty: Size,
    /// Whether the reserved but unallocated bytes, without those of private pools, are at least the size tried.
    pub unallocated_suffices: Certainty,
    /// The live bytes and the size tried.
    pub needed: Size,
    /// What the process could reserve: what it had reserved plus what the device had free, at most its limit.
    pub available: Size,
    /// Whether `available` is at least `needed`.
    pub available_suffices: Certainty,
    /// Whether the device had the size tried free, and the limit that the message states allowed it.
    pub device_had_room: Certainty,
    /// Memory that was neither reserved by this allocator nor free: that of other processes, and about 500 MiB of CUDA's own.
    pub held_by_others: Size,
    /// Why the request failed.
    pub verdict: MessageVerdict,
}

/// Diagnoses an out-of-memory error from its message alone.
#[must_use]
pub fn diagnose_message(message: OutOfMemoryMessage) -> MessageDiagnosis {
    let OutOfMemoryMessage { tried, total, free, limit, allocated, reserved, unallocated, private_pools, .. } = message;
    let least_bytes = smallest_block(tried);
    let private = private_pools.unwrap_or(Size { bytes: 0, within: 0 });
    let (live, empty) = (allocated.minus(private), unallocated.plus(private));
    let needed = live.plus(tried);
    let reachable = reserved.plus(free);
    let available = limit.filter(|limit| limit.bytes < reachable.bytes).unwrap_or(reachable);
    let unallocated_suffices = Certainty::at_least(unallocated, tried);
    let available_suffices = Certainty::at_least(available, needed);
    // As if the private pools kept what they have.
    let suffices_without_pools = Certainty::at_least(available, allocated.plus(tried));
    let least = Size { bytes: least_bytes, within: 0 };
    let is_beyond = |request| exceeds([Some(total), limit, Some(available)], live, request);
    let room = limit.map(|limit| limit.minus(reserved)).filter(|room| room.bytes < free.bytes).unwrap_or(free);
    let device_had_room = Certainty::at_least(room, tried);
    let verdict = if device_had_room == Certainty::Yes {
        MessageVerdict::DeviceHadRoom
    } else if [unallocated_suffices, suffices_without_pools].contains(&Certainty::Yes) {
        MessageVerdict::Fragmentation
    } else if available_suffices == Certainty::Yes {
        MessageVerdict::PrivatePools
    } else if is_beyond(tried) && is_beyond(least) {
        MessageVerdict::Capacity
    } else {
        // The request may have been enough smaller than the segment tried; or it depends on the last digit.
        MessageVerdict::Undecided
    };
    MessageDiagnosis {
        block_bytes: (least_bytes, tried.bytes.saturating_add(tried.within)),
        live,
        empty,
        unallocated_suffices,
        needed,
        available,
        available_suffices,
        device_had_room,
        held_by_others: total.minus(reachable),
        verdict,
        message,
    }
}

/// Whether a request certainly exceeds one of the known bounds on what the process could have, with the live bytes or by itself. Live
/// bytes are a difference of rounded figures, so their error may hide that the request alone is too large; they are never negative.
fn exceeds(bounds: [Option<Size>; 3], live: Size, request: Size) -> bool {
    let is_short = |bound, needed| Certainty::at_least(bound, needed) == Certainty::No;
    bounds.into_iter().flatten().any(|bound| is_short(bound, live.plus(request)) || is_short(bound, request))
}

/// The smallest block for which a segment of this size is tried; the segment's own size if no rule leads to such a segment.
fn smallest_block(tried: Size) -> u64 {
    let policy = PyTorch::new(Settings::default());
    let (least, most) = (tried.bytes.saturating_sub(tried.within), tried.bytes.saturating_add(tried.within));
    let is_tried = |block: u64| policy.segment_for(Bytes(block)).is_some_and(|segment| (least..=most).contains(&segment.get()));
    // The block sizes at which the segment size changes (spec 1.6): where each class begins, and above them every 2 MiB.
    let granule = least.checked_next_multiple_of(2 * MIB).map_or(0, |segment| segment.saturating_sub(2 * MIB));
    [1, MIB + 1, 10 * MIB, granule.saturating_add(1)].into_iter().filter(|&block| is_tried(block)).min().unwrap_or(tried.bytes)
}

/// What the parts of a message say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartialDiagnosis {
    /// The parts.
    pub message: PartialMessage,
    /// Live bytes: what the message calls allocated, less the free bytes of private pools; `None` if either may be missing.
    pub live: Option<Size>,
    /// Why the request failed; [`MessageVerdict::Undecided`] if what is missing may decide.
    pub verdict: MessageVerdict,
    /// Whether the device had more free than was tried, so that it was a limit or something else that refused.
    pub device_had_room: bool,
}

/// Diagnoses an out-of-memory error from what is left of its message.
#[must_use]
pub fn diagnose_partial(message: PartialMessage) -> PartialDiagnosis {
    let PartialMessage { tried, total, free, limit, allocated, reserved, unallocated, private_pools, .. } = message;
    let private = private_pools.unwrap_or(Size { bytes: 0, within: 0 });
    let live = allocated.filter(|_| message.is_private_known()).map(|allocated| allocated.minus(private));
    let compare = |left: Option<Size>, right: Option<Size>| Some(Certainty::at_least(left?, right?));
    let is_enough = |left, right| compare(left, right) == Some(Certainty::Yes);
    let sum = |left: Option<Size>, right: Option<Size>| Some(left?.plus(right?));

    let device_had_room = is_enough(free, tried);
    let limit_had_room = limit.is_none() || is_enough(limit.zip(reserved).map(|(limit, reserved)| limit.minus(reserved)), tried);
    // What the process could have, if all that it depends on is there.
    let reachable = sum(reserved, free).filter(|_| message.is_limit_known());
    let available = reachable.map(|reachable| limit.filter(|limit| limit.bytes < reachable.bytes).unwrap_or(reachable));
    // Each of these is at least what it could have.
    let bounds = [total, limit, available];
    let least = |tried| Size { bytes: smallest_block(tried), within: 0 };
    let live_least = live.unwrap_or(Size { bytes: 0, within: 0 });
    let is_beyond = |request| exceeds(bounds, live_least, request);

    let verdict = if device_had_room && message.is_limit_known() && limit_had_room {
        MessageVerdict::DeviceHadRoom
    } else if tried.is_some_and(|tried| is_beyond(tried) && is_beyond(least(tried))) {
        MessageVerdict::Capacity
    } else if free.is_none() || (device_had_room && !message.is_limit_known()) {
        MessageVerdict::Undecided
    } else if is_enough(unallocated, tried) || is_enough(available, sum(allocated, tried)) {
        MessageVerdict::Fragmentation
    } else if is_enough(available, sum(live, tried)) {
        MessageVerdict::PrivatePools
    } else {
        MessageVerdict::Undecided
    };
    PartialDiagnosis { live, verdict, device_had_room, message }
}

#[cfg(test)]
mod tests {
    use parkade_recording::message::{MessageLog, ReadMessage};
    use proptest::prelude::*;

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
    fn unallocated_bytes_that_would_have_been_enough_are_fragmentation() {
        let c4 = old("4.88 GiB", "28.60 GiB", "3.92 GiB", "33.95 GiB");
        assert_eq!(c4.message.unallocated.to_string(), "5.35 GiB");
        assert_eq!((c4.verdict, c4.unallocated_suffices), (MessageVerdict::Fragmentation, Certainty::Yes));
        assert_eq!(c4.device_had_room, Certainty::No);
        assert_eq!(c4.held_by_others.to_string(), "1.72 GiB");
        // The smallest request for which 4.88 GiB are tried is at most a granule smaller.
        let (least, most) = c4.block_bytes;
        assert!(least < c4.message.tried.bytes && c4.message.tried.bytes < most && most - least < 16 << 20, "{least} {most}");
    }

    #[test]
    fn a_full_device_is_capacity() {
        let full = old("4.88 GiB", "38.60 GiB", "0.02 GiB", "38.95 GiB");
        assert_eq!((full.verdict, full.available_suffices), (MessageVerdict::Capacity, Certainty::No));
        let short_bytes = full.needed.bytes - full.available.bytes;
        assert!(short_bytes.abs_diff(451 * GIB / 100) <= full.needed.within + full.available.within, "{short_bytes}");
    }

    /// Neither the cache nor the device has room for it, but both together do.
    #[test]
    fn memory_in_two_places_is_fragmentation() {
        let split = old("4.88 GiB", "28.60 GiB", "3.92 GiB", "30.60 GiB");
        assert_eq!((split.unallocated_suffices, split.available_suffices), (Certainty::No, Certainty::Yes));
        assert_eq!(split.verdict, MessageVerdict::Fragmentation);
    }

    #[test]
    fn a_comparison_may_depend_on_the_last_digit() {
        let edge = old("4.88 GiB", "28.60 GiB", "0.00 GiB", "33.48 GiB");
        assert_eq!((edge.unallocated_suffices, edge.verdict), (Certainty::LastDigit, MessageVerdict::Undecided));
        assert_eq!(old("4.88 GiB", "28.60 GiB", "0.00 GiB", "33.52 GiB").verdict, MessageVerdict::Fragmentation);
        assert_eq!(old("4.88 GiB", "28.60 GiB", "0.00 GiB", "33.43 GiB").verdict, MessageVerdict::Capacity);
    }

    /// A segment of 20 MiB is tried for any request from 1 to 10 MiB.
    #[test]
    fn a_request_smaller_than_its_segment_is_undecided() {
        let middling = old("20.00 MiB", "28.60 GiB", "0 bytes", "28.61 GiB");
        assert_eq!((middling.block_bytes.0, middling.verdict), (MIB + 1, MessageVerdict::Undecided));
        assert_eq!(old("20.00 MiB", "28.60 GiB", "0 bytes", "28.60 GiB").block_bytes.0, MIB + 1);
        assert_eq!(old("2.00 MiB", "28.60 GiB", "0 bytes", "28.70 GiB").block_bytes.0, 1);
    }

    fn with_private(tried: &str, free: &str, allocated: &str, private: &str, unallocated: &str) -> MessageDiagnosis {
        diagnosed(&format!(
            "CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of 24.00 GiB of which {free} is free. \
             Including non-PyTorch memory, this process has 24.00 GiB memory in use. Of the allocated memory {allocated} is \
             allocated by PyTorch, with {private} allocated in private pools (e.g., CUDA Graphs), and {unallocated} is reserved by \
             PyTorch but unallocated."
        ))
    }

    /// The message counts the free bytes of private pools as allocated (spec 2.13).
    #[test]
    fn free_bytes_of_private_pools_are_not_live() {
        let pools = with_private("2.00 GiB", "0 bytes", "20.00 GiB", "15.00 GiB", "500.00 MiB");
        assert_eq!((pools.live.bytes, pools.needed.bytes), (5 * GIB, 7 * GIB));
        assert_eq!((pools.empty.bytes, pools.available.bytes), (15 * GIB + 500 * MIB, 20 * GIB + 500 * MIB));
        assert_eq!((pools.verdict, pools.unallocated_suffices), (MessageVerdict::PrivatePools, Certainty::No));
        // Without the pools' memory it would fit as well.
        let pieces = with_private("2.00 GiB", "0 bytes", "20.00 GiB", "15.00 GiB", "2.50 GiB");
        assert_eq!(pieces.verdict, MessageVerdict::Fragmentation);
        // With it, it would not fit either.
        let full = with_private("2.00 GiB", "0 bytes", "23.00 GiB", "1.00 GiB", "500.00 MiB");
        assert_eq!((full.verdict, full.live.bytes), (MessageVerdict::Capacity, 22 * GIB));
        let edge = with_private("2.00 GiB", "0 bytes", "22.00 GiB", "1.50 GiB", "512.00 MiB");
        assert_eq!((edge.verdict, edge.available_suffices), (MessageVerdict::Undecided, Certainty::LastDigit));
    }

    /// For example a limit that old messages do not print, or a container's.
    #[test]
    fn if_the_device_had_room_something_else_refused() {
        let room = old("20.00 MiB", "19.90 GiB", "15.92 GiB", "20.00 GiB");
        assert_eq!((room.verdict, room.device_had_room), (MessageVerdict::DeviceHadRoom, Certainty::Yes));
        assert_eq!(old("20.00 MiB", "19.90 GiB", "15.00 MiB", "20.00 GiB").verdict, MessageVerdict::Fragmentation);
        let limited = |limit: &str| {
            diagnosed(&format!(
                "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 130.00 GiB is \
                 free. {limit} GiB allowed; Of the allocated memory 5.50 GiB is allocated by PyTorch, and 256.00 MiB is reserved by \
                 PyTorch but unallocated."
            ))
        };
        assert_eq!(limited("6.80").verdict, MessageVerdict::DeviceHadRoom);
        assert_eq!((limited("6.70").verdict, limited("6.70").device_had_room), (MessageVerdict::Fragmentation, Certainty::No));
        assert_eq!(limited("6.75").device_had_room, Certainty::LastDigit);
    }

    #[test]
    fn a_limit_counts_if_it_is_smaller_than_the_device() {
        let text = "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 130.00 GiB \
            is free. 6.00 GiB allowed; Of the allocated memory 5.50 GiB is allocated by PyTorch, and 256.00 MiB is reserved by \
            PyTorch but unallocated.";
        let limited = diagnosed(text);
        assert_eq!((limited.available.bytes, limited.verdict), (6 * GIB, MessageVerdict::Capacity));
    }

    fn verdict(text: &str) -> Option<MessageVerdict> {
        let log = MessageLog::read(text);
        match log.messages.first()?.message.clone() {
            ReadMessage::Complete(message) => Some(diagnose_message(message).verdict),
            ReadMessage::Partial(message) => Some(diagnose_partial(message).verdict),
        }
    }

    #[test]
    fn a_verdict_is_reached_as_soon_as_nothing_can_change_it() {
        let new =
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. ";
        assert_eq!(verdict(new), Some(MessageVerdict::Undecided));
        assert_eq!(verdict(&new.replace("2.00 GiB", "25.00 GiB")), Some(MessageVerdict::Capacity), "no device has that");
        let old =
            "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 24.00 GiB total capacity; 20.00 GiB already allocated; ";
        assert_eq!(verdict(old), Some(MessageVerdict::Undecided));
        assert_eq!(verdict(&old.replace("20.00", "22.50")), Some(MessageVerdict::Capacity));
        // The message may name a limit in the part that is missing.
        let room = diagnose_partial(match &MessageLog::read(&new.replace("1.00 GiB", "9.00 GiB")).messages[0].message {
            ReadMessage::Partial(message) => message.clone(),
            ReadMessage::Complete(_) => panic!("it is cut"),
        });
        assert_eq!((room.verdict, room.device_had_room), (MessageVerdict::Undecided, true));
    }

    /// Sizes in hundredths of a GiB: tried, total, allocated, private, unallocated, free and limit.
    fn figures() -> impl Strategy<Value = ([u64; 6], Option<u64>)> {
        let most = || 1..3000_u64;
        ((most(), most(), most(), most(), most(), most()), proptest::option::of(most())).prop_map(
            |((tried, allocated, private, unallocated, free, others), limit)| {
                let private = private.min(allocated) * (tried % 2);
                let limit = limit.map(|more| allocated + unallocated + more);
                ([tried, allocated + unallocated + free + others, allocated, private, unallocated, free], limit)
            },
        )
    }

    fn texts([tried, total, allocated, private, unallocated, free]: [u64; 6], limit: Option<u64>) -> [String; 2] {
        let gib = |hundredths: u64| format!("{}.{:02} GiB", hundredths / 100, hundredths % 100);
        let allowed = limit.map_or(String::new(), |limit| format!("{} allowed; ", gib(limit)));
        let pools = if private == 0 {
            String::new()
        } else {
            format!("with {} allocated in private pools (e.g., CUDA Graphs), ", gib(private))
        };
        let (reserved, [tried, total, allocated, unallocated, free]) =
            (gib(allocated + unallocated), [tried, total, allocated, unallocated, free].map(gib));
        [
            format!(
                "CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {total} of which {free} is free. Process 7 \
                 has 1.00 GiB memory in use. {allowed}Of the allocated memory {allocated} is allocated by PyTorch, {pools}and \
                 {unallocated} is reserved by PyTorch but unallocated."
            ),
            format!(
                "CUDA out of memory. Tried to allocate {tried} (GPU 0; {total} total capacity; {allocated} already allocated; {free} free; \
                 {allowed}{reserved} reserved in total by PyTorch)"
            ),
        ]
    }

    #[test]
    fn more_than_the_device_has_is_more_whatever_the_rounded_rest_says() {
        // Live bytes are 2.73 GiB less 2.73 GiB, each rounded: what is free and reserved decides only up to the last digit.
        let [whole, _] = texts([1273, 1271, 273, 273, 880, 117], None);
        let part = &whole[..whole.find(" of which").expect("the free bytes")];
        assert_eq!([verdict(&whole), verdict(part)], [Some(MessageVerdict::Capacity); 2]);
    }

    proptest! {
        /// Wherever a message is cut, what is left leads to the whole message's verdict or to none.
        #[test]
        fn a_cut_message_never_contradicts_the_whole((sizes, limit) in figures(), places in proptest::collection::vec(0..400_usize, 8)) {
            for text in texts(sizes, limit) {
                let whole = verdict(&text).expect("a message");
                for cut in places.iter().map(|place| place % text.len()) {
                    for part in [&text[..cut], &text[cut..]] {
                        let found = verdict(part);
                        let is_right = found.is_none_or(|found| found == whole || found == MessageVerdict::Undecided);
                        prop_assert!(is_right, "{:?} is not {:?}: {:?}", found, whole, part);
                    }
                }
            }
        }
    }
}
