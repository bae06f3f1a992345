//! A simulated device that outlives its allocator and remembers what it said about events.
//!
//! The allocator owns its device, so after the allocator is dropped nothing could be asked of it. A [`WitnessedDevice`] is a handle: the
//! test keeps another one. It also notes, per stream, how many events were recorded and up to which of them the device has told
//! the allocator that they are done. From that alone follows when a block may be used again, however the events complete:
//! an event recorded after the block was given back must have been reported done, on every stream that used it.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use parkade::device::{BackendError, DeviceBackend, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::device::{SimDevice, SimEvent, SimPhysical};

/// What a device said about the events of one stream. Numbers count the stream's records from 1.
#[derive(Clone, Copy, Default, Debug)]
struct Said {
    recorded: u64,
    /// Done, by a query, or by a wait in an earlier operation.
    done_at_search: u64,
    /// Done, by any answer.
    done: u64,
}

/// What a device said about events, by stream handle.
#[derive(Clone, Default, Debug)]
pub struct Witness {
    streams: BTreeMap<u64, Said>,
}

impl Witness {
    /// How many events were recorded on the stream so far.
    #[must_use]
    pub fn recorded(&self, stream: u64) -> u64 {
        self.streams.get(&stream).map_or(0, |said| said.recorded)
    }

    /// Whether the allocator was told that the work is done which the stream had been given when `recorded` events were recorded.
    #[must_use]
    pub fn is_known_done(&self, stream: u64, recorded: u64) -> bool {
        self.streams.get(&stream).is_some_and(|said| said.done > recorded)
    }

    /// The same, told before it began to wait in the operation under way: when it looked for a free block.
    #[must_use]
    pub fn was_known_at_search(&self, stream: u64, recorded: u64) -> bool {
        self.streams.get(&stream).is_some_and(|said| said.done_at_search > recorded)
    }

    fn begin_operation(&mut self) {
        for said in self.streams.values_mut() {
            said.done_at_search = said.done;
        }
    }

    fn done(&mut self, event: &WitnessedEvent, by_query: bool) {
        let said = self.streams.entry(event.stream).or_default();
        said.done = said.done.max(event.number);
        if by_query {
            said.done_at_search = said.done_at_search.max(event.number);
        }
    }
}

/// An event, with the stream and the number of its newest record.
#[derive(Debug)]
pub struct WitnessedEvent {
    event: SimEvent,
    stream: u64,
    number: u64,
}

#[derive(Debug)]
struct Shared {
    device: SimDevice,
    witness: Witness,
}

/// A handle to a simulated device; its clones are the same device.
#[derive(Clone, Debug)]
pub struct WitnessedDevice(Rc<RefCell<Shared>>);

impl WitnessedDevice {
    /// Takes a device over.
    #[must_use]
    pub fn new(device: SimDevice) -> WitnessedDevice {
        WitnessedDevice(Rc::new(RefCell::new(Shared { device, witness: Witness::default() })))
    }

    /// The device, to look at. Not to be held across a call of the allocator.
    #[must_use]
    pub fn look(&self) -> Ref<'_, SimDevice> {
        Ref::map(self.0.borrow(), |shared| &shared.device)
    }

    /// The device, to change what is outside the allocator's control. Not to be held across a call of the allocator.
    #[must_use]
    pub fn steer(&self) -> RefMut<'_, SimDevice> {
        RefMut::map(self.0.borrow_mut(), |shared| &mut shared.device)
    }

    /// What the device has said about events.
    #[must_use]
    pub fn witness(&self) -> Witness {
        self.0.borrow().witness.clone()
    }

    /// Says that the allocator's next operation begins.
    pub fn begin_operation(&self) {
        self.0.borrow_mut().witness.begin_operation();
    }
}

impl DeviceBackend for WitnessedDevice {
    type Event = WitnessedEvent;
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
        self.steer().malloc(size)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        self.steer().free(address)
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

    fn create_event(&mut self) -> Result<WitnessedEvent, BackendError> {
        Ok(WitnessedEvent { event: self.steer().create_event()?, stream: 0, number: 0 })
    }

    fn record_event(&mut self, event: &mut WitnessedEvent, stream: StreamId) -> Result<(), BackendError> {
        let shared = &mut *self.0.borrow_mut();
        shared.device.record_event(&mut event.event, stream)?;
        let said = shared.witness.streams.entry(stream.get()).or_default();
        said.recorded += 1;
        (event.stream, event.number) = (stream.get(), said.recorded);
        Ok(())
    }

    fn is_complete(&mut self, event: &WitnessedEvent) -> Result<bool, BackendError> {
        let shared = &mut *self.0.borrow_mut();
        let complete = shared.device.is_complete(&event.event)?;
        if complete {
            shared.witness.done(event, true);
        }
        Ok(complete)
    }

    fn wait(&mut self, event: &WitnessedEvent) -> Result<(), BackendError> {
        let shared = &mut *self.0.borrow_mut();
        shared.device.wait(&event.event)?;
        shared.witness.done(event, false);
        Ok(())
    }

    fn destroy_event(&mut self, event: WitnessedEvent) {
        self.steer().destroy_event(event.event);
    }
}
