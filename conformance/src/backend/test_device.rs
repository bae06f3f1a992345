//! A device that checks drive from outside the allocator.

use std::time::Duration;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::insight::Insight;

/// A device that tests drive: it has streams, runs work, and shows its memory's contents.
///
/// Of [`DeviceBackend`] it implements `synchronize_stream` and `stream_wait` too, whose default is to refuse. Errors are the driver's, as the
/// core sees them. Where memory is not the caller's, the methods refuse without touching anything.
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
    fn settle(&mut self) {
        for stream in self.streams() {
            // Work that failed shows in the next call, whichever it is.
            let _ = self.synchronize_stream(stream);
        }
    }

    /// Lets time pass in which the host makes no call.
    fn pause(&mut self, duration_ns: u64) {
        std::thread::sleep(Duration::from_nanos(duration_ns));
    }

    /// The ranges that malloc gave and nobody gave back, lowest address first; the bytes may be rounded up to the device's pages.
    fn live_ranges(&self) -> Vec<(DeviceAddress, Bytes)>;

    /// What is taken from the device through this handle and not given back.
    fn holdings(&self) -> Holdings;

    /// Lets others hold so many bytes from now on, beside what [`Needs::capacity`](super::Needs::capacity) keeps from this device.
    ///
    /// # Errors
    /// If the device does not have them.
    fn others_hold(&mut self, bytes: Bytes) -> Result<(), BackendError>;

    /// Free bytes that the driver reports and does not give (facts: Holes).
    fn withheld_bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    /// What only a simulated device can tell or do; `None` on every other.
    fn insight(&mut self) -> Option<&mut dyn Insight> {
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
