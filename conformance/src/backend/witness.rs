//! A device that outlives its allocator, remembers what it reported about events, and fails on request.
//!
//! The allocator owns its device, so a test could not query the device after dropping the allocator. A
//! [`WitnessedDevice`] is a handle to the device, and the test keeps a second one. For each stream, it records how many
//! events were recorded and up to which one the device has reported them complete to the allocator. Only these reports
//! decide when a block may be reused, no matter when events complete: on every stream that used the block, an event
//! recorded after the block was freed must have been reported complete.
//!
//! Any call by the allocator can be made to fail before it reaches the device, on every backend. All calls are counted
//! and can be listed.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use parkade::Allocator;
use parkade::device::{BackendError, Capture, DeviceBackend, GraphNode, MemoryInfo, ProcessMemory};
use parkade::policy::PyTorch;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::{CallName, FaultError, FaultPlan};
use serde::{Deserialize, Serialize};

use super::any::AnyDevice;

/// What a device does not answer about the capture in which a stream takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Hidden {
    /// Nothing: it answers everything.
    Nothing,
    /// Whether the stream is captured.
    State,
    /// Which work the stream waits for in the graph.
    Order,
}

/// The error of such a question.
pub(crate) const HIDDEN: BackendError = BackendError::Driver { call: "cudaStreamGetCaptureInfo", code: 700 };

/// PyTorch's allocator on a witnessed device, with its trace as a list.
pub type Core<D> = Allocator<WitnessedDevice<D>, PyTorch, Vec<TraceEntry>>;

#[derive(Debug)]
struct Shared<D> {
    device: D,
    witness: Witness,
    faults: FaultPlan,
    /// The calls since the last [`WitnessedDevice::list_calls`]; `None` before the first one.
    calls: Option<Vec<MadeCall>>,
    /// The handles broken since then.
    broken: Vec<BrokenHandle>,
    /// Reserved ranges of addresses: start and size.
    reserved: BTreeMap<u64, u64>,
    /// The starts of the reserved ranges in which memory has ever been mapped.
    touched: BTreeSet<u64>,
    /// Ranges with memory from `malloc`: start and size.
    segments: BTreeMap<u64, u64>,
    /// The first range that overlapped one that was still held.
    overlap: Option<String>,
    /// The maximum memory that the device claims to have.
    most: Bytes,
    /// The number of events created.
    events: u64,
    /// The newest list of processes.
    processes: Vec<ProcessMemory>,
    /// The address that the device will falsely report for the next range, if any.
    wrong: Option<u64>,
    /// What it does not answer about the captures of streams.
    hidden: BTreeMap<u64, Hidden>,
}

/// A handle to a device; clones refer to the same device.
#[derive(Debug)]
pub struct WitnessedDevice<D>(Rc<RefCell<Shared<D>>>);

impl<D> Clone for WitnessedDevice<D> {
    fn clone(&self) -> Self {
        WitnessedDevice(Rc::clone(&self.0))
    }
}

impl<D> Shared<D> {
    /// Notes whether a range that the device hands out overlaps one that it has handed out and not taken back.
    fn note_overlap(&mut self, call: &str, start: u64, size: u64) {
        let end = start.saturating_add(size);
        let last = |held: &BTreeMap<u64, u64>| held.range(..end).next_back().map(|(&other, &size)| (other, other + size));
        let held = [last(&self.segments), last(&self.reserved)];
        if let Some((other, last)) = held.into_iter().flatten().find(|&(_, last)| last > start) {
            let text = format!("{call} returned [{start:#x}, {end:#x}), which overlaps [{other:#x}, {last:#x})");
            self.overlap.get_or_insert(text);
        }
    }
}

impl<D> WitnessedDevice<D> {
    /// Wraps a device.
    #[must_use]
    pub fn new(device: D) -> WitnessedDevice<D> {
        let (witness, faults) = (Witness::default(), FaultPlan::none());
        let (reserved, touched) = (BTreeMap::new(), BTreeSet::new());
        let most = Bytes::MAX;
        let (calls, broken, events, processes, wrong) = (None, Vec::new(), 0, Vec::new(), None);
        let (segments, overlap, hidden) = (BTreeMap::new(), None, BTreeMap::new());
        WitnessedDevice(Rc::new(RefCell::new(Shared {
            device,
            witness,
            faults,
            calls,
            broken,
            reserved,
            touched,
            segments,
            overlap,
            most,
            events,
            processes,
            wrong,
            hidden,
        })))
    }

    /// Makes the device claim at most this much memory. A real device reports its full size even if a ballast holds
    /// most of it, so a policy that takes a fraction of the total would keep requesting memory that is not available.
    #[must_use]
    pub fn claiming(self, most: Bytes) -> WitnessedDevice<D> {
        self.0.borrow_mut().most = most;
        self
    }

    /// Returns the device for reading. Do not hold the guard during a call to the allocator.
    #[must_use]
    pub fn look(&self) -> Ref<'_, D> {
        Ref::map(self.0.borrow(), |shared| &shared.device)
    }

    /// Returns the device for changing what the allocator does not control. Do not hold the guard during a call to the
    /// allocator.
    #[must_use]
    pub fn steer(&self) -> RefMut<'_, D> {
        RefMut::map(self.0.borrow_mut(), |shared| &mut shared.device)
    }

    /// Returns the device's reports about events.
    #[must_use]
    pub fn witness(&self) -> Witness {
        self.0.borrow().witness.clone()
    }

    /// Marks the start of the allocator's next operation.
    pub fn begin_operation(&self) {
        self.0.borrow_mut().witness.begin_operation();
    }

    /// Makes the allocator's calls fail according to a plan that counts calls from now on. A failing call does not
    /// reach the device.
    pub fn plan_faults(&self, plan: FaultPlan) {
        self.0.borrow_mut().faults = plan;
    }

    /// Makes the n-th call from now on fail, beside what is planned already.
    pub(crate) fn fail_from_now(&self, n: u64, error: FaultError) {
        let faults = &mut self.0.borrow_mut().faults;
        *faults = std::mem::take(faults).and_from_now(n, error);
    }

    /// Returns the number of planned failures that have happened so far.
    #[must_use]
    pub fn faults_fired(&self) -> u64 {
        self.0.borrow().faults.fired()
    }

    /// Starts a new list of calls, and returns the calls listed since the last call to this method.
    #[must_use]
    pub fn list_calls(&self) -> Vec<MadeCall> {
        let shared = &mut *self.0.borrow_mut();
        shared.broken.clear();
        shared.calls.replace(Vec::new()).unwrap_or_default()
    }

    /// Returns the handles that were broken since the last [`WitnessedDevice::list_calls`], in order.
    pub(crate) fn broken_so_far(&self) -> Vec<BrokenHandle> {
        self.0.borrow().broken.clone()
    }

    /// Returns the calls listed so far, without clearing the list.
    #[must_use]
    pub fn calls_so_far(&self) -> Vec<MadeCall> {
        self.0.borrow().calls.clone().unwrap_or_default()
    }

    /// Returns the ranges of addresses that the allocator has reserved: start and size.
    #[must_use]
    pub fn reserved_ranges(&self) -> BTreeMap<u64, u64> {
        self.0.borrow().reserved.clone()
    }

    /// Returns the number of reserved ranges in which nothing has ever been mapped.
    #[must_use]
    pub fn bare_ranges(&self) -> usize {
        let shared = self.0.borrow();
        shared.reserved.keys().filter(|base| !shared.touched.contains(base)).count()
    }

    /// Makes the device report that the next range of addresses begins here. The range itself is released immediately.
    pub fn answer_wrongly(&self, address: u64) {
        self.0.borrow_mut().wrong = Some(address);
    }

    /// Returns how a range that the device handed out overlaps one that it had handed out before; `None` if none does.
    #[must_use]
    pub fn overlap(&self) -> Option<String> {
        self.0.borrow().overlap.clone()
    }

    /// Makes questions about the capture of a stream fail, or lets the device answer them again.
    pub(crate) fn hide_capture(&self, stream: StreamId, hidden: Hidden) {
        self.0.borrow_mut().hidden.insert(stream.get(), hidden);
    }

    /// Returns whether any question about captures fails.
    pub(crate) fn hides_captures(&self) -> bool {
        self.0.borrow().hidden.values().any(|hidden| *hidden != Hidden::Nothing)
    }

    /// Returns whether the device does not say if a stream is captured.
    pub(crate) fn hides_state(&self, stream: StreamId) -> bool {
        self.answers(stream, Hidden::State).is_err()
    }

    /// Fails if this is what the device does not answer.
    fn answers(&self, stream: StreamId, asked: Hidden) -> Result<(), BackendError> {
        if self.0.borrow().hidden.get(&stream.get()) == Some(&asked) { Err(HIDDEN) } else { Ok(()) }
    }

    /// Makes one call, unless the plan makes it fail.
    fn call<T>(&self, asked: MadeCall, make: impl FnOnce(&mut Shared<D>) -> Result<T, BackendError>) -> Result<T, BackendError> {
        let shared = &mut *self.0.borrow_mut();
        let name = asked.name;
        let answer = match shared.faults.next(name) {
            None => make(shared),
            Some(FaultError::OutOfMemory) if matches!(name, CallName::Malloc | CallName::MemCreate) => {
                Err(BackendError::OutOfMemory { requested: Bytes(asked.bytes) })
            }
            Some(error) => Err(BackendError::Driver { call: name.as_str(), code: error.code() }),
        };
        if let Some(calls) = &mut shared.calls {
            calls.push(MadeCall { done: answer.is_ok(), error: answer.as_ref().err().copied(), ..asked });
        }
        answer
    }

    /// Records the answer to the newest call.
    fn answered(&self, answer: u64) {
        if let Some(newest) = self.0.borrow_mut().calls.as_mut().and_then(|calls| calls.last_mut()) {
            newest.answer = answer;
        }
    }

    /// Returns the processes that the device named when it was last queried.
    #[must_use]
    pub fn newest_processes(&self) -> Vec<ProcessMemory> {
        self.0.borrow().processes.clone()
    }
}

impl WitnessedDevice<AnyDevice> {
    /// Returns a second device in the same state, as if it had lived through everything that this one has; `None` if the
    /// device cannot be copied. A clone is a second handle to the same device.
    #[must_use]
    pub(crate) fn duplicate(&self) -> Option<WitnessedDevice<AnyDevice>> {
        let Shared {
            device,
            witness,
            faults,
            calls,
            broken,
            reserved,
            touched,
            segments,
            overlap,
            most,
            events,
            processes,
            wrong,
            hidden,
        } = &*self.0.borrow();
        Some(WitnessedDevice(Rc::new(RefCell::new(Shared {
            device: device.duplicate()?,
            witness: witness.clone(),
            faults: faults.clone(),
            calls: calls.clone(),
            broken: broken.clone(),
            reserved: reserved.clone(),
            touched: touched.clone(),
            segments: segments.clone(),
            overlap: overlap.clone(),
            most: *most,
            events: *events,
            processes: processes.clone(),
            wrong: *wrong,
            hidden: hidden.clone(),
        }))))
    }
}

impl<D: DeviceBackend> DeviceBackend for WitnessedDevice<D> {
    type Event = WitnessedEvent<D::Event>;
    type Physical = D::Physical;

    fn index(&self) -> u32 {
        self.look().index()
    }

    fn total_memory(&self) -> Bytes {
        let shared = self.0.borrow();
        shared.device.total_memory().min(shared.most)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        let memory = self.call(MadeCall::to(CallName::MemGetInfo), |shared| shared.device.memory_info())?;
        self.answered(memory.free.get());
        Ok(memory)
    }

    fn processes(&mut self) -> Vec<ProcessMemory> {
        let shared = &mut *self.0.borrow_mut();
        shared.processes = shared.device.processes();
        shared.processes.clone()
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let address = self.call(MadeCall::to(CallName::Malloc).of(size.get()), |shared| {
            let address = shared.device.malloc(size)?;
            if let Some(wrong) = shared.wrong.take() {
                shared.device.free(address)?;
                shared.note_overlap("malloc", wrong, size.get());
                return Ok(DeviceAddress(wrong));
            }
            shared.note_overlap("malloc", address.get(), size.get());
            shared.segments.insert(address.get(), size.get());
            Ok(address)
        })?;
        self.answered(address.get());
        Ok(address)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        self.call(MadeCall::to(CallName::Free).at(address.get()), |shared| {
            shared.device.free(address)?;
            shared.segments.remove(&address.get());
            Ok(())
        })
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let address = self.call(MadeCall::to(CallName::AddressReserve).of(size.get()), |shared| {
            let address = shared.device.reserve(size)?;
            if let Some(wrong) = shared.wrong.take() {
                shared.device.unreserve(address, size)?;
                shared.note_overlap("reserve", wrong, size.get());
                return Ok(DeviceAddress(wrong));
            }
            shared.note_overlap("reserve", address.get(), size.get());
            shared.reserved.insert(address.get(), size.get());
            Ok(address)
        })?;
        self.answered(address.get());
        Ok(address)
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.call(MadeCall::to(CallName::AddressFree).of(size.get()).at(address.get()), |shared| {
            shared.device.unreserve(address, size)?;
            shared.reserved.remove(&address.get());
            shared.touched.remove(&address.get());
            Ok(())
        })
    }

    fn create(&mut self, size: Bytes) -> Result<D::Physical, BackendError> {
        self.call(MadeCall::to(CallName::MemCreate).of(size.get()), |shared| shared.device.create(size))
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &D::Physical) -> Result<(), BackendError> {
        self.call(MadeCall::to(CallName::MemMap).of(size.get()).at(address.get()), |shared| {
            shared.device.map(address, size, memory)?;
            shared.touched.extend(shared.reserved.range(..=address.get()).next_back().map(|(base, _)| *base));
            Ok(())
        })
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let asked = MadeCall::to(CallName::MemSetAccess).of(size.get()).at(address.get());
        self.call(asked, |shared| shared.device.set_access(address, size))
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let asked = MadeCall::to(CallName::MemUnmap).of(size.get()).at(address.get());
        self.call(asked, |shared| shared.device.unmap(address, size))
    }

    fn release(&mut self, memory: D::Physical) -> Result<(), (D::Physical, BackendError)> {
        let mut refused = None;
        let mut memory = Some(memory);
        let answer = self.call(MadeCall::to(CallName::MemRelease), |shared| {
            let Some(memory) = memory.take() else { return Ok(()) };
            shared.device.release(memory).map_err(|(memory, error)| {
                refused = Some(memory);
                error
            })
        });
        // A call with a planned failure has not consumed the memory; a call that the device refused has returned it.
        match (answer, refused.or(memory)) {
            (Err(error), Some(memory)) => Err((memory, error)),
            _ => Ok(()),
        }
    }

    fn waits_in_captures(&self) -> bool {
        self.look().waits_in_captures()
    }

    fn breaks_handles(&self) -> bool {
        self.look().breaks_handles()
    }

    /// This is recorded as the call that unmaps the handle.
    fn break_handle(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: D::Physical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<D::Physical>, (D::Physical, BackendError)> {
        let mut refused = None;
        let mut memory = Some(memory);
        let asked = MadeCall::to(CallName::MemUnmap).of(size.get()).at(address.get());
        let answer = self.call(asked, |shared| {
            let Some(memory) = memory.take() else { return Ok(Vec::new()) };
            shared.device.break_handle(address, size, memory, parts).map_err(|(memory, error)| {
                refused = Some(memory);
                error
            })
        });
        match (answer, refused.or(memory)) {
            (Err(error), Some(memory)) => Err((memory, error)),
            (answer, _) => {
                let kept = parts.iter().map(|(offset, bytes)| (address.get() + offset.get(), bytes.get())).collect();
                let shared = &mut *self.0.borrow_mut();
                let calls = shared.calls.as_ref().map_or(0, Vec::len);
                shared.broken.push(BrokenHandle { calls, kept });
                Ok(answer.unwrap_or_default())
            }
        }
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        self.call(MadeCall::to(CallName::StreamSynchronize).on(stream.get()), |shared| shared.device.synchronize_stream(stream))
    }

    fn create_event(&mut self) -> Result<Self::Event, BackendError> {
        let (event, id) = self.call(MadeCall::to(CallName::EventCreate), |shared| {
            let event = shared.device.create_event()?;
            shared.events += 1;
            Ok((event, shared.events))
        })?;
        self.answered(id);
        Ok(WitnessedEvent { event, id, stream: 0, number: 0 })
    }

    fn record_event(&mut self, event: &mut Self::Event, stream: StreamId) -> Result<(), BackendError> {
        let asked = MadeCall::to(CallName::EventRecord).on(stream.get()).with(event.id);
        self.call(asked, |shared| {
            shared.device.record_event(&mut event.event, stream)?;
            let said = shared.witness.streams.entry(stream.get()).or_default();
            said.recorded += 1;
            (event.stream, event.number) = (stream.get(), said.recorded);
            Ok(())
        })
    }

    fn is_complete(&mut self, event: &Self::Event) -> Result<bool, BackendError> {
        let complete = self.call(MadeCall::to(CallName::EventQuery).with(event.id), |shared| {
            let complete = shared.device.is_complete(&event.event)?;
            if complete {
                shared.witness.done(event, true);
            }
            Ok(complete)
        })?;
        self.answered(u64::from(complete));
        Ok(complete)
    }

    fn wait(&mut self, event: &Self::Event) -> Result<(), BackendError> {
        self.call(MadeCall::to(CallName::EventSynchronize).with(event.id), |shared| {
            shared.device.wait(&event.event)?;
            shared.witness.done(event, false);
            Ok(())
        })
    }

    fn stream_wait(&mut self, stream: StreamId, event: &Self::Event) -> Result<(), BackendError> {
        let asked = MadeCall::to(CallName::StreamWaitEvent).on(stream.get()).with(event.id);
        self.call(asked, |shared| shared.device.stream_wait(stream, &event.event))
    }

    fn capture(&mut self, stream: StreamId) -> Result<Option<Capture>, BackendError> {
        self.answers(stream, Hidden::State)?;
        self.0.borrow_mut().device.capture(stream)
    }

    fn add_awaited(&mut self, stream: StreamId, awaited: &mut BTreeSet<GraphNode>) -> Result<(), BackendError> {
        self.answers(stream, Hidden::Order)?;
        self.0.borrow_mut().device.add_awaited(stream, awaited)
    }

    fn destroy_event(&mut self, event: Self::Event) {
        self.steer().destroy_event(event.event);
    }
}

/// A handle that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BrokenHandle {
    /// The number of calls listed up to and including the one that broke it.
    pub(crate) calls: usize,
    /// The parts that keep their addresses and contents: the first byte and the bytes of each.
    pub(crate) kept: Vec<(u64, u64)>,
}

/// A device call made by the allocator. A field that a call does not have is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadeCall {
    /// The call.
    pub name: CallName,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its address.
    pub address: u64,
    /// Its stream.
    pub stream: u64,
    /// The number of its event, in order of creation.
    pub event: u64,
    /// Whether it succeeded.
    pub done: bool,
    /// The address, the new event's number, 1 for a complete event, or the free bytes.
    pub answer: u64,
    /// The error, if it failed.
    pub error: Option<BackendError>,
}

impl MadeCall {
    /// Creates a call that has not been made yet.
    pub const fn to(name: CallName) -> MadeCall {
        MadeCall { name, bytes: 0, address: 0, stream: 0, event: 0, done: false, answer: 0, error: None }
    }

    /// Returns the same call with this size in bytes.
    #[must_use]
    pub const fn of(self, bytes: u64) -> MadeCall {
        MadeCall { bytes, ..self }
    }

    /// Returns the same call at this address.
    #[must_use]
    pub const fn at(self, address: u64) -> MadeCall {
        MadeCall { address, ..self }
    }

    /// Returns the same call on this stream.
    #[must_use]
    pub const fn on(self, stream: u64) -> MadeCall {
        MadeCall { stream, ..self }
    }

    /// Returns the same call with this event.
    #[must_use]
    pub const fn with(self, event: u64) -> MadeCall {
        MadeCall { event, ..self }
    }

    /// Returns the same call as it was before it was made: the allocator's request.
    pub const fn asked(self) -> MadeCall {
        MadeCall { done: false, answer: 0, error: None, ..self }
    }

    /// Returns the call's name in CUDA's documentation.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name.as_str()
    }

    /// Returns its size in bytes, or 0 if it has none.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the call succeeded.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done
    }
}

/// The device's reports about events, per stream: how many were recorded and which are known to be complete.
///
/// The device's reports about the events on one stream. Numbers count the stream's records from 1.
#[derive(Clone, Default, Debug)]
struct Said {
    recorded: u64,
    /// Events known to be complete from a query, or from a wait in an earlier operation. These are not always the first
    /// events, because a wait for one pool's events skips those of other pools.
    done_at_search: BTreeSet<u64>,
    /// Events known to be complete from a wait in this operation.
    waited_for: BTreeSet<u64>,
    /// Events known to be complete from any answer.
    done: u64,
}

/// The device's reports about events, by stream handle.
#[derive(Clone, Default, Debug)]
pub struct Witness {
    streams: BTreeMap<u64, Said>,
}

impl Witness {
    /// Returns the number of events recorded on the stream so far.
    #[must_use]
    pub fn recorded(&self, stream: u64) -> u64 {
        self.streams.get(&stream).map_or(0, |said| said.recorded)
    }

    /// Returns whether the allocator knows that the work which was queued on the stream when it had `recorded` events
    /// is done.
    #[must_use]
    pub fn is_known_done(&self, stream: u64, recorded: u64) -> bool {
        self.streams.get(&stream).is_some_and(|said| said.done > recorded)
    }

    /// Returns whether the stream's event with this number was known to be complete before the current operation began
    /// to wait, that is, when it searched for a free block.
    #[must_use]
    pub fn was_known_at_search(&self, stream: u64, number: u64) -> bool {
        self.streams.get(&stream).is_some_and(|said| said.done_at_search.contains(&number))
    }

    fn begin_operation(&mut self) {
        for said in self.streams.values_mut() {
            said.done_at_search.append(&mut said.waited_for);
        }
    }

    fn done<E>(&mut self, event: &WitnessedEvent<E>, by_query: bool) {
        let said = self.streams.entry(event.stream).or_default();
        said.done = said.done.max(event.number);
        if by_query {
            said.done_at_search.insert(event.number);
        } else {
            said.waited_for.insert(event.number);
        }
    }
}

/// An event with the stream and number of its newest record.
#[derive(Clone, Debug)]
pub struct WitnessedEvent<E> {
    event: E,
    /// Events are numbered from 1 in order of creation.
    id: u64,
    stream: u64,
    number: u64,
}
