//! The five questions of the documents' out-of-memory workflow, answered from figures.
//!
//! It is a capacity problem if the live bytes and the request together exceed the memory. Otherwise the request failed because of
//! where the free bytes are.

use super::breakdown::{Breakdown, Cause};
use super::limit::Limit;

/// Why the request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The live bytes and the request exceed the memory: no arrangement helps.
    Capacity,
    /// They would have fitted, but the free bytes were in the wrong places.
    Fragmentation,
    /// They would have fitted, but most free bytes belonged to other streams or waited for events.
    Streams,
    /// They would have fitted, but most free bytes were in private pools.
    PrivatePools,
    /// It depends on the limit, which is not known precisely enough.
    Undecided,
    /// No request failed.
    NoFailure,
}

impl Verdict {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Capacity => "capacity",
            Verdict::Fragmentation => "fragmentation",
            Verdict::Streams => "streams",
            Verdict::PrivatePools => "private_pools",
            Verdict::Undecided => "undecided",
            Verdict::NoFailure => "no_failure",
        }
    }
}

/// Whether a step of the workflow applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applies {
    /// It does.
    Yes,
    /// It does not.
    No,
    /// The figures do not tell.
    Unknown,
}

impl Applies {
    /// Its name, in text and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Applies::Yes => "yes",
            Applies::No => "no",
            Applies::Unknown => "unknown",
        }
    }
}

impl From<bool> for Applies {
    fn from(applies: bool) -> Applies {
        if applies { Applies::Yes } else { Applies::No }
    }
}

/// The workflow's answers. Its fifth step, to look at the snapshot, is the rest of a diagnosis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steps {
    /// 1: is it a real capacity problem?
    pub capacity: Applies,
    /// 2: is it fragmentation?
    pub fragmentation: Applies,
    /// 3: may other settings help? Unknown if less is missing than rounding takes, because settings can change the rounding. If most
    /// free bytes are in private pools, which no setting releases: no, or unknown if the request would have fitted beside them.
    pub settings: Applies,
    /// 4: would `empty_cache` release anything?
    pub empty_cache: Applies,
    /// The live bytes and the request together.
    pub needed_bytes: u64,
    /// How many of these bytes are missing, if known and not 0.
    pub short_bytes: Option<u64>,
    /// The bytes that could still be reserved, if known.
    pub unreserved_bytes: Option<u64>,
}

/// Judges a request of `asked_bytes` that failed in this heap; `None` if none failed.
pub(super) fn judge(heap: &Breakdown, asked_bytes: Option<u64>, limit: Limit) -> (Verdict, Steps) {
    let empty_cache = Applies::from(heap.releasable_bytes() > 0);
    let allocated_bytes = heap.allocated_bytes();
    let Some(asked_bytes) = asked_bytes else {
        let steps = Steps {
            capacity: Applies::No,
            fragmentation: Applies::No,
            settings: Applies::No,
            empty_cache,
            needed_bytes: allocated_bytes,
            short_bytes: None,
            unreserved_bytes: None,
        };
        return (Verdict::NoFailure, steps);
    };
    let needed_bytes = allocated_bytes.saturating_add(asked_bytes);
    let most_bytes = match limit {
        Limit::Given { bytes } | Limit::DeviceFull { bytes } => Some(bytes),
        _ => None,
    };
    let fits = match limit {
        // Enough reserved bytes are free, whatever the limit is.
        _ if heap.stranded_bytes() >= asked_bytes => Some(true),
        Limit::Given { bytes } | Limit::DeviceFull { bytes } => Some(needed_bytes <= bytes),
        Limit::Between { at_least_bytes, .. } if needed_bytes <= at_least_bytes => Some(true),
        Limit::Between { below_bytes, .. } if needed_bytes >= below_bytes => Some(false),
        _ => None,
    };
    let verdict = match fits {
        None => Verdict::Undecided,
        Some(false) => Verdict::Capacity,
        Some(true) => match main_group(heap) {
            Some(Cause::PendingEvent | Cause::OtherStream) => Verdict::Streams,
            Some(Cause::PrivatePool) => Verdict::PrivatePools,
            _ => Verdict::Fragmentation,
        },
    };
    let short_bytes = most_bytes.map(|most| needed_bytes.saturating_sub(most)).filter(|&short| short > 0);
    let rounding_decides = short_bytes.is_some_and(|short| heap.rounding_bytes >= short);
    // Whether it would have fitted with the private pools keeping what they have.
    let private_bytes = heap.of(Cause::PrivatePool).bytes;
    let fits_beside = heap.stranded_bytes().saturating_sub(private_bytes) >= asked_bytes
        || most_bytes.is_some_and(|most| needed_bytes.saturating_add(private_bytes) <= most);
    let of_fit = |fitting: bool| fits.map_or(Applies::Unknown, |fits| Applies::from(fits == fitting));
    let steps = Steps {
        capacity: of_fit(false),
        fragmentation: of_fit(true),
        settings: match verdict {
            Verdict::PrivatePools if fits_beside => Applies::Unknown,
            Verdict::PrivatePools => Applies::No,
            _ if rounding_decides => Applies::Unknown,
            _ => of_fit(true),
        },
        empty_cache,
        needed_bytes,
        short_bytes,
        unreserved_bytes: most_bytes.map(|most| most.saturating_sub(heap.reserved_bytes)),
    };
    (verdict, steps)
}

/// A cause from the group that strands the most bytes. The groups are streams and events, private pools, and everything else.
fn main_group(heap: &Breakdown) -> Option<Cause> {
    let bytes = |causes: &[Cause]| causes.iter().map(|&cause| heap.of(cause).bytes).fold(0, u64::saturating_add);
    let streams = bytes(&[Cause::PendingEvent, Cause::OtherStream]);
    let private = bytes(&[Cause::PrivatePool]);
    let rest = heap.stranded_bytes().saturating_sub(streams).saturating_sub(private);
    let groups = [(rest, Cause::TooSmall), (private, Cause::PrivatePool), (streams, Cause::OtherStream)];
    groups.into_iter().filter(|&(bytes, _)| bytes > 0).max_by_key(|&(bytes, _)| bytes).map(|(_, cause)| cause)
}
