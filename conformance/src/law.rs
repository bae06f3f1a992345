//! The list of laws, and the error for a broken law.

use std::fmt;

/// A property of every allocator on every device, whatever the program does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Law {
    /// No two live allocations share a byte.
    NoOverlap,
    /// Addresses are multiples of 512.
    Alignment,
    /// Every reserved byte is live, rounding, pending or free, and the statistics agree.
    Accounting,
    /// In each statistic, allocated minus freed equals current, the peak is at least current, and the pools add up to
    /// the total.
    Counters,
    /// No two adjacent free blocks remain that should have coalesced.
    Coalescing,
    /// No memory is reused before the events of the streams that used it have completed.
    NoEarlyReuse,
    /// Each request gets the block that the policy's rules choose, split to the size that they
    /// specify.
    Placement,
    /// Under a policy of the catalogue, every choice equals that of the reference policy.
    Choices,
    /// A request is refused only if no free block fits, nothing can be released, and the limit or the device leaves no room.
    NoFalseOutOfMemory,
    /// The allocator releases memory, waits and asks the device for memory only in the order that the rules specify.
    Ladder,
    /// Requests are served by the private pool they are routed to, and only pools that are not in use release memory.
    Pools,
    /// Reserved memory never exceeds the limit or the memory that the device has handed out.
    Limit,
    /// A check of the entire heap finds no violation.
    Sweep,
    /// The observer's trace is consistent, entry by entry.
    History,
    /// Memory keeps what was written to it until it is freed; remapping loses nothing.
    Contents,
    /// When the heap is emptied, every page, reservation and event is returned to the device.
    Endings,
    /// The same sequence leads to the same decisions.
    Determinism,
    /// Settings that should act monotonically do so.
    MonotoneKnobs,
    /// After any failed driver call, every law still holds and nothing leaks.
    Faults,
    /// A program that uses one stream, or records every stream use, never races.
    NoRace,
    /// An invalid answer from a policy causes an error that names the policy, and changes nothing.
    Answers,
    /// A settings string has the effect that the specification states, or fails with the specified
    /// error.
    Settings,
    /// Every decision, device call, statistic, trace entry and error equals that of the reference allocator.
    Reference,
    /// Every answer of the simulated device equals that of its second implementation.
    Device,
}

impl Law {
    /// Every law.
    pub const ALL: [Law; 24] = [
        Law::NoOverlap,
        Law::Alignment,
        Law::Accounting,
        Law::Counters,
        Law::Coalescing,
        Law::NoEarlyReuse,
        Law::Placement,
        Law::Choices,
        Law::NoFalseOutOfMemory,
        Law::Ladder,
        Law::Pools,
        Law::Limit,
        Law::Sweep,
        Law::History,
        Law::Contents,
        Law::Endings,
        Law::Determinism,
        Law::MonotoneKnobs,
        Law::Faults,
        Law::NoRace,
        Law::Answers,
        Law::Settings,
        Law::Reference,
        Law::Device,
    ];

    /// Returns its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Law::NoOverlap => "no-overlap",
            Law::Alignment => "alignment",
            Law::Accounting => "accounting",
            Law::Counters => "counters",
            Law::Coalescing => "coalescing",
            Law::NoEarlyReuse => "no-early-reuse",
            Law::Placement => "placement",
            Law::Choices => "choices",
            Law::NoFalseOutOfMemory => "no-false-out-of-memory",
            Law::Ladder => "ladder",
            Law::Pools => "pools",
            Law::Limit => "limit",
            Law::Sweep => "sweep",
            Law::History => "history",
            Law::Contents => "contents",
            Law::Endings => "endings",
            Law::Determinism => "determinism",
            Law::MonotoneKnobs => "monotone-knobs",
            Law::Faults => "faults",
            Law::NoRace => "no-race",
            Law::Answers => "answers",
            Law::Settings => "settings",
            Law::Reference => "reference",
            Law::Device => "device",
        }
    }
}

/// A broken law, and the observation that broke it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The law.
    pub law: Law,
    /// The observation.
    pub seen: String,
}

impl Broken {
    /// Reports that `law` was broken, with the observation.
    #[must_use]
    pub fn new(law: Law, seen: impl fmt::Display) -> Broken {
        Broken { law, seen: seen.to_string() }
    }

    /// Returns the same error with a prefix that states when it happened.
    #[must_use]
    pub fn during(self, what: impl fmt::Display) -> Broken {
        Broken { law: self.law, seen: format!("{what}: {}", self.seen) }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law.name(), self.seen)
    }
}

impl std::error::Error for Broken {}

/// Returns `Ok` if the law holds, or an error with the text of `says` if it does not.
///
/// # Errors
/// If the law does not hold.
pub fn ensure(law: Law, holds: bool, says: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { law, seen: says() }) }
}
