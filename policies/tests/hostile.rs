//! Tests policies that answer at random, sometimes wrongly, in programs that use every operation between two answers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use parkade::checkpoint::PoolCheckpoint;
use parkade::policy::{Attempt, Placement, Policy, PolicyFault, PyTorch, Relief, Request, Rung};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::stats::Family;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, BlockId, FreePair, Heap, PoolFilter, PoolSlot};
use parkade_policies::{BESIDE, CATALOGUE, Reach, Rescue, named};
use parkade_sim::{FaultError, FaultPlan, SimDevice, SimOptions, When};

/// A generator of numbers that a policy may use in `&self`.
#[derive(Clone)]
struct Random(Cell<u64>);

impl Random {
    fn new(seed: u64) -> Random {
        let random = Random(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
        for _ in 0..4 {
            random.below(2);
        }
        random
    }

    fn below(&self, most: u64) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        (x >> 20) % most.max(1)
    }

    fn is(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&self, of: &[T]) -> Option<T> {
        of.get(self.below(of.len() as u64) as usize).copied()
    }
}

struct Hostile {
    random: Random,
    profile: &'static Profile,
    ladder: &'static [Rung],
    is_expandable: bool,
    has_handles: bool,
    has_own_segments: bool,
    lends: bool,
    one_class: bool,
    ignores_captures: bool,
    wrong: u64,
    wide: bool,
    /// How many pairs of free blocks out of a hundred coalesce.
    joins: u64,
}

const PROFILES: &[&Profile] = &[
    &Profile::PYTORCH_2_1,
    &Profile::PYTORCH_2_6,
    &Profile::PYTORCH_2_9,
    &Profile::PYTORCH_2_10,
    &Profile::PYTORCH_2_11,
    &Profile::PYTORCH_2_12,
    &Profile::PYTORCH_2_15,
];

const RUNGS: [Rung; 9] = [
    Rung::CollectGarbage,
    Rung::Grow,
    Rung::BorrowFromPools,
    Rung::ReleaseOversize,
    Rung::WaitForEvents,
    Rung::ReuseFreed,
    Rung::ReleaseAll,
    Rung::GrowAgain,
    Rung::Own,
];

impl Hostile {
    fn new(seed: u64) -> Hostile {
        let random = Random::new(seed);
        let rungs: Vec<Rung> = (0..random.below(12)).filter_map(|_| random.pick(&RUNGS)).collect();
        let ladder: &'static [Rung] = match random.below(4) {
            0 => &[Rung::Own],
            1 => &[Rung::Own, Rung::Grow, Rung::Own, Rung::BorrowFromPools, Rung::ReleaseAll, Rung::GrowAgain, Rung::Own],
            _ => Box::leak(rungs.into_boxed_slice()),
        };
        let lends = random.is(30);
        let has_handles = random.is(40);
        Hostile {
            profile: random.pick(PROFILES).expect("some"),
            ladder,
            is_expandable: lends || random.is(60),
            has_handles,
            has_own_segments: !has_handles && !lends && random.is(20),
            lends,
            one_class: lends || random.is(50),
            ignores_captures: random.is(30),
            wrong: [0, 0, 5, 20][random.below(4) as usize],
            wide: random.is(30),
            joins: [100, 100, 60, 0][Random::new(!seed).below(4) as usize],
            random,
        }
    }

    fn all(heap: &Heap) -> Vec<BlockId> {
        heap.pool_slots().flat_map(|pool| heap.free_blocks(pool)).map(|block| block.id).collect()
    }

    fn some(&self, heap: &Heap) -> Vec<BlockId> {
        let of = if self.random.is(self.wrong) { Hostile::all(heap) } else { heap.releasable() };
        let percent = [0, 30, 100][self.random.below(3) as usize];
        of.into_iter().filter(|_| self.random.is(percent)).collect()
    }

    fn attempt(&self, request: &Request) -> Attempt {
        match self.random.below(6) {
            0 => Attempt::No,
            1 | 2 => Attempt::Ask,
            3 => Attempt::AskAgain,
            4 if self.random.is(self.wrong) => Attempt::Fail,
            4 if self.random.is(self.wrong) => Attempt::AskFor(Bytes(request.size.get() / 2)),
            _ => Attempt::AskFor(Bytes(request.size.get() + 512 * self.random.below(4096))),
        }
    }

    fn handles(&self, heap: &Heap) -> Vec<DeviceAddress> {
        let blocks = Hostile::all(heap).into_iter().flat_map(|block| heap.handles_in(block));
        blocks.map(|handle| handle.address).filter(|_| self.random.is(50)).collect()
    }
}

impl Policy for Hostile {
    fn name(&self) -> &'static str {
        "hostile"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, size: Bytes) -> PoolClass {
        if self.one_class || size.get() > MIB { PoolClass::Large } else { PoolClass::Small }
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        if self.random.is(self.wrong / 4)
            && let Some(block) = self.random.pick(&Hostile::all(heap))
        {
            return Placement::Reuse(block);
        }
        let fitting: Vec<BlockId> = heap.at_least(request.pool, request.stream, request.size).map(|block| block.id).collect();
        match self.random.pick(&fitting).filter(|_| self.random.is(70)) {
            Some(block) => Placement::Reuse(block),
            None => Placement::Segment(Bytes((request.size.get() + 512 * self.random.below(4096)).next_multiple_of(2 << 20))),
        }
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        self.random.is(80)
    }

    fn profile(&self) -> &'static Profile {
        self.profile
    }

    fn is_expandable(&self, _: PoolSlot) -> bool {
        self.is_expandable
    }

    fn page(&self, pool: PoolSlot) -> Bytes {
        if pool.class() == PoolClass::Large && !self.has_handles && self.wide { Bytes::mib(4) } else { Bytes::mib(2) }
    }

    fn reservation(&self, _: Bytes) -> Bytes {
        if self.has_own_segments { Bytes::mib(64) } else { Bytes::mib(48) }
    }

    fn rejects(&self, _: Bytes, _: Bytes, _: Bytes) -> bool {
        self.random.is(2)
    }

    fn ladder(&self) -> &'static [Rung] {
        self.ladder
    }

    fn garbage(&mut self, heap: &Heap) -> Vec<BlockId> {
        self.some(heap)
    }

    fn oversize(&self, heap: &Heap, request: &Request) -> (Vec<BlockId>, Attempt) {
        (self.some(heap), self.attempt(request))
    }

    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        if self.random.is(self.wrong) { self.some(heap) } else { heap.releasable() }
    }

    fn releases_during_captures(&self) -> bool {
        self.ignores_captures
    }

    fn reuses_in_captures(&self) -> bool {
        true
    }

    fn stamp(&self, _: PoolSlot) -> u64 {
        self.random.below(3)
    }

    fn is_oversize(&self, size: Bytes) -> bool {
        size >= Bytes::mib(8)
    }

    fn coalesces(&self, _: &FreePair) -> bool {
        self.joins == 100 || self.random.is(self.joins)
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, _: u32) -> Relief {
        if self.joins < 100 && self.random.is(10) {
            return Relief::Coalesce;
        }
        let elsewhere: Vec<BlockId> =
            heap.first_at_least_elsewhere(request.pool, request.stream, request.size).map(|block| block.id).collect();
        let own: Vec<_> = heap.at_least(request.pool, request.stream, request.size).collect();
        let any = Hostile::all(heap);
        let pick = |of: &[BlockId]| self.random.pick(if self.random.is(self.wrong) { &any } else { of });
        match self.random.below(20) {
            0 => Relief::Release { blocks: self.some(heap), attempt: self.attempt(request) },
            1 => Relief::Lend,
            2 => Relief::Borrow,
            3 | 4 => pick(&elsewhere).map_or(Relief::Lend, |block| Relief::Transfer { block, waits: self.random.is(50) }),
            5 | 6 => pick(&elsewhere).map_or(Relief::Lend, |block| Relief::TransferPart { block }),
            7 => match self.random.pick(heap.streams_seen()).filter(|&from| from != request.stream) {
                Some(from) => Relief::TransferAll { from },
                None => Relief::Wait,
            },
            8 if !request.is_expandable => Relief::Provide {
                bytes: Bytes((1 + self.random.below(8)) << 20),
                stream: self.random.pick(heap.streams_seen()).unwrap_or(request.stream),
            },
            9 => {
                let blocks =
                    any.iter().copied().filter(|&block| heap.handles_in(block).next().is_some() || self.random.is(self.wrong));
                Relief::Remap { blocks: blocks.filter(|_| self.random.is(50)).collect() }
            }
            10 => Relief::Move { handles: self.handles(heap) },
            11 => Relief::Replace { handles: self.handles(heap) },
            12 => {
                let partly = heap.pool_slots().flat_map(|pool| heap.partly_free(pool, Bytes::mib(2)));
                Relief::Break { handles: partly.map(|part| part.handle.address).filter(|_| self.random.is(60)).collect() }
            }
            13 if self.has_handles && !self.wide => Relief::Rescue { page: Bytes::mib(2) },
            14 => Relief::Wait,
            15 | 16 => match self.random.pick(&own) {
                Some(block) => Relief::Reuse(block.id),
                None => Relief::Lend,
            },
            17 | 18 => match self.random.pick(&own) {
                Some(block) => Relief::ReuseAt {
                    block: block.id,
                    offset: Bytes(self.random.below((block.size.get() - request.size.get()) / 512 + 1) * 512),
                },
                None => Relief::Lend,
            },
            _ => Relief::Done,
        }
    }

    fn takes_high_end(&self, _: &Request) -> bool {
        self.random.is(40)
    }

    fn has_own_segments(&self) -> bool {
        self.has_own_segments
    }

    fn growth(&self, request: &Request) -> Bytes {
        Bytes(request.size.get() + if self.wide { MIB } else { 0 })
    }

    fn handle(&self, _: &Heap, _: &Request, missing: Bytes) -> Option<Bytes> {
        self.has_handles
            .then(|| missing.max(Bytes::mib(2 + 2 * self.random.below(4))).checked_round_up(Bytes::mib(2)).unwrap_or(missing))
    }

    fn lends_to_pools(&self) -> bool {
        self.lends
    }

    fn waits_for_pools(&self, _: &Heap) -> bool {
        self.random.is(50)
    }

    fn breaks_for_pools(&self, heap: &Heap) -> Vec<DeviceAddress> {
        let partly = heap.pool_slots().flat_map(|pool| heap.partly_free(pool, Bytes::mib(2)));
        partly.map(|part| part.handle.address).filter(|_| self.random.is(60)).collect()
    }
}

type Core<P> = Allocator<SimDevice, P, Vec<TraceEntry>>;

/// What the trace entries say about the memory, checked against each other.
#[derive(Default)]
struct Told {
    /// The mapped bytes: first byte and end of each range.
    mapped: BTreeMap<u64, u64>,
    /// The active blocks: the requested bytes, and whether the block was freed.
    active: BTreeMap<u64, (u64, bool)>,
    failures: i64,
}

impl Told {
    fn hear(&mut self, entry: &TraceEntry) -> Result<(), String> {
        let (start, size) = (entry.address, entry.size);
        let say = |problem: &str| Err(format!("{problem}: {entry:?}"));
        let end = start.saturating_add(size);
        let overlaps = |of: &BTreeMap<u64, u64>| of.range(..end).next_back().is_some_and(|(_, &last)| last > start);
        match entry.action {
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => {
                if overlaps(&self.mapped) {
                    return say("is mapped already");
                }
                let before = self.mapped.range(..=start).next_back().filter(|(_, last)| **last == start).map(|(&first, _)| first);
                let first = before.unwrap_or(start);
                let last = self.mapped.remove(&end).unwrap_or(end);
                self.mapped.insert(first, last);
            }
            TraceAction::SegmentFree | TraceAction::SegmentUnmap => {
                let Some((&first, &last)) = self.mapped.range(..=start).next_back() else { return say("is not mapped") };
                if last < end {
                    return say("is not mapped");
                }
                if self.active.range(..end).next_back().is_some_and(|(&at, &(bytes, _))| at + bytes > start) {
                    return say("is in use");
                }
                self.mapped.remove(&first);
                if first < start {
                    self.mapped.insert(first, start);
                }
                if end < last {
                    self.mapped.insert(end, last);
                }
            }
            TraceAction::Alloc => {
                if self.mapped.range(..=start).next_back().is_none_or(|(_, &last)| last < end) {
                    return say("is handed out without memory");
                }
                if self.active.range(..end).next_back().is_some_and(|(&at, &(bytes, _))| at + bytes > start) {
                    return say("is handed out twice");
                }
                self.active.insert(start, (size, false));
            }
            TraceAction::FreeRequested => match self.active.get_mut(&start) {
                Some((_, freed)) if !*freed => *freed = true,
                _ => return say("is freed, but was not allocated"),
            },
            TraceAction::FreeCompleted => match self.active.remove(&start) {
                Some((bytes, true)) if bytes == size => {}
                other => return say(&format!("becomes free, but was {other:?}")),
            },
            TraceAction::Oom => self.failures += 1,
            _ => {}
        }
        Ok(())
    }
}

/// A policy whose settings change at random.
trait Switch: Policy + Send + 'static {
    fn switch(&mut self, _: &Random) {}
}

impl Switch for Hostile {}
impl Switch for Box<dyn Policy + Send> {}

fn change(settings: &mut Settings, random: &Random) {
    match random.below(5) {
        0 => settings.expandable_segments = random.is(70),
        1 => settings.max_split_bytes = if random.is(50) { u64::MAX } else { random.below(12) * MIB + 20 * MIB },
        2 => settings.garbage_collection_threshold = if random.is(50) { 0.0 } else { 0.5 },
        3 => settings.max_non_split_rounding_bytes = random.below(40) * MIB,
        _ => settings.throw_on_cudamalloc_oom = random.is(20),
    }
}

impl Switch for Rescue {
    fn switch(&mut self, random: &Random) {
        change(&mut self.pytorch_mut().settings, random);
    }
}

impl Switch for PyTorch {
    fn switch(&mut self, random: &Random) {
        change(&mut self.settings, random);
    }
}

struct Program {
    random: Random,
    /// A factor of all sizes.
    scale: u64,
    out: Vec<Allocation>,
    saved: Vec<PoolCheckpoint>,
    captured: Vec<StreamId>,
    fault: Option<PolicyFault>,
}

impl Program {
    fn bytes(&self) -> Bytes {
        Bytes(
            1 + match self.random.below(4) {
                0 => self.random.below(4096),
                1 => self.random.below(MIB),
                _ => self.scale * self.random.below(9 * MIB),
            },
        )
    }

    fn stream(&self) -> StreamId {
        StreamId(self.random.below(4))
    }

    fn pool(&self) -> PoolId {
        PoolId(0, 1 + self.random.below(3))
    }

    fn act<P: Switch>(&mut self, core: &mut Core<P>) -> &'static str {
        match self.random.below(46) {
            0..=13 => {
                let (bytes, stream) = (self.bytes(), self.stream());
                match core.allocate(bytes, stream) {
                    Ok(allocation) => self.out.push(allocation),
                    Err(AllocError::Policy(fault)) => self.fault = Some(fault),
                    Err(_) => {}
                }
                "allocate"
            }
            14..=21 if !self.out.is_empty() => {
                let allocation = self.out.swap_remove(self.random.below(self.out.len() as u64) as usize);
                let _ = core.free(allocation);
                "free"
            }
            22..=24 if !self.out.is_empty() => {
                let stream = self.stream();
                core.record_stream(&self.out[self.random.below(self.out.len() as u64) as usize], stream);
                "record"
            }
            25 | 26 => {
                let filter = match self.random.below(2) {
                    0 => PoolFilter::All,
                    _ => PoolFilter::Stream(self.stream()),
                };
                let _ = core.begin_pool(self.pool(), filter);
                "begin"
            }
            27 | 28 => {
                let _ = core.end_pool(self.pool());
                "end"
            }
            29 | 44 => {
                let pool = self.pool();
                if self.random.is(2) || core.pool_use_count(pool).is_ok_and(|uses| uses > 1 || uses == 1 && self.random.is(30)) {
                    let _ = core.release_pool(pool);
                }
                "release_pool"
            }
            30 => {
                let pool = self.pool();
                let is_used = self.random.is(2) || core.pool_use_count(pool).is_ok_and(|uses| uses > 0);
                core.set_pool_use_on_oom(pool, is_used && self.random.is(80));
                "use_on_oom"
            }
            31 if self.random.is(30) => {
                core.set_pool_no_split(self.pool());
                "no_split"
            }
            32 => {
                core.set_capturing(self.random.is(40));
                "capturing"
            }
            33 => {
                let stream = self.stream();
                if self.captured.contains(&stream) {
                    core.device_mut().end_capture(stream);
                    self.captured.retain(|&other| other != stream);
                } else if self.random.is(50) {
                    core.device_mut().begin_capture(stream);
                    core.device_mut().capture_work(stream);
                    self.captured.push(stream);
                }
                "capture"
            }
            34 => {
                if let Ok(saved) = core.checkpoint_pool(self.pool()) {
                    self.saved.push(saved);
                }
                "checkpoint"
            }
            35 if !self.saved.is_empty() => {
                let saved = &self.saved[self.random.below(self.saved.len() as u64) as usize];
                if let Ok(restored) = core.restore_pool(saved) {
                    self.out.extend(restored.allocations);
                }
                self.out.retain(|allocation| core.is_allocated(allocation));
                "restore"
            }
            36 => {
                let _ = core.release_cached();
                "release_cached"
            }
            37 => {
                let _ = core.release_cached_pool(self.pool());
                "release_cached_pool"
            }
            38 => {
                core.set_limit(self.random.is(50).then(|| Bytes::mib(self.scale * (8 + self.random.below(60)))));
                "limit"
            }
            39 => {
                core.device_mut().spin(self.stream(), 1000 * self.random.below(400));
                "spin"
            }
            40 => {
                core.device_mut().advance(1000 * self.random.below(400));
                "advance"
            }
            43 => {
                core.policy_mut().switch(&self.random);
                "switch"
            }
            41 | 42 => {
                let segments = core.segments();
                let blocks: Vec<_> = segments.iter().flat_map(|segment| &segment.blocks).collect();
                if let Some(&block) = self.random.pick(&blocks).as_ref() {
                    let address = DeviceAddress(block.address.get() + 512 * self.random.below(block.size.get() / 512));
                    let (bytes, stream) = (self.bytes(), self.stream());
                    if let Ok(Some(allocation)) = core.allocate_at(bytes, stream, address) {
                        self.out.push(allocation);
                    }
                }
                "allocate_at"
            }
            _ => {
                let mut plan = FaultPlan::none();
                if self.random.is(60) {
                    let error = if self.random.is(50) { FaultError::OutOfMemory } else { FaultError::Code(700) };
                    plan = plan.and(When::Nth(1 + self.random.below(10)), error);
                }
                core.device_mut().set_fault_plan(plan);
                "faults"
            }
        }
    }
}

fn run<P: Switch>(seed: u64, policy: P, may_fault: bool) {
    // With the larger sizes, a policy like GMLake stitches blocks.
    let scale = if Random::new(!seed).is(20) { 100 } else { 1 };
    let mut core: Core<P> =
        Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(scale * (40 + seed % 32)))), policy, Vec::new());
    let mut told = Told::default();
    let new = |salt| Program {
        random: Random::new(seed ^ salt),
        scale,
        out: Vec::new(),
        saved: Vec::new(),
        captured: Vec::new(),
        fault: None,
    };
    let inner = Arc::new(Mutex::new(new(0xabcd)));
    if seed.is_multiple_of(2) {
        let inner = Arc::clone(&inner);
        core.register_free_memory_callback(Box::new(move |core| {
            let mut inner = inner.lock().expect("no panic");
            let steps = inner.random.below(3);
            for _ in 0..steps {
                inner.act(core);
                inner.out.retain(|allocation| core.is_allocated(allocation));
            }
            inner.random.is(50)
        }));
    }
    let mut program = new(0x1234);
    for step in 0..250 {
        let what = program.act(&mut core);
        let mut inner = inner.lock().expect("no panic");
        program.out.retain(|allocation| core.is_allocated(allocation));
        inner.out.retain(|allocation| core.is_allocated(allocation));
        let name = core.policy().name();
        core.check().unwrap_or_else(|violation| panic!("{name}, seed {seed}, step {step}, {what}: {violation}"));
        for entry in std::mem::take(core.observer_mut()) {
            told.hear(&entry).unwrap_or_else(|problem| panic!("{name}, seed {seed}, step {step}, {what}: {problem}"));
        }
        let counted = core.stats().num_ooms + core.stats().num_rescues;
        assert_eq!(counted, told.failures, "{name}, seed {seed}, step {step}, {what}: failures and rescues");
        let active = core.stats().family(Family::Active).all.current;
        assert_eq!(active, told.active.len() as i64, "{name}, seed {seed}, step {step}, {what}: active");
        let mapped: u64 = told.mapped.iter().map(|(first, last)| last - first).sum();
        assert_eq!(core.heap().reserved().get(), mapped, "{name}, seed {seed}, step {step}, {what}: reserved");
        let live = core.stats().family(Family::Allocation).all.current;
        let held = program.out.len() + inner.out.len();
        assert_eq!(live, held as i64, "{name}, seed {seed}, step {step}, {what}: allocated, and held");
        let fault = program.fault.take().or(inner.fault.take());
        assert!(may_fault || fault.is_none(), "{name}, seed {seed}, step {step}, {what}: {fault:?}");
    }
    core.device_mut().set_fault_plan(FaultPlan::none());
    let mut inner = inner.lock().expect("no panic");
    let captured: Vec<_> = program.captured.drain(..).chain(inner.captured.drain(..)).collect();
    for stream in captured {
        core.device_mut().end_capture(stream);
    }
    core.set_capturing(false);
    let held: Vec<_> = program.out.drain(..).chain(inner.out.drain(..)).collect();
    drop(inner);
    let mut is_overreleased = false;
    for pool in 1..4 {
        let pool = PoolId(0, pool);
        let _ = core.end_pool(pool);
        while core.pool_use_count(pool).is_ok_and(|uses| uses > 0) {
            core.release_pool(pool).expect("in use");
        }
        is_overreleased |= core.pool_use_count(pool).is_ok_and(|uses| uses < 0);
    }
    for allocation in held {
        core.free(allocation).expect("ours");
    }
    core.check().unwrap_or_else(|violation| panic!("seed {seed}, at the end: {violation}"));
    // Such a pool keeps its memory, and a policy that answers at random does not release everything.
    if may_fault || is_overreleased || core.heap().is_deferring() {
        return;
    }
    core.release_cached().and_then(|()| core.release_cached()).unwrap_or_else(|error| panic!("seed {seed}, at the end: {error}"));
    core.check().unwrap_or_else(|violation| panic!("seed {seed}, at the end: {violation}"));
    let left = (core.heap().reserved(), core.device().used_bytes());
    assert_eq!(left, (Bytes::ZERO, Bytes::ZERO), "{}, seed {seed}: memory is left", core.policy().name());
}

/// The number of programs of each test.
const PROGRAMS: u64 = 300;

/// Whatever a policy answers, the heap, the statistics and the trace agree.
#[test]
fn no_answer_breaks_the_heap() {
    (0..PROGRAMS).for_each(|seed| run(seed, Hostile::new(seed), true));
}

#[test]
fn no_policy_of_the_catalogue_answers_wrongly_in_such_a_program() {
    let all: Vec<_> = CATALOGUE.iter().chain(BESIDE).collect();
    (0..PROGRAMS).for_each(|seed| run(seed, all[seed as usize % all.len()].make(), false));
}

#[test]
fn nor_does_pytorch_or_a_rescue_under_changing_settings() {
    for seed in 0..PROGRAMS {
        let random = Random::new(seed);
        let profile = random.pick(PROFILES).expect("some");
        let mut settings = Settings { expandable_segments: random.is(70), ..Settings::default() };
        settings.graph_capture_record_stream_reuse = random.is(50);
        let pytorch = PyTorch::of(profile, settings);
        match seed % 3 {
            0 => run(seed, pytorch, false),
            1 => run(seed, Rescue::new(pytorch, Some(Reach::Free)), false),
            _ => run(seed, Rescue::new(pytorch, Some(Reach::Breaks)).at_most(1 + seed % 5), false),
        }
    }
}

/// A callback may end the routing to the request's pool, so that no graph counts as being captured any more.
#[test]
fn a_pool_in_use_keeps_its_memory_even_if_its_routing_ends_during_the_request() {
    for name in ["rmm-pool", "cuda-async"] {
        let policy = named(name).expect("a policy").make();
        let mut core: Core<Box<dyn Policy + Send>> =
            Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(64))), policy, Vec::new());
        core.set_limit(Some(Bytes::mib(64)));
        let pool = PoolId(0, 1);
        core.begin_pool(pool, PoolFilter::All).expect("a new pool");
        let allocation = core.allocate(Bytes::mib(16), StreamId::DEFAULT).expect("room");
        core.free(allocation).expect("ours");
        core.register_free_memory_callback(Box::new(move |core| {
            core.end_pool(pool).expect("routed to");
            false
        }));
        let reserved = core.heap().reserved();
        let refused = core.allocate(Bytes::mib(40), StreamId::DEFAULT);
        assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{name}: {refused:?}");
        assert_eq!(core.heap().reserved(), reserved, "{name}");
    }
}
