//! A device for tests of the core alone: cudaMalloc and virtual memory at ascending addresses, events that
//! complete when told.

use std::collections::BTreeMap;

use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::units::{Bytes, DeviceAddress, StreamId};

/// It only refuses what does not fit into its memory.
#[derive(Clone, Debug)]
pub(crate) struct PlainDevice {
    total: u64,
    /// The memory that it really has and does not report.
    pub(crate) capacity: u64,
    used: u64,
    next: u64,
    segments: BTreeMap<u64, u64>,
    /// Whether all events are complete.
    pub(crate) is_idle: bool,
    /// Whether the next event cannot be recorded.
    pub(crate) refuses_events: bool,
    /// The address that the next range gets, whatever is there.
    pub(crate) next_answer: Option<u64>,
}

impl PlainDevice {
    /// A device of `total` bytes whose addresses begin at `first`.
    pub(crate) fn new(total: Bytes, first: u64) -> PlainDevice {
        PlainDevice {
            total: total.get(),
            capacity: total.get(),
            used: 0,
            next: first,
            segments: BTreeMap::new(),
            is_idle: false,
            refuses_events: false,
            next_answer: None,
        }
    }

    /// Counts this range as handed out, so that it can be released.
    #[allow(dead_code, reason = "not every test adopts what was there before")]
    pub(crate) fn hold(&mut self, address: DeviceAddress, size: Bytes) {
        self.used += size.get();
        self.segments.insert(address.get(), size.get());
    }

    fn take(&mut self, size: Bytes) -> Result<(), BackendError> {
        if size.get() > self.capacity - self.used {
            return Err(BackendError::OutOfMemory { requested: size });
        }
        self.used += size.get();
        Ok(())
    }

    fn place(&mut self, size: Bytes) -> DeviceAddress {
        if let Some(answer) = self.next_answer.take() {
            return DeviceAddress(answer);
        }
        let address = self.next;
        self.next += size.get().next_multiple_of(2 << 20);
        DeviceAddress(address)
    }
}

impl DeviceBackend for PlainDevice {
    type Event = ();
    type Physical = Bytes;

    fn index(&self) -> u32 {
        0
    }

    fn total_memory(&self) -> Bytes {
        Bytes(self.total)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        Ok(MemoryInfo { free: Bytes(self.capacity - self.used), total: Bytes(self.total) })
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.take(size)?;
        let address = self.place(size);
        self.segments.insert(address.get(), size.get());
        Ok(address)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        self.used -= self.segments.remove(&address.get()).expect("a segment that the device handed out");
        Ok(())
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        Ok(self.place(size))
    }

    fn unreserve(&mut self, _: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn create(&mut self, size: Bytes) -> Result<Bytes, BackendError> {
        self.take(size).map(|()| size)
    }

    fn map(&mut self, _: DeviceAddress, _: Bytes, _: &Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn set_access(&mut self, _: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn unmap(&mut self, _: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn release(&mut self, memory: Bytes) -> Result<(), (Bytes, BackendError)> {
        self.used -= memory.get();
        Ok(())
    }

    fn synchronize_stream(&mut self, _: StreamId) -> Result<(), BackendError> {
        Ok(())
    }

    fn create_event(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    fn record_event(&mut self, (): &mut (), _: StreamId) -> Result<(), BackendError> {
        if std::mem::take(&mut self.refuses_events) {
            return Err(BackendError::Driver { call: "cudaEventRecord", code: 999 });
        }
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
