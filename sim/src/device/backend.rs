//! [`DeviceBackend`] for the simulated device: each method forwards to the method that simulates the driver's call.

use std::collections::BTreeSet;

use parkade::device::{BackendError, Capture, DeviceBackend, GraphNode, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::SimDevice;
use super::memory_calls::split_physical;
use crate::streams::SimEvent;
use crate::virtual_memory::SimPhysical;

impl DeviceBackend for SimDevice {
    type Event = SimEvent;
    type Physical = SimPhysical;

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

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.address_reserve(size.get()).map(DeviceAddress)
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.address_free(address.get(), size.get())
    }

    fn create(&mut self, size: Bytes) -> Result<SimPhysical, BackendError> {
        self.mem_create(size)
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &SimPhysical) -> Result<(), BackendError> {
        self.mem_map(address.get(), size.get(), memory)
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.mem_set_access(address.get(), size.get())
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.mem_unmap(address.get(), size.get())
    }

    fn release(&mut self, memory: SimPhysical) -> Result<(), (SimPhysical, BackendError)> {
        self.mem_release(&memory).map_err(|error| (memory, error))
    }

    fn waits_in_captures(&self) -> bool {
        true
    }

    fn breaks_handles(&self) -> bool {
        true
    }

    fn break_handle(
        &mut self,
        address: DeviceAddress,
        _: Bytes,
        memory: SimPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<SimPhysical>, (SimPhysical, BackendError)> {
        self.break_mapped(address.get(), &memory, parts).map_err(|error| (memory, error))
    }

    fn run_pages(&self) -> u64 {
        if self.takes_runs() { u64::MAX } else { 1 }
    }

    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<(SimPhysical, u64), BackendError> {
        self.mem_create_run(page, pages)
    }

    fn split_run(&mut self, memory: &mut SimPhysical, page: Bytes, pages: u64) -> Result<SimPhysical, BackendError> {
        split_physical(memory, page, pages)
    }

    fn unmap_run(&mut self, address: DeviceAddress, page: Bytes, pages: u64) -> Result<(), BackendError> {
        self.mem_unmap_run(address.get(), page.get(), pages)
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        self.stream_synchronize(stream.get())
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

    fn stream_wait(&mut self, stream: StreamId, event: &SimEvent) -> Result<(), BackendError> {
        self.event_hold_back(event, stream)
    }

    fn capture(&mut self, stream: StreamId) -> Result<Option<Capture>, BackendError> {
        Ok(self.captures.of(stream.get()).cloned())
    }

    fn add_awaited(&mut self, stream: StreamId, awaited: &mut BTreeSet<GraphNode>) -> Result<(), BackendError> {
        self.captures.add_awaited(stream.get(), awaited);
        Ok(())
    }

    fn destroy_event(&mut self, event: SimEvent) {
        self.event_destroy(&event);
    }
}
