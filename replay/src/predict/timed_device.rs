//! A simulated device on which waiting blocks become free at entries of the recording.
//!
//! Memory and addresses are the simulated device's. When other streams finish with a block is not: that
//! depended on the recorded program and the GPU, so the replay states it through the stream that it records on
//! the block ([`crate::completions`]).

use parkade::device::{BackendError, DeviceBackend, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::{SimDevice, SimPhysical};

use crate::completions::moment_of;

/// The simulated device, and how far the replay is.
#[derive(Clone, Debug)]
pub(crate) struct TimedDevice {
    pub(crate) device: SimDevice,
    /// The entry of the present operation, or its time in nanoseconds.
    pub(crate) now: u64,
    /// Whether waiting for an event takes until it is complete: `now` is a time.
    pub(crate) waits: bool,
    /// Whether the run is over. Then nothing is given back any more: the device goes with the allocator.
    pub(crate) is_over: bool,
}

impl DeviceBackend for TimedDevice {
    /// The moment at which the event's block becomes free, in the unit of `now`; the largest number for never.
    type Event = u64;
    type Physical = SimPhysical;

    /// As in an exact replay: without this, every request would poll every waiting block.
    fn completes_by_handle(&self) -> bool {
        true
    }

    fn index(&self) -> u32 {
        self.device.index()
    }

    fn total_memory(&self) -> Bytes {
        self.device.total_memory()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        self.device.memory_info()
    }

    fn processes(&mut self) -> Vec<ProcessMemory> {
        self.device.processes()
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.device.malloc(size)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        if self.is_over {
            return Ok(());
        }
        self.device.free(address)
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.device.reserve(size)
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        if self.is_over {
            return Ok(());
        }
        self.device.unreserve(address, size)
    }

    fn create(&mut self, size: Bytes) -> Result<SimPhysical, BackendError> {
        self.device.create(size)
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &SimPhysical) -> Result<(), BackendError> {
        self.device.map(address, size, memory)
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.device.set_access(address, size)
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        if self.is_over {
            return Ok(());
        }
        self.device.unmap(address, size)
    }

    fn release(&mut self, memory: SimPhysical) -> Result<(), (SimPhysical, BackendError)> {
        if self.is_over {
            return Ok(());
        }
        self.device.release(memory)
    }

    fn breaks_handles(&self) -> bool {
        self.device.breaks_handles()
    }

    fn break_handle(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: SimPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<SimPhysical>, (SimPhysical, BackendError)> {
        self.device.break_handle(address, size, memory, parts)
    }

    fn run_pages(&self) -> u64 {
        self.device.run_pages()
    }

    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<(SimPhysical, u64), BackendError> {
        self.device.create_run(page, pages)
    }

    fn split_run(&mut self, memory: &mut SimPhysical, page: Bytes, pages: u64) -> Result<SimPhysical, BackendError> {
        self.device.split_run(memory, page, pages)
    }

    fn unmap_run(&mut self, address: DeviceAddress, page: Bytes, pages: u64) -> Result<(), BackendError> {
        if self.is_over {
            return Ok(());
        }
        self.device.unmap_run(address, page, pages)
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        self.device.synchronize_stream(stream)
    }

    fn create_event(&mut self) -> Result<u64, BackendError> {
        Ok(u64::MAX)
    }

    fn record_event(&mut self, event: &mut u64, stream: StreamId) -> Result<(), BackendError> {
        *event = moment_of(stream);
        Ok(())
    }

    fn is_complete(&mut self, event: &u64) -> Result<bool, BackendError> {
        Ok(*event < self.now)
    }

    fn wait(&mut self, event: &u64) -> Result<(), BackendError> {
        if self.waits && *event != u64::MAX {
            self.now = self.now.max(*event + 1);
        }
        Ok(())
    }

    fn destroy_event(&mut self, _: u64) {}
}
