//! The CUDA device: the core's `DeviceBackend` on top of the driver. This file opens a device, identifies it, tracks
//! what it holds, and shares its memory.
//!
//! The device tracks the ranges, reservations and streams that it owns, and refuses anything else without a driver
//! call. Freeing an address twice or using a made-up stream handle is therefore an error here, whereas the driver
//! might mistake the address for one of another owner, or crash. Calls within memory that the device owns are passed
//! to the driver, even if the driver refuses them.
//!
//! Memory is shared in two ways: with other devices in the host, which get access to this device's mappings and whose
//! mappings and streams this device uses; and with other processes, which open memory of expandable segments with
//! [`SharedMemory`](crate::SharedMemory).

pub(crate) mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parkade::device::{BackendError, Capture, DeviceBackend, GraphNode, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::driver::{
    Context, CudaEvent, CudaPhysical, DriverError, INVALID_HANDLE, INVALID_VALUE, Memory, OUT_OF_MEMORY, PEER_ACCESS_NOT_ENABLED,
    Peer, Reservation, STREAM_CAPTURE_CODES, Span, Spin, Stage, Stream, StreamsAreValid, Unavailable, WorkIsSerial, add_awaited,
    can_access_peer, capture_of_stream, granularity_bytes, is_stream_idle, knows_captures, synchronize_stream,
};
use crate::nvml::{GpuProcess, Nvml, NvmlLibrary};

/// An NVIDIA GPU, driven through the CUDA driver.
///
/// The allocator uses it through [`DeviceBackend`](parkade::device::DeviceBackend); the methods below are for tests and
/// tools. A device may be moved to a different thread and used there. Dropping it waits for its work and releases
/// everything that it holds.
pub struct CudaDevice {
    ordinal: u32,
    total_memory: Bytes,
    reservations: BTreeMap<DeviceAddress, Reservation>,
    ranges: BTreeMap<DeviceAddress, Memory>,
    streams: BTreeMap<StreamId, Stream>,
    /// The kernel of [`CudaDevice::spin`], loaded at its first use.
    spin: Option<Spin>,
    /// The devices that have access to this device's mappings.
    peers: Vec<Peer>,
    /// The contexts of devices whose streams use this device's memory, by index.
    elsewhere: BTreeMap<u32, Arc<Context>>,
    /// The promise that allows the device to use streams that other code has created.
    foreign_streams: Option<StreamsAreValid>,
    /// The promise that allows the device to replace memory while other code knows the addresses.
    serial_work: Option<WorkIsSerial>,
    /// The host memory that holds contents while a handle is broken. It is created when the first handle is broken.
    stage: Option<Box<Stage>>,
    /// The stream on which these contents are copied. It is created when the first handle is broken.
    copies: Option<Stream>,
    /// Whether the driver supports a stage.
    can_stage: bool,
    context: Arc<Context>,
}

impl CudaDevice {
    /// Opens the device with this index in its primary context. If a device is opened twice, both share the GPU and its
    /// context, but each owns what it allocated.
    ///
    /// # Errors
    /// The reason why this device is not available here. The function never panics: without a
    /// driver, the error is [`Unavailable::NoDriver`].
    pub fn open(ordinal: u32) -> Result<CudaDevice, Unavailable> {
        let context = Context::open(ordinal)?;
        let total_memory = Bytes(context.total_memory_bytes()?);
        Ok(CudaDevice {
            ordinal,
            total_memory,
            reservations: BTreeMap::new(),
            ranges: BTreeMap::new(),
            streams: BTreeMap::new(),
            spin: None,
            peers: Vec::new(),
            elsewhere: BTreeMap::new(),
            foreign_streams: None,
            serial_work: None,
            stage: None,
            copies: None,
            can_stage: Stage::is_possible(&context),
            context,
        })
    }

    /// Returns the number of devices that the driver reports.
    ///
    /// # Errors
    /// The reason why the driver is not available, as for [`CudaDevice::open`].
    pub fn count() -> Result<u32, Unavailable> {
        Context::count()
    }

    /// Returns the device's name.
    ///
    /// # Errors
    /// The driver call fails.
    pub fn name(&self) -> Result<String, DriverError> {
        self.context.device_name()
    }

    /// Returns the newest CUDA version that the driver supports, as (major, minor).
    ///
    /// # Errors
    /// The driver call fails.
    pub fn driver_version(&self) -> Result<(i32, i32), DriverError> {
        self.context.driver_version().map(|version| (version / 1000, version % 1000 / 10))
    }

    /// Returns the device's UUID as `nvidia-smi` prints it, for example `GPU-4b1de0ff-0001-0203-0405-060708090a0b`.
    ///
    /// # Errors
    /// The driver call fails.
    pub fn uuid(&self) -> Result<String, DriverError> {
        self.context.uuid()
    }

    /// Returns the device's address on the PCI bus, for example `0000:0f:00.0`.
    ///
    /// # Errors
    /// The driver call fails.
    pub fn pci_bus_id(&self) -> Result<String, DriverError> {
        self.context.pci_bus_id()
    }

    /// Returns the unit in which virtual memory is reserved, created and mapped; 2 MiB on the H200 (facts: Sizes and
    /// addresses).
    ///
    /// # Errors
    /// The driver call fails.
    pub fn granularity_bytes(&self) -> Result<Bytes, DriverError> {
        granularity_bytes(&self.context).map(Bytes)
    }

    /// Returns how many driver calls this device, its events and its memory have made.
    #[must_use]
    pub fn driver_calls(&self) -> u64 {
        self.context.calls()
    }

    /// Returns the live ranges from [`malloc`](parkade::device::DeviceBackend::malloc), lowest
    /// address first.
    pub fn ranges(&self) -> impl Iterator<Item = (DeviceAddress, Bytes)> + '_ {
        self.ranges.iter().map(|(&address, memory)| (address, Bytes(memory.bytes())))
    }

    /// Returns what this device holds. Memory and events that outlive the device count until they are dropped.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        Holdings {
            ranges: self.ranges.len(),
            reservations: self.reservations.len(),
            reserved_bytes: Bytes(self.reservations.values().map(Reservation::bytes).sum()),
            handles: self.context.live_handles() - self.stage.as_deref().map_or(0, Stage::handles),
            mappings: self.reservations.values().map(Reservation::mappings).sum(),
            events: self.context.live_events() + self.elsewhere.values().map(|context| context.live_events()).sum::<usize>(),
            streams: self.streams.len(),
        }
    }

    /// Allows the allocator to use streams that other code has created, for example the program for which the device
    /// allocates. The device does not destroy these streams.
    pub fn trust_streams(&mut self, promise: StreamsAreValid) {
        self.foreign_streams = Some(promise);
    }

    /// Allows handles to be broken even if the device trusts streams of other code
    /// ([`break_handle`](parkade::device::DeviceBackend::break_handle)). A device that trusts no other streams needs
    /// no promise, because all its work is queued through the device.
    pub fn trust_work(&mut self, promise: WorkIsSerial) {
        self.serial_work = Some(promise);
    }

    /// Makes a thread without a context keep the device's primary context after a call that needs the driver, as
    /// CUDA's runtime does. In a thread without a context, the runtime looks for one in each call: `cudaGetDevice`
    /// took 1 us on an H200 (driver 580.159.04), and PyTorch calls it for each request.
    ///
    /// This is for a device that lives as long as the process. It has an effect only on device 0, because the runtime
    /// uses device 0 for a thread without a context.
    pub fn keep_context(&self) {
        if self.ordinal == 0 {
            self.context.stay();
        }
    }

    /// Adds a stream that other code has created on this device, if other code's streams are trusted.
    fn admit(&mut self, id: StreamId) {
        if let Some(promise) = self.foreign_streams
            && id != StreamId::DEFAULT
            && id.device_elsewhere().is_none()
        {
            self.streams.entry(id).or_insert_with(|| Stream::foreign(&self.context, id.0, promise));
        }
    }

    /// Returns the stream with this handle; `None` for the default stream. Refuses a handle that this device did not
    /// create.
    fn stream(&self, call: &'static str, id: StreamId) -> Result<Option<&Stream>, DriverError> {
        if id == StreamId::DEFAULT {
            return Ok(None);
        }
        self.streams.get(&id).map(Some).ok_or(DriverError { call, code: INVALID_HANDLE })
    }

    /// Returns the reservation that contains the entire range.
    fn reservation(&mut self, call: &'static str, address: DeviceAddress, size: Bytes) -> Result<&mut Reservation, DriverError> {
        let below = self.reservations.range_mut(..=address).next_back().map(|(_, reservation)| reservation);
        let inside = below.filter(|reservation| reservation.contains(address.get(), size.get()));
        inside.ok_or(DriverError { call, code: INVALID_VALUE })
    }

    /// Returns memory that this device may access: in one range from `malloc`, or mapped with access in one
    /// reservation.
    fn span(&self, call: &'static str, address: DeviceAddress, size: Bytes) -> Result<Span<'_>, DriverError> {
        let taken = self.ranges.range(..=address).next_back();
        match taken.map(|(_, memory)| memory.span(call, address.get(), size.get())) {
            Some(Ok(span)) => Ok(span),
            _ => self.mapped_span(call, address, size),
        }
    }

    /// Returns mapped memory that this device may access, in one reservation.
    fn mapped_span(&self, call: &'static str, address: DeviceAddress, size: Bytes) -> Result<Span<'_>, DriverError> {
        let reserved = self.reservations.range(..=address).next_back();
        let (_, reservation) = reserved.ok_or(DriverError { call, code: INVALID_VALUE })?;
        reservation.span(call, address.get(), size.get())
    }
}

impl Drop for CudaDevice {
    /// Waits for the work on this device and on devices whose streams were recorded, because that work may use mapped
    /// memory or the kernel that is about to be unloaded. The fields do the rest, in order: they unmap and free
    /// reservations, then drop ranges, streams and the kernel, and finally the context.
    fn drop(&mut self) {
        // There is no caller to report an error to. The driver frees as much as it still can.
        for context in self.elsewhere.values().chain([&self.context]) {
            let _: Result<(), DriverError> = context.synchronize();
        }
    }
}

/// Checks that a device may move between threads, so that several threads can share its allocator behind a lock.
const _: fn() = || {
    fn sendable<T: Send>() {}
    sendable::<CudaDevice>();
    sendable::<CudaEvent>();
    sendable::<CudaPhysical>();
};

/// The amounts that a device holds. All fields are zero at the end of a program without leaks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Holdings {
    /// The number of ranges from [`malloc`](parkade::device::DeviceBackend::malloc).
    pub ranges: usize,
    /// The number of reserved address ranges.
    pub reservations: usize,
    /// The total size of the reserved address ranges.
    pub reserved_bytes: Bytes,
    /// The number of pieces of memory that have been created and not released, mapped or not. This excludes the host
    /// memory that the device keeps for [`break_handle`](parkade::device::DeviceBackend::break_handle).
    pub handles: usize,
    /// The number of mappings; memory that is mapped twice counts twice. Released memory exists for as long as it is
    /// mapped.
    pub mappings: usize,
    /// The number of events that have been created and not destroyed.
    pub events: usize,
    /// The number of streams that have been created and not destroyed, excluding the default
    /// stream.
    pub streams: usize,
}

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

    /// The driver is called even for addresses outside this device's reservations, because only the driver knows with
    /// which code it refuses them. If it accepts, the addresses belong to other code in this process. In that case,
    /// this method undoes the mapping, to which no access has been granted yet, and refuses.
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

    /// Returns true if the driver can report which streams are captured (CUDA 12.3 and later). The thread must be in
    /// the relaxed capture mode, as it is within PyTorch's allocator.
    fn waits_in_captures(&self) -> bool {
        knows_captures(&self.context)
    }

    /// Returns true if the driver can map host memory, no other device has access to this device's mappings, and all
    /// work is queued through this device or promised to be serial ([`CudaDevice::trust_work`]). A shared handle
    /// ([`CudaDevice::share`]) is never broken.
    fn breaks_handles(&self) -> bool {
        self.can_break()
    }

    /// The contents are kept in host memory until then, so the device does not need room for two copies. If the device
    /// does not provide the memory again, for example because another process has taken it, the host memory replaces
    /// it and is returned with the error.
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
/// The contents are therefore kept in host memory until new memory is mapped. The steps are: wait for the device, copy
/// out, unmap, release, create, map, grant access, copy back. The old memory is returned to the device before new
/// memory is requested, so the process never holds more than before.
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
        // Another process that has mapped the handle would keep the old memory. Other handles may still serve the
        // request.
        if self.reservation("cuMemUnmap", address, size).is_ok_and(|there| there.is_exported(address.get(), size.get())) {
            return Err((memory, BackendError::OutOfMemory { requested: size }));
        }
        if let Err(error) = self.put_on_stage(address, size, &memory, parts) {
            return Err((memory, stays(error, size)));
        }
        // The promise was broken, but no data has been lost yet.
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

    /// Waits for all work on the device. If this would invalidate a stream's capture, waits instead for the default
    /// stream and each stream that the device knows, except those that are captured.
    ///
    /// # Errors
    /// A driver call fails, for example because the default stream would wait for a captured stream that is a blocking
    /// stream.
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

    /// Takes the stage and grows it to this size. If the host refuses the memory, no more handles are broken, unless
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
    /// If the driver also refuses this, its error replaces `error`, and the addresses may remain without access, so
    /// that work that uses them fails. No more handles are broken after this, because other processes take the
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

/// Returns the error that stopped the breaking of a handle before anything changed. If the host has no room, or a
/// graph is being captured, this handle stays unchanged, and other handles may serve the request.
fn stays(error: DriverError, requested: Bytes) -> BackendError {
    let is_for_now = error.code == OUT_OF_MEMORY || STREAM_CAPTURE_CODES.contains(&error.code);
    if is_for_now { BackendError::OutOfMemory { requested } } else { error.into() }
}

/// Other devices in the host.
///
/// Access to a mapping is granted to each device separately (cuMemSetAccess). Peers cannot access ranges from
/// cudaMalloc.
impl CudaDevice {
    /// Returns the id of a stream of the device with this index, which the allocator may then
    /// [record](parkade::Allocator::record_stream) for memory of this device. 0 is the default stream of that device.
    /// For a stream of this device, the id is the stream's handle. After the first call for another device, no more
    /// handles are broken.
    ///
    /// # Errors
    /// Streams of other code are not trusted ([`CudaDevice::trust_streams`]), there is no device with this index, or
    /// the handle is invalid.
    pub fn stream_elsewhere(&mut self, ordinal: u32, handle: u64) -> Result<StreamId, Unavailable> {
        let call = "cuEventRecord";
        let promise = self.foreign_streams.ok_or(DriverError { call, code: INVALID_HANDLE })?;
        let id = StreamId::elsewhere(ordinal, handle).ok_or(DriverError { call, code: INVALID_VALUE })?;
        if ordinal == self.ordinal {
            return Ok(StreamId(handle));
        }
        if !self.streams.contains_key(&id) {
            let context = match self.elsewhere.get(&ordinal) {
                Some(context) => context,
                None => {
                    let opened = Context::open(ordinal)?;
                    self.elsewhere.entry(ordinal).or_insert(opened)
                }
            };
            self.streams.insert(id, Stream::foreign(context, handle, promise));
        }
        Ok(id)
    }

    /// Returns whether this device can reach memory on the device with this index; false for this device itself.
    ///
    /// # Errors
    /// There is no device with this index.
    pub fn can_access_peer(&self, ordinal: u32) -> Result<bool, DriverError> {
        can_access_peer(&self.context, ordinal)
    }

    /// Grants the device with this index access to all mappings that this device may access, both now and in the
    /// future. Does nothing if it already has access.
    ///
    /// # Errors
    /// There is no device with this index, it cannot reach this device's memory, or a driver call fails. In that case,
    /// it has no access.
    pub fn let_peer_access(&mut self, ordinal: u32) -> Result<(), DriverError> {
        if self.peers.iter().any(|peer| peer.ordinal() == ordinal) {
            return Ok(());
        }
        let peer = Peer::of(&self.context, ordinal)?;
        let outcome = self.reservations.values().try_for_each(|reservation| reservation.open_to(&peer));
        match outcome {
            Ok(()) => self.peers.push(peer),
            Err(_) => self.reservations.values().for_each(|reservation| reservation.close_to(&peer)),
        }
        outcome
    }

    /// Queues a copy of `size` bytes from a mapping of another device into memory of this device. The copy does not
    /// wait for work on the other device's streams that is still writing there.
    ///
    /// # Errors
    /// The other device has not granted this device access ([`CudaDevice::let_peer_access`]), the bytes at `from` are
    /// not all mapped with access in one reservation of the other device, the bytes at `to` are not memory of this
    /// device, the stream does not belong to this device, or the driver call fails.
    pub fn copy_from_peer(
        &mut self,
        peer: &CudaDevice,
        from: DeviceAddress,
        to: DeviceAddress,
        size: Bytes,
        stream: StreamId,
    ) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoDAsync_v2";
        let is_let_in = peer.peers.iter().any(|other| other.ordinal() == self.ordinal);
        if !is_let_in {
            return Err(DriverError { call, code: PEER_ACCESS_NOT_ENABLED });
        }
        let stream = self.stream(call, stream)?;
        let source = peer.mapped_span(call, from, size)?;
        self.span(call, to, size)?.copy_from(&source, stream)
    }
}

/// A mapped handle that another process may open.
#[derive(Clone, Copy, Debug)]
pub struct SharedHandle<'a> {
    /// The address where it is mapped in this process.
    pub address: DeviceAddress,
    /// Its size.
    pub size: Bytes,
    /// Its file descriptor, which another process duplicates (pidfd_getfd) or receives. It is closed when the handle
    /// is unmapped.
    pub file: BorrowedFd<'a>,
}

impl CudaDevice {
    /// Returns the handles under a range of mapped memory, lowest address first. The first one may begin before the
    /// range, and the last one may end beyond it. The handles are not broken while they are mapped, because the other
    /// process would keep the old memory.
    ///
    /// # Errors
    /// Part of the range is not mapped with access in one reservation, or the driver cannot export file descriptors.
    pub fn share(&mut self, address: DeviceAddress, size: Bytes) -> Result<Vec<SharedHandle<'_>>, DriverError> {
        let reservation = self.reservation("cuMemExportToShareableHandle", address, size)?;
        let handles = reservation.export(address.get(), size.get())?;
        let handle = |(address, bytes, file)| SharedHandle { address: DeviceAddress(address), size: Bytes(bytes), file };
        Ok(handles.into_iter().map(handle).collect())
    }
}
