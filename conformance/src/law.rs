//! The laws, as one list, and what it means that one was broken.

use std::fmt;

/// Something that holds for every allocator on every device, whatever a program does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Law {
    /// No two live allocations share a byte.
    NoOverlap,
    /// Addresses are multiples of 512.
    Alignment,
    /// Every reserved byte is live, rounding, pending or free, and the statistics say the same.
    Accounting,
    /// What came minus what went is what is there; peaks are never below it; pools add up.
    Counters,
    /// No two free neighbours are left that could be one block.
    Coalescing,
    /// Nothing is reused before the events of the streams that used it are done.
    NoEarlyReuse,
    /// Each request goes where the policy's own rules put it, and is cut to the size that they say.
    Placement,
    /// When it says no, no legal place existed, nothing was left to give back, and neither limit nor device had room.
    NoFalseOutOfMemory,
    /// Nothing is given back, waited for or asked of the device before its turn.
    Ladder,
    /// Requests go to the private pool that they are routed to, and only pools that nobody uses give memory back.
    Pools,
    /// Reserved memory never exceeds the limit, nor what the device has given.
    Limit,
    /// The whole-heap sweep finds nothing.
    Sweep,
    /// What the observer is told makes sense by itself, entry by entry.
    History,
    /// Memory holds what was written to it until it is freed; remapping loses no bit.
    Contents,
    /// A released heap returns every page, reservation and event.
    Endings,
    /// The same sequence makes the same decisions.
    Determinism,
    /// Knobs that should be monotone are.
    MonotoneKnobs,
    /// After any driver call has failed everything holds, and nothing is lost.
    Faults,
    /// A program of one stream, or one that tells of its streams, never races.
    NoRace,
    /// A policy's wrong answer is an error that names the policy, and changes nothing.
    Answers,
}

impl Law {
    /// Every law.
    pub const ALL: [Law; 20] = [
        Law::NoOverlap,
        Law::Alignment,
        Law::Accounting,
        Law::Counters,
        Law::Coalescing,
        Law::NoEarlyReuse,
        Law::Placement,
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
    ];

    /// Its name in tables.
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
        }
    }
}

/// A law that was broken: which, and what was seen instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The law.
    pub law: Law,
    /// What was seen.
    pub seen: String,
}

impl Broken {
    /// The law was broken in this way.
    #[must_use]
    pub fn new(law: Law, seen: impl fmt::Display) -> Broken {
        Broken { law, seen: seen.to_string() }
    }

    /// The same, with words before it.
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

/// `Ok` if the law holds, else what `says` says.
///
/// # Errors
/// If it does not hold.
pub fn ensure(law: Law, holds: bool, says: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { law, seen: says() }) }
}
