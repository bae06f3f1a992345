//! What the suite needs of a backend: somebody who opens devices, and devices that a test can drive from outside.
//!
//! Every check is written once, against [`Backend`] and [`TestDevice`], and runs on whatever implements them. [`Simulated`] does, and with
//! the feature `cuda` so does [`Cuda`]. What only a device made of arithmetic can tell or do goes through [`Insight`], so that a check
//! says where the two differ.

#[cfg(feature = "cuda")]
mod cuda;
mod insight;
mod simulated;
mod test_device;
mod witness;

use std::fmt;

use parkade::units::Bytes;

#[cfg(feature = "cuda")]
pub use cuda::{Cuda, Rig};
pub use insight::{Insight, Race, RaceSide, Touch};
pub use simulated::Simulated;
pub use test_device::{Holdings, TestDevice};
pub use witness::{Core, MadeCall, Witness, WitnessedDevice, WitnessedEvent};

/// Stream handles of simulated devices: not consecutive, not in order, and one at the end of the number range.
pub const STREAMS: [u64; 4] = [0, 0x3000, 0x1000, 0xffff_ffff_ffff_f000];

/// Opens devices of one kind.
pub trait Backend {
    /// What it opens. A device is empty when it is opened, and gives everything back when it is dropped.
    type Device: TestDevice;

    /// Its name, as the command line has it: `sim`, `cuda`.
    fn name(&self) -> &'static str;

    /// Opens a device.
    ///
    /// # Errors
    /// Why there is none.
    fn open(&self, needs: &Needs) -> Result<Self::Device, Unable>;

    /// What a report should say about the device: pairs of a name and a value.
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// Whether devices are arithmetic: they may then be opened by the thousand and at the same time, every [`EventTiming`] is
    /// tried, and what they show is what other devices are compared with.
    fn is_simulated(&self) -> bool {
        false
    }
}

/// Why a check has no device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unable {
    /// There is none here, in words: the check is skipped.
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

/// What a check needs of its device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Needs {
    /// How much memory may be had, in whole pages; on a real device a ballast takes the rest. `None`: an H200's, or all there is.
    pub capacity: Option<Bytes>,
    /// When events are seen complete; a real device decides for itself.
    pub timing: EventTiming,
    /// Where segments go; a real device decides for itself.
    pub places: Places,
    /// Whether giving a segment back waits for the device; a real one always does.
    pub free_waits: bool,
}

impl Default for Needs {
    fn default() -> Needs {
        Needs { capacity: None, timing: EventTiming::Clock, places: Places::Ascending, free_waits: true }
    }
}

/// When a device that is arithmetic says that an event is complete.
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
