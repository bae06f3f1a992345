//! Compares the answers and the visible state of the two allocators.

use parkade::checkpoint::PoolCheckpoint;
use parkade::device::{BackendError, DeviceBackend, ProcessMemory};
use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::snapshot::SegmentInfo;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
use parkade::{
    AllocError, Allocation, Allocator, BlockView, CheckpointError, FreeError, InvalidFraction, PoolError, PoolSlot, Restored,
};

use crate::backend::WitnessedDevice;
use crate::law::{Broken, Law, ensure};
use crate::program::step::POOLS;
use crate::reference_model::allocator::{FreeBlock, Made, Restoration, Saved};
use crate::reference_model::{Reference, texts};

/// The allocator under test.
pub(crate) type Tested<AnyDevice> = Allocator<WitnessedDevice<AnyDevice>, PyTorch, Vec<TraceEntry>>;

/// The answer to a step.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The step returns no answer.
    Nothing,
    /// A block from the allocator, at the address that the reference allocator determines.
    Allocated(Allocation),
    AllocatedAt(u64),
    Refused(AllocError),
    /// The freed address, and the error.
    Freed(u64, Option<FreeError>),
    Recorded(u64),
    Stocked(usize, u64),
    Done(Result<(), AllocError>),
    /// Whether the memory fraction was accepted.
    Limited(Result<(), InvalidFraction>),
    Asked(Result<bool, CheckpointError>),
    Pool(Result<(), PoolError>),
    Saved(Result<PoolCheckpoint, CheckpointError>),
    SavedAs(Saved),
    Restored(Vec<u64>, Vec<Allocation>),
    RestoredAs(Restoration),
    NotRestored(CheckpointError),
    Seen(Vec<SegmentInfo>),
}

impl Answer {
    pub(crate) fn allocated(answer: Result<Allocation, AllocError>) -> Answer {
        answer.map_or_else(Answer::Refused, Answer::Allocated)
    }

    pub(crate) fn expected(answer: Result<u64, AllocError>) -> Answer {
        answer.map_or_else(Answer::Refused, Answer::AllocatedAt)
    }

    pub(crate) fn done(answer: Result<(), AllocError>) -> Answer {
        Answer::Done(answer)
    }

    pub(crate) fn restored(answer: Result<Restored, CheckpointError>) -> Answer {
        match answer {
            Ok(Restored { freed, allocations }) => {
                Answer::Restored(freed.into_iter().map(DeviceAddress::get).collect(), allocations)
            }
            Err(error) => Answer::NotRestored(error),
        }
    }

    /// Returns whether this answer from the allocator is the expected one.
    pub(crate) fn same_as(&self, expected: &Answer) -> bool {
        match (self, expected) {
            (Answer::Nothing, Answer::Nothing) => true,
            (Answer::Allocated(allocation), Answer::AllocatedAt(address)) => allocation.address().get() == *address,
            (Answer::Refused(seen), Answer::Refused(expected)) => same_error(seen, expected),
            (Answer::Done(Err(seen)), Answer::Done(Err(expected))) => same_error(seen, expected),
            (Answer::Done(seen), Answer::Done(expected)) => seen == expected,
            (Answer::Freed(a, seen), Answer::Freed(b, expected)) => (a, seen) == (b, expected),
            (Answer::Recorded(a), Answer::Recorded(b)) => a == b,
            (Answer::Stocked(..), Answer::Stocked(..)) => true,
            (Answer::Limited(a), Answer::Limited(b)) => a == b,
            (Answer::Asked(a), Answer::Asked(b)) => a == b,
            (Answer::Pool(a), Answer::Pool(b)) => a == b,
            (Answer::Saved(Err(a)), Answer::Saved(Err(b))) | (Answer::NotRestored(a), Answer::NotRestored(b)) => a == b,
            (Answer::Saved(Ok(seen)), Answer::SavedAs(expected)) => as_saved(seen) == *expected,
            (Answer::Restored(freed, allocations), Answer::RestoredAs(expected)) => {
                let handed_out = allocations.iter().map(|allocation| allocation.address().get());
                *freed == expected.freed && handed_out.eq(expected.allocations.iter().copied())
            }
            (Answer::Seen(a), Answer::Seen(b)) => a == b,
            _ => false,
        }
    }

    /// Checks the processes in an error, and the error's text.
    pub(crate) fn check_texts(&self, profile: &Profile, processes: &[ProcessMemory]) -> Result<(), Broken> {
        match self {
            Answer::Refused(error) => {
                if let AllocError::OutOfMemory(report) = error {
                    ensure(Law::Reference, report.processes == processes, || {
                        format!("the error names {:?}, but the device named {processes:?}", report.processes)
                    })?;
                }
                texts::check(&error.message(profile), texts::of_request(error, profile))
            }
            Answer::Saved(Err(error)) | Answer::NotRestored(error) => {
                texts::check(&error.to_string(), texts::of_checkpoint(error))
            }
            Answer::Pool(Err(error)) => texts::check(&error.message(profile), texts::of_pool(*error, profile)),
            Answer::Limited(Err(error)) => {
                texts::check(&error.message(profile), Some(texts::of_fraction(&error.0.to_string(), profile)))
            }
            _ => Ok(()),
        }
    }
}

/// Compares everything except the processes, which the reference allocator does not know.
fn same_error(seen: &AllocError, expected: &AllocError) -> bool {
    match (seen, expected) {
        (AllocError::OutOfMemory(seen), AllocError::OutOfMemory(expected)) => {
            let mut seen = seen.clone();
            seen.processes.clear();
            // The messages are compared as text.
            seen.words = expected.words;
            seen == *expected
        }
        (seen, expected) => seen == expected,
    }
}

fn as_saved(checkpoint: &PoolCheckpoint) -> Saved {
    let segments = checkpoint.segments.iter().map(|segment| {
        let blocks = segment.blocks.iter().map(|block| (block.size, block.state)).collect();
        (segment.address, segment.stream, blocks)
    });
    Saved { pool: checkpoint.pool, segments: segments.collect() }
}

/// Returns the expected answer to a callback's action.
pub(crate) fn made(made: Made) -> Answer {
    match made {
        Made::Freed(address, error) => Answer::Freed(address, error.map(FreeError::Device)),
        Made::Allocated(answer) => Answer::expected(answer),
        Made::Done(answer) => Answer::Done(answer),
        Made::Pool(answer) => Answer::Pool(answer),
    }
}

/// Returns the expected answer to a save.
pub(crate) fn saved(answer: Result<Saved, CheckpointError>) -> Answer {
    answer.map_or_else(|error| Answer::Saved(Err(error)), Answer::SavedAs)
}

/// Returns the expected answer to a restore.
pub(crate) fn restored(answer: Result<Restoration, CheckpointError>) -> Answer {
    answer.map_or_else(Answer::NotRestored, Answer::RestoredAs)
}

/// Compares the observers' entries one by one.
pub(crate) fn traces(seen: &[TraceEntry], expected: &[TraceEntry]) -> Result<(), Broken> {
    let longest = seen.len().max(expected.len());
    let differs = (0..longest).find(|&place| seen.get(place) != expected.get(place));
    ensure(Law::Reference, differs.is_none(), || {
        let place = differs.unwrap_or(0);
        format!("entry {place} of the trace is {:?}, expected {:?}", seen.get(place), expected.get(place))
    })
}

/// Compares statistics, segments, limits and pools.
pub(crate) fn states<D: DeviceBackend, P: Policy>(
    core: &Allocator<D, P, Vec<TraceEntry>>,
    reference: &Reference,
) -> Result<(), Broken> {
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
pub(crate) fn queries<D: DeviceBackend, P: Policy>(
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
pub(crate) fn private_blocks<D: DeviceBackend, P: Policy>(
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

/// Returns the error of a step that was not planned to fail.
pub(crate) fn device_error(answer: &Answer) -> Option<BackendError> {
    match answer {
        Answer::Refused(AllocError::Device(error)) | Answer::Done(Err(AllocError::Device(error))) => Some(*error),
        Answer::Freed(_, Some(FreeError::Device(error))) => Some(*error),
        Answer::Saved(Err(CheckpointError::Device(error))) | Answer::NotRestored(CheckpointError::Device(error)) => Some(*error),
        _ => None,
    }
}
