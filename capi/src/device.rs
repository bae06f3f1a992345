//! An allocator's device: the GPU or the simulated device. For some pools, the program provides the memory.

use std::collections::BTreeMap;
use std::ffi::c_void;

use std::collections::BTreeSet;

use parkade::device::{BackendError, Capture, DeviceBackend, GraphNode, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_gpu::{CudaDevice, CudaEvent, CudaPhysical, SharedHandle, StreamsAreValid, WorkIsSerial};
use parkade_sim::{SimDevice, SimEvent, SimOptions, SimPhysical};

use crate::callbacks::User;
use crate::failure::Failure;
use crate::types::parkade_status::{PARKADE_NO_DEVICE, PARKADE_UNSUPPORTED};

/// The source of an allocator's memory.
pub(crate) struct Device {
    kind: Kind,
    /// The source of memory while a request is served from a pool whose memory the program provides.
    pub(crate) lender: Option<Lender>,
    /// The memory that lenders provided, by address.
    lent: BTreeMap<DeviceAddress, Lender>,
}

enum Kind {
    Cuda(CudaDevice),
    Simulated(Box<SimDevice>),
}

/// The functions with which the program provides the memory of a pool.
#[derive(Clone, Copy)]
pub(crate) struct Lender {
    pub(crate) take: unsafe extern "C" fn(*mut c_void, u64) -> *mut c_void,
    pub(crate) give_back: unsafe extern "C" fn(*mut c_void, *mut c_void),
    pub(crate) user: User,
}

/// An event of either device.
pub(crate) enum Event {
    Cuda(CudaEvent),
    Simulated(SimEvent),
}

/// Memory without addresses, of either device.
pub(crate) enum Physical {
    Cuda(CudaPhysical),
    Simulated(SimPhysical),
}

/// The error for an event or memory of the other kind of device. No call creates such an event or
/// such memory.
const OTHER_KIND: BackendError = BackendError::Driver { call: "a different kind of device", code: 1 };

impl Device {
    /// Opens the GPU with this index. The caller promises that the program's streams are valid.
    pub(crate) fn cuda(index: u32, promise: StreamsAreValid) -> Result<Device, Failure> {
        let mut device = CudaDevice::open(index).map_err(|reason| Failure::new(PARKADE_NO_DEVICE, reason))?;
        device.trust_streams(promise);
        Ok(Device::of(Kind::Cuda(device)))
    }

    /// Creates a simulated device.
    pub(crate) fn simulated(index: u32, bytes: u64) -> Device {
        Device::of(Kind::Simulated(Box::new(SimDevice::new(SimOptions::new(Bytes(bytes)).index(index)))))
    }

    fn of(kind: Kind) -> Device {
        Device { kind, lender: None, lent: BTreeMap::new() }
    }

    /// Makes threads without a context keep the context of device 0; the simulated device has no context.
    pub(crate) fn keep_context(&self) {
        if let Kind::Cuda(device) = &self.kind {
            device.keep_context();
        }
    }

    /// Allows handles to be broken although the program's streams are in use; the simulated device always allows this.
    pub(crate) fn trust_work(&mut self, promise: WorkIsSerial) {
        if let Kind::Cuda(device) = &mut self.kind {
            device.trust_work(promise);
        }
    }

    /// Returns the id that this device uses for a stream of the device with this index.
    pub(crate) fn stream_elsewhere(&mut self, ordinal: u32, stream: u64) -> Result<StreamId, Failure> {
        match &mut self.kind {
            Kind::Cuda(device) => device.stream_elsewhere(ordinal, stream).map_err(Failure::of_absence),
            Kind::Simulated(device) if device.index() == ordinal => Ok(StreamId(stream)),
            Kind::Simulated(_) => Err(Failure::new(
                PARKADE_UNSUPPORTED,
                "the simulated device does not support streams of \
                                                                         other devices",
            )),
        }
    }

    /// Returns the handles under mapped memory, for sharing with other processes.
    pub(crate) fn share(&mut self, address: DeviceAddress, size: Bytes) -> Result<Vec<SharedHandle<'_>>, Failure> {
        match &mut self.kind {
            Kind::Cuda(device) => device.share(address, size).map_err(|error| Failure::of_device(error.into())),
            Kind::Simulated(_) => {
                Err(Failure::new(PARKADE_UNSUPPORTED, "memory of the simulated device cannot be shared between processes"))
            }
        }
    }

    /// Grants a different device access to all memory that is mapped now or later.
    pub(crate) fn let_peer_access(&mut self, ordinal: u32) -> Result<(), Failure> {
        match &mut self.kind {
            Kind::Cuda(device) => device.let_peer_access(ordinal).map_err(|error| Failure::of_device(error.into())),
            Kind::Simulated(_) => Err(Failure::new(PARKADE_UNSUPPORTED, "the simulated device has no peers")),
        }
    }
}

#[allow(unsafe_code)] // calls to the program's functions
impl Lender {
    fn take(&self, size: Bytes) -> Option<DeviceAddress> {
        // SAFETY: the program supplied the function for this purpose, with its pointer.
        let address = unsafe { (self.take)(self.user.0, size.get()) };
        (!address.is_null()).then(|| DeviceAddress(address.expose_provenance() as u64))
    }

    fn give_back(&self, address: DeviceAddress) {
        // SAFETY: as above; the address was returned by `take` and is passed back only once.
        unsafe { (self.give_back)(self.user.0, std::ptr::with_exposed_provenance_mut(address.get() as usize)) };
    }
}

/// Makes the same call on either device.
macro_rules! on {
    ($self:ident, $device:ident => $call:expr) => {
        match &mut $self.kind {
            Kind::Cuda($device) => $call,
            Kind::Simulated($device) => $call,
        }
    };
}

/// Makes a call with an event or memory of the same kind of device.
macro_rules! with {
    ($self:ident, $of:ident, $handle:ident, $device:ident => $call:expr) => {
        match (&mut $self.kind, $handle) {
            (Kind::Cuda($device), $of::Cuda($handle)) => $call,
            (Kind::Simulated($device), $of::Simulated($handle)) => $call,
            _ => Err(OTHER_KIND),
        }
    };
}

impl DeviceBackend for Device {
    type Event = Event;
    type Physical = Physical;

    fn index(&self) -> u32 {
        match &self.kind {
            Kind::Cuda(device) => device.index(),
            Kind::Simulated(device) => device.index(),
        }
    }

    fn total_memory(&self) -> Bytes {
        match &self.kind {
            Kind::Cuda(device) => device.total_memory(),
            Kind::Simulated(device) => device.total_memory(),
        }
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        on!(self, device => device.memory_info())
    }

    fn processes(&mut self) -> Vec<ProcessMemory> {
        on!(self, device => device.processes())
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let Some(lender) = self.lender else { return on!(self, device => device.malloc(size)) };
        let address = lender.take(size).ok_or(BackendError::OutOfMemory { requested: size })?;
        self.lent.insert(address, lender);
        Ok(address)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        match self.lent.remove(&address) {
            Some(lender) => {
                lender.give_back(address);
                Ok(())
            }
            None => on!(self, device => device.free(address)),
        }
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        on!(self, device => device.reserve(size))
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        on!(self, device => device.unreserve(address, size))
    }

    fn create(&mut self, size: Bytes) -> Result<Physical, BackendError> {
        match &mut self.kind {
            Kind::Cuda(device) => device.create(size).map(Physical::Cuda),
            Kind::Simulated(device) => device.create(size).map(Physical::Simulated),
        }
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &Physical) -> Result<(), BackendError> {
        with!(self, Physical, memory, device => device.map(address, size, memory))
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        on!(self, device => device.set_access(address, size))
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        on!(self, device => device.unmap(address, size))
    }

    fn release(&mut self, memory: Physical) -> Result<(), (Physical, BackendError)> {
        match (&mut self.kind, memory) {
            (Kind::Cuda(device), Physical::Cuda(memory)) => {
                device.release(memory).map_err(|(memory, error)| (Physical::Cuda(memory), error))
            }
            (Kind::Simulated(device), Physical::Simulated(memory)) => {
                device.release(memory).map_err(|(memory, error)| (Physical::Simulated(memory), error))
            }
            (_, memory) => Err((memory, OTHER_KIND)),
        }
    }

    fn waits_in_captures(&self) -> bool {
        match &self.kind {
            Kind::Cuda(device) => device.waits_in_captures(),
            Kind::Simulated(device) => device.waits_in_captures(),
        }
    }

    fn breaks_handles(&self) -> bool {
        match &self.kind {
            Kind::Cuda(device) => device.breaks_handles(),
            Kind::Simulated(device) => device.breaks_handles(),
        }
    }

    fn break_handle(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: Physical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<Physical>, (Physical, BackendError)> {
        match (&mut self.kind, memory) {
            (Kind::Cuda(device), Physical::Cuda(memory)) => {
                let broken = device.break_handle(address, size, memory, parts);
                let pieces = broken.map_err(|(memory, error)| (Physical::Cuda(memory), error))?;
                Ok(pieces.into_iter().map(Physical::Cuda).collect())
            }
            (Kind::Simulated(device), Physical::Simulated(memory)) => {
                let broken = device.break_handle(address, size, memory, parts);
                let pieces = broken.map_err(|(memory, error)| (Physical::Simulated(memory), error))?;
                Ok(pieces.into_iter().map(Physical::Simulated).collect())
            }
            (_, memory) => Err((memory, OTHER_KIND)),
        }
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        on!(self, device => device.synchronize_stream(stream))
    }

    fn is_idle(&mut self, stream: StreamId) -> Result<bool, BackendError> {
        on!(self, device => device.is_idle(stream))
    }

    fn create_event(&mut self) -> Result<Event, BackendError> {
        match &mut self.kind {
            Kind::Cuda(device) => device.create_event().map(Event::Cuda),
            Kind::Simulated(device) => device.create_event().map(Event::Simulated),
        }
    }

    fn record_event(&mut self, event: &mut Event, stream: StreamId) -> Result<(), BackendError> {
        with!(self, Event, event, device => device.record_event(event, stream))
    }

    fn is_complete(&mut self, event: &Event) -> Result<bool, BackendError> {
        with!(self, Event, event, device => device.is_complete(event))
    }

    fn wait(&mut self, event: &Event) -> Result<(), BackendError> {
        with!(self, Event, event, device => device.wait(event))
    }

    fn stream_wait(&mut self, stream: StreamId, event: &Event) -> Result<(), BackendError> {
        match (&mut self.kind, event) {
            (Kind::Cuda(device), Event::Cuda(event)) => DeviceBackend::stream_wait(device, stream, event),
            (Kind::Simulated(device), Event::Simulated(event)) => DeviceBackend::stream_wait(&mut **device, stream, event),
            _ => Err(OTHER_KIND),
        }
    }

    fn capture(&mut self, stream: StreamId) -> Result<Option<Capture>, BackendError> {
        on!(self, device => device.capture(stream))
    }

    fn add_awaited(&mut self, stream: StreamId, awaited: &mut BTreeSet<GraphNode>) -> Result<(), BackendError> {
        on!(self, device => device.add_awaited(stream, awaited))
    }

    fn destroy_event(&mut self, event: Event) {
        match (&mut self.kind, event) {
            (Kind::Cuda(device), Event::Cuda(event)) => device.destroy_event(event),
            (Kind::Simulated(device), Event::Simulated(event)) => device.destroy_event(event),
            // The memory belongs to a different device; dropping it returns it.
            (_, event) => drop(event),
        }
    }
}
