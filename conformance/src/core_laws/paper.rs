//! A device made of numbers: any size at ascending addresses, and events that are complete when it says so.

use parkade::Allocator;
use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::policy::{Policy, PyTorch};
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, StreamId};

/// Ranges begin at multiples of this.
const STEP: u64 = 2 << 20;

/// An allocator on it. The laws share this type and [`AnyPaperCore`]: each other one would be compiled once more.
pub(crate) type PaperCore = Allocator<Paper, PyTorch, Vec<TraceEntry>>;

/// An allocator on it with another policy than PyTorch's.
pub(crate) type AnyPaperCore = Allocator<Paper, Box<dyn Policy>, Vec<TraceEntry>>;

/// It has no memory, so a copy of it is a second device.
#[derive(Clone, Debug)]
pub(crate) struct Paper {
    total: u64,
    next: u64,
    /// Whether all events are complete.
    pub(crate) is_idle: bool,
}

impl Paper {
    /// A device that says that it has this many bytes.
    pub(crate) fn new(total: u64) -> Paper {
        Paper { total, next: STEP, is_idle: true }
    }
}

impl DeviceBackend for Paper {
    type Event = ();
    type Physical = ();

    fn index(&self) -> u32 {
        0
    }

    fn total_memory(&self) -> Bytes {
        Bytes(self.total)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        Ok(MemoryInfo { free: Bytes(self.total), total: Bytes(self.total) })
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let end = self.next.checked_add(size.get()).and_then(|end| end.checked_next_multiple_of(STEP));
        let end = end.ok_or(BackendError::OutOfMemory { requested: size })?;
        Ok(DeviceAddress(std::mem::replace(&mut self.next, end)))
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
        Ok(self.is_idle)
    }

    fn wait(&mut self, (): &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn destroy_event(&mut self, (): ()) {}
}
