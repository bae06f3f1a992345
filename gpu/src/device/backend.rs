//! [`DeviceBackend`] for the CUDA device.

use std::collections::BTreeSet;

use parkade::device::{BackendError, Capture, DeviceBackend, GraphNode, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::cuda_device::CudaDevice;
use crate::driver::{
    CudaEvent, CudaPhysical, INVALID_VALUE, Memory, OUT_OF_MEMORY, Reservation, add_awaited, capture_of_stream, is_stream_idle,
    synchronize_stream,
};
use crate::error::DriverError;
use crate::nvml::{GpuProcess, Nvml, NvmlLibrary};

impl DeviceBackend for CudaDevice {
    type Event = CudaEvent;
    type Physical = CudaPhysical;

    fn index(&self) -> u32 {
        self.ordinal
    }

    fn total_memory(&self) -> Bytes {
        self.total_memory
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        let (free, total) = self.context.memory_info()?;
        Ok(MemoryInfo { free: Bytes(free), total: Bytes(total) })
    }

    /// As NVML tells, for messages; empty where it cannot be asked.
    fn processes(&mut self) -> Vec<ProcessMemory> {
        self.processes_by_nvml().unwrap_or_default()
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let memory = Memory::take(&self.context, size.get()).map_err(|error| no_room(error, size))?;
        let address = DeviceAddress(memory.address());
        self.ranges.insert(address, memory);
        Ok(address)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        let unknown = DriverError { call: "cuMemFree_v2", code: INVALID_VALUE };
        self.ranges.get_mut(&address).ok_or(unknown)?.give_back()?;
        self.ranges.remove(&address);
        Ok(())
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let reservation = Reservation::take(&self.context, size.get())?;
        let address = DeviceAddress(reservation.address());
        self.reservations.insert(address, reservation);
        Ok(address)
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.reservation("cuMemAddressFree", address, size)?.give_back(address.get(), size.get())?;
        self.reservations.remove(&address);
        Ok(())
    }

    fn create(&mut self, size: Bytes) -> Result<CudaPhysical, BackendError> {
        CudaPhysical::create(&self.context, size.get()).map_err(|error| no_room(error, size))
    }

    /// Outside this device's reservations the driver is asked too, because only it knows the code of its
    /// refusal. If it accepts, the addresses belong to somebody else in this process; then the mapping, which
    /// has no access yet, is undone and refused.
    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &CudaPhysical) -> Result<(), BackendError> {
        let (start, bytes) = (address.get(), size.get());
        match self.reservation("cuMemMap", address, size) {
            Ok(reservation) => Ok(reservation.map(start, bytes, memory)?),
            Err(foreign) => {
                memory.map(start, bytes)?;
                memory.unmap_again(start, bytes)?;
                Err(foreign.into())
            }
        }
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let peers = std::mem::take(&mut self.peers);
        let reservation = self.reservation("cuMemSetAccess", address, size);
        let outcome = reservation.and_then(|reservation| reservation.set_access(address.get(), size.get(), &peers));
        self.peers = peers;
        Ok(outcome?)
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        Ok(self.reservation("cuMemUnmap", address, size)?.unmap(address.get(), size.get())?)
    }

    fn release(&mut self, mut memory: CudaPhysical) -> Result<(), (CudaPhysical, BackendError)> {
        memory.give_back().map_err(|error| (memory, error.into()))
    }

    /// Where the driver maps the host's memory, no other device has access to this one's mappings, and all work is queued
    /// through this device or is promised to be serial ([`CudaDevice::trust_work`]). A handle that was shared
    /// ([`CudaDevice::share`]) is not broken.
    fn breaks_handles(&self) -> bool {
        self.can_break()
    }

    /// Contents wait in the host's memory meanwhile, so the device needs no room for them twice. If it does not give the memory
    /// again, as when another process takes it in between, that memory of the host takes its place and comes back with the error.
    fn break_handle(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: CudaPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<CudaPhysical>, (CudaPhysical, BackendError)> {
        self.break_mapped(address, size, memory, parts)
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        self.admit(stream);
        let stream = self.stream("cuStreamSynchronize", stream)?;
        Ok(synchronize_stream(&self.context, stream)?)
    }

    fn create_event(&mut self) -> Result<CudaEvent, BackendError> {
        Ok(CudaEvent::create(&self.context)?)
    }

    fn record_event(&mut self, event: &mut CudaEvent, stream: StreamId) -> Result<(), BackendError> {
        self.admit(stream);
        let stream = self.stream("cuEventRecord", stream)?;
        Ok(event.record(&self.context, stream)?)
    }

    fn is_complete(&mut self, event: &CudaEvent) -> Result<bool, BackendError> {
        Ok(event.is_complete(&self.context)?)
    }

    fn wait(&mut self, event: &CudaEvent) -> Result<(), BackendError> {
        Ok(event.wait()?)
    }

    fn is_idle(&mut self, stream: StreamId) -> Result<bool, BackendError> {
        self.admit(stream);
        let stream = self.stream("cuStreamQuery", stream)?;
        Ok(is_stream_idle(&self.context, stream)?)
    }

    fn stream_wait(&mut self, stream: StreamId, event: &CudaEvent) -> Result<(), BackendError> {
        self.admit(stream);
        Ok(CudaDevice::stream_wait(self, stream, event)?)
    }

    fn capture(&mut self, stream: StreamId) -> Result<Option<Capture>, BackendError> {
        self.admit(stream);
        Ok(capture_of_stream(&self.context, self.stream("cuStreamGetCaptureInfo_v3", stream)?)?)
    }

    fn add_awaited(&mut self, stream: StreamId, awaited: &mut BTreeSet<GraphNode>) -> Result<(), BackendError> {
        self.admit(stream);
        Ok(add_awaited(&self.context, self.stream("cuStreamGetCaptureInfo_v3", stream)?, awaited)?)
    }

    fn destroy_event(&mut self, event: CudaEvent) {
        drop(event);
    }
}

impl CudaDevice {
    /// The processes that compute on this device; `None` where NVML cannot be asked.
    fn processes_by_nvml(&self) -> Option<Vec<ProcessMemory>> {
        let uuid = self.uuid().ok()?;
        let devices = NvmlLibrary::open().ok()?.devices().ok()?;
        let device = devices.into_iter().find(|device| device.uuid.as_ref() == Ok(&uuid))?;
        let own = std::process::id();
        let known = |process: GpuProcess| {
            let pid = (process.pid != own).then_some(process.pid);
            Some(ProcessMemory { pid, used: Bytes(process.used_bytes?) })
        };
        Some(device.processes.ok()?.into_iter().filter(|process| process.compute).filter_map(known).collect())
    }
}

/// The core's error for a request for memory that failed.
pub(super) fn no_room(error: DriverError, requested: Bytes) -> BackendError {
    if error.code == OUT_OF_MEMORY { BackendError::OutOfMemory { requested } } else { error.into() }
}
