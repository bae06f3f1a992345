//! What a check needs of the device that it opens, and why there may be none.

use std::fmt;

use parkade::units::Bytes;

/// What a check needs of its device.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Needs {
    /// How much memory there may be for it, rounded down to whole pages; the backend keeps the rest from it, or counts. `None`: all there is.
    pub capacity: Option<Bytes>,
    /// What a simulated device does where a real one decides for itself. Backends of real devices ignore it.
    pub simulation: Simulation,
}

/// What a simulated device does where a real one decides for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Simulation {
    /// When events are seen complete.
    pub timing: EventTiming,
    /// Where segments go.
    pub places: Places,
    /// Whether giving a segment back waits for the device.
    pub free_waits: bool,
}

impl Default for Simulation {
    /// As a real device: by the clock, each segment above the one before, and frees that wait.
    fn default() -> Simulation {
        Simulation { timing: EventTiming::Clock, places: Places::Ascending, free_waits: true }
    }
}

/// When a simulated device says that an event is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventTiming {
    /// When its work is done by the device's clock.
    Clock,
    /// At the first query.
    Eager,
    /// Only when it is waited for.
    Lazy,
    /// Now or later, as drawn from this seed.
    Seeded(u64),
}

/// Where new segments go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Places {
    /// Each above the one before.
    Ascending,
    /// Each below the one before.
    Descending,
    /// Into the lowest hole.
    Reuse,
}

/// Why a check has no device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unable {
    /// There is none here, or none that large: the check is skipped, with these words.
    Absent(String),
    /// It was there and is no longer usable, or others hold its memory: the check fails.
    Lost(String),
}

impl fmt::Display for Unable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unable::Absent(reason) | Unable::Lost(reason) => f.write_str(reason),
        }
    }
}
