//! A device that checks can drive directly, outside the allocator.

use std::time::Duration;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::insight::Insight;

/// A device for tests: it has streams, runs work, and shows what its memory holds.
///
/// It must also implement `synchronize_stream` and `stream_wait` of [`DeviceBackend`], which refuse by default. Errors are the
/// driver's, as the core sees them. The methods refuse memory that is not the caller's, without touching anything.
pub trait TestDevice: DeviceBackend {
    /// The default stream and three others, which live as long as the device.
    fn streams(&self) -> [StreamId; 4];

    /// Queues work on a stream that takes this long and touches no memory.
    ///
    /// # Errors
    /// The driver's error.
    fn spin(&mut self, stream: StreamId, duration_ns: u64) -> Result<(), BackendError>;

    /// Queues work on a stream that fills `size` bytes with `word`, in whole words of 4 bytes.
    ///
    /// # Errors
    /// If any of the memory is not accessible to the device.
    fn fill(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), BackendError>;

    /// Queues a copy within the device on a stream.
    ///
    /// # Errors
    /// If any of the memory is not accessible to the device.
    fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), BackendError>;

    /// Reads memory to the host after the default stream's work; it does not wait for other streams.
    ///
    /// # Errors
    /// If any of the memory is not accessible to the device.
    fn read(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), BackendError>;

    /// Waits until all work is done (cudaDeviceSynchronize). Failed work shows up in the next call.
    fn settle(&mut self) {
        for stream in self.streams() {
            // Failed work shows up in the next call of any kind.
            let _ = self.synchronize_stream(stream);
        }
    }

    /// Lets time pass without any call from the host.
    fn pause(&mut self, duration_ns: u64) {
        std::thread::sleep(Duration::from_nanos(duration_ns));
    }

    /// The live ranges of `malloc`, lowest address first; sizes may be rounded up to the device's pages.
    fn live_ranges(&self) -> Vec<(DeviceAddress, Bytes)>;

    /// What was taken from the device through this handle and not given back.
    fn holdings(&self) -> Holdings;

    /// Lets others hold this many bytes from now on, in addition to what [`Needs::capacity`](super::Needs::capacity) withholds.
    ///
    /// # Errors
    /// If the device does not have that many.
    fn others_hold(&mut self, bytes: Bytes) -> Result<(), BackendError>;

    /// Bytes that the driver reports as free but does not give out (facts: Holes).
    fn withheld_bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    /// What only a simulated device can tell or do; `None` on other devices.
    fn insight(&mut self) -> Option<&mut dyn Insight> {
        None
    }
}

/// What was taken from a device and not given back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Holdings {
    /// Ranges of cudaMalloc.
    pub ranges: usize,
    /// Reserved ranges of addresses.
    pub reservations: usize,
    /// Unreleased handles of cuMemCreate, and mappings.
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
