//! Clones of allocators, and what happens when allocators are dropped.

use std::collections::{BTreeMap, BTreeSet};

use parkade::checkpoint::PoolCheckpoint;
use parkade::policy::{Policy, PyTorch, Wrapper};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::snapshot::SegmentInfo;
use parkade::stats::Stats;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, MIB, PoolId, StreamId};
use parkade::{Allocation, Allocator, FreeError, PoolFilter, Restored};
use parkade_sim::{Call, CallName, CallSubject, EventTiming, FaultError, FaultPlan, SimOptions, When};
use proptest::prelude::*;

use crate::core_laws::devices::Kept;
use crate::core_laws::devices::{Paper, PaperCore as Core};
use crate::core_laws::run::{Draws, Outcome, run};
use crate::law::{Broken, Law, ensure};

/// The maximum number of allocators at a time.
const MOST: usize = 6;

/// One step. Its numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum FamilyStep {
    Clone(usize),
    /// Creates an allocator that is not a clone.
    Make,
    Allocate(usize, u64),
    Free(usize, usize),
    /// Asks one allocator to free an allocation that another one holds.
    Offer(usize, usize, usize),
    Drop(usize),
}

/// An allocation in one allocator, and the number of the allocator that created it.
struct Held {
    allocation: Allocation,
    maker: usize,
}

impl Held {
    fn in_a_clone(&self) -> Held {
        Held { allocation: self.allocation.in_a_clone(), maker: self.maker }
    }
}

/// An allocator, its number, the numbers of its originals, and its allocations.
struct Copied {
    core: Core,
    number: usize,
    originals: Vec<usize>,
    held: Vec<Held>,
}

/// Every allocator in a case.
struct Family {
    all: Vec<Copied>,
    made: usize,
    is_newer: bool,
}

/// Clones of allocators: each one accepts frees of what it and its originals have allocated, each is independent of all
/// others, and none accepts what was allocated elsewhere.
pub(crate) fn check(draws: &Draws) -> Outcome {
    let which = any::<usize>;
    let sizes = prop::sample::select(vec![1, 512, 5000, MIB, 3 * MIB, 30 * MIB]);
    let step = prop_oneof![
        4 => which().prop_map(FamilyStep::Clone),
        1 => Just(FamilyStep::Make),
        8 => (which(), sizes).prop_map(|(at, size)| FamilyStep::Allocate(at, size)),
        6 => (which(), which()).prop_map(|(at, what)| FamilyStep::Free(at, what)),
        6 => (which(), which(), which()).prop_map(|(at, from, what)| FamilyStep::Offer(at, from, what)),
        1 => which().prop_map(FamilyStep::Drop),
    ];
    let strategy = (any::<bool>(), prop::collection::vec(step, 4..60));
    run(&draws.each_for(6), 353, &strategy, |(is_newer, steps)| {
        let mut family = Family { all: Vec::new(), made: 0, is_newer: *is_newer };
        family.make();
        for (number, step) in steps.iter().enumerate() {
            family.step(step).map_err(|broken| broken.during(format!("step {number}, {step:?}")))?;
        }
        family.all.into_iter().try_for_each(finish)?;
        Ok(steps.len() as u64)
    })
}

type Seen = (Vec<SegmentInfo>, Stats, Vec<TraceEntry>);

fn seen(core: &Core) -> Seen {
    (core.segments(), core.stats().clone(), core.observer().clone())
}

/// Frees everything that an allocator holds. It must accept every free.
fn finish(mut copied: Copied) -> Result<(), Broken> {
    for held in copied.held {
        copied.core.free(held.allocation).map_err(|error| Broken::new(Law::Reference, error))?;
    }
    copied.core.release_cached().map_err(|error| Broken::new(Law::Reference, error))?;
    let left = copied.core.heap().reserved();
    ensure(Law::Endings, left == Bytes::ZERO, || format!("allocator {} still holds {left} bytes", copied.number))
}

impl Family {
    fn make(&mut self) {
        let profile = if self.is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
        let core = Allocator::new(Paper::new(1 << 36), PyTorch::of(profile, Settings::default()), Vec::new());
        let (number, originals) = (self.made, Vec::new());
        self.all.push(Copied { core, number, originals, held: Vec::new() });
        self.made += 1;
    }

    /// Performs a step: at most one allocator changes.
    fn step(&mut self, step: &FamilyStep) -> Result<(), Broken> {
        let before: Vec<(usize, Seen)> = self.all.iter().map(|copied| (copied.number, seen(&copied.core))).collect();
        let changed = self.act(step)?;
        for copied in &self.all {
            let before = before.iter().find(|(number, _)| *number == copied.number);
            let may_change = changed == Some(copied.number) || before.is_none();
            ensure(Law::Determinism, may_change || before.is_some_and(|(_, before)| *before == seen(&copied.core)), || {
                format!("allocator {} has changed", copied.number)
            })?;
            copied.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        }
        Ok(())
    }

    /// Returns the number of the allocator that may have changed.
    fn act(&mut self, step: &FamilyStep) -> Result<Option<usize>, Broken> {
        let count = self.all.len();
        let unserved = |error: &dyn std::error::Error| Broken::new(Law::Reference, error);
        match *step {
            FamilyStep::Clone(which) if count < MOST => self.copy(which % count).map(|()| None),
            FamilyStep::Make if count < MOST => {
                self.make();
                Ok(None)
            }
            FamilyStep::Allocate(at, size) => {
                let copied = &mut self.all[at % count];
                let allocation = copied.core.allocate(Bytes(size), StreamId::DEFAULT).map_err(|error| unserved(&error))?;
                copied.held.push(Held { allocation, maker: copied.number });
                Ok(Some(copied.number))
            }
            FamilyStep::Free(at, what) if !self.all[at % count].held.is_empty() => {
                let copied = &mut self.all[at % count];
                let held = copied.held.remove(what % copied.held.len());
                let is_known = copied.core.segment_of(&held.allocation).is_some();
                ensure(Law::Reference, is_known, || format!("allocation {:?} is unknown", held.allocation))?;
                copied.core.free(held.allocation).map_err(|error| unserved(&error))?;
                Ok(Some(copied.number))
            }
            FamilyStep::Offer(at, from, what) => self.offer(at % count, from % count, what).map(|()| None),
            FamilyStep::Drop(at) if count > 1 => finish(self.all.remove(at % count)).map(|()| None),
            _ => Ok(None),
        }
    }

    fn copy(&mut self, which: usize) -> Result<(), Broken> {
        let original = &self.all[which];
        let core = original.core.clone();
        ensure(Law::Determinism, seen(&core) == seen(&original.core), || {
            "the clone's state differs from its original's".to_owned()
        })?;
        let originals = original.originals.iter().copied().chain([original.number]).collect();
        let held = original.held.iter().map(Held::in_a_clone).collect();
        self.all.push(Copied { core, number: self.made, originals, held });
        self.made += 1;
        Ok(())
    }

    /// Asks an allocator to free what another one holds, although it is not a clone of the allocator that created it.
    /// It must refuse, whatever it has at the same address.
    fn offer(&mut self, at: usize, from: usize, what: usize) -> Result<(), Broken> {
        let from = &self.all[from].held;
        let Some(strange) = from.get(what % from.len().max(1)).map(Held::in_a_clone) else { return Ok(()) };
        let copied = &mut self.all[at];
        if strange.maker == copied.number || copied.originals.contains(&strange.maker) {
            return Ok(());
        }
        refused(copied, strange)
    }
}

fn refused(copied: &mut Copied, strange: Held) -> Result<(), Broken> {
    let Held { allocation, maker } = strange;
    let is_known = copied.core.segment_of(&allocation).is_some();
    copied.core.record_stream(&allocation, StreamId(1));
    let same = allocation.in_a_clone();
    let answer = copied.core.free(allocation);
    ensure(Law::Reference, answer == Err(FreeError::NotAllocated(same)) && !is_known, || {
        format!("allocator {} freed an allocation of allocator {maker}, which it does not hold: {answer:?}", copied.number)
    })
}

/// Handles of streams.
const STREAMS: [u64; 4] = [0, 7, 0x1000, u64::MAX];

/// The private pools in programs.
const POOLS: [PoolId; 2] = [PoolId(0, 1), PoolId(3, 0)];

/// Settings strings that both releases understand.
const TEXTS: [&str; 6] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "expandable_segments:True,large_segment_size_mb:12",
    "garbage_collection_threshold:0.3",
    "roundup_power2_divisions:4",
];

/// One step. Its numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(u64, usize),
    Free(usize),
    Record(usize, usize),
    Complete(usize),
    CompleteAll,
    ProcessEvents,
    ReleaseCached,
    Begin(usize, bool),
    End(usize),
    Release(usize),
    ReleaseCachedPool(usize),
    Serve(usize, bool),
    KeepWhole(usize),
    Capturing(bool),
    Save(usize),
    Restore(usize),
    Limit(Option<u64>),
    Apply(usize),
    Reset(bool),
    Snapshot,
    /// Makes the n-th next device call fail.
    Fail(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<usize>;
    let sizes = prop::sample::select(vec![1, 5000, MIB, MIB + 1, 3 * MIB, 11 * MIB, 20 * MIB, 30 * MIB]);
    let limits = prop::sample::select(vec![None, Some(40 * MIB), Some(90 * MIB)]);
    prop_oneof![
        24 => (sizes, which()).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        14 => which().prop_map(Step::Free),
        12 => (which(), which()).prop_map(|(what, stream)| Step::Record(what, stream)),
        2 => which().prop_map(Step::Complete),
        1 => Just(Step::CompleteAll),
        1 => Just(Step::ProcessEvents),
        2 => Just(Step::ReleaseCached),
        4 => (which(), any::<bool>()).prop_map(|(pool, all)| Step::Begin(pool, all)),
        4 => which().prop_map(Step::End),
        2 => which().prop_map(Step::Release),
        1 => which().prop_map(Step::ReleaseCachedPool),
        1 => (which(), any::<bool>()).prop_map(|(pool, serves)| Step::Serve(pool, serves)),
        1 => which().prop_map(Step::KeepWhole),
        2 => any::<bool>().prop_map(Step::Capturing),
        2 => which().prop_map(Step::Save),
        2 => which().prop_map(Step::Restore),
        1 => limits.prop_map(Step::Limit),
        1 => which().prop_map(Step::Apply),
        1 => any::<bool>().prop_map(Step::Reset),
        1 => Just(Step::Snapshot),
        2 => (1..6_u64).prop_map(Step::Fail),
    ]
}

/// A clone behaves like its original, no matter in which state it was created. An allocator that is dropped in any
/// state returns everything, after it has waited for every stream that may still use memory that it unmaps.
pub(crate) fn copies(draws: &Draws) -> Outcome {
    let first = (any::<bool>(), 0..TEXTS.len(), any::<u64>());
    let strategy = (first, prop::collection::vec(step(), 1..50), prop::collection::vec(step(), 0..30), any::<u64>());
    run(&draws.each_for(2), 360, &strategy, |(first, before, after, end)| {
        let mut side = Side::new(first)?;
        for step in before {
            side.act(step)?;
        }
        let mut copy = side.copy()?;
        for (number, step) in after.iter().enumerate() {
            let answers = [side.act(step)?, copy.act(step)?];
            let during = || format!("step {number} after the clone, {step:?}");
            ensure(Law::Determinism, answers[0] == answers[1], || format!("{answers:?}"))
                .map_err(|broken| broken.during(during()))?;
            side.same_as(&copy).map_err(|broken| broken.during(during()))?;
        }
        let left = copy.seen();
        side.drop(*end)?;
        ensure(Law::Determinism, copy.seen() == left, || "a clone changed when its original was dropped".to_owned())?;
        copy.drop(*end >> 8)?;
        Ok((before.len() + after.len()) as u64)
    })
}

/// The same for any policy, without what depends on PyTorch's rules: which streams a drop waits for. The clone runs to its end
/// before its original continues, so that state which they share differs then.
pub(crate) fn copies_of(make: &dyn Fn() -> AnyClonable, draws: &Draws) -> Outcome {
    let strategy = (any::<u64>(), prop::collection::vec(step(), 1..50), prop::collection::vec(step(), 0..30));
    run(draws, 361, &strategy, |(seed, before, after)| {
        let mut side = Side::of(make(), *seed);
        for step in before {
            side.act(step)?;
        }
        let mut copy = side.copy()?;
        let answers: Vec<String> = after.iter().map(|step| copy.act(step)).collect::<Result<_, _>>()?;
        for (number, (step, clone)) in after.iter().zip(answers).enumerate() {
            let original = side.act(step)?;
            ensure(Law::Determinism, original == clone, || {
                format!(
                    "step {number} after the clone, {step:?}: the clone answered {clone:?}, and its original {original:?}: a policy's \
                     clone must have all of its state, and share none"
                )
            })?;
        }
        side.same_as(&copy)?;
        Ok((before.len() + after.len()) as u64)
    })
}

/// A policy that can be cloned, and that the programs here can run.
pub(crate) trait Clonable: Policy + Clone {
    /// The settings that a program can see.
    fn shown(&self) -> String {
        String::new()
    }

    /// Applies a settings string. Returns the answer as text.
    fn apply(&mut self, _text: &str) -> String {
        String::new()
    }
}

impl Clonable for PyTorch {
    fn shown(&self) -> String {
        format!("{:?}", self.settings)
    }

    fn apply(&mut self, text: &str) -> String {
        let dialect = &self.profile().dialect;
        format!("{:?}", self.settings.apply_as(dialect, text))
    }
}

/// Any policy that can be cloned, with its type erased, so that the law is compiled once.
pub(crate) struct AnyClonable(Box<dyn Erased>);

/// A policy that can be cloned although its type is erased.
pub(crate) trait Erased: Policy {
    fn clone_boxed(&self) -> Box<dyn Erased>;
}

impl<P: Policy + Clone + 'static> Erased for P {
    fn clone_boxed(&self) -> Box<dyn Erased> {
        Box::new(self.clone())
    }
}

impl AnyClonable {
    pub(crate) fn new(policy: impl Policy + Clone + 'static) -> AnyClonable {
        AnyClonable(Box::new(policy))
    }
}

impl Clone for AnyClonable {
    fn clone(&self) -> AnyClonable {
        AnyClonable((*self.0).clone_boxed())
    }
}

impl Wrapper for AnyClonable {
    type Inner = dyn Erased;

    fn inner(&self) -> &(dyn Erased + 'static) {
        &*self.0
    }

    fn inner_mut(&mut self) -> &mut (dyn Erased + 'static) {
        &mut *self.0
    }
}

impl Clonable for AnyClonable {}

/// An allocator, its allocations and its device.
struct Side<P: Clonable> {
    core: Allocator<Kept, P, Vec<TraceEntry>>,
    device: Kept,
    held: Vec<(Allocation, BTreeSet<StreamId>)>,
    saved: Vec<PoolCheckpoint>,
    /// Events that have been recorded and are not known to be complete, with their streams.
    events: BTreeMap<u64, u64>,
    /// The streams that used freed blocks.
    former: BTreeSet<u64>,
    calls: Vec<Call>,
}

impl Side<PyTorch> {
    fn new((is_newer, text, seed): &(bool, usize, u64)) -> Result<Side<PyTorch>, Broken> {
        let profile = if *is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
        let settings = Settings::from_environment_as(&profile.dialect, TEXTS[*text]);
        let settings = settings.map_err(|error| Broken::new(Law::Settings, error))?;
        Ok(Side::of(PyTorch::of(profile, settings), *seed))
    }
}

impl<P: Clonable> Side<P> {
    fn of(policy: P, seed: u64) -> Side<P> {
        let timing = if seed.is_multiple_of(3) { EventTiming::Lazy } else { EventTiming::Seeded(seed) };
        let device = Kept::new(SimOptions::new(Bytes(140 * MIB)).event_timing(timing));
        let core = Allocator::new(device.share(), policy, Vec::new());
        Side {
            core,
            device,
            held: Vec::new(),
            saved: Vec::new(),
            events: BTreeMap::new(),
            former: BTreeSet::new(),
            calls: Vec::new(),
        }
    }

    /// Clones the allocator, its allocations and its device.
    fn copy(&self) -> Result<Side<P>, Broken> {
        let core = self.core.clone();
        let device = core.device().share();
        let held = self.held.iter().map(|(allocation, uses)| (allocation.in_a_clone(), uses.clone())).collect();
        let (saved, events, former, calls) = (self.saved.clone(), self.events.clone(), self.former.clone(), Vec::new());
        let copy = Side { core, device, held, saved, events, former, calls };
        let same = copy.seen() == self.seen();
        ensure(Law::Determinism, same, || format!("the clone is {}, its original {}", copy.seen(), self.seen()))?;
        Ok(copy)
    }

    /// Returns the entire visible state as text.
    fn seen(&self) -> String {
        let (core, heap) = (&self.core, self.core.heap());
        let free: Vec<_> = heap.pool_slots().map(|slot| heap.free_blocks(slot).collect::<Vec<_>>()).collect();
        let sums = (heap.limit(), heap.reserved(), heap.largest_free(), heap.is_deferring(), core.memory_fraction());
        let pools = (
            POOLS.map(|pool| core.pool_use_count(pool)),
            heap.device_total(),
            heap.pool_slots().map(|slot| heap.reserved_in(slot)).collect::<Vec<_>>(),
        );
        let ranges = (core.expandable_segments(), self.device.held(), self.device.look().used_bytes());
        let shown = core.policy().shown();
        format!("{sums:?} {pools:?} {ranges:?} {:?} {free:?} {:?} {shown}", core.stats(), core.segments())
    }

    fn same_as(&self, copy: &Side<P>) -> Result<(), Broken> {
        let [seen, expected] = [copy.seen(), self.seen()];
        ensure(Law::Determinism, seen == expected, || format!("the clone is {seen}, its original {expected}"))?;
        ensure(Law::Determinism, copy.core.observer() == self.core.observer(), || "the clone has a different trace".to_owned())?;
        let plain = |calls: &[Call]| calls.iter().map(|call| (call.name, call.result, call.subject)).collect::<Vec<_>>();
        ensure(Law::Determinism, plain(&copy.calls) == plain(&self.calls), || {
            format!("the clone made the driver calls {:?}, its original {:?}", copy.calls, self.calls)
        })
    }

    /// Performs a step. Returns the answer as text.
    fn act(&mut self, step: &Step) -> Result<String, Broken> {
        let answer = self.answer(step);
        self.device.steer().set_fault_plan(match step {
            Step::Fail(n) => FaultPlan::none().and(When::Nth(*n), FaultError::Code(999)),
            // A planned failure happens in the next step or never.
            _ => FaultPlan::none(),
        });
        self.calls = self.device.steer().take_log();
        for call in self.calls.clone() {
            self.note(&call);
        }
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        Ok(answer)
    }

    /// Keeps track of an event that was recorded or is known to be complete.
    fn note(&mut self, call: &Call) {
        match (call.name, call.subject) {
            (CallName::EventRecord, CallSubject::Event { ordinal, argument: Some(stream) }) if call.result == 0 => {
                self.events.insert(ordinal, stream);
            }
            (CallName::EventQuery | CallName::EventSynchronize, CallSubject::Event { ordinal, .. }) if call.result == 0 => {
                self.events.remove(&ordinal);
            }
            _ => {}
        }
    }

    fn answer(&mut self, step: &Step) -> String {
        let (pool, stream) = (|place: usize| POOLS[place % POOLS.len()], |place: usize| StreamId(STREAMS[place % STREAMS.len()]));
        let core = &mut self.core;
        match *step {
            Step::Allocate(size, place) => match core.allocate(Bytes(size), stream(place)) {
                Ok(allocation) => {
                    let text = format!("{allocation:?} {:?}", core.segment_of(&allocation));
                    self.held.push((allocation, BTreeSet::new()));
                    text
                }
                Err(error) => error.to_string(),
            },
            Step::Free(which) if !self.held.is_empty() => {
                let (allocation, uses) = self.held.swap_remove(which % self.held.len());
                self.former.extend(uses.iter().map(|stream| stream.get()));
                format!("{:?}", core.free(allocation))
            }
            Step::Record(which, place) if !self.held.is_empty() => {
                let place_held = which % self.held.len();
                let (allocation, uses) = &mut self.held[place_held];
                core.record_stream(allocation, stream(place));
                uses.insert(stream(place));
                String::new()
            }
            Step::Complete(place) => {
                self.device.steer().complete(stream(place));
                String::new()
            }
            Step::CompleteAll => {
                self.device.steer().complete_all();
                String::new()
            }
            Step::ProcessEvents => format!("{:?}", core.process_events()),
            Step::ReleaseCached => format!("{:?}", core.release_cached()),
            Step::Begin(place, all) => {
                let filter = if all { PoolFilter::All } else { PoolFilter::Stream(stream(place / 2)) };
                format!("{:?}", core.begin_pool(pool(place), filter))
            }
            Step::End(place) => format!("{:?}", core.end_pool(pool(place))),
            Step::Release(place) => format!("{:?}", core.release_pool(pool(place))),
            Step::ReleaseCachedPool(place) => format!("{:?}", core.release_cached_pool(pool(place))),
            _ => self.turn(step),
        }
    }

    /// Performs steps that do not reach the device, checkpoints and views.
    fn turn(&mut self, step: &Step) -> String {
        let pool = |place: usize| POOLS[place % POOLS.len()];
        let core = &mut self.core;
        match *step {
            Step::Serve(place, serves) => core.set_pool_use_on_oom(pool(place), serves),
            Step::KeepWhole(place) => core.set_pool_no_split(pool(place)),
            Step::Capturing(is_capturing) => core.set_capturing(is_capturing),
            Step::Save(place) => {
                let answer = core.checkpoint_pool(pool(place));
                let text = format!("{answer:?}");
                self.saved.extend(answer);
                return text;
            }
            Step::Restore(which) if !self.saved.is_empty() => return self.restore(which % self.saved.len()),
            Step::Limit(bytes) => core.set_limit(bytes.map(Bytes)),
            Step::Apply(text) => return core.policy_mut().apply(TEXTS[text % TEXTS.len()]),
            Step::Reset(true) => core.reset_peak_stats(),
            Step::Reset(false) => core.reset_accumulated_stats(),
            Step::Snapshot => return format!("{:?} {:?}", core.snapshot(), POOLS.map(|pool| core.snapshot_pool(pool))),
            _ => {}
        }
        String::new()
    }

    /// Restores a checkpoint. Allocations that the restore took back are no longer held, even after an error.
    fn restore(&mut self, which: usize) -> String {
        let checkpoint = &self.saved[which];
        let answer = self.core.restore_pool(checkpoint);
        let core = &self.core;
        let former = &mut self.former;
        self.held.retain(|(allocation, uses)| {
            let is_known = core.segment_of(allocation).is_some();
            former.extend(uses.iter().filter(|_| !is_known).map(|stream| stream.get()));
            is_known
        });
        match answer {
            Ok(Restored { freed, allocations }) => {
                let text = format!("{freed:?} {allocations:?}");
                self.held.extend(allocations.into_iter().map(|allocation| (allocation, BTreeSet::new())));
                text
            }
            Err(error) => error.to_string(),
        }
    }

    /// Drops the allocator, with or without a failing call during the drop. Nothing may be left.
    fn drop(self, end: u64) -> Result<(), Broken> {
        let Side { core, device, held, events, former, .. } = self;
        let ranges: BTreeSet<u64> = core.expandable_segments().iter().map(|(stream, ..)| stream.get()).collect();
        let uses = held.iter().flat_map(|(allocation, uses)| {
            // The stream that an allocation was made for does not count as another user.
            let own = own_stream(&core, allocation);
            uses.iter().map(|stream| stream.get()).filter(move |stream| Some(*stream) != own).collect::<Vec<_>>()
        });
        let users: BTreeSet<u64> = ranges.iter().copied().chain(uses).chain(events.values().copied()).collect();
        let expected = if ranges.is_empty() { BTreeSet::new() } else { users };
        let kinds = [CallName::Free, CallName::StreamSynchronize, CallName::MemRelease];
        let plan = kinds.get(end as usize % 6).map(|&kind| When::NthOf(kind, 1 + end / 6 % 3));
        let plan = plan.map_or(FaultPlan::none(), |when| FaultPlan::none().and(when, FaultError::Code(999)));
        let _ = device.steer().take_log();
        device.steer().set_fault_plan(plan);
        drop(core);
        let fired = device.look().fault_plan().fired();
        let calls = device.steer().take_log();
        let failed = calls.iter().filter(|call| call.result != 0).count() as u64;
        ensure(Law::Endings, failed == fired, || {
            format!("{failed} driver calls failed during a drop, but {fired} were planned to fail: {calls:?}")
        })?;
        // A range that the device refuses to take back remains, because there is nothing left to
        // retry it.
        let kept = calls.iter().filter(|call| call.name == CallName::Free && call.result != 0).count();
        let left = device.held();
        ensure(Law::Endings, left == [kept, 0, 0, 0], || {
            format!("ranges, reservations, memory and events that were not returned: {left:?}")
        })?;
        let unmaps = calls.iter().position(|call| call.name == CallName::MemUnmap).unwrap_or(calls.len());
        let waits = |calls: &[Call]| -> Vec<u64> {
            let streams = calls.iter().filter(|call| call.name == CallName::StreamSynchronize).map(|call| match call.subject {
                CallSubject::Stream(stream) => stream,
                _ => u64::MAX - 1,
            });
            streams.collect()
        };
        let seen = waits(&calls[..unmaps]);
        let once: BTreeSet<u64> = seen.iter().copied().collect();
        // A freed block may still be waiting for its former users.
        let may_wait = |stream: &u64| expected.contains(stream) || (!ranges.is_empty() && former.contains(stream));
        let is_right = once.len() == seen.len()
            && once.is_superset(&expected)
            && once.iter().all(may_wait)
            && waits(&calls[unmaps..]).is_empty();
        ensure(Law::NoEarlyReuse, is_right, || format!("a drop waits for streams {seen:x?}, expected {expected:x?}: {calls:?}"))
    }
}

/// Returns the stream of the segment that contains an allocation.
fn own_stream<P: Policy>(core: &Allocator<Kept, P, Vec<TraceEntry>>, allocation: &Allocation) -> Option<u64> {
    let (base, _) = core.segment_of(allocation)?;
    core.segments().iter().find(|segment| segment.address == base).map(|segment| segment.stream.get())
}
