//! The devices for the laws: a simulated one that outlives its allocator, and one that consists only of numbers.

use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

use parkade::Allocator;
use parkade::device::{BackendError, DeviceBackend, MemoryInfo, ProcessMemory};
use parkade::policy::{Policy, PyTorch};
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::{SimDevice, SimEvent, SimOptions, SimPhysical};

/// An allocator on this device. The laws share this type and [`AnyKeptCore`], because each additional type would also
/// have to be compiled.
pub(crate) type KeptCore = Allocator<Kept, PyTorch, Vec<TraceEntry>>;

/// An allocator on this device with a policy other than PyTorch's.
pub(crate) type AnyKeptCore = Allocator<Kept, Box<dyn Policy>, Vec<TraceEntry>>;

/// A simulated device that outlives its allocator, so that a law can see what the allocator leaves behind. A clone is a
/// separate device in the same state.
#[derive(Debug)]
pub(crate) struct Kept {
    device: Rc<RefCell<SimDevice>>,
    /// The maximum number of pages that it takes in one call.
    most_pages: u64,
}

impl Clone for Kept {
    fn clone(&self) -> Kept {
        Kept { device: Rc::new(RefCell::new(self.look().clone())), most_pages: self.most_pages }
    }
}

impl Kept {
    /// Creates a device that takes one page per call.
    pub(crate) fn new(options: SimOptions) -> Kept {
        Kept { device: Rc::new(RefCell::new(SimDevice::new(options))), most_pages: 1 }
    }

    /// Returns the same device, limited to this many pages per call. While it has a log, it takes one.
    pub(crate) fn with_runs(self, most_pages: u64) -> Kept {
        Kept { most_pages, ..self }
    }

    pub(crate) fn look(&self) -> Ref<'_, SimDevice> {
        self.device.borrow()
    }

    pub(crate) fn steer(&self) -> RefMut<'_, SimDevice> {
        self.device.borrow_mut()
    }

    /// Returns the ranges, reserved ranges, memory and events that have not been returned.
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

    fn run_pages(&self) -> u64 {
        self.most_pages.min(self.look().run_pages())
    }

    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<(SimPhysical, u64), BackendError> {
        let most_pages = self.most_pages;
        self.steer().create_run(page, pages.min(most_pages))
    }

    fn split_run(&mut self, memory: &mut SimPhysical, page: Bytes, pages: u64) -> Result<SimPhysical, BackendError> {
        self.steer().split_run(memory, page, pages)
    }

    fn unmap_run(&mut self, address: DeviceAddress, page: Bytes, pages: u64) -> Result<(), BackendError> {
        self.steer().unmap_run(address, page, pages)
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

/// Ranges begin at multiples of this value.
const STEP: u64 = 2 << 20;

/// An allocator on this device. The laws share this type and [`AnyPaperCore`], because each additional type would also
/// have to be compiled.
pub(crate) type PaperCore = Allocator<Paper, PyTorch, Vec<TraceEntry>>;

/// An allocator on this device with a policy other than PyTorch's.
pub(crate) type AnyPaperCore = Allocator<Paper, Box<dyn Policy>, Vec<TraceEntry>>;

/// A device that consists only of numbers: it hands out any size at ascending addresses, and decides itself when its
/// events are complete.
///
/// It has no memory, so a copy of it is an independent device.
#[derive(Clone, Debug)]
pub(crate) struct Paper {
    index: u32,
    total: u64,
    next: u64,
    /// Whether all events are complete.
    pub(crate) is_idle: bool,
}

impl Paper {
    /// Creates a device that claims to have this many bytes.
    pub(crate) fn new(total: u64) -> Paper {
        Paper { index: 0, total, next: STEP, is_idle: true }
    }

    /// Returns the same device as the one with this index.
    pub(crate) fn with_index(self, index: u32) -> Paper {
        Paper { index, ..self }
    }
}

impl DeviceBackend for Paper {
    type Event = ();
    type Physical = ();

    fn index(&self) -> u32 {
        self.index
    }

    fn total_memory(&self) -> Bytes {
        Bytes(self.total)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        Ok(MemoryInfo { free: Bytes(self.total), total: Bytes(self.total) })
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let end = self.next.checked_add(size.get()).and_then(|end| end.checked_next_multiple_of(STEP));
        let end = end.ok_or(BackendError::OutOfMemory { requested: size })?;
        Ok(DeviceAddress(std::mem::replace(&mut self.next, end)))
    }

    fn free(&mut self, _: DeviceAddress) -> Result<(), BackendError> {
        Ok(())
    }

    fn create_event(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    fn record_event(&mut self, (): &mut (), _: StreamId) -> Result<(), BackendError> {
        Ok(())
    }

    fn is_complete(&mut self, (): &()) -> Result<bool, BackendError> {
        Ok(self.is_idle)
    }

    fn wait(&mut self, (): &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn destroy_event(&mut self, (): ()) {}
}
