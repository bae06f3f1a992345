//! Checks that the same sequence leads to the same decisions on a real device and on a simulated one.
//!
//! Addresses break ties between free blocks of equal size, so the simulated device puts its segments and reservations
//! where the driver put them, one after another. Everything must then be equal: every trace entry with its address,
//! every device call with its answer, the operations that run out of memory, the segments before everything is freed,
//! and the statistics. The only exception is the number of free bytes in an out-of-memory entry, which depends on the
//! device.
//!
//! Events do not depend on speed here, because all work finishes before an event is queried. A run of the same sequence
//! without waiting checks, by the contents of memory, that pending blocks are not reused too early.
//!
//! Memory runs out in two ways: at a limit, which the allocator enforces, and on the device, where a ballast leaves 2
//! GiB, so that the driver refuses. In the second case the simulated device must refuse the same calls as the driver.
//! The driver may take or return its own pages between the ballast's measurement and the run, so the simulated device's
//! capacity may be off by up to `MOST_DRIFT_PAGES`. However, a single capacity must explain every answer in the entire
//! run, and the evidence names it.
//!
//! On the simulated backend there is nothing to compare, and the list is empty. A device whose facts differ from the
//! simulated device's rightly leads to different decisions, so it is not compared.
//!
//! The sequence mixes all operations and is determined by its seed: requests of all sizes on three streams, use on
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
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, PoolError, PoolFilter};
use parkade_sim::address::Scripted;
use parkade_sim::{CallName, EventTiming, PAGE_BYTES, SimDevice, SimOptions};

use crate::backend::{AnyBackend, AnyDevice, AnyEvent, AnyPhysical, Holdings, Needs, TestDevice, first_other_word};
use crate::program::search::Draws;
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// The number of operations per sequence.
const OPERATIONS: u32 = 10_000;
/// The maximum that a sequence takes from the device.
const MEMORY: Bytes = Bytes(2048 * MIB);
/// The number of pages that the driver may have taken or returned since the ballast was measured.
const MOST_DRIFT_PAGES: u64 = 1;
/// Seeds used in addition to the effort's own.
const SEEDS: [u64; 2] = [20_261, 20_262];

/// The PyTorch settings under which decisions are compared.
const SETTINGS: [(&str, &str); 8] = [
    ("default", ""),
    ("max-split", "max_split_size_mb:64"),
    ("garbage-collection", "garbage_collection_threshold:0.6"),
    ("roundup", "roundup_power2_divisions:4"),
    ("expandable", "expandable_segments:True"),
    ("expandable+max-split", "expandable_segments:True,max_split_size_mb:64"),
    ("expandable+garbage-collection", "expandable_segments:True,garbage_collection_threshold:0.6"),
    ("expandable+roundup", "expandable_segments:True,roundup_power2_divisions:4"),
];

/// The limit on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shortage {
    /// The allocator's own limit.
    Limit,
    /// The device's capacity.
    Device,
    /// The device's capacity, with a limit above it, because garbage collection would never start without a limit.
    DeviceBelowLimit,
}

impl Shortage {
    /// Returns the device's capacity if that is the limit.
    fn capacity(self) -> Option<Bytes> {
        (self != Shortage::Limit).then_some(MEMORY)
    }

    fn limit(self) -> Option<Bytes> {
        match self {
            Shortage::Limit => Some(MEMORY),
            Shortage::Device => None,
            // A threshold of 0.6 is then reached when three quarters of the device are in use.
            Shortage::DeviceBelowLimit => Some(Bytes(MEMORY.get() / 4 * 5)),
        }
    }
}

/// Returns the entries of this group; none on the simulated backend.
pub fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = Vec::new();
    if backend.is_simulated() {
        return entries;
    }
    for (name, settings) in SETTINGS {
        let is_collecting = name.ends_with("garbage-collection");
        let on_device = if is_collecting { Shortage::DeviceBelowLimit } else { Shortage::Device };
        for (kind, shortage) in [("limit", Shortage::Limit), ("device", on_device)] {
            let says = match shortage {
                Shortage::Limit => {
                    "under a memory limit, the device and the simulation lead to the same calls, decisions, statistics and \
                     out-of-memory points"
                }
                _ => "when the device is full, the simulation refuses the same calls as the driver, and everything else is equal",
            };
            let entry = Entry::new(Group::Lockstep, format!("{kind}/{name}"), says, move |backend, effort| {
                compared(backend, settings, shortage, effort)
            });
            entries.push(entry.requires(Requirement::ReferenceFacts));
        }
    }
    for (name, settings) in [SETTINGS[0], SETTINGS[4]] {
        let says = "when the allocator never waits for the device, memory keeps its contents, and all of it is returned";
        let entry = Entry::new(Group::Lockstep, format!("unsettled/{name}"), says, move |backend, effort| {
            unsettled(backend, settings, effort)
        });
        entries.push(if settings.is_empty() { entry } else { entry.requires(Requirement::ExpandableSegments) });
    }
    entries
}

fn seeds(effort: &Effort) -> [u64; 2] {
    SEEDS.map(|seed| seed.wrapping_add(effort.seed))
}

fn plan(device: &AnyDevice, seed: u64, settings: &str, limit: Option<Bytes>, settles: bool) -> Result<Plan, Trouble> {
    let settings = Settings::from_environment(settings).map_err(|error| Trouble::fail(error.to_string()))?;
    let [default, second, third, _] = device.streams();
    Ok(Plan { seed, operations: OPERATIONS, settings, limit, streams: [default, second, third], settles })
}

/// Runs each seed on the backend's device and on a simulated one, and compares.
fn compared(backend: &AnyBackend, settings: &str, shortage: Shortage, effort: &Effort) -> Verdict {
    let (capacity, limit) = (shortage.capacity(), shortage.limit());
    let mut measured = Vec::new();
    for seed in seeds(effort) {
        let device = backend.open(&Needs { capacity, ..Needs::default() })?;
        let plan = plan(&device, seed, settings, limit, true)?;
        let total = device.total_memory();
        let real = run(device, &plan)?;
        if real.stats.num_ooms == 0 || real.read_bytes == 0 {
            return Err(Trouble::fail(format!("seed {seed}: memory never ran short, or nothing was read back")));
        }
        let drift = explain(&real, &plan, total, capacity).map_err(|reason| Trouble::fail(format!("seed {seed}: {reason}")))?;
        let refused = real.answers.iter().filter(|answer| answer.result.is_err()).count();
        measured.push(format!(
            "seed {seed}: {} entries, {} driver calls ({refused} refused), {} out-of-memory errors, {} MiB read back{}",
            real.trace.len(),
            real.answers.len(),
            real.stats.num_ooms,
            real.read_bytes >> 20,
            if drift == 0 { String::new() } else { format!(", simulated capacity adjusted by {drift} pages") },
        ));
    }
    let operations = u64::from(OPERATIONS) * 2 * measured.len() as u64;
    Ok(Evidence { text: String::new(), measured: measured.join("; "), operations })
}

/// Finds a simulated device that behaves the same, with the requested capacity or the closest one. Returns how many
/// pages that capacity is off, or how the device with the requested capacity differs.
fn explain(real: &Report, plan: &Plan, total: Bytes, capacity: Option<Bytes>) -> Result<i64, String> {
    let difference = match simulated(real, plan, total, capacity).and_then(|sim| compare(real, &sim)) {
        Ok(()) => return Ok(0),
        Err(difference) => difference,
    };
    let Some(capacity) = capacity else { return Err(difference) };
    for pages in 1..=MOST_DRIFT_PAGES.cast_signed() {
        for drift in [-pages, pages] {
            let capacity = capacity.get().saturating_add_signed(drift * PAGE_BYTES.cast_signed());
            if simulated(real, plan, total, Some(Bytes(capacity))).and_then(|sim| compare(real, &sim)).is_ok() {
                return Ok(drift);
            }
        }
    }
    Err(difference)
}

/// Runs the sequence on a simulated device that puts its segments and reservations where the real one did.
fn simulated(real: &Report, plan: &Plan, total: Bytes, capacity: Option<Bytes>) -> Result<Report, String> {
    let options = SimOptions::new(capacity.unwrap_or(total))
        .total(total)
        .event_timing(EventTiming::Eager)
        .address_model(Scripted::new(real.segment_addresses.iter().copied()))
        .reservation_model(Scripted::for_reservations(real.reservation_addresses.iter().copied()));
    run(AnyDevice::new(SimDevice::new(options)), plan).map_err(|trouble| match trouble {
        Trouble::Skip(reason) | Trouble::Fail { reason, .. } => format!("simulated: {reason}"),
    })
}

/// Compares two runs. The error describes where they differ.
fn compare(real: &Report, sim: &Report) -> Result<(), String> {
    let decisions = |report: &Report| report.trace.iter().map(decision).collect::<Vec<_>>();
    first_difference("trace entry", &decisions(real), &decisions(sim))?;
    first_difference("call", &real.answers, &sim.answers)?;
    first_difference("out-of-memory point", &real.oom_points, &sim.oom_points)?;
    first_difference("segment", &real.segments, &sim.segments)?;
    first_difference("statistic", &real.stats.entries(), &sim.stats.entries())?;
    if real.stats == sim.stats { Ok(()) } else { Err("the statistics differ in a value that has no key".to_owned()) }
}

fn first_difference<T: PartialEq + std::fmt::Debug>(what: &str, real: &[T], sim: &[T]) -> Result<(), String> {
    match real.iter().zip(sim).position(|(real, sim)| real != sim) {
        Some(place) => Err(format!("{what} {place} is {:?} on the device, {:?} simulated", real[place], sim[place])),
        None if real.len() == sim.len() => Ok(()),
        None => Err(format!("{what} count: {} on the device, {} simulated", real.len(), sim.len())),
    }
}

/// Returns the entry without device-specific data; an out-of-memory entry has the device's free bytes in place of an
/// address.
fn decision(entry: &TraceEntry) -> TraceEntry {
    let address = if entry.action == TraceAction::Oom { 0 } else { entry.address };
    TraceEntry { address, ..*entry }
}

/// Runs without waiting for the device between operations: blocks used by other streams stay pending for as long as
/// they are in use.
fn unsettled(backend: &AnyBackend, settings: &str, effort: &Effort) -> Verdict {
    let mut measured = Vec::new();
    for seed in seeds(effort) {
        let device = backend.open(&Needs::default())?;
        let plan = plan(&device, seed, settings, Some(MEMORY), false)?;
        let report = run(device, &plan)?;
        if report.read_bytes == 0 {
            return Err(Trouble::fail("nothing was read back"));
        }
        let unready = report.answers.iter().filter(|answer| answer.result == Ok(false)).count();
        measured
            .push(format!("seed {seed}: {unready} queries found an event not ready, {} MiB read back", report.read_bytes >> 20));
    }
    Ok(Evidence { text: String::new(), measured: measured.join("; "), operations: u64::from(OPERATIONS) * 2 })
}

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
struct Plan {
    /// The seed from which the operations are drawn.
    seed: u64,
    /// The number of operations.
    operations: u32,
    /// The allocator's settings.
    settings: Settings,
    /// The allocator's limit.
    limit: Option<Bytes>,
    /// The default stream and two others.
    streams: [StreamId; 3],
    /// Whether all work finishes before the allocator queries events. If not, the device's speed decides which blocks
    /// are pending.
    settles: bool,
}

/// The events of a sequence.
#[derive(Clone, PartialEq, Debug)]
struct Report {
    /// The allocator's trace.
    trace: Vec<TraceEntry>,
    /// The allocator's calls, with the device's answers.
    answers: Vec<Answer>,
    /// The addresses of segments, in order of creation.
    segment_addresses: Vec<u64>,
    /// The addresses of reservations, in order of creation.
    reservation_addresses: Vec<u64>,
    /// The operations that ran out of memory, by number.
    oom_points: Vec<u32>,
    /// The segments before everything was freed.
    pub(super) segments: Vec<SegmentInfo>,
    /// The statistics at the end.
    stats: Stats,
    /// The number of bytes read back.
    read_bytes: u64,
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
fn run(device: AnyDevice, plan: &Plan) -> Result<Report, Trouble> {
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
            if first_other_word(&bytes, word).is_some() {
                return Err(Trouble::fail(format!(
                    "block {word}, which has {requested} bytes, does not contain its number at byte {offset}"
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
            return Err(Trouble::fail(format!("these were not returned to the device: {left:?}")));
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
struct Answer {
    /// The name of the call.
    call: CallName,
    /// The size in the call, if it has one.
    bytes: u64,
    /// The address, for calls that free, map, set access, unmap or unreserve.
    address: Option<u64>,
    /// The outcome; for a query, whether the event is complete.
    result: Result<bool, BackendError>,
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

    fn waits_in_captures(&self) -> bool {
        self.device.waits_in_captures()
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
