//! The devices for the laws: the simulated one, limited in how many pages it takes at once, and one that consists only of
//! numbers. Each has one type of allocator, which all laws share, because each further combination of device, policy and
//! observer would compile the whole allocator once more.

use std::collections::BTreeSet;
use std::mem;

use parkade::Allocator;
use parkade::device::{BackendError, Capture, DeviceBackend, MemoryInfo, ProcessMemory};
use parkade::policy::{Policy, PyTorch};
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::{CallName, SimDevice, SimEvent, SimOptions, SimPhysical};

use crate::backend::{MadeCall, forward};

/// The allocator on the simulated device, with any policy.
pub(crate) type PagedCore = Allocator<Paged, Box<dyn Policy>, Vec<TraceEntry>>;

/// The simulated device, which takes a limited number of pages per call. It shows no captures, and breaks a handle only if the new
/// memory fits beside the handle.
#[derive(Debug)]
pub(crate) struct Paged {
    pub(crate) sim: SimDevice,
    most_pages: u64,
}

impl Paged {
    /// Creates a device that takes one page per call.
    pub(crate) fn new(options: SimOptions) -> Paged {
        Paged { sim: SimDevice::new(options), most_pages: 1 }
    }

    /// Returns the same device, limited to this many pages per call. While it has a log, it takes one.
    pub(crate) fn with_runs(self, most_pages: u64) -> Paged {
        Paged { most_pages, ..self }
    }

    /// Returns the ranges, reserved ranges, memory and events that have not been returned.
    pub(crate) fn held(&self) -> [usize; 4] {
        let sim = &self.sim;
        [sim.live_ranges().count(), sim.live_reservations(), sim.live_physical(), sim.live_events()]
    }
}

impl DeviceBackend for Paged {
    type Event = SimEvent;
    type Physical = SimPhysical;

    forward! { sim, look:
        index() -> u32;
        total_memory() -> Bytes;
        breaks_handles() -> bool;
        waits_in_captures() -> bool;
    }
    forward! { sim:
        capture(stream: StreamId) -> Result<Option<Capture>, BackendError>;
        memory_info() -> Result<MemoryInfo, BackendError>;
        processes() -> Vec<ProcessMemory>;
        reserve(size: Bytes) -> Result<DeviceAddress, BackendError>;
        unreserve(address: DeviceAddress, size: Bytes) -> Result<(), BackendError>;
        create(size: Bytes) -> Result<SimPhysical, BackendError>;
        map(address: DeviceAddress, size: Bytes, memory: &SimPhysical) -> Result<(), BackendError>;
        set_access(address: DeviceAddress, size: Bytes) -> Result<(), BackendError>;
        unmap(address: DeviceAddress, size: Bytes) -> Result<(), BackendError>;
        release(memory: SimPhysical) -> Result<(), (SimPhysical, BackendError)>;
        split_run(memory: &mut SimPhysical, page: Bytes, pages: u64) -> Result<SimPhysical, BackendError>;
        unmap_run(address: DeviceAddress, page: Bytes, pages: u64) -> Result<(), BackendError>;
        synchronize_stream(stream: StreamId) -> Result<(), BackendError>;
        create_event() -> Result<SimEvent, BackendError>;
        record_event(event: &mut SimEvent, stream: StreamId) -> Result<(), BackendError>;
        is_complete(event: &SimEvent) -> Result<bool, BackendError>;
        wait(event: &SimEvent) -> Result<(), BackendError>;
        destroy_event(event: SimEvent);
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        DeviceBackend::malloc(&mut self.sim, size)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        DeviceBackend::free(&mut self.sim, address)
    }

    fn break_handle(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: SimPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<SimPhysical>, (SimPhysical, BackendError)> {
        let requested = Bytes(parts.iter().map(|(_, bytes)| bytes.get()).sum());
        match self.sim.memory_info() {
            Ok(info) if info.free >= requested => self.sim.break_handle(address, size, memory, parts),
            Ok(_) => Err((memory, BackendError::OutOfMemory { requested })),
            Err(error) => Err((memory, error)),
        }
    }

    fn run_pages(&self) -> u64 {
        self.most_pages.min(self.sim.run_pages())
    }

    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<(SimPhysical, u64), BackendError> {
        self.sim.create_run(page, pages.min(self.most_pages))
    }

    fn stream_wait(&mut self, stream: StreamId, event: &SimEvent) -> Result<(), BackendError> {
        DeviceBackend::stream_wait(&mut self.sim, stream, event)
    }
}

/// Ascending ranges begin at multiples of this value.
const STEP: u64 = 2 << 20;

/// The answer of a device without virtual memory.
const NO_VIRTUAL_MEMORY: BackendError = BackendError::Driver { call: "virtual memory", code: 801 };

/// The allocator on the device that consists only of numbers, with PyTorch's policy.
pub(crate) type PaperCore = Allocator<Paper, PyTorch, Vec<TraceEntry>>;

/// A device that consists only of numbers: it hands out any size and lists the calls that it receives.
///
/// It has no memory, so a copy of it is an independent device.
#[derive(Clone, Debug)]
pub(crate) struct Paper {
    index: u32,
    total: u64,
    has_virtual_memory: bool,
    pub(crate) addresses: Addresses,
    pub(crate) completion: Completion,
    /// The number of events created so far, plus the number of times that events were recorded. It numbers both.
    events: u64,
    /// The calls since the last [`Paper::take_calls`].
    calls: Vec<MadeCall>,
}

/// The addresses at which a device hands out ranges.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Addresses {
    /// Each range begins behind the previous one, and the next one begins here.
    Ascending(u64),
    /// Every range begins here, even if it overlaps others.
    Fixed(u64),
}

/// When a device's events are complete.
#[derive(Clone, Debug)]
pub(crate) enum Completion {
    /// Either all events are complete or none is.
    Together(bool),
    /// The events of some streams are complete: those whose bit of these 64, chosen by the handle, is set.
    OfStreams(u64),
    /// Events complete in the order of their streams' handles.
    ByHandle {
        /// Whether the device declares this order.
        is_declared: bool,
        /// The stream and the number of each record that is not complete.
        incomplete: BTreeSet<(StreamId, u64)>,
    },
}

/// An event with its newest record.
#[derive(Clone, Debug)]
pub(crate) struct PaperEvent {
    id: u64,
    record: (StreamId, u64),
}

impl Paper {
    /// Creates a device that claims to have this many bytes. It has no virtual memory, its addresses ascend, and its
    /// events are always complete.
    pub(crate) fn new(total: u64) -> Paper {
        let (addresses, completion) = (Addresses::Ascending(STEP), Completion::Together(true));
        Paper { index: 0, total, has_virtual_memory: false, addresses, completion, events: 0, calls: Vec::new() }
    }

    /// Returns the same device with this index.
    pub(crate) fn with_index(self, index: u32) -> Paper {
        Paper { index, ..self }
    }

    /// Returns the same device with virtual memory.
    pub(crate) fn with_virtual_memory(self) -> Paper {
        Paper { has_virtual_memory: true, ..self }
    }

    /// Returns the same device, except that its events complete by handle. The device may or may not declare this.
    pub(crate) fn completing_by_handle(self, is_declared: bool) -> Paper {
        Paper { completion: Completion::ByHandle { is_declared, incomplete: BTreeSet::new() }, ..self }
    }

    /// Completes this many records, starting with those on streams with lower handles, if events complete by handle.
    pub(crate) fn complete(&mut self, count: u64) {
        if let Completion::ByHandle { incomplete, .. } = &mut self.completion {
            for _ in 0..count {
                incomplete.pop_first();
            }
        }
    }

    /// Returns the calls since the last call of this method.
    pub(crate) fn take_calls(&mut self) -> Vec<MadeCall> {
        mem::take(&mut self.calls)
    }

    /// Lists a call with its answer, and returns the answer.
    fn call(&mut self, asked: MadeCall, answer: Result<u64, BackendError>) -> Result<u64, BackendError> {
        self.calls.push(MadeCall { done: answer.is_ok(), answer: answer.unwrap_or(0), error: answer.err(), ..asked });
        answer
    }

    /// Lists a call that only a device with virtual memory supports, and returns the answer.
    fn virtual_call(&mut self, asked: MadeCall) -> Result<(), BackendError> {
        let answer = if self.has_virtual_memory { Ok(0) } else { Err(NO_VIRTUAL_MEMORY) };
        self.call(asked, answer).map(drop)
    }

    /// Returns the address of the next range.
    fn next_range(&mut self, size: Bytes) -> Result<u64, BackendError> {
        match &mut self.addresses {
            Addresses::Fixed(start) => Ok(*start),
            Addresses::Ascending(next) => {
                let end = next.checked_add(size.get()).and_then(|end| end.checked_next_multiple_of(STEP));
                end.map(|end| mem::replace(next, end)).ok_or(BackendError::OutOfMemory { requested: size })
            }
        }
    }
}

impl DeviceBackend for Paper {
    type Event = PaperEvent;
    type Physical = ();

    fn index(&self) -> u32 {
        self.index
    }

    fn total_memory(&self) -> Bytes {
        Bytes(self.total)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        let total = Bytes(self.total);
        self.call(MadeCall::to(CallName::MemGetInfo), Ok(self.total)).map(|free| MemoryInfo { free: Bytes(free), total })
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let start = self.next_range(size);
        self.call(MadeCall::to(CallName::Malloc).of(size.get()), start).map(DeviceAddress)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        self.call(MadeCall::to(CallName::Free).at(address.get()), Ok(0)).map(drop)
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let start = if self.has_virtual_memory { self.next_range(size) } else { Err(NO_VIRTUAL_MEMORY) };
        self.call(MadeCall::to(CallName::AddressReserve).of(size.get()), start).map(DeviceAddress)
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.virtual_call(MadeCall::to(CallName::AddressFree).of(size.get()).at(address.get()))
    }

    fn create(&mut self, size: Bytes) -> Result<(), BackendError> {
        self.virtual_call(MadeCall::to(CallName::MemCreate).of(size.get()))
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, (): &()) -> Result<(), BackendError> {
        self.virtual_call(MadeCall::to(CallName::MemMap).of(size.get()).at(address.get()))
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.virtual_call(MadeCall::to(CallName::MemSetAccess).of(size.get()).at(address.get()))
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.virtual_call(MadeCall::to(CallName::MemUnmap).of(size.get()).at(address.get()))
    }

    fn release(&mut self, (): ()) -> Result<(), ((), BackendError)> {
        self.virtual_call(MadeCall::to(CallName::MemRelease)).map_err(|error| ((), error))
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        self.virtual_call(MadeCall::to(CallName::StreamSynchronize).on(stream.get()))
    }

    fn completes_by_handle(&self) -> bool {
        matches!(self.completion, Completion::ByHandle { is_declared: true, .. })
    }

    fn create_event(&mut self) -> Result<PaperEvent, BackendError> {
        self.events += 1;
        let created = self.call(MadeCall::to(CallName::EventCreate), Ok(self.events));
        created.map(|id| PaperEvent { id, record: (StreamId::DEFAULT, 0) })
    }

    fn record_event(&mut self, event: &mut PaperEvent, stream: StreamId) -> Result<(), BackendError> {
        self.events += 1;
        event.record = (stream, self.events);
        if let Completion::ByHandle { incomplete, .. } = &mut self.completion {
            incomplete.insert(event.record);
        }
        self.call(MadeCall::to(CallName::EventRecord).on(stream.get()).with(event.id), Ok(0)).map(drop)
    }

    fn is_complete(&mut self, event: &PaperEvent) -> Result<bool, BackendError> {
        let is_complete = match &self.completion {
            Completion::Together(are_complete) => *are_complete,
            Completion::OfStreams(streams) => {
                // Handles are often multiples of a page.
                let bit = event.record.0.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
                streams >> bit & 1 == 1
            }
            Completion::ByHandle { incomplete, .. } => incomplete.first().is_none_or(|first| *first > event.record),
        };
        self.call(MadeCall::to(CallName::EventQuery).with(event.id), Ok(is_complete.into())).map(|_| is_complete)
    }

    fn wait(&mut self, event: &PaperEvent) -> Result<(), BackendError> {
        if let Completion::ByHandle { incomplete, .. } = &mut self.completion {
            incomplete.retain(|record| *record > event.record);
        }
        self.call(MadeCall::to(CallName::EventSynchronize).with(event.id), Ok(0)).map(drop)
    }

    fn destroy_event(&mut self, _: PaperEvent) {}
}
