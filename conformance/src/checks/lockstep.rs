//! A mixed sequence of allocator operations, determined by its seed: requests of all sizes on three streams, use on
//! other streams, private pools, frees in random order, out-of-memory errors and releases of the cache.
//!
//! Every block is filled with its own number when it is handed out, so that overlapping blocks overwrite each other; a
//! sample of blocks is read back when freed. The heap is checked every 100 operations. At the end, all memory is
//! returned to the device.
//!
//! It runs on a device wrapper that records the allocator's calls, the device's answers, and the addresses of segments and
//! reservations. The wrapper can also make events independent of the device's speed: it then waits for all work before it
//! queries an event.

use std::collections::BTreeSet;

use parkade::device::{BackendError, Capture, DeviceBackend, GraphNode, MemoryInfo, ProcessMemory};
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::snapshot::SegmentInfo;
use parkade::stats::Stats;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, PoolError, PoolFilter};
use parkade_sim::CallName;

use crate::backend::{AnyDevice, AnyEvent, AnyPhysical, Holdings, TestDevice};
use crate::checks::draw::Draws;
use crate::suite::Trouble;

/// The number of operations between two checks of the heap.
const CHECK_EVERY: u32 = 100;
/// One block in this many is read back.
const READ_ONE_IN: u64 = 8;
/// Number of bytes read at the block's start, middle and end.
const READ_BYTES: u64 = 4096;
/// Number of blocks freed after an out-of-memory error, oldest first, as a program that recovers
/// does.
const FREED_AFTER_OOM: usize = 12;
/// The maximum number of private pools at a time.
const POOLS: usize = 3;

/// The parameters of a sequence.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The seed from which the operations are drawn.
    pub(super) seed: u64,
    /// The number of operations.
    pub(super) operations: u32,
    /// The allocator's settings.
    pub(super) settings: Settings,
    /// The allocator's limit.
    pub(super) limit: Option<Bytes>,
    /// The default stream and two others.
    pub(super) streams: [StreamId; 3],
    /// Whether all work finishes before the allocator queries events. If not, the device's speed decides which blocks
    /// are pending.
    pub(super) settles: bool,
}

/// The events of a sequence.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Report {
    /// The allocator's trace.
    pub(super) trace: Vec<TraceEntry>,
    /// The allocator's calls, with the device's answers.
    pub(super) answers: Vec<Answer>,
    /// The addresses of segments, in order of creation.
    pub(super) segment_addresses: Vec<u64>,
    /// The addresses of reservations, in order of creation.
    pub(super) reservation_addresses: Vec<u64>,
    /// The operations that ran out of memory, by number.
    pub(super) oom_points: Vec<u32>,
    /// The segments before everything was freed.
    pub(super) segments: Vec<SegmentInfo>,
    /// The statistics at the end.
    pub(super) stats: Stats,
    /// The number of bytes read back.
    pub(super) read_bytes: u64,
}

/// A live block.
struct Held {
    allocation: Allocation,
    requested: Bytes,
    word: u32,
}

struct Run<'a> {
    allocator: Allocator<Recorder, PyTorch, Vec<TraceEntry>>,
    held: Vec<Held>,
    draws: Draws,
    plan: &'a Plan,
    /// The number of blocks created so far.
    words: u32,
    read_bytes: u64,
    operation: u32,
    oom_points: Vec<u32>,
    pools: Vec<PoolId>,
    /// The number of pools created so far.
    pool_numbers: u64,
    /// The pool to which requests are routed.
    routed: Option<PoolId>,
}

/// Runs the sequence on a device.
///
/// # Errors
/// If the heap is damaged, memory does not hold what was written, or something is left on the
/// device.
pub(super) fn run(device: AnyDevice, plan: &Plan) -> Result<Report, Trouble> {
    let allocator = Allocator::new(Recorder::new(device, plan.settles), PyTorch::new(plan.settings.clone()), Vec::new());
    let mut run = Run {
        allocator,
        held: Vec::new(),
        draws: Draws::new(plan.seed),
        plan,
        words: 0,
        read_bytes: 0,
        operation: 0,
        oom_points: Vec::new(),
        pools: Vec::new(),
        pool_numbers: 0,
        routed: None,
    };
    run.allocator.set_limit(plan.limit);
    for operation in 1..=plan.operations {
        run.operation = operation;
        run.step().map_err(|trouble| at(operation, trouble))?;
        if operation.is_multiple_of(CHECK_EVERY) {
            run.allocator.check().map_err(|violation| Trouble::fail(format!("after operation {operation}: {violation}")))?;
        }
    }
    run.finish()
}

fn at(operation: u32, trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Fail { reason, script } => Trouble::Fail { reason: format!("operation {operation}: {reason}"), script },
        skip @ Trouble::Skip(_) => skip,
    }
}

fn done<T, E: std::fmt::Display>(outcome: Result<T, E>) -> Result<T, Trouble> {
    outcome.map_err(|error| Trouble::fail(error.to_string()))
}

impl Run<'_> {
    fn step(&mut self) -> Result<(), Trouble> {
        match self.draws.below(200) {
            0 => done(self.allocator.release_cached()),
            1..=4 => self.turn_to_pool(),
            5..=112 => self.allocate(),
            113..=128 => self.share(),
            _ => {
                let place = self.draws.below(self.held.len().max(1) as u64) as usize;
                self.free(place)
            }
        }
    }

    /// Creates, enters, leaves or drops a pool, whichever is possible.
    fn turn_to_pool(&mut self) -> Result<(), Trouble> {
        if self.routed.is_some() {
            return self.leave_pool();
        }
        let choice = self.draws.below(4);
        let place = self.draws.below(self.pools.len().max(1) as u64) as usize;
        match self.pools.get(place).copied() {
            Some(pool) if choice == 0 => self.drop_pool(pool),
            Some(pool) if choice < 3 || self.pools.len() == POOLS => {
                let stream = self.stream();
                let filter = if choice == 1 { PoolFilter::All } else { PoolFilter::Stream(stream) };
                self.routed = Some(pool);
                done(self.allocator.begin_pool(pool, filter))
            }
            _ => {
                self.pool_numbers += 1;
                let pool = PoolId(0, self.pool_numbers);
                self.pools.push(pool);
                done(self.allocator.create_pool(pool))?;
                self.allocator.set_pool_use_on_oom(pool, self.draws.below(2) == 0);
                if self.draws.below(4) == 0 {
                    self.allocator.set_pool_no_split(pool);
                }
                Ok(())
            }
        }
    }

    fn leave_pool(&mut self) -> Result<(), Trouble> {
        let Some(pool) = self.routed.take() else { return Ok(()) };
        done(self.allocator.end_pool(pool))?;
        done(self.allocator.release_pool(pool))
    }

    /// Does what the destructor of a `MemPool` does (spec 5.4).
    fn drop_pool(&mut self, pool: PoolId) -> Result<(), Trouble> {
        self.pools.retain(|other| *other != pool);
        self.allocator.set_pool_use_on_oom(pool, false);
        done(self.allocator.release_pool(pool))?;
        done(self.allocator.release_cached_pool(pool))
    }

    fn allocate(&mut self) -> Result<(), Trouble> {
        let (requested, stream) = (self.size(), self.stream());
        match self.allocator.allocate(requested, stream) {
            Ok(allocation) => {
                self.words += 1;
                self.held.push(Held { allocation, requested, word: self.words });
                self.write(self.held.len() - 1, stream)
            }
            Err(AllocError::OutOfMemory(_)) => {
                self.oom_points.push(self.operation);
                (0..FREED_AFTER_OOM).try_for_each(|_| self.free(0))
            }
            // Memory ran out, and the pool that should serve is the one that requests are routed to; its use count
            // still rose (spec 5.3).
            Err(AllocError::Pool(PoolError::AlreadyRouted(pool))) => {
                self.oom_points.push(self.operation);
                done(self.allocator.release_pool(pool))?;
                (0..FREED_AFTER_OOM).try_for_each(|_| self.free(0))
            }
            Err(error) => Err(Trouble::fail(error.to_string())),
        }
    }

    /// Makes another stream use a block: it writes the block's own word, which damages only a block that was reused too
    /// early.
    fn share(&mut self) -> Result<(), Trouble> {
        let (place, stream) = (self.draws.below(self.held.len().max(1) as u64) as usize, self.stream());
        if place >= self.held.len() {
            return Ok(());
        }
        self.write(place, stream)?;
        self.allocator.record_stream(&self.held[place].allocation, stream);
        Ok(())
    }

    fn write(&mut self, place: usize, stream: StreamId) -> Result<(), Trouble> {
        let Held { allocation, requested, word } = &self.held[place];
        let whole = Bytes(requested.get() / 4 * 4);
        if whole == Bytes::ZERO {
            return Ok(());
        }
        Ok(self.allocator.device_mut().device().fill(allocation.address(), whole, *word, stream)?)
    }

    fn free(&mut self, place: usize) -> Result<(), Trouble> {
        if place >= self.held.len() {
            return Ok(());
        }
        if self.draws.below(READ_ONE_IN) == 0 {
            self.read_back(place)?;
        }
        done(self.allocator.free(self.held.remove(place).allocation))
    }

    fn read_back(&mut self, place: usize) -> Result<(), Trouble> {
        let Held { allocation, requested, word } = &self.held[place];
        let (address, word, whole) = (allocation.address(), *word, requested.get() / 4 * 4);
        let piece = whole.min(READ_BYTES);
        let device = self.allocator.device_mut().device();
        device.settle();
        let mut bytes = vec![0; piece as usize];
        for offset in [0, (whole - piece) / 8 * 4, whole - piece] {
            device.read(address.offset(Bytes(offset)), &mut bytes)?;
            if bytes.chunks_exact(4).any(|found| found != word.to_le_bytes()) {
                return Err(Trouble::fail(format!(
                    "block {word} of {requested} bytes does not hold its number at byte {offset}"
                )));
            }
            self.read_bytes += piece;
        }
        Ok(())
    }

    /// Returns small, medium, large and very large request sizes, uniform within each kind.
    fn size(&mut self) -> Bytes {
        let (from, to) = match self.draws.below(100) {
            0..40 => (1, MIB),
            40..75 => (MIB, 10 * MIB),
            75..95 => (10 * MIB, 64 * MIB),
            _ => (64 * MIB, 400 * MIB),
        };
        Bytes(from + self.draws.below(to - from))
    }

    fn stream(&mut self) -> StreamId {
        let [default, second, third] = self.plan.streams;
        match self.draws.below(100) {
            0..70 => default,
            70..85 => second,
            _ => third,
        }
    }

    fn finish(mut self) -> Result<Report, Trouble> {
        let segments = self.allocator.segments();
        self.leave_pool()?;
        while !self.held.is_empty() {
            self.free(0)?;
        }
        for pool in std::mem::take(&mut self.pools) {
            self.drop_pool(pool)?;
        }
        done(self.allocator.release_cached())?;
        done(self.allocator.check())?;
        let reserved = self.allocator.heap().reserved();
        if reserved != Bytes::ZERO {
            return Err(Trouble::fail(format!("{reserved} bytes are still reserved at the end")));
        }
        let left = self.allocator.device_mut().device().holdings();
        // The allocator keeps its events so that it can reuse them.
        if (Holdings { events: 0, ..left }) != Holdings::default() {
            return Err(Trouble::fail(format!("left on the device: {left:?}")));
        }
        let stats = self.allocator.stats().clone();
        let trace = std::mem::take(self.allocator.observer_mut());
        let (answers, segment_addresses, reservation_addresses) = self.allocator.device_mut().take_notes();
        let (oom_points, read_bytes) = (self.oom_points, self.read_bytes);
        Ok(Report { trace, answers, segment_addresses, reservation_addresses, oom_points, segments, stats, read_bytes })
    }
}

/// A call that concerns memory, addresses or events, and its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    /// The name of the call.
    call: CallName,
    /// The size in the call, if it has one.
    bytes: u64,
    /// The address, for calls that free, map, set access, unmap or unreserve.
    address: Option<u64>,
    /// The outcome; for a query, whether the event is complete.
    pub(super) result: Result<bool, BackendError>,
}

/// A device and a record of its calls.
#[derive(Debug)]
struct Recorder {
    device: AnyDevice,
    settles: bool,
    answers: Vec<Answer>,
    segments: Vec<u64>,
    reservations: Vec<u64>,
}

impl Recorder {
    /// Wraps a device. With `settles`, all work finishes before events are queried.
    fn new(device: AnyDevice, settles: bool) -> Recorder {
        Recorder { device, settles, answers: Vec::new(), segments: Vec::new(), reservations: Vec::new() }
    }

    /// Returns the device itself.
    fn device(&mut self) -> &mut AnyDevice {
        &mut self.device
    }

    /// Takes the record made so far: every answer, the addresses of segments and those of
    /// reservations.
    fn take_notes(&mut self) -> (Vec<Answer>, Vec<u64>, Vec<u64>) {
        let taken = (&mut self.answers, &mut self.segments, &mut self.reservations);
        (std::mem::take(taken.0), std::mem::take(taken.1), std::mem::take(taken.2))
    }

    fn note<T>(&mut self, call: CallName, bytes: Bytes, address: Option<DeviceAddress>, result: &Result<T, BackendError>) {
        let result = result.as_ref().map(|_| true).map_err(|error| *error);
        self.answers.push(Answer { call, bytes: bytes.get(), address: address.map(DeviceAddress::get), result });
    }
}

impl DeviceBackend for Recorder {
    type Event = AnyEvent;
    type Physical = AnyPhysical;

    fn index(&self) -> u32 {
        self.device.index()
    }

    fn total_memory(&self) -> Bytes {
        self.device.total_memory()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        self.device.memory_info()
    }

    fn processes(&mut self) -> Vec<ProcessMemory> {
        Vec::new()
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let result = self.device.malloc(size);
        self.note(CallName::Malloc, size, None, &result);
        self.segments.extend(result.iter().map(|address| address.get()));
        result
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        let result = self.device.free(address);
        self.note(CallName::Free, Bytes::ZERO, Some(address), &result);
        result
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let result = self.device.reserve(size);
        self.note(CallName::AddressReserve, size, None, &result);
        self.reservations.extend(result.iter().map(|address| address.get()));
        result
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let result = self.device.unreserve(address, size);
        self.note(CallName::AddressFree, size, Some(address), &result);
        result
    }

    fn create(&mut self, size: Bytes) -> Result<AnyPhysical, BackendError> {
        let result = self.device.create(size);
        self.note(CallName::MemCreate, size, None, &result);
        result
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &AnyPhysical) -> Result<(), BackendError> {
        let result = self.device.map(address, size, memory);
        self.note(CallName::MemMap, size, Some(address), &result);
        result
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let result = self.device.set_access(address, size);
        self.note(CallName::MemSetAccess, size, Some(address), &result);
        result
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let result = self.device.unmap(address, size);
        self.note(CallName::MemUnmap, size, Some(address), &result);
        result
    }

    fn release(&mut self, memory: AnyPhysical) -> Result<(), (AnyPhysical, BackendError)> {
        let result = self.device.release(memory);
        let noted = result.as_ref().map_err(|(_, error)| *error);
        self.note(CallName::MemRelease, Bytes::ZERO, None, &noted);
        result
    }

    fn breaks_handles(&self) -> bool {
        self.device.breaks_handles()
    }

    /// This is recorded as the call that unmaps the handle, because the number of calls that follow it depends on the
    /// device.
    fn break_handle(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: AnyPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<AnyPhysical>, (AnyPhysical, BackendError)> {
        let result = self.device.break_handle(address, size, memory, parts);
        let noted = result.as_ref().map_err(|(_, error)| *error);
        self.note(CallName::MemUnmap, size, Some(address), &noted);
        result
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        let result = self.device.synchronize_stream(stream);
        self.note(CallName::StreamSynchronize, Bytes::ZERO, None, &result);
        result
    }

    fn create_event(&mut self) -> Result<AnyEvent, BackendError> {
        let result = self.device.create_event();
        self.note(CallName::EventCreate, Bytes::ZERO, None, &result);
        result
    }

    fn record_event(&mut self, event: &mut AnyEvent, stream: StreamId) -> Result<(), BackendError> {
        let result = self.device.record_event(event, stream);
        self.note(CallName::EventRecord, Bytes::ZERO, None, &result);
        result
    }

    fn stream_wait(&mut self, stream: StreamId, event: &AnyEvent) -> Result<(), BackendError> {
        let result = self.device.stream_wait(stream, event);
        self.note(CallName::StreamWaitEvent, Bytes::ZERO, None, &result);
        result
    }

    fn is_complete(&mut self, event: &AnyEvent) -> Result<bool, BackendError> {
        if self.settles {
            self.device.settle();
        }
        let result = self.device.is_complete(event);
        self.answers.push(Answer { call: CallName::EventQuery, bytes: 0, address: None, result });
        result
    }

    fn wait(&mut self, event: &AnyEvent) -> Result<(), BackendError> {
        let result = self.device.wait(event);
        self.note(CallName::EventSynchronize, Bytes::ZERO, None, &result);
        result
    }

    fn capture(&mut self, stream: StreamId) -> Result<Option<Capture>, BackendError> {
        self.device.capture(stream)
    }

    fn add_awaited(&mut self, stream: StreamId, awaited: &mut BTreeSet<GraphNode>) -> Result<(), BackendError> {
        self.device.add_awaited(stream, awaited)
    }

    fn destroy_event(&mut self, event: AnyEvent) {
        self.device.destroy_event(event);
    }
}
