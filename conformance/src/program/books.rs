//! The books: who holds which memory, and what must hold between steps under any policy. Every byte is accounted for exactly
//! once, the statistics agree, no two adjacent free blocks of one stream remain that the policy did not keep apart, memory is
//! not reused early, and private pools in use keep their memory.
//!
//! The policy decides where a request is placed. If its answers are watched, the books check that the allocator did what the
//! policy told it to.

use std::collections::{BTreeMap, BTreeSet};

use parkade::device::{BackendError, DeviceBackend};
use parkade::policy::{Policy, PolicyFault};
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::stats::{Family, Stats};
use parkade::texts::RescueTried;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
use parkade::{AllocError, BlockView, CheckpointError, FreeError, PoolCheckpoint, PoolSlot};
use parkade_sim::CallName;

use super::accounts::{Account, Ledger, Recount};
use super::answer::{Answer, Held};
use super::caller::{Caller, saved_allocations};
use super::handles::Mappings;
use super::history::History;
use super::lending;
use super::routing::Routing;
use super::step::{POOLS, Step, pool_id};
use super::views;
use super::watched::{self, changed_since_answer};
use crate::backend::{DeviceFacts, MadeCall, TestDevice, Witness};
use crate::law::{Broken, Law, ensure};

/// The errors that are expected.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Expected {
    /// Driver calls fail according to a plan.
    pub(crate) faults: bool,
    /// The policy returns invalid answers.
    pub(crate) wrong_answers: bool,
}

impl Expected {
    /// Returns whether no errors are expected.
    pub(super) fn nothing(self) -> bool {
        self == Expected::default()
    }
}

/// A freed allocation that may still be used by other streams' work.
#[derive(Clone, Debug)]
struct Leaving {
    address: u64,
    requested: u64,
    /// For each of these streams: the number of events that had been recorded on it when the allocation was freed.
    waits: Vec<(u64, u64)>,
}

impl Leaving {
    fn of(held: &Held, witness: &Witness) -> Option<Leaving> {
        let waits: Vec<(u64, u64)> = held.told.iter().map(|&stream| (stream, witness.recorded(stream))).collect();
        (!waits.is_empty()).then(|| Leaving { address: held.address().get(), requested: held.requested, waits })
    }

    /// Returns whether the allocator knows that all of the other streams' work is done.
    fn is_known_done(&self, witness: &Witness) -> bool {
        self.waits.iter().all(|&(stream, recorded)| witness.is_known_done(stream, recorded))
    }
}

/// How an event was last recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Recorded {
    /// On a stream that was not captured.
    Plainly,
    /// On a captured stream, perhaps for a freed block.
    Captured,
    /// On a captured stream, in one of the policy's own steps.
    CapturedByPolicy,
}

/// The record of who holds which memory.
#[derive(Clone)]
pub(crate) struct Books {
    expected: Expected,
    facts: DeviceFacts,
    leaving: Vec<Leaving>,
    /// Those that the current step will free.
    freeing: Vec<Leaving>,
    history: History,
    ledger: Ledger,
    /// What is mapped, to check what policies see.
    mappings: Mappings,
    recount: Recount,
    /// The bytes that have moved out of broken handles since the sums were last reset.
    copied_bytes: u64,
    pub(super) routing: Routing,
    /// The state before a checkpoint is restored.
    before_restore: Option<(Vec<SegmentInfo>, Stats, Vec<Held>)>,
    was_deferring: bool,
    /// How each event was last recorded.
    recorded: BTreeMap<u64, Recorded>,
    /// Whether any block was pending before the current step.
    was_pending: bool,
    /// The state before a request that a private pool may serve with memory of the default pool.
    before_lending: Option<lending::Before>,
    /// What may not be lent.
    busy: lending::Busy,
    was_routing: bool,
    /// The bytes of each private pool that had uses after the previous step.
    in_use: BTreeMap<PoolId, u64>,
    /// Where free blocks met before the current step that must stay apart.
    apart: Vec<Apart>,
    reserved_before: u64,
    /// Whether segments have ever been expandable.
    has_expanded: bool,
    /// Whether races are expected, because the program does not record its uses.
    races_are_expected: bool,
}

/// Calls that wait for work, or that a graph capture would record or reject.
const FORBIDDEN: [CallName; 5] = [
    CallName::EventRecord,
    CallName::EventQuery,
    CallName::EventSynchronize,
    CallName::StreamWaitEvent,
    CallName::StreamSynchronize,
];

impl Books {
    pub(super) fn new(facts: DeviceFacts, expected: Expected, races_are_expected: bool) -> Books {
        Books {
            expected,
            facts,
            leaving: Vec::new(),
            freeing: Vec::new(),
            history: History::default(),
            ledger: Ledger::default(),
            recount: Recount::default(),
            routing: Routing::default(),
            mappings: Mappings::default(),
            before_restore: None,
            was_deferring: false,
            recorded: BTreeMap::new(),
            was_pending: false,
            before_lending: None,
            busy: lending::Busy::default(),
            was_routing: false,
            in_use: BTreeMap::new(),
            apart: Vec::new(),
            copied_bytes: 0,
            reserved_before: 0,
            has_expanded: false,
            races_are_expected,
        }
    }

    pub(super) fn expect_faults(&mut self) {
        self.expected.faults = true;
    }

    /// Returns the number of freed allocations that are still pending in the heap.
    pub(super) fn pending(&self) -> usize {
        self.leaving.len()
    }

    /// Notes what the step will change.
    pub(super) fn before(&mut self, caller: &Caller, step: Step) {
        self.was_deferring = self.should_defer(caller);
        self.was_pending = !self.leaving.is_empty();
        self.was_routing = self.routing.is_routing();
        let may_lend = !self.was_pending && matches!(step, Step::Allocate(..)) && self.routing.is_routing();
        let lends = may_lend && caller.core.policy().is_watched() && caller.core.policy().lends_to_pools();
        self.before_lending =
            lends.then(|| lending::Before::of(caller.core.heap(), caller.core.segments(), caller.device.reserved_ranges()));
        self.apart = apart(caller, step);
        let witness = caller.device.witness();
        self.before_restore = None;
        self.freeing = match step {
            Step::Free(which) => {
                caller.pick(which).and_then(|which| Leaving::of(&caller.held[which], &witness)).into_iter().collect()
            }
            Step::Restore(which) if !caller.checkpoints.is_empty() => {
                let pool = caller.checkpoints[which % caller.checkpoints.len()].pool;
                let own = caller.held.iter().filter(|held| held.pool == pool);
                self.before_restore = Some((caller.core.segments(), caller.core.stats().clone(), own.clone().cloned().collect()));
                own.filter_map(|held| Leaving::of(held, &witness)).collect()
            }
            _ => Vec::new(),
        };
    }

    /// Checks the answer to a step. The caller has taken over what it handed out.
    ///
    /// # Errors
    /// The first broken law.
    pub(super) fn after(&mut self, caller: &mut Caller, step: Step, seen: &Answer) -> Result<(), Broken> {
        self.check_uncaptured(caller)?;
        match seen {
            Answer::Allocated(_) => {
                self.count_carried_out(caller);
                check_address(caller, step)?;
                self.check_served(caller)?;
                self.check_lent(caller)?;
                self.check_grown(caller)?;
                self.check_held(caller)?;
            }
            Answer::Freed(..) => self.leaving.append(&mut self.freeing),
            Answer::Pool(answer) => self.routing.follow(caller.core.policy().profile(), caller.streams, step, *answer)?,
            Answer::Saved(answer) => self.check_saved(caller, step, answer)?,
            Answer::Restored(freed, _) => {
                self.recount.skip();
                self.check_restored(caller, step, freed)?;
            }
            Answer::NotRestored(error) => {
                self.recount.skip();
                self.check_not_restored(caller, step, error)?;
            }
            _ => {}
        }
        match step {
            Step::UseOnOom(pool, serves) => self.routing.serve_when_out(POOLS[pool], serves),
            Step::NoSplit(pool) => self.routing.keep_whole(pool_id(pool)),
            Step::Capturing(is_capturing) => self.routing.set_capturing(is_capturing),
            Step::ResetPeaks => {
                self.ledger.peaks_were_reset();
                self.recount.peaks_were_reset();
            }
            Step::ResetSums => {
                self.ledger.sums_were_reset(caller.core.stats());
                self.recount.sums_were_reset();
                self.copied_bytes = 0;
            }
            _ => {}
        }
        let saved = match (step, seen) {
            (Step::Save(pool), Answer::Saved(Ok(_))) => Some(POOLS[pool]),
            _ => None,
        };
        self.mappings.follow(caller, saved);
        self.check_own_steps(caller)?;
        self.check_moved(caller)?;
        self.check_calls(caller, step)?;
        self.check(caller, step)
    }

    /// Counts what the device did for a served request: a wait between streams (for a block that changed streams), and
    /// pages that were mapped without being created.
    fn count_carried_out(&self, caller: &mut Caller) {
        let is_transfer =
            matches!(caller.core.policy().notes().answer, Some(watched::Answer::Transfer(_) | watched::Answer::TransferPart(_)));
        let transfer = is_transfer && caller.done(CallName::StreamWaitEvent) > 0;
        let remap = caller.done(CallName::MemMap) > caller.done(CallName::MemCreate);
        caller.core.policy_mut().carried_out(transfer, remap);
    }

    /// Checks that the block is where the policy placed it, in a segment of the size that the policy specified.
    fn check_served(&self, caller: &Caller) -> Result<(), Broken> {
        let policy = caller.core.policy();
        if !policy.is_watched() {
            return Ok(());
        }
        let Some(held) = caller.held.last() else { return Ok(()) };
        let address = held.address().get();
        let made = caller.entries().iter().rfind(|entry| entry.action == TraceAction::SegmentAlloc).map(|entry| entry.size);
        let answer = policy.notes().answer;
        let holds = match answer {
            Some(watched::Answer::Reuse(place)) => place.map(|place| policy.expected_at(place)) == Some(address),
            // After a split, a policy with random answers may change its mind about which end to use.
            Some(watched::Answer::TransferPart(_)) if self.expected.wrong_answers && policy.took_high_end() => true,
            Some(watched::Answer::TransferPart(place)) => place == Some(address),
            // The block first coalesces with adjacent free blocks of its new stream.
            Some(watched::Answer::Transfer(_)) if policy.took_high_end() => true,
            Some(watched::Answer::Transfer(place)) => place.is_some_and(|place| address <= place),
            Some(watched::Answer::Lend(place)) => self.was_pending || self.expected.wrong_answers || place == Some(address),
            Some(watched::Answer::Segment(size, _)) => made.is_none_or(|made| made == size),
            _ => true,
        };
        ensure(Law::Placement, holds, || {
            format!(
                "a request for {} bytes was placed at {address:#x} (new segment: {made:?} bytes), but the policy chose {answer:x?}",
                held.requested
            )
        })
    }

    /// Checks that what the default pool has not lent for a request is still lendable.
    fn check_lent(&self, caller: &Caller) -> Result<(), Broken> {
        let (Some(before), Some(held)) = (&self.before_lending, caller.held.last()) else { return Ok(()) };
        if !caller.core.policy().has_just_lent() || !self.expected.nothing() {
            return Ok(());
        }
        let start = held.address().get();
        let size = caller.core.policy().round(Bytes(held.requested)).unwrap_or(Bytes::ZERO).get();
        before.check_rest(caller.core.heap(), &(start..start + size))
    }

    /// Checks that the handles which the policy moved have moved.
    fn check_moved(&self, caller: &Caller) -> Result<(), Broken> {
        if !self.expected.nothing() {
            return Ok(());
        }
        let (captured, asks) = (caller.captured_streams(), caller.device.look().waits_in_captures());
        let is_free = |stream: StreamId| !captured.contains(&stream) && !caller.device.hides_state(stream);
        let may_wait = |stream: StreamId| if asks { is_free(stream) } else { !self.was_deferring };
        self.mappings.check_moved(caller, may_wait)
    }

    /// Follows which memory of the default pool may be lent.
    fn check_lendable(&mut self, caller: &Caller, step: Step, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let policy = caller.core.policy();
        if !policy.lends_to_pools() || !self.expected.nothing() {
            return Ok(());
        }
        // While requests are routed, a stream may be captured, and the allocator asks no stream whether it is idle.
        let looks = matches!(step, Step::BeginPool(..)) && !self.was_routing && !self.was_deferring;
        let idle = looks.then(|| lending::found_idle(&caller.calls));
        self.busy.follow(caller.core.heap(), caller.entries(), segments, idle.as_deref())
    }

    /// Checks where new memory was mapped for a private pool's request, if that was the first step after lending.
    fn check_grown(&self, caller: &Caller) -> Result<(), Broken> {
        let policy = caller.core.policy();
        let (Some(before), Some(held)) = (&self.before_lending, caller.held.last()) else { return Ok(()) };
        let address = held.address().get();
        let ranges = caller.device.reserved_ranges();
        let is_expandable = ranges.range(..=address).next_back().is_some_and(|(base, size)| address - base < *size);
        // Once blocks have changed streams, a range may belong to a different stream than all of its blocks.
        let is_certain = self.expected.nothing() && policy.notes().reached.transfers == 0;
        if !policy.asked_after_lending() || !is_expandable || !is_certain || held.pool == PoolId::DEFAULT {
            return Ok(());
        }
        let size = policy.round(Bytes(held.requested)).unwrap_or(Bytes::ZERO).get();
        let owner = |base| self.mappings.owner(base).map(|(_, stream)| stream);
        let expected = before.growth(held.pool, held.home, size, owner);
        ensure(Law::Placement, expected.is_empty() || expected.contains(&address), || {
            format!("{size} bytes for {:?} were mapped at {address:#x}, expected {expected:x?}", held.pool)
        })
    }

    /// Checks what was done in the policy's own steps: the default pool has lent memory if it could, and the memory that moved
    /// out of broken handles is counted.
    fn check_own_steps(&mut self, caller: &Caller) -> Result<(), Broken> {
        let unlent = caller.core.policy().notes().unlent.filter(|_| !self.was_pending && !self.expected.wrong_answers);
        ensure(Law::Placement, unlent.is_none(), || unlent.unwrap_or_default())?;
        self.copied_bytes += copied_bytes(caller);
        let counted = caller.core.stats().copied_bytes;
        ensure(Law::Counters, u64::try_from(counted) == Ok(self.copied_bytes), || {
            format!("{} bytes have moved out of broken handles, but the statistics count {counted}", self.copied_bytes)
        })
    }

    /// Checks what an out-of-memory error says about the rescue that could not serve the request.
    pub(super) fn check_rescue(&self, caller: &Caller, error: &AllocError) -> Result<(), Broken> {
        let AllocError::OutOfMemory(error) = error else { return Ok(()) };
        let expected = caller.core.policy().notes().rescued_with.map(|moved_handles| RescueTried {
            moved_handles,
            broken_handles: caller.broken.len() as u64,
            copied_bytes: copied_bytes(caller),
        });
        ensure(Law::Ladder, error.rescue == expected, || {
            format!("the error says of the rescue {:?}, expected {expected:?}", error.rescue)
        })
    }

    /// Checks the newest allocation: the pool and the size of its block, and that nothing else uses its memory.
    fn check_held(&self, caller: &mut Caller) -> Result<(), Broken> {
        let Some((held, others)) = caller.held.split_last() else { return Ok(()) };
        let (address, requested) = (held.address(), held.requested);
        let segments = caller.core.segments();
        let block = segments.iter().flat_map(|segment| &segment.blocks).find(|block| block.address == address);
        let size = block.filter(|block| block.state == BlockActivity::Allocated).map(|block| block.size.get());
        let Some(size) = size else {
            return Err(Broken::new(Law::Accounting, format!("the heap has no live block at {address}: {block:?}")));
        };
        self.check_pool_served(caller, held, &segments)?;
        let policy = caller.core.policy();
        // A policy with random answers would answer differently now. A policy is not asked about blocks that are not
        // split.
        if policy.is_watched() && !self.expected.wrong_answers && !self.routing.is_whole(held.pool) {
            let rounded = policy.round(Bytes(requested)).unwrap_or(Bytes::ZERO).get();
            let expected = policy.kept(rounded);
            ensure(Law::Placement, size == expected, || {
                format!("a request for {requested} bytes got a block of {size} bytes, but the policy specified {expected}")
            })?;
        }
        // Some releases do not round sizes with one division between powers of two.
        let is_loose = self.expected.wrong_answers || !policy.profile().rounds_by_one_division;
        let unit = if is_loose { 1 } else { policy.round(Bytes(1)).map_or(512, |unit| unit.get().clamp(1, 512)) };
        self.check_place(others, &caller.device.witness(), address.get(), size, unit)?;
        let is_private = held.pool != PoolId::DEFAULT;
        caller.core.policy_mut().used_pool(is_private, false);
        Ok(())
    }

    /// Checks that a new block is aligned and overlaps no memory that is in use.
    fn check_place(&self, others: &[Held], witness: &Witness, address: u64, size: u64, unit: u64) -> Result<(), Broken> {
        ensure(Law::Alignment, address.is_multiple_of(unit), || format!("address {address:#x} is not a multiple of {unit}"))?;
        let overlaps = |start: u64, bytes: u64| start < address + size && address < start + bytes;
        let other = others.iter().find(|other| overlaps(other.address().get(), other.requested));
        ensure(Law::NoOverlap, other.is_none(), || {
            format!("the {size} bytes at {address:#x} overlap a live allocation: {other:?}")
        })?;
        let early = self.leaving.iter().filter(|other| !other.is_known_done(witness));
        let early = early.into_iter().find(|other| overlaps(other.address, other.requested));
        ensure(Law::NoEarlyReuse, early.is_none(), || {
            format!("the {size} bytes at {address:#x} are reused before their events are complete: {early:?}")
        })
    }

    /// Checks the pool that served a request; the block must be unsplit if the pool's segments are not split.
    fn check_pool_served(&self, caller: &Caller, held: &Held, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let bytes = held.requested;
        let profile = caller.core.policy().profile();
        let is_borrowed = self.routing.check_served(profile, held.pool, bytes, held.home)?;
        let found = segments.iter().find(|segment| segment.blocks.iter().any(|block| block.address == held.address()));
        let Some(segment) = found else { return Ok(()) };
        let agrees = segment.pool == held.pool;
        ensure(Law::Pools, agrees, || format!("{bytes} bytes for {:?} were served from {segment:?}", held.pool))?;
        let is_private = held.pool != PoolId::DEFAULT;
        ensure(Law::Pools, !is_borrowed || is_private, || format!("the default pool served {bytes} bytes for a private pool"))?;
        // If blocks have changed streams or were kept apart, the block after this one may have been free before.
        if self.routing.is_whole(held.pool) && !caller.core.policy().has_transferred() {
            let mut behind = segment.blocks.iter().skip_while(|block| block.address != held.address()).skip(1);
            let rest = behind.next().filter(|next| next.state == BlockActivity::Inactive);
            let rest = rest.filter(|rest| !caller.core.policy().is_apart(rest.address.get()));
            ensure(Law::Pools, rest.is_none(), || {
                format!("{:?} must not split blocks, but a request for {bytes} bytes split off {rest:?}", held.pool)
            })?;
        }
        Ok(())
    }

    /// Checks a rejected answer: the error names the policy, and nothing has changed.
    pub(super) fn check_fault(&self, caller: &Caller, fault: &PolicyFault) -> Result<(), Broken> {
        let policy = caller.core.policy();
        let name = policy.name();
        ensure(Law::Answers, fault.policy == name, || format!("the policy at fault is {name}, but the error names {fault}"))?;
        ensure(Law::Answers, self.expected.wrong_answers, || fault.to_string())?;
        let is_block = fault.problem.starts_with("releases") || fault.problem.starts_with("remaps");
        // A segment that grows at several gaps requests the handles for each gap, and keeps what it has already mapped.
        let has_mapped = fault.problem.starts_with("takes a handle") && policy.saw_less_than(caller.core.heap());
        // The effects of a rung that precede its invalid part remain, for example blocks released before an invalid
        // one.
        let unchanged = match policy.notes().answer {
            Some(
                watched::Answer::Reuse(_)
                | watched::Answer::Transfer(_)
                | watched::Answer::TransferPart(_)
                | watched::Answer::Lend(_),
            ) => true,
            Some(watched::Answer::Segment(_, blocks) | watched::Answer::Rung(blocks)) => blocks <= usize::from(is_block),
            None => false,
        };
        let changed =
            changed_since_answer(&caller.core).filter(|_| unchanged && !has_mapped && fault.problem != "never gives up");
        ensure(Law::Answers, changed.is_none(), || {
            format!("the policy's answer was refused ({fault}), but the heap changed: {}", changed.unwrap_or_default())
        })
    }

    /// Checks that a device error was planned, or that the policy caused it.
    pub(super) fn check_device_error(&self, error: BackendError) -> Result<(), Broken> {
        // A page size that the device does not have is also an invalid answer; the driver rejects it as an invalid value.
        let is_invalid = matches!(error, BackendError::Driver { code, .. } if code == self.facts.codes.invalid_value);
        let is_expected = self.expected.faults || self.expected.wrong_answers && is_invalid;
        ensure(Law::Faults, is_expected, || format!("the device failed without a planned fault: {error}"))
    }

    /// Checks that a checkpoint contains exactly the allocations that the program holds, or that the refusal is justified.
    fn check_saved(&self, caller: &Caller, step: Step, answer: &Result<PoolCheckpoint, CheckpointError>) -> Result<(), Broken> {
        let Step::Save(pool) = step else { return Ok(()) };
        let id = POOLS[pool];
        let segments = caller.core.segments();
        match answer {
            Ok(checkpoint) => {
                let mut held = caller.live_of(pool, true);
                held.sort_unstable();
                let is_live = caller.core.pool_live_allocations_are(id, &held) == Ok(true);
                ensure(Law::Pools, is_live, || format!("{id:?} does not report {held:x?} as handed out"))?;
                // An expandable segment whose start is not mapped is left out (spec 5.7).
                let ordinary = |address: &DeviceAddress| {
                    let holds = |segment: &&SegmentInfo| segment.blocks.iter().any(|block| block.address == *address);
                    segments.iter().find(holds).is_some_and(|segment| !segment.expandable)
                };
                let mut saved: Vec<DeviceAddress> = saved_allocations(checkpoint).into_iter().map(|(at, ..)| at).collect();
                saved.retain(ordinary);
                held.retain(ordinary);
                saved.sort_unstable();
                ensure(Law::Pools, saved == held, || {
                    format!("the checkpoint of {id:?} lists {saved:x?}, but the pool had handed out {held:x?}")
                })
            }
            Err(error) => {
                let is_pending = |address: DeviceAddress| {
                    let blocks = segments.iter().filter(|segment| segment.pool == id).flat_map(|segment| &segment.blocks);
                    blocks.into_iter().any(|block| block.state == BlockActivity::PendingFree && block.address == address)
                };
                let is_legal = match *error {
                    CheckpointError::UnknownPool(_) => caller.core.pool_use_count(id).is_err(),
                    CheckpointError::EventsPending(address) => is_pending(address),
                    CheckpointError::Device(_) => true,
                    _ => false,
                };
                ensure(Law::Pools, is_legal, || format!("{id:?} cannot be saved: {error}"))
            }
        }
    }

    /// Checks a restored pool: it takes back what it had handed out, hands out what was saved, and nothing else uses that
    /// memory.
    fn check_restored(&mut self, caller: &mut Caller, step: Step, freed: &[u64]) -> Result<(), Broken> {
        let (Some((_, _, before)), Step::Restore(which)) = (self.before_restore.take(), step) else { return Ok(()) };
        let checkpoint = caller.checkpoints[which % caller.checkpoints.len()].clone();
        let id = checkpoint.pool;
        let mut freed = freed.to_vec();
        freed.sort_unstable();
        let mut held: Vec<u64> = before.iter().map(|held| held.address().get()).collect();
        held.sort_unstable();
        ensure(Law::Pools, freed == held, || format!("{id:?} took back {freed:x?}, but had handed out {held:x?}"))?;
        self.leaving.append(&mut self.freeing);
        check_void(caller, before)?;
        let expected = saved_allocations(&checkpoint);
        let first = caller.held.len() - expected.len().min(caller.held.len());
        let addresses: Vec<DeviceAddress> = caller.held[first..].iter().map(Held::address).collect();
        let same = addresses.iter().eq(expected.iter().map(|(address, ..)| address));
        ensure(Law::Pools, same, || format!("{id:?} has handed out {addresses:x?}, but the checkpoint has {expected:x?}"))?;
        let witness = caller.device.witness();
        for (which, &(address, size, _)) in (first..).zip(&expected) {
            self.check_place(&caller.held[..which], &witness, address.get(), size.get(), 1)?;
        }
        caller.core.policy_mut().used_pool(false, true);
        Ok(())
    }

    /// Checks that a refused restore is justified and has changed nothing; after a device error, everything has been freed.
    fn check_not_restored(&mut self, caller: &mut Caller, step: Step, error: &CheckpointError) -> Result<(), Broken> {
        let (Some((segments, stats, held)), Step::Restore(which)) = (self.before_restore.take(), step) else { return Ok(()) };
        if matches!(error, CheckpointError::Device(_)) {
            self.leaving.append(&mut self.freeing);
            return check_void(caller, held);
        }
        let checkpoint = &caller.checkpoints[which % caller.checkpoints.len()];
        let id = checkpoint.pool;
        let is_same = caller.core.segments() == segments && *caller.core.stats() == stats;
        ensure(Law::Pools, is_same, || format!("restoring {id:?} failed with {error}, but the heap changed"))?;
        let is_legal = match error {
            CheckpointError::Parted => caller.core.policy().has_transferred(),
            CheckpointError::LostPool(_) => caller.core.pool_use_count(id).is_err(),
            CheckpointError::Abandoned(_) => self.routing.uses(id) == 0,
            _ => !fits(&held, &segments, checkpoint),
        };
        ensure(Law::Pools, is_legal, || format!("{id:?} cannot be restored: {error}; the checkpoint is {checkpoint:x?}"))
    }

    /// Returns whether waiting must be deferred because something is in progress that this version of PyTorch treats as
    /// a capture.
    fn should_defer(&self, caller: &Caller) -> bool {
        self.routing.is_deferring(caller.core.policy().profile())
    }

    /// Checks that no work of a captured stream was ordered before other work, or the reverse, because the driver would add it to the
    /// graph, and that the host neither waited for such a stream or for an event captured there nor asked whether they are complete,
    /// because the driver would refuse and the capture would be invalid (facts: Graph captures). An event counts as captured until it
    /// is recorded again, also after the capture.
    ///
    /// PyTorch's policies wait for the streams of expandable segments without asking about captures. The events of freed blocks are
    /// recorded on captured streams too: an event on a stream for which a block waits may be one.
    fn check_uncaptured(&mut self, caller: &Caller) -> Result<(), Broken> {
        let captured: Vec<u64> = caller.captured_streams().into_iter().map(StreamId::get).collect();
        let waiting = self.leaving.iter().chain(&self.freeing).flat_map(|block| &block.waits);
        let awaited: BTreeSet<u64> = waiting.map(|(stream, _)| *stream).collect();
        let asks = !caller.core.policy().releases_during_captures();
        for call in &caller.calls {
            let recorded = self.recorded.get(&call.event).copied();
            let is_wrong = match call.name {
                CallName::StreamSynchronize => asks && captured.contains(&call.stream),
                CallName::EventQuery | CallName::EventSynchronize => asks && recorded == Some(Recorded::CapturedByPolicy),
                CallName::StreamWaitEvent => {
                    recorded.is_some_and(|recorded| recorded != Recorded::Plainly || captured.contains(&call.stream))
                }
                _ => false,
            };
            ensure(Law::Pools, !is_wrong, || {
                format!(
                    "the allocator called {call:?} while these streams were captured: {captured:x?}; the event is {recorded:?}"
                )
            })?;
            if call.name == CallName::EventRecord && call.done {
                let is_captured = captured.contains(&call.stream);
                let recorded = match (is_captured, awaited.contains(&call.stream)) {
                    (false, _) => Recorded::Plainly,
                    (true, false) => Recorded::CapturedByPolicy,
                    (true, true) => Recorded::Captured,
                };
                self.recorded.insert(call.event, recorded);
            }
        }
        Ok(())
    }

    /// Checks that a step during which waiting was deferred from start to end has not waited.
    fn check_calls(&self, caller: &Caller, step: Step) -> Result<(), Broken> {
        let is_deferring = self.should_defer(caller);
        let agrees = caller.core.heap().is_deferring() == is_deferring;
        ensure(Law::Pools, agrees, || format!("waiting allowed: {}, routing: {:?}", !is_deferring, self.routing))?;
        // Saving a pool records the deferred events at any time (spec 5.8).
        if !self.was_deferring || !is_deferring || matches!(step, Step::Save(_)) {
            return Ok(());
        }
        // Pages of an unused pool may be released at any time, after waiting for their stream (spec 4.6). No entry
        // records a failure of the wait or of the release.
        let is_private = |pool: PoolId| pool != PoolId::DEFAULT;
        let unmaps = caller.entries().iter().any(|entry| entry.action == TraceAction::SegmentUnmap && is_private(entry.pool));
        let calls = &caller.calls;
        let fails = |place: usize| {
            let next = calls.get(place + 1).filter(|next| next.name == CallName::MemUnmap);
            calls[place].error.is_some() || next.is_some_and(|next| next.error.is_some())
        };
        // On a device that waits in captures, a policy may order the work of streams that take part in none, for a request.
        let is_request = matches!(step, Step::Allocate(..) | Step::AllocateRaw(..) | Step::AllocateAt(..));
        let may_order = is_request && caller.device.look().waits_in_captures() && caller.core.policy().pytorch().is_none();
        let captured = caller.captured_streams();
        let is_free = |call: &MadeCall| captured.iter().all(|stream| stream.get() != call.stream);
        let is_pair = |first: Option<&MadeCall>, second: Option<&MadeCall>| {
            let Some((first, second)) = first.zip(second) else { return false };
            let asks = matches!(second.name, CallName::StreamWaitEvent | CallName::EventQuery);
            first.name == CallName::EventRecord && asks && first.event == second.event && is_free(first)
        };
        let is_own = |place: usize| {
            let call = &calls[place];
            let is_ordered = match call.name {
                CallName::StreamSynchronize => true,
                CallName::EventRecord => call.error.is_some() || is_pair(Some(call), calls.get(place + 1)),
                _ => is_pair(place.checked_sub(1).and_then(|before| calls.get(before)), Some(call)),
            };
            may_order && is_ordered && (call.name == CallName::EventQuery || is_free(call))
        };
        let may_wait =
            |place: usize| calls[place].name == CallName::StreamSynchronize && (unmaps || fails(place)) || is_own(place);
        let call = (0..calls.len()).find(|&place| FORBIDDEN.contains(&calls[place].name) && !may_wait(place));
        let call = call.map(|place| &calls[place]);
        ensure(Law::Pools, call.is_none(), || format!("the allocator called {call:?} while a graph was being captured"))
    }

    /// Checks that free blocks are still apart if the policy kept them apart and something else in their segment is in use: no other
    /// block needs them as one.
    fn check_apart(&self, caller: &Caller, segments: &[SegmentInfo]) -> Result<(), Broken> {
        if caller.core.policy().has_coalesced() {
            return Ok(());
        }
        let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
        let begins = |address: DeviceAddress| blocks().any(|block| block.address == address);
        let is_held = |address| caller.held.iter().any(|held| held.address() == address);
        let lost = self
            .apart
            .iter()
            .find(|apart| is_held(apart.used) && caller.core.policy().is_apart(apart.high.get()) && !begins(apart.high));
        ensure(Law::Coalescing, lost.is_none(), || {
            format!("free blocks that the policy keeps apart, in a segment in use, were coalesced: {lost:x?}")
        })
    }

    /// Checks every law that holds between steps.
    fn check(&mut self, caller: &Caller, step: Step) -> Result<(), Broken> {
        caller.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        let segments = caller.core.segments();
        self.check_pools(caller, &segments)?;
        for entry in caller.entries() {
            self.history.follow(entry)?;
            self.ledger.follow(entry);
            self.recount.follow(entry, &segments);
        }
        let may_expand = self.expected.wrong_answers
            || [PoolClass::Small, PoolClass::Large]
                .into_iter()
                .any(|class| caller.core.policy().is_expandable(PoolSlot::default_pool(class)));
        self.has_expanded |= may_expand;
        self.check_held_blocks(caller, &segments)?;
        check_coalesced(caller, &segments)?;
        self.check_apart(caller, &segments)?;
        self.check_lendable(caller, step, &segments)?;
        self.check_accounts(caller, &segments)?;
        self.check_device(caller, &segments)?;
        if caller.steps.is_multiple_of(3) {
            views::check(caller, &segments, &self.mappings)?;
            if !self.expected.wrong_answers {
                self.mappings.check(caller, &segments)?;
            }
        }
        self.ledger.check(caller.core.stats(), self.has_expanded)?;
        self.recount.check(caller.core.stats(), &segments)?;
        self.reserved_before = caller.core.heap().reserved().get();
        Ok(())
    }

    /// Checks that exactly the live allocations are handed out, each in a large enough block, and that memory which may
    /// still be in use is pending.
    fn check_held_blocks(&mut self, caller: &Caller, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
        let mut expected: Vec<&Held> = caller.held.iter().collect();
        expected.sort_unstable_by_key(|held| held.address());
        let mut expected = expected.into_iter();
        for block in blocks().filter(|block| block.state == BlockActivity::Allocated) {
            let held = expected.next().map(|held| (held.address(), held.requested));
            let agrees = held == Some((block.address, block.requested.get())) && block.size >= block.requested;
            ensure(Law::Accounting, agrees, || format!("the heap has handed out {block:?}, but the program holds {held:?}"))?;
        }
        let missing = expected.next();
        ensure(Law::Accounting, missing.is_none(), || format!("{missing:?} is missing from the heap"))?;
        let held = caller.held.iter().map(|held| (held.address().get(), held.requested, held.home.get()));
        watched::check_told(&caller.core, held.collect())?;
        let pending: Vec<u64> =
            blocks().filter(|block| block.state == BlockActivity::PendingFree).map(|block| block.address.get()).collect();
        let witness = caller.device.witness();
        for leaving in self.leaving.iter().filter(|leaving| !leaving.is_known_done(&witness)) {
            ensure(Law::NoEarlyReuse, pending.contains(&leaving.address), || {
                format!("{leaving:?} should be pending, but is not")
            })?;
        }
        let stray = pending.iter().find(|&&address| self.leaving.iter().all(|leaving| leaving.address != address));
        ensure(Law::Accounting, stray.is_none(), || format!("the block at {stray:x?} is pending, but no stream uses it"))?;
        self.leaving.retain(|leaving| pending.contains(&leaving.address));
        Ok(())
    }

    /// Checks that reserved bytes are the sum of live, rounding, pending, inactive split and whole bytes, and that each
    /// statistic agrees with its part.
    fn check_accounts(&self, caller: &Caller, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let account = Account::of(segments);
        let current = |family| u64::try_from(caller.core.stats().family(family).all.current).unwrap_or(u64::MAX);
        for (family, counted) in account.by_family().into_iter().chain([(Family::Allocation, caller.held.len() as u64)]) {
            ensure(Law::Accounting, current(family) == counted, || {
                format!("{} is {}, but should be {counted}: {account:?}", family.name(), current(family))
            })?;
        }
        let heap = caller.core.heap();
        let reserved = heap.reserved().get();
        ensure(Law::Accounting, reserved == account.sum(), || {
            format!("{reserved} bytes are reserved, but the segments account for {account:?}")
        })?;
        // A lowered limit applies only to later growth. Expandable segments map whole pages for requests that the limit
        // allows.
        let page = |class| caller.core.policy().page(PoolSlot::default_pool(class)).get();
        let slack = if self.has_expanded { page(PoolClass::Small).max(page(PoolClass::Large)) } else { 0 };
        let grew = reserved > self.reserved_before && !self.expected.wrong_answers;
        let limit = heap.limit();
        let kept = !grew || limit.is_none_or(|limit| reserved <= limit.get() + slack);
        ensure(Law::Limit, kept, || format!("{reserved} bytes are reserved, but the limit is {limit:?}"))
    }

    /// Checks that the ordinary segments are exactly the device's live ranges.
    fn check_device(&self, caller: &Caller, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let page = self.facts.page.get();
        let device = caller.device.look();
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
        let mut device = caller.device.steer();
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
    pub(super) fn check_races(&self, caller: &Caller) -> Result<(), Broken> {
        let mut device = caller.device.steer();
        let race = device.insight().and_then(|device| device.races().first().map(ToString::to_string));
        ensure(Law::NoRace, race.is_none() || self.races_are_expected, || race.unwrap_or_default())
    }

    /// Checks that pools in use keep their memory, and that each pool's uses and memory are counted correctly.
    fn check_pools(&mut self, caller: &Caller, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let core = &caller.core;
        // PyTorch's ladder may take memory from a pool in use during a capture (spec 2.7, 2.9).
        if !core.policy().releases_during_captures() {
            let is_deferring = self.was_deferring && self.should_defer(caller);
            // On a device that waits in captures, handles may be moved and broken at any time. A private pool in use may lose memory
            // that it has never handed out, if the policy names it.
            let may_move = !caller.broken.is_empty() || self.expected.wrong_answers;
            let has_own_steps = core.policy().pytorch().is_none();
            // A range of the default pool keeps what it has lent to a pool in use.
            let is_lent = |address: u64| {
                let ranges = caller.device.reserved_ranges();
                let base = ranges.range(..=address).next_back().filter(|&(base, size)| address - base < *size);
                base.and_then(|(&base, _)| self.mappings.owner(base)).is_some_and(|(pool, _)| pool == PoolId::DEFAULT)
            };
            let names = |entry: &TraceEntry| core.policy().names(&(entry.address..entry.address + entry.size));
            let may_unmap = |entry: &TraceEntry| match entry.pool {
                PoolId::DEFAULT => may_move,
                _ => has_own_steps && !is_lent(entry.address) && self.mappings.was_untouched(entry.address) && names(entry),
            };
            self.routing.check_kept(caller.entries(), is_deferring, may_unmap)?;
        }
        let profile = core.policy().profile();
        for id in POOLS {
            let (counted, wanted) = (core.pool_use_count(id).unwrap_or(0), self.routing.uses(id));
            ensure(Law::Pools, counted == wanted, || format!("{id:?} has {counted} uses, expected {wanted}"))?;
            if profile.forgets_no_split && core.pool_use_count(id).is_err() {
                self.routing.forget_whole(id);
            }
            let counted = core.stats().reserved_by_pool.get(&id).map_or(0, |set| set.all.current);
            let own = segments.iter().filter(|segment| segment.pool == id);
            let reserved: u64 = own.map(|segment| segment.total.get()).sum();
            let agrees = !profile.counts_private_pools || u64::try_from(counted) == Ok(reserved);
            ensure(Law::Accounting, agrees, || {
                format!("{id:?} has reserved {reserved} bytes, but its statistics count {counted}")
            })?;
            // What is returned to the device has an entry, and was checked above.
            let is_gone = |entry: &&TraceEntry| matches!(entry.action, TraceAction::SegmentFree | TraceAction::SegmentUnmap);
            let gone: u64 =
                caller.entries().iter().filter(is_gone).filter(|entry| entry.pool == id).map(|entry| entry.size).sum();
            let before = self.in_use.remove(&id).filter(|_| wanted > 0);
            ensure(Law::Pools, before.is_none_or(|before| before <= reserved + gone), || {
                format!("{id:?} is in use, but of its {before:?} bytes, {reserved} are left, and only {gone} were released")
            })?;
            if wanted > 0 {
                self.in_use.insert(id, reserved);
            }
        }
        Ok(())
    }

    /// Checks that nothing is in use, and that everything that the policy releases has been released.
    pub(super) fn check_nothing_left(&self, caller: &Caller) -> Result<(), Broken> {
        let core = &caller.core;
        // Some releases never stop deferring after a routing has failed, and then wait for no event.
        if core.heap().is_deferring() {
            return Ok(());
        }
        let (named, whole) = (core.policy().releasable(core.heap()), core.heap().releasable());
        // A policy may keep memory forever; it then reports nothing as releasable.
        let keeps = named.is_empty() && !whole.is_empty();
        ensure(Law::Endings, keeps || self.history.is_empty(), || {
            format!("the trace ends with memory that is still held: {:?}", self.history)
        })?;
        for family in Family::ALL {
            let is_kept = keeps
                && matches!(family, Family::Segment | Family::ReservedBytes | Family::InactiveSplit | Family::InactiveSplitBytes);
            let current = core.stats().family(family).all.current;
            ensure(Law::Endings, current == 0 || is_kept, || format!("{}.all.current is {current} at the end", family.name()))?;
        }
        let reserved = core.heap().reserved();
        ensure(Law::Endings, reserved == Bytes::ZERO || keeps, || format!("{reserved} bytes are still reserved"))?;
        let holdings = caller.device.look().holdings();
        // Growth that fails for lack of memory leaves its addresses reserved for the next attempt: the heap knows the
        // addresses, and nothing has ever been mapped there. A range that had memory is unreserved together with its
        // last page.
        let known = core.expandable_segments().iter().filter(|(_, _, mapped)| *mapped == Bytes::ZERO).count();
        let bare = caller.device.bare_ranges().min(known);
        let is_empty = holdings.ranges == 0 && holdings.physical == 0 && holdings.reservations == bare;
        let excused = keeps || self.expected.faults;
        ensure(Law::Endings, is_empty || excused, || format!("an empty heap still holds {holdings:?}"))
    }
}

/// Returns the bytes that moved out of broken handles in the current step.
fn copied_bytes(caller: &Caller) -> u64 {
    caller.broken.iter().flat_map(|broken| &broken.kept).map(|(_, bytes)| bytes).sum()
}

/// Checks that a request for an address got that address.
fn check_address(caller: &Caller, step: Step) -> Result<(), Broken> {
    let address = caller.held.last().map(Held::address).filter(|_| matches!(step, Step::AllocateAt(..)));
    let asked = caller.asked_at;
    ensure(Law::Placement, address.is_none_or(|address| address == asked), || {
        format!("a request for the address {asked} was served at {address:?}")
    })
}

/// A place where two free blocks meet that the policy has kept apart.
#[derive(Clone, Copy, Debug)]
struct Apart {
    /// The first byte of the high block.
    high: DeviceAddress,
    /// A block in use in the same segment.
    used: DeviceAddress,
}

/// Returns every such place in the segments that are in use, but not in expandable ones, of which free pages are unmapped. A restore
/// coalesces the blocks of its pool.
fn apart(caller: &Caller, step: Step) -> Vec<Apart> {
    let mut found = Vec::new();
    if !caller.core.policy().keeps_apart() {
        return found;
    }
    let restored = match step {
        Step::Restore(which) => caller.checkpoints.get(which % caller.checkpoints.len().max(1)).map(|checkpoint| checkpoint.pool),
        _ => None,
    };
    let segments = caller.core.segments();
    for segment in segments.iter().filter(|segment| !segment.expandable && Some(segment.pool) != restored) {
        let is_free = |block: &BlockInfo| block.state == BlockActivity::Inactive;
        let Some(used) = segment.blocks.iter().find(|block| block.state == BlockActivity::Allocated) else { continue };
        let pairs = segment.blocks.windows(2).filter(|pair| pair.iter().all(is_free));
        let apart = pairs.map(|pair| pair[1].address).filter(|high| caller.core.policy().is_apart(high.get()));
        found.extend(apart.map(|high| Apart { high, used: used.address }));
    }
    found
}

/// Checks that adjacent free blocks of the same stream are coalesced, unless the policy kept them apart.
fn check_coalesced(caller: &Caller, segments: &[SegmentInfo]) -> Result<(), Broken> {
    let heap = caller.core.heap();
    let free = heap.pool_slots().flat_map(|pool| heap.free_blocks(pool));
    let free: BTreeMap<u64, BlockView> = free.map(|block| (block.address.get(), block)).collect();
    for pair in segments.iter().flat_map(|segment| segment.blocks.windows(2)) {
        let both = pair.iter().all(|block| block.state == BlockActivity::Inactive);
        let (Some(low), Some(high)) = (free.get(&pair[0].address.get()), free.get(&pair[1].address.get())) else { continue };
        let is_apart = low.stream != high.stream || caller.core.policy().is_apart(high.address.get());
        ensure(Law::Coalescing, !both || is_apart, || format!("adjacent free blocks were not coalesced: {low:?} and {high:?}"))?;
    }
    Ok(())
}

/// Checks that the allocator refuses allocations that their pool has taken back.
fn check_void(caller: &mut Caller, held: Vec<Held>) -> Result<(), Broken> {
    for held in held {
        let answer = caller.core.free(held.allocation);
        ensure(Law::Pools, matches!(answer, Err(FreeError::NotAllocated(_))), || {
            format!("an allocation was freed again after its pool had taken it back, and the answer was {answer:?}")
        })?;
    }
    Ok(())
}

/// Returns whether every saved segment still exists, is ordinary, and will be free once its pool takes back its allocations.
fn fits(held: &[Held], segments: &[SegmentInfo], checkpoint: &PoolCheckpoint) -> bool {
    checkpoint.segments.iter().all(|saved| {
        let bytes: u64 = saved.blocks.iter().map(|block| block.size.get()).sum();
        let is_same = |segment: &&SegmentInfo| {
            let same = (segment.address, segment.stream, segment.pool) == (saved.address, saved.stream, checkpoint.pool);
            same && segment.total.get() == bytes && !segment.expandable
        };
        segments.iter().find(is_same).is_some_and(|segment| {
            segment.blocks.iter().all(|block| match block.state {
                BlockActivity::Inactive => true,
                BlockActivity::Allocated => {
                    held.iter().find(|held| held.address() == block.address).is_some_and(|held| held.told.is_empty())
                }
                BlockActivity::PendingFree => false,
            })
        })
    })
}

/// Returns whether a request's failure is out of memory, rather than an error that no request should get.
pub(super) fn is_out_of_memory(error: &AllocError) -> bool {
    matches!(error, AllocError::OutOfMemory(_) | AllocError::Rejected { .. })
}
