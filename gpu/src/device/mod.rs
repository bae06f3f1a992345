//! The CUDA device: the core's device trait over the driver.
//!
//! It keeps a list of what is its own, ranges, reservations and streams, and answers for anything else without asking the driver:
//! an address given back twice and a made-up stream handle are errors here, where the driver might take them for somebody else's
//! or crash. What the driver is known to refuse inside what is our own, it is asked. Dropping a device waits for its work and
//! gives everything back. A device may be moved to and used from any thread; it has one user at a time, as the trait's `&mut
//! self` says.
//!
//! Here are opening, identity and what is held; `backend` has the core's trait, `work` streams and the contents of memory,
//! `peers` other devices.

mod backend;
mod peers;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::driver::{
    Context, CudaEvent, CudaPhysical, INVALID_HANDLE, INVALID_VALUE, Memory, Peer, Reservation, Span, Spin, Stream,
    granularity_bytes,
};
use crate::error::{DriverError, Unavailable};
use crate::holdings::Holdings;

/// A GPU under NVIDIA's driver.
pub struct CudaDevice {
    ordinal: u32,
    total_memory: Bytes,
    reservations: BTreeMap<DeviceAddress, Reservation>,
    ranges: BTreeMap<DeviceAddress, Memory>,
    streams: BTreeMap<StreamId, Stream>,
    /// The kernel of [`CudaDevice::spin`], once it was used.
    spin: Option<Spin>,
    /// Devices whose access is given with this one's.
    peers: Vec<Peer>,
    context: Arc<Context>,
}

impl CudaDevice {
    /// Opens the device with this index, in its primary context. Devices opened twice share their memory and their context, not
    /// what they own in it.
    ///
    /// # Errors
    /// Why there is no such device here. It never panics: without a driver the answer is [`Unavailable::NoDriver`].
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
            context,
        })
    }

    /// How many devices the driver has.
    ///
    /// # Errors
    /// Why it cannot be asked, as for [`CudaDevice::open`].
    pub fn count() -> Result<u32, Unavailable> {
        Context::count()
    }

    /// The device's name.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn name(&self) -> Result<String, DriverError> {
        self.context.device_name()
    }

    /// The newest CUDA version that the driver knows, as (major, minor).
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn driver_version(&self) -> Result<(i32, i32), DriverError> {
        self.context.driver_version().map(|version| (version / 1000, version % 1000 / 10))
    }

    /// The device's identifier as tools print it, for example `GPU-4b1de0ff-0001-0203-0405-060708090a0b`.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn uuid(&self) -> Result<String, DriverError> {
        self.context.uuid()
    }

    /// The device's place on the PCI bus, for example `0000:0f:00.0`.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn pci_bus_id(&self) -> Result<String, DriverError> {
        self.context.pci_bus_id()
    }

    /// The unit in bytes in which virtual memory is reserved, created and mapped: 2 MiB (facts: Sizes and addresses).
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn granularity_bytes(&self) -> Result<Bytes, DriverError> {
        granularity_bytes(&self.context).map(Bytes)
    }

    /// Driver calls made through this device and its events so far.
    #[must_use]
    pub fn driver_calls(&self) -> u64 {
        self.context.calls()
    }

    /// The ranges of [`malloc`](DeviceBackend::malloc) that were not given back, lowest address first.
    pub fn ranges(&self) -> impl Iterator<Item = (DeviceAddress, Bytes)> + '_ {
        self.ranges.iter().map(|(&address, memory)| (address, Bytes(memory.bytes())))
    }

    /// What was taken through this device and not given back. Memory and events that outlive the device count as long as they
    /// live.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        Holdings {
            ranges: self.ranges.len(),
            reservations: self.reservations.len(),
            reserved_bytes: Bytes(self.reservations.values().map(Reservation::bytes).sum()),
            handles: self.context.live_handles(),
            mappings: self.reservations.values().map(Reservation::mappings).sum(),
            events: self.context.live_events(),
            streams: self.streams.len(),
        }
    }

    /// The stream of this name: none for the default stream. A name that this device does not know is refused.
    fn stream(&self, call: &'static str, id: StreamId) -> Result<Option<&Stream>, DriverError> {
        if id == StreamId::DEFAULT {
            return Ok(None);
        }
        self.streams.get(&id).map(Some).ok_or(DriverError { call, code: INVALID_HANDLE })
    }

    /// The reservation in which the whole range lies.
    fn reservation(&mut self, call: &'static str, address: DeviceAddress, size: Bytes) -> Result<&mut Reservation, DriverError> {
        let below = self.reservations.range_mut(..=address).next_back().map(|(_, reservation)| reservation);
        let inside = below.filter(|reservation| reservation.contains(address.get(), size.get()));
        inside.ok_or(DriverError { call, code: INVALID_VALUE })
    }

    /// Memory of this device that it may touch: a part of a range, or of a reservation where all is mapped and access was given.
    fn span(&self, call: &'static str, address: DeviceAddress, size: Bytes) -> Result<Span<'_>, DriverError> {
        let taken = self.ranges.range(..=address).next_back();
        match taken.map(|(_, memory)| memory.span(call, address.get(), size.get())) {
            Some(Ok(span)) => Ok(span),
            _ => self.mapped_span(call, address, size),
        }
    }

    /// The same of mapped memory alone.
    fn mapped_span(&self, call: &'static str, address: DeviceAddress, size: Bytes) -> Result<Span<'_>, DriverError> {
        let reserved = self.reservations.range(..=address).next_back();
        let (_, reservation) = reserved.ok_or(DriverError { call, code: INVALID_VALUE })?;
        reservation.span(call, address.get(), size.get())
    }
}

impl Drop for CudaDevice {
    /// Waits for the device's work, which may use what is mapped, or be the kernel that is unloaded. The rest is done by the
    /// fields: the reservations unmap and give their addresses back, then the ranges, streams and the kernel go, the context
    /// last.
    fn drop(&mut self) {
        // Nobody is left to tell of an error; after one the driver takes back what it still can.
        let _: Result<(), DriverError> = self.context.synchronize();
    }
}

/// A device may move between threads, and an allocator over it be shared behind a lock.
const _: fn() = || {
    fn sendable<T: Send>() {}
    sendable::<CudaDevice>();
    sendable::<CudaEvent>();
    sendable::<CudaPhysical>();
};
