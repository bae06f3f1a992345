//! A simulated device that outlives its allocator, so that a law can see what the allocator leaves behind. A clone is a device of
//! its own in the same state.

use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

use parkade::device::{BackendError, DeviceBackend, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::{LogLevel, SimDevice, SimEvent, SimOptions, SimPhysical};

/// A handle to the device. The law keeps a second one ([`Kept::share`]).
#[derive(Debug)]
pub(crate) struct Kept(Rc<RefCell<SimDevice>>);

impl Clone for Kept {
    fn clone(&self) -> Kept {
        Kept(Rc::new(RefCell::new(self.look().clone())))
    }
}

impl Kept {
    /// A device that logs every call.
    pub(crate) fn new(options: SimOptions) -> Kept {
        let mut device = SimDevice::new(options);
        device.set_log_level(LogLevel::Events);
        Kept(Rc::new(RefCell::new(device)))
    }

    /// The same device once more.
    pub(crate) fn share(&self) -> Kept {
        Kept(Rc::clone(&self.0))
    }

    pub(crate) fn look(&self) -> Ref<'_, SimDevice> {
        self.0.borrow()
    }

    pub(crate) fn steer(&self) -> RefMut<'_, SimDevice> {
        self.0.borrow_mut()
    }

    /// Ranges, reserved ranges, memory and events that were not given back.
    pub(crate) fn held(&self) -> [usize; 4] {
        let device = self.look();
        [device.live_ranges().count(), device.live_reservations(), device.live_physical(), device.live_events()]
    }
}

impl DeviceBackend for Kept {
    type Event = SimEvent;
    type Physical = SimPhysical;

    fn index(&self) -> u32 {
        self.look().index()
    }

    fn total_memory(&self) -> Bytes {
        self.look().total_memory()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        self.steer().memory_info()
    }

    fn processes(&mut self) -> Vec<ProcessMemory> {
        self.steer().processes()
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        DeviceBackend::malloc(&mut *self.steer(), size)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        DeviceBackend::free(&mut *self.steer(), address)
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.steer().reserve(size)
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.steer().unreserve(address, size)
    }

    fn create(&mut self, size: Bytes) -> Result<SimPhysical, BackendError> {
        self.steer().create(size)
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &SimPhysical) -> Result<(), BackendError> {
        self.steer().map(address, size, memory)
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.steer().set_access(address, size)
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.steer().unmap(address, size)
    }

    fn release(&mut self, memory: SimPhysical) -> Result<(), (SimPhysical, BackendError)> {
        self.steer().release(memory)
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        self.steer().synchronize_stream(stream)
    }

    fn create_event(&mut self) -> Result<SimEvent, BackendError> {
        self.steer().create_event()
    }

    fn record_event(&mut self, event: &mut SimEvent, stream: StreamId) -> Result<(), BackendError> {
        self.steer().record_event(event, stream)
    }

    fn is_complete(&mut self, event: &SimEvent) -> Result<bool, BackendError> {
        self.steer().is_complete(event)
    }

    fn wait(&mut self, event: &SimEvent) -> Result<(), BackendError> {
        self.steer().wait(event)
    }

    fn stream_wait(&mut self, stream: StreamId, event: &SimEvent) -> Result<(), BackendError> {
        DeviceBackend::stream_wait(&mut *self.steer(), stream, event)
    }

    fn destroy_event(&mut self, event: SimEvent) {
        self.steer().destroy_event(event);
    }
}
