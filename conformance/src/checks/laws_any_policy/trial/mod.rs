//! The trial of policies: an allocator under any policy on a witnessed device, next to a record of who holds which
//! memory. The laws hold between steps: every byte is accounted for exactly once, the statistics agree, no two adjacent
//! free blocks of one stream remain, and private pools in use keep their memory.
//!
//! The policy decides where a request is placed. The trial checks that the allocator did what the policy told it to,
//! that no memory was lost or damaged, and that every out-of-memory error is justified by the policy's own rules.
//!
//! A program's steps are performed one by one. Every law is checked after each step, no call waits while a graph is
//! captured, and nothing is left at the end, whatever happened before. `requests` contains the steps that serve, use and free
//! memory, and the operations on pools.

mod requests;

use std::collections::BTreeMap;

use parkade::device::{BackendError, DeviceBackend as _};
use parkade::policy::Policy;
use parkade::profile::Deferral;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::{Family, Stats};
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, PoolClass, StreamId};
use parkade::{AllocError, Allocation, Allocator, BlockView, PoolCheckpoint, PoolSlot};
use parkade_policies::Named;
use parkade_sim::{CallName, FaultPlan};

use super::programs::{PoolStep, Setup, Step};
use crate::backend::{AnyBackend, AnyDevice, Needs, Simulation, TestDevice, Unable, Witness, WitnessedDevice};
use crate::checks::laws_pytorch::operation::POOLS;
use crate::checks::laws_pytorch::trial::{Account, Ledger};
use crate::law::{Broken, Law, ensure};
use crate::program::watched::{Reached, Watched};
use crate::reference_model::{History, Leaving, Routing, id};

/// Properties of a policy that decide whether its out-of-memory errors are justified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Habits {
    /// Whether its rules forbid releasing memory to the device before reporting out of memory.
    pub keeps_memory: bool,
    /// Whether it searches for a free block again after waiting for events ([`Relief::Wait`](parkade::policy::Relief::Wait)). A
    /// policy that does not may report out of memory although the wait has just freed a fitting block.
    pub looks_after_waiting: bool,
}

impl Default for Habits {
    /// Returns the default: the policy releases memory and searches again.
    fn default() -> Habits {
        Habits { keeps_memory: false, looks_after_waiting: true }
    }
}

impl Habits {
    /// Returns the habits of a policy in the catalogue.
    ///
    /// After waiting, PyTorch's policy releases free segments and asks the device for memory; a part of a segment that
    /// the wait freed is found only by the next request (spec 2.4, step 6e; pytorch#189504).
    pub(super) fn of(named: &Named) -> Habits {
        Habits { keeps_memory: named.keeps_memory, looks_after_waiting: !named.name.starts_with("pytorch") }
    }
}

/// The errors that are expected from the policy.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Expected {
    /// Driver calls fail according to a plan.
    pub(super) faults: bool,
    /// The policy returns invalid answers.
    pub(super) wrong_answers: bool,
}

impl Expected {
    /// Returns whether no errors are expected.
    fn nothing(self) -> bool {
        self == Expected::default()
    }
}

/// The outcome of a step.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Outcome {
    /// The step was performed, or there was nothing to apply it to.
    Done,
    /// Out of memory.
    Refused,
    /// The device failed.
    Failed(BackendError),
    /// The policy gave an invalid answer.
    AtFault,
}

/// A live allocation.
struct Live {
    allocation: Allocation,
    /// The requested size in bytes.
    requested: u64,
    /// The stream it was requested on.
    home: StreamId,
    /// The stream that used it last.
    last: StreamId,
    /// The word it was last filled with.
    word: u32,
    /// Other streams whose use was recorded.
    told: Vec<u64>,
    /// Whether one of these uses was recorded while a graph was captured. The allocator forgets that use if the block
    /// is freed during a capture, so the program does not free it then.
    is_captured: bool,
    /// The number of the private pool that it was allocated from; 0 is the default pool.
    pool: u64,
}

impl Live {
    /// Returns a block that a pool has just handed out to a stream and that has not been used yet.
    fn new(allocation: Allocation, requested: u64, home: StreamId, pool: u64) -> Live {
        Live { allocation, requested, home, last: home, word: 0, told: Vec::new(), is_captured: false, pool }
    }

    fn address(&self) -> DeviceAddress {
        self.allocation.address()
    }

    /// Returns the number of bytes that are filled, in whole words; 0 if the address is not word-aligned, which only an
    /// invalid policy can cause.
    fn whole_words(&self) -> u64 {
        if self.address().get().is_multiple_of(4) { self.requested / 4 * 4 } else { 0 }
    }

    fn overlaps(&self, address: u64, size: u64) -> bool {
        let start = self.address().get();
        start < address + size && address < start + self.requested
    }
}

/// The record of who holds which memory.
#[derive(Default)]
struct Book {
    live: Vec<Live>,
    leaving: Vec<Leaving>,
}

impl Book {
    /// Adds a new allocation whose block has `size` bytes.
    ///
    /// # Errors
    /// If the block is misaligned, or overlaps memory that is in use.
    fn add(&mut self, live: Live, size: u64, unit: u64, witness: &Witness) -> Result<(), Broken> {
        let address = live.address().get();
        ensure(Law::Alignment, address.is_multiple_of(unit), || format!("address {address:#x} is not a multiple of {unit}"))?;
        for other in &self.live {
            ensure(Law::NoOverlap, !other.overlaps(address, size), || {
                let (at, bytes) = (other.address(), other.requested);
                format!("the {size} bytes at {address:#x} overlap a live allocation of {bytes} bytes at {at}")
            })?;
        }
        for other in self.leaving.iter().filter(|other| !other.is_known_done(witness)) {
            let overlap = other.address < address + size && address < other.address + other.requested;
            ensure(Law::NoEarlyReuse, !overlap, || {
                format!("the {size} bytes at {address:#x} are reused before their events are complete: {other:?}")
            })?;
        }
        self.live.push(live);
        Ok(())
    }

    /// Removes a live allocation that is about to be freed.
    fn give_back(&mut self, which: usize, witness: &Witness) -> Live {
        let live = self.live.swap_remove(which);
        if !live.told.is_empty() {
            let waits = live.told.iter().map(|&stream| (stream, witness.recorded(stream))).collect();
            self.leaving.push(Leaving { address: live.address().get(), requested: live.requested, waits, deferred: false });
        }
        live
    }

    /// Returns the indices of the allocations that a pool has handed out.
    fn of_pool(&self, pool: u64) -> impl Iterator<Item = usize> + '_ {
        (0..self.live.len()).filter(move |&which| self.live[which].pool == pool)
    }

    /// Returns the number of freed allocations that are still pending in the heap.
    fn pending(&self) -> usize {
        self.leaving.len()
    }

    /// Checks that exactly the live allocations are handed out, each in a large enough block, and that memory which may
    /// still be in use is pending.
    ///
    /// # Errors
    /// If they disagree.
    fn check(&mut self, segments: &[SegmentInfo], witness: &Witness) -> Result<(), Broken> {
        let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
        let mut expected: Vec<&Live> = self.live.iter().collect();
        expected.sort_unstable_by_key(|live| live.address());
        let mut expected = expected.into_iter();
        for block in blocks().filter(|block| block.state == BlockActivity::Allocated) {
            let live = expected.next().map(|live| (live.address(), live.requested));
            let agrees = live == Some((block.address, block.requested.get())) && block.size >= block.requested;
            ensure(Law::Accounting, agrees, || format!("the heap has handed out {block:?}, but the program holds {live:?}"))?;
        }
        let missing = expected.next().map(|live| (live.address(), live.requested));
        ensure(Law::Accounting, missing.is_none(), || format!("{missing:?} is missing from the heap"))?;
        let pending: Vec<u64> =
            blocks().filter(|block| block.state == BlockActivity::PendingFree).map(|block| block.address.get()).collect();
        for leaving in self.leaving.iter().filter(|leaving| !leaving.is_known_done(witness)) {
            ensure(Law::NoEarlyReuse, pending.contains(&leaving.address), || {
                format!("{leaving:?} should be pending, but is not")
            })?;
        }
        let stray = pending.iter().find(|&&address| self.leaving.iter().all(|leaving| leaving.address != address));
        ensure(Law::Accounting, stray.is_none(), || format!("the block at {stray:x?} is pending, but no stream uses it"))?;
        self.leaving.retain(|leaving| pending.contains(&leaving.address));
        Ok(())
    }
}

/// The allocator, its device, and the expected state.
pub(super) struct Trial {
    core: Allocator<WitnessedDevice<AnyDevice>, Watched, Vec<TraceEntry>>,
    device: WitnessedDevice<AnyDevice>,
    streams: [StreamId; 4],
    expected: Expected,
    habits: Habits,
    setup: Setup,
    /// The page of the device, and its code for "invalid value".
    page: Bytes,
    invalid_value: u32,
    book: Book,
    history: History,
    /// The number of trace entries checked so far, and the number before the current step.
    followed: usize,
    before_step: usize,
    /// Whether waiting was deferred before the current step.
    was_deferring: bool,
    ledger: Ledger,
    routing: Routing,
    /// The newest checkpoint of each private pool.
    saved: BTreeMap<u64, PoolCheckpoint>,
    /// The device calls made in each step, if calls are made to fail.
    calls: Vec<Vec<CallName>>,
    words: u32,
    /// The reserved bytes after the previous step.
    reserved_before: u64,
    script: Vec<String>,
}

impl Trial {
    /// Creates an empty allocator on an idle device.
    ///
    /// # Errors
    /// If such a device is not available.
    pub(super) fn new(
        backend: &AnyBackend,
        setup: &Setup,
        policy: Box<dyn Policy>,
        expected: Expected,
        habits: Habits,
    ) -> Result<Trial, Unable> {
        let Setup { timing, places, .. } = *setup;
        // A free waits for the device, as it does in the driver; otherwise the policy would have to wait.
        let needs = Needs { capacity: Some(Bytes(setup.capacity)), simulation: Simulation { timing, places, free_waits: true } };
        let device = backend.open(&needs)?;
        let (facts, streams) = (backend.facts(), device.streams());
        let device = WitnessedDevice::new(device).claiming(Bytes(setup.capacity));
        let script = vec![format!("# policy {}, on {setup:?}", policy.name())];
        Ok(Trial {
            core: Allocator::new(device.clone(), Watched::new(policy), Vec::new()),
            device,
            streams,
            expected,
            habits,
            setup: *setup,
            page: facts.page,
            invalid_value: facts.codes.invalid_value,
            book: Book::default(),
            history: History::default(),
            followed: 0,
            before_step: 0,
            was_deferring: false,
            ledger: Ledger::default(),
            routing: Routing::default(),
            saved: BTreeMap::new(),
            calls: Vec::new(),
            words: 0,
            reserved_before: 0,
            script,
        })
    }

    /// Makes driver calls fail according to a plan that counts calls from now on.
    pub(super) fn plan_faults(&mut self, plan: FaultPlan) {
        self.expected.faults = true;
        self.device.plan_faults(plan);
    }

    /// Returns how many planned failures have happened so far.
    pub(super) fn faults_fired(&self) -> u64 {
        self.device.faults_fired()
    }

    /// Returns how often the policy took each kind of action.
    pub(super) fn reached(&self) -> Reached {
        self.core.policy().notes().reached
    }

    /// Returns the steps performed so far.
    pub(super) fn script(&self) -> String {
        self.script.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Checks every law that holds between steps.
    ///
    /// # Errors
    /// The first broken law.
    fn check(&mut self) -> Result<(), Broken> {
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        let segments = self.core.segments();
        self.check_pools(&segments)?;
        for entry in &self.core.observer()[self.followed..] {
            self.history.follow(entry)?;
            self.ledger.follow(entry);
        }
        self.followed = self.core.observer().len();
        self.book.check(&segments, &self.device.witness())?;
        self.check_merged(&segments)?;
        self.check_accounts(&segments)?;
        self.check_device(&segments)?;
        self.ledger.check(self.core.stats(), self.may_expand())?;
        self.check_races()?;
        self.reserved_before = self.core.heap().reserved().get();
        Ok(())
    }

    /// Returns whether memory may be in expandable segments.
    fn may_expand(&self) -> bool {
        let classes = [PoolClass::Small, PoolClass::Large];
        self.expected.wrong_answers
            || classes.into_iter().any(|class| self.core.policy().is_expandable(PoolSlot::default_pool(class)))
    }

    /// Checks that reserved bytes are the sum of live, rounding, pending, inactive split and whole bytes, and that each
    /// statistic agrees with its part.
    fn check_accounts(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let account = Account::of(segments);
        let current = |family| u64::try_from(self.core.stats().family(family).all.current).unwrap_or(u64::MAX);
        for (family, counted) in account.by_family().into_iter().chain([(Family::Allocation, self.book.live.len() as u64)]) {
            ensure(Law::Accounting, current(family) == counted, || {
                format!("{} is {}, but should be {counted}: {account:?}", family.name(), current(family))
            })?;
        }
        let reserved = self.core.heap().reserved().get();
        ensure(Law::Accounting, reserved == account.sum(), || {
            format!("{reserved} bytes are reserved, but the segments account for {account:?}")
        })?;
        // A lowered limit applies only to later growth. Expandable segments map whole pages for requests that the limit
        // allows.
        let page = |class| self.core.policy().page(PoolSlot::default_pool(class)).get();
        let slack = if self.may_expand() { page(PoolClass::Small).max(page(PoolClass::Large)) } else { 0 };
        let grew = reserved > self.reserved_before && !self.expected.wrong_answers;
        let limit = self.core.heap().limit();
        let kept = !grew || limit.is_none_or(|limit| reserved <= limit.get() + slack);
        ensure(Law::Limit, kept, || format!("{reserved} bytes are reserved, but the limit is {limit:?}"))
    }

    /// Checks that the ordinary segments are exactly the device's live ranges.
    fn check_device(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let page = self.page.get();
        let device = self.device.look();
        let ranges: Vec<(u64, u64)> = device.live_ranges().iter().map(|(address, bytes)| (address.get(), bytes.get())).collect();
        let ordinary: Vec<&SegmentInfo> = segments.iter().filter(|segment| !segment.expandable).collect();
        let same = ranges.len() == ordinary.len()
            && ranges.iter().zip(&ordinary).all(|(range, segment)| {
                // The device hands out whole pages.
                range.0 == segment.address.get() && segment.total.get() <= range.1 && range.1 - segment.total.get() < page
            });
        ensure(Law::Accounting, same, || {
            format!("the device holds the ranges {ranges:x?}, but the heap has the segments {ordinary:x?}")
        })?;
        drop(device);
        // After a failure, some memory may still have to be released.
        let mut device = self.device.steer();
        // Ranges smaller than a page share a page.
        let has_whole_pages = ranges.iter().all(|(_, bytes)| bytes.is_multiple_of(page));
        let is_exact = has_whole_pages && self.expected.nothing();
        let Some(device) = device.insight().filter(|_| is_exact) else { return Ok(()) };
        let rounded: u64 = ranges.iter().map(|(_, bytes)| bytes).sum();
        let mapped: u64 = segments.iter().filter(|segment| segment.expandable).map(|segment| segment.total.get()).sum();
        let used = device.used_bytes().get();
        ensure(Law::Accounting, used == rounded + mapped, || {
            format!("the device handed out {used} bytes, but ranges account for {rounded} and mappings for {mapped}")
        })
    }

    /// Checks for races. The program waits wherever it must, so any race means that memory was reused or unmapped too
    /// early.
    fn check_races(&self) -> Result<(), Broken> {
        let mut device = self.device.steer();
        let race = device.insight().and_then(|device| device.races().first().map(ToString::to_string));
        ensure(Law::NoEarlyReuse, race.is_none(), || race.unwrap_or_default())
    }

    /// Checks that adjacent free blocks of the same stream are always coalesced.
    fn check_merged(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let heap = self.core.heap();
        let free = heap.pool_slots().flat_map(|pool| heap.free_blocks(pool));
        let free: BTreeMap<u64, BlockView> = free.map(|block| (block.address.get(), block)).collect();
        for pair in segments.iter().flat_map(|segment| segment.blocks.windows(2)) {
            let both = pair.iter().all(|block| block.state == BlockActivity::Inactive);
            let (Some(low), Some(high)) = (free.get(&pair[0].address.get()), free.get(&pair[1].address.get())) else { continue };
            ensure(Law::Coalescing, !both || low.stream != high.stream, || {
                format!("adjacent free blocks were not coalesced: {low:?} and {high:?}")
            })?;
        }
        Ok(())
    }

    /// Checks that pools in use keep their memory, and that each pool's uses and memory are counted correctly.
    fn check_pools(&mut self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        // PyTorch's ladder may take memory from a pool in use during a capture (spec 2.7, 2.9).
        if !self.core.policy().releases_during_captures() {
            // Handles may be broken before requests are routed.
            let is_deferring = self.was_deferring && self.should_defer();
            self.routing.check_kept(&self.core.observer()[self.followed..], is_deferring)?;
        }
        self.routing.check_uses(&self.core, POOLS)?;
        let profile = self.core.policy().profile();
        for pool in 1..=POOLS {
            if profile.forgets_no_split && self.core.pool_use_count(id(pool)).is_err() {
                self.routing.forget_whole(pool);
            }
            let counted = self.core.stats().reserved_by_pool.get(&id(pool)).map_or(0, |set| set.all.current);
            let own = segments.iter().filter(|segment| segment.pool == id(pool));
            let reserved: u64 = own.map(|segment| segment.total.get()).sum();
            let agrees = !profile.counts_private_pools || u64::try_from(counted) == Ok(reserved);
            ensure(Law::Accounting, agrees, || {
                format!("pool {pool} has reserved {reserved} bytes, but its statistics count {counted}")
            })?;
        }
        Ok(())
    }

    /// Returns whether waiting must be deferred because something is in progress that this version of PyTorch treats as
    /// a capture.
    fn should_defer(&self) -> bool {
        match self.core.policy().profile().deferral {
            Deferral::WhileRouting => self.routing.is_routing(),
            Deferral::WhileCapturing => self.routing.is_capturing(),
        }
    }

    /// Returns whether an unjustified out-of-memory error can be detected. While requests are routed or a graph is
    /// captured, the rules forbid waiting for memory, or releasing memory, that would serve a request.
    fn tells_false_alarms(&self) -> bool {
        self.expected.nothing() && !self.routing.is_routing()
    }
}

/// Calls that wait for work, or that a graph capture would record or reject.
const FORBIDDEN: [CallName; 5] = [
    CallName::EventRecord,
    CallName::EventQuery,
    CallName::EventSynchronize,
    CallName::StreamWaitEvent,
    CallName::StreamSynchronize,
];

/// The result of a finished program.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::checks::laws_any_policy) struct Finished {
    /// The trace.
    pub(in crate::checks::laws_any_policy) trace: Vec<TraceEntry>,
    /// The statistics at the end.
    stats: Stats,
    /// The device calls made in each step, if calls were made to fail.
    pub(in crate::checks::laws_any_policy) calls: Vec<Vec<CallName>>,
    /// The time of the driver calls in nanoseconds; 0 on a real device, which does not report it.
    pub(in crate::checks::laws_any_policy) driver_ns: u64,
}

impl Trial {
    /// Performs a step, then checks every law.
    ///
    /// # Errors
    /// The first broken law.
    pub(in crate::checks::laws_any_policy) fn apply(&mut self, step: Step) -> Result<Outcome, Broken> {
        self.device.begin_operation();
        self.script.push(step.line());
        self.before_step = self.core.observer().len();
        drop(self.device.list_calls());
        self.was_deferring = self.should_defer();
        let outcome = self.carry_out(step)?;
        if self.expected.faults {
            self.calls.push(self.device.calls_so_far().iter().map(|call| call.name).collect());
        }
        match &outcome {
            // A page size that the device does not have is also an invalid answer; the driver rejects it as an invalid
            // value.
            Outcome::Failed(BackendError::Driver { code, .. }) if self.expected.wrong_answers && *code == self.invalid_value => {}
            Outcome::Failed(error) => {
                ensure(Law::Faults, self.expected.faults, || format!("the device failed without a planned fault: {error}"))?
            }
            Outcome::AtFault => {
                ensure(Law::Answers, self.expected.wrong_answers, || "the policy gave an invalid answer".to_owned())?
            }
            Outcome::Done | Outcome::Refused => {}
        }
        self.check_calls(step)?;
        self.check()?;
        Ok(outcome)
    }

    fn carry_out(&mut self, step: Step) -> Result<Outcome, Broken> {
        match step {
            Step::Allocate(bytes, place) => return self.allocate(bytes, self.streams[place]),
            Step::ProcessEvents => {
                let answer = self.core.process_events().map_err(AllocError::Device);
                return self.outcome(answer);
            }
            Step::ReleaseCached => {
                self.core.policy_mut().begin();
                let answer = self.core.release_cached();
                return self.outcome(answer);
            }
            Step::Limit(hundredths) => {
                let limit = u64::from(hundredths) * (self.setup.capacity / 100);
                self.core.set_limit((hundredths < 100).then_some(Bytes(limit)));
            }
            Step::ResetPeaks => {
                self.core.reset_peak_stats();
                self.ledger.peaks_were_reset();
            }
            Step::ResetSums => {
                self.core.reset_accumulated_stats();
                self.ledger.sums_were_reset(self.core.stats());
            }
            Step::Launch(..) | Step::Advance(_) | Step::CompleteOne(_) | Step::CompleteAll | Step::OthersHold(_) => {
                self.drive(step).map_err(|error| Broken::new(Law::Faults, error))?;
            }
            Step::Pool(step) => return self.pool(step),
            _ if self.book.live.is_empty() => {}
            Step::Free(which) | Step::Replace(which) if !self.may_free(which % self.book.live.len()) => {}
            Step::Free(which) => return self.free(which % self.book.live.len()),
            Step::Replace(which) => {
                let which = which % self.book.live.len();
                let (bytes, stream) = (self.book.live[which].requested, self.book.live[which].home);
                match self.free(which)? {
                    Outcome::Done => {}
                    failed => return Ok(failed),
                }
                self.check()?;
                return self.allocate(bytes, stream);
            }
            Step::Use(which, place) => self.use_by(which % self.book.live.len(), self.streams[place])?,
            Step::Read(which) => self.read(which % self.book.live.len())?,
        }
        Ok(Outcome::Done)
    }

    fn drive(&mut self, step: Step) -> Result<(), BackendError> {
        let mut device = self.device.steer();
        match step {
            Step::Launch(place, duration) => device.spin(self.streams[place], duration),
            Step::OthersHold(bytes) => device.others_hold(Bytes(bytes)),
            Step::Advance(duration) => {
                device.pause(duration);
                Ok(())
            }
            Step::CompleteOne(place) => match device.insight() {
                Some(device) => {
                    device.complete_one(self.streams[place]);
                    Ok(())
                }
                None => device.synchronize_stream(self.streams[place]),
            },
            _ => {
                device.settle();
                Ok(())
            }
        }
    }

    /// Checks that a step during which waiting was deferred from start to end has not waited.
    fn check_calls(&self, step: Step) -> Result<(), Broken> {
        let is_deferring = self.should_defer();
        let agrees = self.core.heap().is_deferring() == is_deferring;
        ensure(Law::Pools, agrees, || format!("waiting allowed: {}, routing: {:?}", !is_deferring, self.routing))?;
        // Saving a pool records the deferred events at any time (spec 5.8).
        if !self.was_deferring || !is_deferring || matches!(step, Step::Pool(PoolStep::Save(_))) {
            return Ok(());
        }
        // Pages of an unused pool may be released at any time, after waiting for their stream (spec 4.6). No entry
        // records a failure of the wait or of the release.
        let entries = &self.core.observer()[self.before_step..];
        let unmaps = entries.iter().any(|entry| entry.action == TraceAction::SegmentUnmap && entry.pool.1 != 0);
        let calls = self.device.calls_so_far();
        let fails = |place: usize| {
            let next = calls.get(place + 1).filter(|next| next.name == CallName::MemUnmap);
            calls[place].error.is_some() || next.is_some_and(|next| next.error.is_some())
        };
        let may_wait = |place: usize| calls[place].name == CallName::StreamSynchronize && (unmaps || fails(place));
        let call = (0..calls.len()).find(|&place| FORBIDDEN.contains(&calls[place].name) && !may_wait(place));
        let call = call.map(|place| &calls[place]);
        ensure(Law::Pools, call.is_none(), || format!("the allocator called {call:?} while a graph was being captured"))
    }

    /// Ends all routing and all uses of pools.
    fn leave_pools(&mut self) -> Result<(), Broken> {
        for pool in 1..=POOLS {
            if self.routing.routed(pool).is_some() {
                self.apply(Step::Pool(PoolStep::End(pool)))?;
            }
            while self.routing.uses(pool) > 0 {
                self.apply(Step::Pool(PoolStep::Release(pool)))?;
            }
        }
        Ok(())
    }

    /// Reads and frees everything, checks that nothing is left, drops the allocator and checks the device again.
    ///
    /// # Errors
    /// If anything is left.
    pub(in crate::checks::laws_any_policy) fn finish(mut self) -> Result<Finished, Broken> {
        self.leave_pools()?;
        for which in 0..self.book.live.len() {
            self.read(which)?;
        }
        while !self.book.live.is_empty() {
            self.apply(Step::Free(0))?;
        }
        self.apply(Step::CompleteAll)?;
        // At most two planned failures may hit this call. If it fails again after that, the checks below find the
        // leftovers.
        for _ in 0..3 {
            if self.apply(Step::ReleaseCached)? == Outcome::Done {
                break;
            }
        }
        if !self.expected.wrong_answers {
            self.check_nothing_left()?;
        }
        let (trace, stats) = (std::mem::take(self.core.observer_mut()), self.core.stats().clone());
        let calls = std::mem::take(&mut self.calls);
        let driver_ns = self.abandon()?;
        Ok(Finished { trace, stats, calls, driver_ns })
    }

    /// Checks that nothing is in use, and that everything that the policy releases has been
    /// released.
    fn check_nothing_left(&self) -> Result<(), Broken> {
        let (named, whole) = (self.core.policy().releasable(self.core.heap()), self.core.heap().releasable());
        // A policy may keep memory forever; it then reports nothing as releasable.
        let keeps = named.is_empty() && !whole.is_empty();
        for family in Family::ALL {
            let is_kept = keeps
                && matches!(family, Family::Segment | Family::ReservedBytes | Family::InactiveSplit | Family::InactiveSplitBytes);
            let current = self.core.stats().family(family).all.current;
            ensure(Law::Endings, current == 0 || is_kept, || format!("{}.all.current is {current} at the end", family.name()))?;
        }
        let reserved = self.core.heap().reserved();
        ensure(Law::Endings, reserved == Bytes::ZERO || keeps, || format!("{reserved} bytes are still reserved"))?;
        let holdings = self.device.look().holdings();
        // Growth that fails for lack of memory leaves its addresses reserved for the next attempt: the heap knows the
        // addresses, and nothing has ever been mapped there. A range that had memory is unreserved together with its
        // last page.
        let known = self.core.expandable_segments().iter().filter(|(_, _, mapped)| *mapped == Bytes::ZERO).count();
        let bare = self.device.bare_ranges().min(known);
        let is_empty = holdings.ranges == 0 && holdings.physical == 0 && holdings.reservations == bare;
        let excused = keeps || self.expected.faults;
        ensure(Law::Endings, is_empty || excused, || format!("an empty heap still holds {holdings:?}"))
    }

    /// Drops the allocator in its current state, and checks that everything was returned to the device. Returns the
    /// time of the driver calls in nanoseconds.
    ///
    /// # Errors
    /// If anything is left on the device, or memory was taken away while in use.
    pub(in crate::checks::laws_any_policy) fn abandon(self) -> Result<u64, Broken> {
        let Trial { core, device, book, .. } = self;
        // If the very last call failed, the allocator could not do anything more.
        device.plan_faults(FaultPlan::none());
        if !book.live.is_empty() {
            // The program itself waits for the work on allocations that it has not freed.
            device.steer().settle();
        }
        drop((core, book));
        let left = device.look().holdings();
        ensure(Law::Endings, left.is_empty(), || format!("these were not returned to the device: {left:?}"))?;
        let mut device = device.steer();
        let Some(device) = device.insight() else { return Ok(0) };
        let used = device.used_bytes();
        ensure(Law::Endings, used == Bytes::ZERO, || format!("{used} bytes were not returned to the device"))?;
        let race = device.races().first().map(ToString::to_string);
        ensure(Law::NoEarlyReuse, race.is_none(), || race.unwrap_or_default())?;
        Ok(device.driver_and_wait_ns())
    }
}
