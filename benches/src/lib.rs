#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::units::{Bytes, DeviceAddress, StreamId};

/// A device with 2^50 bytes whose calls do nothing, so that only the allocator's own time is measured. It never reuses
/// an address.
#[derive(Clone, Debug, Default)]
pub struct NullDevice {
    next: u64,
}

impl DeviceBackend for NullDevice {
    type Event = ();
    type Physical = ();

    fn index(&self) -> u32 {
        0
    }

    fn total_memory(&self) -> Bytes {
        Bytes(1 << 50)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        Ok(MemoryInfo { free: self.total_memory(), total: self.total_memory() })
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let address = self.next + (1 << 32);
        self.next += size.get();
        Ok(DeviceAddress(address))
    }

    fn free(&mut self, _: DeviceAddress) -> Result<(), BackendError> {
        Ok(())
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.malloc(size)
    }

    fn unreserve(&mut self, _: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn create(&mut self, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn map(&mut self, _: DeviceAddress, _: Bytes, (): &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn set_access(&mut self, _: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn unmap(&mut self, _: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn release(&mut self, (): ()) -> Result<(), ((), BackendError)> {
        Ok(())
    }

    fn synchronize_stream(&mut self, _: StreamId) -> Result<(), BackendError> {
        Ok(())
    }

    fn stream_wait(&mut self, _: StreamId, (): &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn create_event(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    fn record_event(&mut self, (): &mut (), _: StreamId) -> Result<(), BackendError> {
        Ok(())
    }

    fn is_complete(&mut self, (): &()) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn wait(&mut self, (): &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn destroy_event(&mut self, (): ()) {}
}

/// Random numbers: the splitmix64 generator.
#[derive(Clone, Debug)]
pub struct Random(
    /// The state; at first, the seed.
    pub u64,
);

impl Random {
    /// The next 64 random bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random size from 512 B to 8 MiB, uniform in its logarithm.
    pub fn size(&mut self) -> u64 {
        let unit = (self.number() >> 11) as f64 / (1_u64 << 53) as f64;
        (9.0 + 14.0 * unit).exp2() as u64
    }
}
