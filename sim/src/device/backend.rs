//! The simulated device as the core sees it.

use parkade::device::{BackendError, DeviceBackend, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::events::SimEvent;
use super::sim::SimDevice;

impl DeviceBackend for SimDevice {
    type Event = SimEvent;
    type Physical = ();

    fn index(&self) -> u32 {
        self.index
    }

    fn total_memory(&self) -> Bytes {
        Bytes(self.total_bytes)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        self.mem_get_info()
    }

    fn processes(&mut self) -> Vec<ProcessMemory> {
        if self.reports_processes { self.process_list() } else { Vec::new() }
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.cuda_malloc(size).map(DeviceAddress)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        self.cuda_free(address.get())
    }

    fn create_event(&mut self) -> Result<SimEvent, BackendError> {
        self.event_create()
    }

    fn record_event(&mut self, event: &mut SimEvent, stream: StreamId) -> Result<(), BackendError> {
        self.event_record(event, stream.get())
    }

    fn is_complete(&mut self, event: &SimEvent) -> Result<bool, BackendError> {
        self.event_query(event)
    }

    fn wait(&mut self, event: &SimEvent) -> Result<(), BackendError> {
        self.event_synchronize(event)
    }

    fn destroy_event(&mut self, event: SimEvent) {
        self.event_destroy(&event);
    }
}
