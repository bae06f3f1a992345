//! What the suite needs of a backend: a device that a test can drive from outside, and somebody who makes such devices.
//!
//! Laws, contract rows and scenarios are written once, against [`Backend`] and [`TestDevice`], and run on everything that implements
//! them: [`Simulated`] and [`Cuda`]. What only the simulated device can do, such as completing one event of many, goes through
//! [`TestDevice::simulated`], so that a test says where the two differ.

mod cuda;
mod sim;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::{EventTiming, SimDevice};

pub use cuda::{Cuda, Rig};
pub use sim::Simulated;

use crate::operation::Places;
use crate::suite::Entry;

/// A backend by name, which makes devices.
pub trait Backend {
    /// What it makes. A device is empty when it is made, and gives everything back when it is dropped.
    type Device: TestDevice;

    /// Its name, as the command line has it: `sim` or `cuda`.
    fn name(&self) -> &'static str;

    /// Makes a device.
    ///
    /// # Errors
    /// Why there is none such.
    fn open(&self, needs: &Needs) -> Result<Self::Device, Unable>;

    /// What is worth saying about it in a report: a name and a value each.
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// What is to be checked on this backend alone.
    fn own_entries(&self) -> Vec<Entry<Self>>
    where
        Self: Sized,
    {
        Vec::new()
    }

    /// Whether devices are arithmetic: then they may be made by the thousand, at the same time.
    fn is_simulated(&self) -> bool;
}

/// Why a test has no device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unable {
    /// There is none such here, in words: the test is skipped.
    Absent(String),
    /// It was there, and cannot be used any more, or others hold its memory: the test fails.
    Lost(String),
}

impl std::fmt::Display for Unable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unable::Absent(reason) | Unable::Lost(reason) => f.write_str(reason),
        }
    }
}

/// What a test needs of its device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Needs {
    /// How much memory may be had, in whole pages; on a real device a ballast takes the rest. `None`: an H200's, or what is there.
    pub capacity: Option<Bytes>,
    /// Who decides when events are seen complete; a real device decides itself.
    pub timing: EventTiming,
    /// Where segments go; a real device decides itself.
    pub places: Places,
    /// Whether giving a segment back waits for the device; a real one always does.
    pub free_waits: bool,
}

impl Default for Needs {
    fn default() -> Needs {
        Needs { capacity: None, timing: EventTiming::Clock, places: Places::Ascending, free_waits: true }
    }
}

/// A device that tests drive: it has streams, runs work, and shows its memory's contents.
///
/// Errors are the driver's, as the core sees them.
pub trait TestDevice: DeviceBackend {
    /// The default stream and three others, which live as long as the device.
    fn streams(&self) -> [StreamId; 4];

    /// Puts work on a stream that takes this long and touches nothing.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn spin(&mut self, stream: StreamId, duration_ns: u64) -> Result<(), BackendError>;

    /// Puts the writing of `word` over `size` bytes, in whole words of 4, on a stream.
    ///
    /// # Errors
    /// If the device may not touch all of it.
    fn fill(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), BackendError>;

    /// Puts a copy inside the device on a stream.
    ///
    /// # Errors
    /// If the device may not touch all of it.
    fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), BackendError>;

    /// Reads memory to the host, after the default stream's work; other streams are not waited for.
    ///
    /// # Errors
    /// If the device may not touch all of it.
    fn read(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), BackendError>;

    /// Waits until all work is done (cudaDeviceSynchronize). Work that failed shows in the next call.
    fn settle(&mut self);

    /// Lets time pass in which the host makes no call.
    fn pause(&mut self, duration_ns: u64);

    /// The ranges that malloc gave and nobody gave back, lowest address first; the bytes may be rounded up to the device's pages.
    fn live_ranges(&self) -> Vec<(DeviceAddress, Bytes)>;

    /// What is taken from the device through this handle and not given back.
    fn holdings(&self) -> Holdings;

    /// Lets others hold so many bytes from now on, beside what [`Needs::capacity`] keeps from this device.
    ///
    /// # Errors
    /// If the device does not have them.
    fn others_hold(&mut self, bytes: Bytes) -> Result<(), BackendError>;

    /// Free bytes that the driver reports and does not give (facts: Holes).
    fn withheld_bytes(&self) -> Bytes;

    /// The simulated device, where this is one.
    fn simulated(&mut self) -> Option<&mut SimDevice> {
        None
    }
}

/// What is taken from a device and not given back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Holdings {
    /// Ranges of cudaMalloc.
    pub ranges: usize,
    /// Reserved ranges of addresses.
    pub reservations: usize,
    /// Handles of cuMemCreate that were not released, and mappings.
    pub physical: usize,
    /// Events.
    pub events: usize,
}

impl Holdings {
    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Holdings::default()
    }
}
