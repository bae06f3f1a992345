//! What a check needs from the device it opens, and why there may be no such device.

use std::fmt;

use parkade::units::Bytes;
use serde::{Deserialize, Serialize};

/// What a check needs from its device.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Needs {
    /// How much memory it may have, rounded down to whole pages; the backend withholds the rest, or keeps count. `None`: all of
    /// it.
    pub capacity: Option<Bytes>,
    /// What a simulated device does where a real one decides for itself. Backends of real devices ignore it.
    pub simulation: Simulation,
}

/// What a simulated device does where a real one decides for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Simulation {
    /// When events are reported complete.
    pub timing: EventTiming,
    /// Where segments go.
    pub places: Places,
    /// Whether freeing a segment waits for the device.
    pub free_waits: bool,
}

impl Default for Simulation {
    /// Like a real device: by the clock, each segment above the previous one, and frees that wait.
    fn default() -> Simulation {
        Simulation { timing: EventTiming::Clock, places: Places::Ascending, free_waits: true }
    }
}

/// When a simulated device reports an event complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EventTiming {
    /// When its work is done, by the device's clock.
    Clock,
    /// At the first query.
    Eager,
    /// Only when it is waited for.
    Lazy,
    /// At random, drawn from this seed.
    Seeded(u64),
}

/// Where new segments go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Places {
    /// Each above the previous one.
    Ascending,
    /// Each below the previous one.
    Descending,
    /// Into the lowest hole.
    Reuse,
}

/// Why a check has no device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unable {
    /// There is no device here, or none that large: the check is skipped for this reason.
    Absent(String),
    /// The device is no longer usable, or others hold its memory: the check fails.
    Lost(String),
}

impl fmt::Display for Unable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unable::Absent(reason) | Unable::Lost(reason) => f.write_str(reason),
        }
    }
}
