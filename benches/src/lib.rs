//! What the benches share: a device that costs nothing.
#![forbid(unsafe_code)]

use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::units::{Bytes, DeviceAddress, StreamId};

/// A device without end, whose calls do nothing: what is left is the allocator's own time.
#[derive(Clone, Debug, Default)]
pub struct FreeDevice {
    next: u64,
}

impl DeviceBackend for FreeDevice {
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
