//! The reference allocator beside the allocator under test: after every step, everything visible is equal.

use std::collections::VecDeque;

use parkade::device::DeviceBackend;
use parkade::policy::Policy;
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
use parkade::{AllocError, Allocator, BlockView, FreeError, InvalidFraction, PoolFilter, PoolSlot};

use super::answer::{self, Answer};
use super::caller::Caller;
use super::step::{POOLS, Step, pool_id};
use super::watched::check_told;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::Reference;
use crate::reference_model::allocator::{Deed, FreeBlock, Graphs, Saved};

/// The reference allocator, and what it needs to follow a program.
#[derive(Clone)]
pub(crate) struct Beside {
    pub(super) reference: Reference,
    /// Its checkpoints, in the order of the caller's.
    pub(crate) saved: Vec<Saved>,
}

impl Beside {
    /// Creates the reference allocator for the caller's setup.
    pub(super) fn new(caller: &Caller) -> Beside {
        let setup = &caller.setup;
        let settings = Settings::from_environment_as(&setup.profile().dialect, setup.text(setup.settings));
        let settings = settings.expect("the strings in the table are valid");
        let device = &caller.device;
        let mut reference = Reference::new(setup.profile(), settings, device.total_memory().get(), device.index());
        caller.callbacks.describe_to(&mut reference);
        Beside { reference, saved: Vec::new() }
    }

    /// Performs the step that the caller has performed, and compares the answers, the device calls and the trace.
    pub(super) fn follow(&mut self, caller: &Caller, step: Step, seen: &Answer) -> Result<(), Broken> {
        self.reference.begin(caller.calls.clone());
        let expected = self.expect(caller, step, seen);
        if let Some(wrong) = self.reference.end() {
            return Err(Broken::new(Law::Reference, wrong));
        }
        let told: Vec<Answer> = std::mem::take(&mut self.reference.callback_answers).into_iter().map(answer::made).collect();
        let heard = &caller.callbacks.heard;
        let same = heard.len() == told.len() && heard.iter().zip(&told).all(|(seen, expected)| seen.same_as(expected));
        ensure(Law::Reference, same, || format!("callbacks received {heard:?}, expected {told:?}"))?;
        ensure(Law::Reference, seen.same_as(&expected), || format!("the answer is {seen:?}, expected {expected:?}"))?;
        seen.check_texts(caller.core.policy().profile(), &caller.device.newest_processes())?;
        traces(caller.entries(), &self.reference.trace)
    }

    /// Forgets the actions of callbacks that were not called.
    pub(super) fn forget_callbacks(&mut self) {
        self.reference.stocks.iter_mut().for_each(VecDeque::clear);
    }

    /// Compares the visible state, once the caller has taken over the answer.
    pub(super) fn compare(&self, caller: &Caller) -> Result<(), Broken> {
        let (core, reference) = (&caller.core, &self.reference);
        states(core, reference)?;
        queries(core, reference, caller.steps, caller.streams[caller.steps as usize % 4])?;
        if caller.steps.is_multiple_of(4) {
            private_blocks(core, reference)?;
            check_told(core, live(&reference.segments()))?;
        }
        let target = core.policy().pytorch().and_then(|policy| policy.collection_target(core.heap()));
        let expected = reference.collection_target();
        ensure(Law::Reference, target == expected, || {
            format!("garbage collection would release {target:?}, expected {expected:?}")
        })?;
        if let Some(held) = caller.held.first() {
            let (seen, expected) = (core.segment_of(&held.allocation), reference.segment_of(held.allocation.address().get()));
            ensure(Law::Reference, seen == Some(expected), || format!("segment_of is {seen:?}, expected {expected:?}"))?;
        }
        Ok(())
    }

    /// Returns the answer according to the rules.
    fn expect(&mut self, caller: &Caller, step: Step, seen: &Answer) -> Answer {
        let reference = &mut self.reference;
        let stream = |place: usize| caller.streams[place];
        match (step, seen) {
            (Step::Allocate(bytes, place), _) => Answer::expected(reference.allocate(bytes, stream(place).get(), false)),
            (Step::AllocateRaw(bytes, place), _) => Answer::expected(reference.allocate(bytes, stream(place).get(), true)),
            (Step::AllocateAt(bytes, place, ..), _) => {
                Answer::expected_at(reference.allocate_at(bytes, stream(place).get(), caller.asked_at.get()))
            }
            (Step::Free(_), Answer::Freed(address, _)) => {
                Answer::Freed(*address, reference.free(*address).err().map(FreeError::Device))
            }
            (Step::Record(_, place) | Step::Use(_, place), Answer::Recorded(address)) => {
                reference.record_stream(*address, stream(place).get());
                Answer::Recorded(*address)
            }
            (Step::Stock(..), Answer::Stocked(callback, address)) => {
                reference.stocks[*callback].push_back((Deed::Free(*address), true));
                Answer::Stocked(*callback, *address)
            }
            (Step::Command(callback, order, says), _) if callback < reference.stocks.len() => {
                reference.stocks[callback].push_back((caller.deed(order), says));
                Answer::Nothing
            }
            (Step::ProcessEvents, _) => Answer::done(reference.process_events().map_err(AllocError::Device)),
            (Step::ReleaseCached, _) => Answer::done(reference.release_cached()),
            (Step::Fraction(thousandths), _) => {
                let fraction = f64::from(thousandths) / 1000.0;
                Answer::Limited(if reference.set_fraction(fraction) { Ok(()) } else { Err(InvalidFraction(fraction)) })
            }
            (Step::ReleaseCachedPool(pool), _) => Answer::done(reference.release_cached_pool(POOLS[pool])),
            (Step::CreatePool(pool), _) => Answer::Pool(reference.create_pool(POOLS[pool])),
            (Step::BeginPool(pool, place), _) => Answer::Pool(reference.begin_pool(POOLS[pool], caller.filter(place))),
            (Step::BeginChosen(pool), _) => Answer::Pool(reference.begin_pool(POOLS[pool], PoolFilter::Chosen)),
            (Step::EndPool(pool), _) => Answer::Pool(reference.end_pool(POOLS[pool])),
            (Step::ReleasePool(pool), _) => Answer::Pool(reference.release_pool(POOLS[pool])),
            (Step::Save(pool), _) => {
                let answer = reference.save(POOLS[pool]);
                self.saved.extend(answer.clone());
                answer::saved(answer)
            }
            (Step::Restore(which), Answer::Restored(..) | Answer::NotRestored(_)) => {
                answer::restored(reference.restore(&self.saved[which % self.saved.len()]))
            }
            (Step::RestoreChanged(..), Answer::Restored(..) | Answer::NotRestored(_)) => {
                let checkpoint = caller.restored_by(step).expect("it was restored");
                answer::restored(reference.restore(&answer::as_saved(&checkpoint)))
            }
            (Step::LiveAre(pool, all), _) => {
                let live: Vec<u64> = caller.live_of(pool, all).into_iter().map(DeviceAddress::get).collect();
                Answer::Asked(reference.live_are(POOLS[pool], &live))
            }
            (step, Answer::Captured(_)) => Answer::Captured(captured(&mut reference.graphs, step, |place| stream(place).get())),
            (Step::Snapshot, _) => Answer::Seen(reference.snapshot(None)),
            (Step::SnapshotPool(pool), _) => Answer::Seen(reference.snapshot(Some(POOLS[pool]))),
            _ => {
                self.turn(caller, step);
                Answer::Nothing
            }
        }
    }

    /// Changes the reference allocator in ways that produce no answer.
    fn turn(&mut self, caller: &Caller, step: Step) {
        let reference = &mut self.reference;
        match step {
            Step::Limit(bytes) => reference.set_limit(bytes),
            Step::Apply(_) => reference.settings.clone_from(&caller.core.policy().pytorch().expect("PyTorch's policy").settings),
            Step::ResetPeaks => reference.reset_peaks(),
            Step::ResetSums => reference.reset_sums(),
            Step::UseOnOom(pool, serves) => reference.serve_when_out(POOLS[pool], serves),
            Step::NoSplit(pool) => reference.keep_whole(pool_id(pool)),
            Step::Capturing(is_capturing) => reference.set_capturing(is_capturing),
            Step::Choose(pool) => reference.choose_pool(pool.map(|pool| POOLS[pool])),
            _ => {}
        }
    }
}

/// Returns the address, the requested bytes and the stream of every allocation.
fn live(segments: &[SegmentInfo]) -> Vec<(u64, u64, u64)> {
    let own = |segment: &SegmentInfo| {
        let live = segment.blocks.iter().filter(|block| block.state == BlockActivity::Allocated);
        live.map(|block| (block.address.get(), block.requested.get(), segment.stream.get())).collect::<Vec<_>>()
    };
    segments.iter().flat_map(own).collect()
}

/// Builds the same graph as the device.
fn captured(graphs: &mut Graphs, step: Step, stream: impl Fn(usize) -> u64) -> bool {
    match step {
        Step::BeginGraph(place) => graphs.begin(stream(place)),
        Step::EndGraph(place) => graphs.end(stream(place)),
        Step::GraphWork(place) => return graphs.work(stream(place)),
        Step::GraphWait(place, other) => return graphs.wait(stream(place), stream(other)),
        Step::HideGraph(place, hidden) => graphs.hide(stream(place), hidden),
        _ => {}
    }
    matches!(step, Step::BeginGraph(_))
}

/// Compares the observers' entries one by one.
fn traces(seen: &[TraceEntry], expected: &[TraceEntry]) -> Result<(), Broken> {
    let longest = seen.len().max(expected.len());
    let differs = (0..longest).find(|&place| seen.get(place) != expected.get(place));
    ensure(Law::Reference, differs.is_none(), || {
        let place = differs.unwrap_or(0);
        format!("entry {place} of the trace is {:?}, expected {:?}", seen.get(place), expected.get(place))
    })
}

/// Compares statistics, segments, limits and pools.
fn states<D: DeviceBackend, P: Policy>(core: &Allocator<D, P, Vec<TraceEntry>>, reference: &Reference) -> Result<(), Broken> {
    if let Some(difference) = reference.difference_from(core.stats()) {
        return Err(Broken::new(Law::Reference, difference));
    }
    let (seen, expected) = (core.segments(), reference.segments());
    ensure(Law::Reference, seen == expected, || {
        let place = (0..seen.len().max(expected.len())).find(|&place| seen.get(place) != expected.get(place)).unwrap_or(0);
        format!("segment {place} is {:?}, expected {:?}", seen.get(place), expected.get(place))
    })?;
    let heap = core.heap();
    let total = core.device().total_memory().get();
    let fraction = reference.limit().map_or(1.0, |limit| limit as f64 / total as f64);
    let same = heap.limit().map(Bytes::get) == reference.limit()
        && heap.reserved().get() == reference.reserved_bytes()
        && heap.reserved_in(PoolSlot::default_pool(PoolClass::Small)).get() == reference.reserved_by_default()
        && heap.largest_free().get() == reference.largest_free()
        && heap.is_deferring() == reference.is_deferring()
        && heap.device_total().get() == total
        && core.memory_fraction() == fraction
        && core.expandable_segments() == reference.ranges();
    ensure(Law::Reference, same, || {
        let sums = (heap.limit(), heap.reserved(), heap.largest_free(), heap.is_deferring(), core.memory_fraction());
        format!(
            "the limit, reserved bytes, largest free block, deferral flag and memory fraction are {sums:?} and the ranges {:?}; \
             the reference has {reference:?}",
            core.expandable_segments()
        )
    })?;
    for id in POOLS {
        let (seen, expected) = (core.pool_use_count(id), reference.uses(id));
        ensure(Law::Reference, seen == expected, || format!("{id:?} has {seen:?} uses, expected {expected:?}"))?;
    }
    Ok(())
}

/// Asks the heap a question about its free blocks, which is drawn from the number of steps.
fn queries<D: DeviceBackend, P: Policy>(
    core: &Allocator<D, P, Vec<TraceEntry>>,
    reference: &Reference,
    steps: u64,
    stream: StreamId,
) -> Result<(), Broken> {
    let class = if steps.is_multiple_of(3) { PoolClass::Small } else { PoolClass::Large };
    let free = reference.free_in_order(PoolId::DEFAULT, class);
    let (heap, slot) = (core.heap(), PoolSlot::default_pool(class));
    let all: Vec<BlockView> = heap.free_blocks(slot).collect();
    let same = |seen: &BlockView, expected: &FreeBlock| {
        // Stamps have a meaning only in the large pool.
        (class == PoolClass::Small || seen.stamp == expected.stamp)
            && (seen.address.get(), seen.size.get(), seen.stream.get()) == (expected.address, expected.size, expected.stream)
            && (seen.is_split, seen.is_expandable) == (expected.is_split, expected.is_expandable)
            && heap.unmapped_after(seen.id).get() == expected.room_behind
    };
    let is_same = all.len() == free.len() && all.iter().zip(&free).all(|(seen, expected)| same(seen, expected));
    ensure(Law::Reference, is_same, || format!("the heap's free blocks are {all:?}, expected {free:?}"))?;
    let own: Vec<&BlockView> = all.iter().filter(|block| block.stream == stream).collect();
    let Some(picked) = own.get(steps as usize % own.len().max(1)) else { return Ok(()) };
    let size = Bytes(picked.size.get().saturating_add_signed(steps as i64 / 7 % 3 - 1));
    let larger: Vec<BlockView> = own.iter().filter(|block| block.size >= size).map(|block| **block).collect();
    let smaller: Vec<BlockView> = own.iter().rev().filter(|block| block.size < size).map(|block| **block).collect();
    // The query starts at the block, inside it, or at its end.
    let from = picked.address.get() + picked.size.get() / 2 * (steps / 5 % 3);
    let lowest = larger.iter().filter(|block| block.address.get() + block.size.get() > from);
    let elsewhere = all.iter().filter(|block| block.stream != stream && block.size >= size);
    let mut first_elsewhere: Vec<BlockView> = Vec::new();
    for block in elsewhere {
        if first_elsewhere.last().is_none_or(|last| last.stream != block.stream) {
            first_elsewhere.push(*block);
        }
    }
    let largest = own.last().and_then(|last| own.iter().find(|block| block.size == last.size)).map(|block| **block);
    let unseen = StreamId(0x5eed);
    let has_nothing = heap.at_least(slot, unseen, Bytes(0)).chain(heap.below(slot, unseen, Bytes::MAX)).next().is_none()
        && heap.first_at_least(slot, unseen, Bytes(0)).or(heap.largest(slot, unseen)).is_none()
        && heap.lowest_at_least(slot, unseen, Bytes(0), DeviceAddress(0)).is_none();
    let checks = [
        ("a stream without blocks", has_nothing),
        ("at_least", heap.at_least(slot, stream, size).collect::<Vec<_>>() == larger),
        ("below", heap.below(slot, stream, size).collect::<Vec<_>>() == smaller),
        ("first_at_least", heap.first_at_least(slot, stream, size) == larger.first().copied()),
        ("largest", heap.largest(slot, stream) == largest),
        (
            "lowest_at_least",
            heap.lowest_at_least(slot, stream, size, DeviceAddress(from)) == lowest.min_by_key(|block| block.address).copied(),
        ),
        ("first_at_least_elsewhere", heap.first_at_least_elsewhere(slot, stream, size).collect::<Vec<_>>() == first_elsewhere),
    ];
    let wrong = checks.iter().find(|(_, holds)| !holds).map(|(name, _)| *name);
    ensure(Law::Reference, wrong.is_none(), || {
        format!(
            "the search {} for {size} bytes on stream {stream} returned a wrong result for the free blocks {all:?}",
            wrong.unwrap_or("")
        )
    })
}

/// Compares the free blocks of private pools, collection by collection.
fn private_blocks<D: DeviceBackend, P: Policy>(
    core: &Allocator<D, P, Vec<TraceEntry>>,
    reference: &Reference,
) -> Result<(), Broken> {
    let (heap, classes) = (core.heap(), [PoolClass::Small, PoolClass::Large]);
    let private = heap.pool_slots().filter(|slot| classes.iter().all(|&class| *slot != PoolSlot::default_pool(class)));
    let place = |block: BlockView| (block.stream.get(), block.size.get(), block.address.get(), block.is_split);
    let mut seen: Vec<Vec<_>> = private.map(|slot| heap.free_blocks(slot).map(place).collect()).collect();
    let place = |block: &FreeBlock| (block.stream, block.size, block.address, block.is_split);
    let expected = POOLS.iter().flat_map(|&pool| classes.map(|class| reference.free_in_order(pool, class)));
    let mut expected: Vec<Vec<_>> = expected.map(|blocks| blocks.iter().map(place).collect()).collect();
    for lists in [&mut seen, &mut expected] {
        lists.retain(|list| !list.is_empty());
        lists.sort();
    }
    ensure(Law::Reference, seen == expected, || format!("private pools have the free blocks {seen:x?}, expected {expected:x?}"))
}
