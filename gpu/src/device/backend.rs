//! [`DeviceBackend`] for the CUDA device.

use std::collections::BTreeSet;

use parkade::device::{BackendError, Capture, DeviceBackend, GraphNode, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::CudaDevice;
use crate::driver::{
    CudaEvent, CudaPhysical, INVALID_VALUE, Memory, OUT_OF_MEMORY, Reservation, STREAM_CAPTURE_CODES, Stage, Stream, add_awaited,
    capture_of_stream, granularity_bytes, is_stream_idle, knows_captures, synchronize_stream,
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

    /// Lists the processes from NVML, for messages; empty if NVML is not available.
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

    /// The driver is also asked for addresses outside this device's reservations, because only the driver knows the
    /// code of its refusal. If it accepts, the addresses belong to other code in this process. In that case, this
    /// method undoes the mapping, which has no access yet, and refuses.
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

    /// Returns true if the driver can say which streams are captured (CUDA 12.3 and later). The thread must be in the relaxed
    /// capture mode, as it is within PyTorch's allocator.
    fn waits_in_captures(&self) -> bool {
        knows_captures(&self.context)
    }

    /// Returns true if the driver can map host memory, no other device has access to this device's mappings, and all
    /// work is queued through this device or promised to be serial ([`CudaDevice::trust_work`]). A shared handle
    /// ([`CudaDevice::share`]) is never broken.
    fn breaks_handles(&self) -> bool {
        self.can_break()
    }

    /// In the meantime, the contents are kept in host memory, so the device does not need room for two copies. If the
    /// device does not provide the memory again, for example because another process has taken it, the host memory
    /// replaces it and is returned with the error.
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
    /// Returns the processes that compute on this device; `None` if NVML is not available.
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

/// Returns the core's error for a failed request for memory.
fn no_room(error: DriverError, requested: Bytes) -> BackendError {
    if error.code == OUT_OF_MEMORY { BackendError::OutOfMemory { requested } } else { error.into() }
}

/// Breaking a handle: parts of it get new memory with the same contents at the same addresses.
///
/// The driver unmaps and releases only whole handles, and when a handle is broken, the device has no room for a copy.
/// The contents are therefore kept in host memory in the meantime. The steps are: wait for the device, copy out, unmap,
/// release, create, map, grant access, copy back. The old memory is returned to the device before new memory is
/// requested, so the process never holds more than before.
impl CudaDevice {
    /// Returns whether the device may move contents while other code knows the addresses, and whether the driver
    /// supports this.
    fn can_break(&self) -> bool {
        let is_serial = self.foreign_streams.is_none() || self.serial_work.is_some();
        is_serial && self.can_stage && self.peers.is_empty() && self.elsewhere.is_empty()
    }

    fn break_mapped(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        mut memory: CudaPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<CudaPhysical>, (CudaPhysical, BackendError)> {
        // A different process that has mapped the handle would keep the old memory. Other handles may serve the
        // request.
        if self.reservation("cuMemUnmap", address, size).is_ok_and(|there| there.is_exported(address.get(), size.get())) {
            return Err((memory, BackendError::OutOfMemory { requested: size }));
        }
        if let Err(error) = self.put_on_stage(address, size, &memory, parts) {
            return Err((memory, stays(error, size)));
        }
        // Somebody broke the promise: nothing is lost yet.
        if !self.has_no_work() {
            return Err((memory, BackendError::OutOfMemory { requested: size }));
        }
        let (start, bytes) = (address.get(), size.get());
        let unmapped = self.reservation("cuMemUnmap", address, size).and_then(|reservation| reservation.unmap(start, bytes));
        if let Err(error) = unmapped {
            return Err((memory, error.into()));
        }
        if let Err(error) = memory.give_back() {
            return match self.map_open(address, size, &memory) {
                Ok(()) => Err((memory, error.into())),
                Err(_) => Err(self.stand_in(address, size, memory, error.into())),
            };
        }
        match self.take_from_stage(address, parts) {
            Ok(pieces) => Ok(pieces),
            Err((pieces, error)) => {
                let answer = self.stand_in(address, size, memory, error);
                drop(pieces);
                Err(answer)
            }
        }
    }

    /// Waits for all work on the device. Waiting for the context would invalidate the capture of a stream; then this waits
    /// for the default stream and each stream that the device knows, but not for those that are captured.
    ///
    /// # Errors
    /// A driver call fails. It fails if the default stream waits for a captured stream, because that stream is a blocking
    /// one.
    fn wait_for_work(&self) -> Result<(), DriverError> {
        let not_captured = self.not_captured()?;
        if not_captured.len() > self.streams.len() {
            return self.context.synchronize();
        }
        not_captured.into_iter().try_for_each(|stream| synchronize_stream(&self.context, stream))
    }

    /// Returns the default stream and the streams that the device knows, without those that are captured.
    fn not_captured(&self) -> Result<Vec<Option<&Stream>>, DriverError> {
        let mut streams = Vec::with_capacity(1 + self.streams.len());
        for stream in std::iter::once(None).chain(self.streams.values().map(Some)) {
            if capture_of_stream(&self.context, stream)?.is_none() {
                streams.push(stream);
            }
        }
        Ok(streams)
    }

    /// Returns whether no stream that the device knows has work left, except for those that are captured.
    fn has_no_work(&self) -> bool {
        let streams = self.not_captured().unwrap_or_default();
        !streams.is_empty() && streams.into_iter().all(|stream| is_stream_idle(&self.context, stream) == Ok(true))
    }

    /// Waits for the copies of this module.
    fn finish_copies(&self) -> Result<(), DriverError> {
        synchronize_stream(&self.context, self.copies.as_ref())
    }

    /// Waits for all work, and copies the parts to the stage, each one at its offset in the handle.
    fn put_on_stage(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: &CudaPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<(), DriverError> {
        let call = "cuMemUnmap";
        let is_whole = memory.bytes() == size.get();
        if !self.can_break() || !is_whole || !are_parts(size.get(), parts, granularity_bytes(&self.context)?) {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        self.mapped_span(call, address, size)?;
        self.wait_for_work()?;
        if self.copies.is_none() {
            self.copies = Some(Stream::create(&self.context)?);
        }
        let stage = self.stage_for(size.get())?;
        let copied = parts.iter().try_for_each(|&(offset, part)| {
            let from = self.mapped_span(call, DeviceAddress(address.get() + offset.get()), part)?;
            stage.span(offset.get(), part.get())?.copy_from(&from, self.copies.as_ref())
        });
        self.stage = Some(stage);
        // Wait even if a copy failed, because others were queued before it.
        self.finish_copies().and(copied)
    }

    /// Takes the stage, which is grown to this size. If the host refuses the memory, no more handles are broken, unless
    /// the host is only temporarily full.
    fn stage_for(&mut self, bytes: u64) -> Result<Box<Stage>, DriverError> {
        let grown = match self.stage.take() {
            Some(stage) => Ok(stage),
            None => Stage::new(&self.context).map(Box::new),
        };
        // A stage that could not grow is dropped with all its memory.
        let grown = grown.and_then(|mut stage| stage.grow(bytes).map(|()| stage));
        grown.map_err(|error| {
            self.can_stage &= error.code == OUT_OF_MEMORY;
            DriverError { code: OUT_OF_MEMORY, ..error }
        })
    }

    /// Gives each part new memory and copies its contents back. After an error, returns the memory created so far,
    /// parts of which may be mapped.
    fn take_from_stage(
        &mut self,
        address: DeviceAddress,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<CudaPhysical>, (Vec<CudaPhysical>, BackendError)> {
        let mut pieces = Vec::with_capacity(parts.len());
        let place = |offset: Bytes| DeviceAddress(address.get() + offset.get());
        for &(offset, part) in parts {
            match CudaPhysical::create(&self.context, part.get()) {
                Ok(piece) => pieces.push(piece),
                Err(error) => return Err((pieces, no_room(error, part))),
            }
            if let Err(error) = pieces.last().map_or(Ok(()), |piece| self.map_open(place(offset), part, piece)) {
                return Err((pieces, error.into()));
            }
        }
        let copied = parts.iter().try_for_each(|&(offset, part)| {
            let stage = self.stage.as_ref().ok_or(DriverError { call: "cuMemcpyDtoDAsync_v2", code: INVALID_VALUE })?;
            let to = self.mapped_span("cuMemcpyDtoDAsync_v2", place(offset), part)?;
            to.copy_from(&stage.span(offset.get(), part.get())?, self.copies.as_ref())
        });
        match self.finish_copies().and(copied) {
            Ok(()) => Ok(pieces),
            Err(error) => Err((pieces, error.into())),
        }
    }

    /// Maps the stage itself at the original addresses of the contents, after the memory that is already mapped there.
    /// If the driver also refuses that, its error replaces `error`, and the addresses may remain without access, in
    /// which case work that uses them fails. No more handles are broken after this, because other processes take the
    /// device's memory as soon as it is free.
    fn stand_in(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: CudaPhysical,
        error: BackendError,
    ) -> (CudaPhysical, BackendError) {
        self.can_stage = false;
        let unmapped = self.reservation("cuMemUnmap", address, size).and_then(|range| range.unmap(address.get(), size.get()));
        let gone = DriverError { call: "cuMemMap", code: INVALID_VALUE };
        let taken = unmapped.and_then(|()| self.stage.as_mut().map_or(Err(gone), |stage| stage.take(size.get())));
        let host = match taken {
            Ok(host) => host,
            Err(worse) => return (memory, worse.into()),
        };
        match self.map_open(address, size, &host) {
            Ok(()) => (host, error),
            Err(worse) => (host, worse.into()),
        }
    }

    fn map_open(&mut self, address: DeviceAddress, size: Bytes, memory: &CudaPhysical) -> Result<(), DriverError> {
        let reservation = self.reservation("cuMemMap", address, size)?;
        reservation.map(address.get(), size.get(), memory)?;
        reservation.set_access(address.get(), size.get(), &[])
    }
}

/// Returns whether the parts consist of whole pages of `page_bytes`, in order.
fn are_parts(bytes: u64, parts: &[(Bytes, Bytes)], page_bytes: u64) -> bool {
    let mut end = 0;
    parts.iter().all(|&(offset, size)| {
        let follows = offset.get() >= end && size > Bytes::ZERO;
        let is_whole = offset.get().is_multiple_of(page_bytes) && size.get().is_multiple_of(page_bytes);
        end = offset.get().saturating_add(size.get());
        follows && is_whole && end <= bytes
    })
}

/// Returns the error that stopped the breaking of a handle before anything changed. If the host has no room, or a graph
/// is being captured, this handle stays unchanged, and others may serve the request.
fn stays(error: DriverError, requested: Bytes) -> BackendError {
    let is_for_now = error.code == OUT_OF_MEMORY || STREAM_CAPTURE_CODES.contains(&error.code);
    if is_for_now { BackendError::OutOfMemory { requested } } else { error.into() }
}
