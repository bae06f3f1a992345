//! The CUDA device: the core's `DeviceBackend` on top of the driver. This file opens a device, identifies it and tracks
//! what it holds; it also contains the lookups that the other files in this folder use.
//!
//! The device tracks the ranges, reservations and streams that it owns, and refuses anything else without a driver
//! call. Freeing an address twice or using a made-up stream handle is therefore an error here, whereas the driver might
//! mistake the address for one of another owner, or crash. Calls inside memory that the device owns are passed to the
//! driver, even calls that the driver refuses.

mod backend;
pub(crate) mod sharing;
pub(crate) mod work;

use std::collections::BTreeMap;
use std::sync::Arc;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::driver::{
    Context, CudaEvent, CudaPhysical, INVALID_HANDLE, INVALID_VALUE, Memory, Peer, Reservation, Span, Spin, Stage, Stream,
    StreamsAreValid, WorkIsSerial, granularity_bytes,
};
use crate::error::{DriverError, Unavailable};

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
    /// Whether the device may use streams that other code has created.
    foreign_streams: Option<StreamsAreValid>,
    /// Whether the device may replace memory while other code knows the addresses.
    serial_work: Option<WorkIsSerial>,
    /// The host memory that holds contents while a handle is broken; it is created for the first
    /// one.
    stage: Option<Box<Stage>>,
    /// The stream on which these contents are copied; it is created for the first handle.
    copies: Option<Stream>,
    /// Whether the driver supports this.
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

    /// Allows the allocator from now on to name streams that other code has created, for example the program for which
    /// the device allocates. The device does not destroy these streams.
    pub fn trust_streams(&mut self, promise: StreamsAreValid) {
        self.foreign_streams = Some(promise);
    }

    /// Allows breaking handles from now on even if the device trusts streams of other code
    /// ([`break_handle`](parkade::device::DeviceBackend::break_handle)). A device that trusts no other streams needs no
    /// promise, because all its work is queued through the device.
    pub fn trust_work(&mut self, promise: WorkIsSerial) {
        self.serial_work = Some(promise);
    }

    /// Makes a thread that had no context keep the device's primary context from now on after a call that needed the
    /// driver, as with CUDA's runtime. In a thread without a context, the runtime looks for one in each call:
    /// `cudaGetDevice` took 1 us on an H200 (driver 580.159.04), and PyTorch calls it for each request.
    ///
    /// This is for a device that lives as long as the process. It has an effect only on device 0, because the runtime
    /// uses device 0 for a thread without a context.
    pub fn keep_context(&self) {
        if self.ordinal == 0 {
            self.context.stay();
        }
    }

    /// Adopts a stream that other code has created on this device, if other code's streams are
    /// trusted.
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

    /// Returns memory that this device may touch: in one range from `malloc`, or mapped with access in one reservation.
    fn span(&self, call: &'static str, address: DeviceAddress, size: Bytes) -> Result<Span<'_>, DriverError> {
        let taken = self.ranges.range(..=address).next_back();
        match taken.map(|(_, memory)| memory.span(call, address.get(), size.get())) {
            Some(Ok(span)) => Ok(span),
            _ => self.mapped_span(call, address, size),
        }
    }

    /// Returns mapped memory that this device may touch, in one reservation.
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
        // There is no caller to report an error to. The driver frees what it still can.
        for context in self.elsewhere.values().chain([&self.context]) {
            let _: Result<(), DriverError> = context.synchronize();
        }
    }
}

/// Checks that a device may move between threads, so that several threads can share an allocator on it behind a lock.
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
    /// The number of mappings; memory that is mapped twice counts twice. Released memory lives as
    /// long as its mappings.
    pub mappings: usize,
    /// The number of events that have been created and not destroyed.
    pub events: usize,
    /// The number of streams that have been created and not destroyed, excluding the default
    /// stream.
    pub streams: usize,
}
