//! Policies that keep adjacent free blocks apart, and what coalesces them after all.

use parkade::policy::{Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, PoolClass, PoolId, StreamId};
use parkade::{Allocation, Allocator, FreePair, Heap, PoolFilter, PoolSlot};

use crate::device::PlainDevice;

/// Best fit in segments of 4 MiB. Two free blocks coalesce if together they have at most this many bytes.
struct UpTo(Bytes);

impl Policy for UpTo {
    fn name(&self) -> &'static str {
        "up-to"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let found = heap.first_at_least(request.pool, request.stream, request.size);
        found.map_or(Placement::Segment(request.size.max(Bytes::mib(4))), |block| Placement::Reuse(block.id))
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn coalesces(&self, pair: &FreePair) -> bool {
        pair.low + pair.high <= self.0
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own, Rung::Grow, Rung::ReleaseAll, Rung::GrowAgain]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        let found = heap.first_at_least(request.pool, request.stream, request.size);
        match turn {
            0 => Relief::Coalesce,
            _ => found.map_or(Relief::Done, |block| Relief::Reuse(block.id)),
        }
    }
}

type Core = Allocator<PlainDevice, UpTo>;

/// A core with a segment of four blocks of 1 MiB, in a private pool if there is one.
fn filled(policy: UpTo, pool: Option<PoolId>) -> (Core, Vec<Allocation>) {
    let mut core = Allocator::new(PlainDevice::new(Bytes::mib(6), 1 << 44), policy, ());
    if let Some(pool) = pool {
        core.begin_pool(pool, PoolFilter::All).expect("a new pool");
    }
    let blocks = (0..4).map(|_| core.allocate(Bytes::mib(1), StreamId::DEFAULT).expect("room")).collect();
    (core, blocks)
}

/// The free blocks of all pools in MiB, by address.
fn free(core: &Core) -> Vec<u64> {
    core.check().expect("a sound heap");
    let heap = core.heap();
    let mut blocks: Vec<_> = heap.pool_slots().flat_map(|pool: PoolSlot| heap.free_blocks(pool)).collect();
    blocks.sort_unstable_by_key(|block| block.address);
    blocks.iter().map(|block| block.size.get() >> 20).collect()
}

#[test]
fn blocks_coalesce_as_the_policy_says_in_any_order_of_frees() {
    for (order, left) in [([0, 1, 2, 3], [2, 2]), ([1, 0, 3, 2], [2, 2]), ([3, 2, 1, 0], [2, 2])] {
        let (mut core, blocks) = filled(UpTo(Bytes::mib(2)), None);
        let mut blocks: Vec<Option<Allocation>> = blocks.into_iter().map(Some).collect();
        for place in order {
            core.free(blocks[place].take().expect("freed once")).expect("ours");
            free(&core);
        }
        assert_eq!(free(&core), left, "{order:?}");
    }
    // The one in the middle joins first one side, and is asked about again as a larger block.
    let (mut core, mut blocks) = filled(UpTo(Bytes::mib(2)), None);
    for place in [2, 0, 0] {
        core.free(blocks.remove(place)).expect("ours");
    }
    assert_eq!(free(&core), [2, 1]);
}

#[test]
fn a_step_coalesces_what_was_kept_apart() {
    let (mut core, blocks) = filled(UpTo(Bytes::ZERO), None);
    for block in blocks {
        core.free(block).expect("ours");
    }
    assert_eq!(free(&core), [1, 1, 1, 1]);
    let device_calls = core.stats().num_device_alloc;
    let block = core.allocate(Bytes::mib(3), StreamId::DEFAULT).expect("after it has coalesced");
    assert_eq!((free(&core), core.stats().num_device_alloc), (vec![1], device_calls));
    core.free(block).expect("ours");
    assert_eq!(free(&core), [3, 1]);
}

#[test]
fn the_cache_is_released_although_blocks_are_apart() {
    let (mut core, mut blocks) = filled(UpTo(Bytes::ZERO), None);
    let last = blocks.pop().expect("four blocks");
    for block in blocks {
        core.free(block).expect("ours");
    }
    core.release_cached().expect("a device");
    assert_eq!(free(&core), [1, 1, 1], "a segment in use keeps its blocks");
    core.free(last).expect("ours");
    core.release_cached().expect("a device");
    assert_eq!(core.heap().reserved(), Bytes::ZERO);
    core.check().expect("a sound heap");
}

#[test]
fn a_pool_is_restored_although_blocks_are_apart() {
    let pool = PoolId(0, 1);
    let (mut core, mut blocks) = filled(UpTo(Bytes::ZERO), Some(pool));
    core.end_pool(pool).expect("it is routed");
    for place in [0, 0] {
        core.free(blocks.remove(place)).expect("ours");
    }
    let checkpoint = core.checkpoint_pool(pool).expect("nothing waits");
    for block in blocks {
        core.free(block).expect("ours");
    }
    let restored = core.restore_pool(&checkpoint).expect("the segment is still there");
    assert_eq!((free(&core), restored.allocations.len()), (vec![1, 1], 2));
    // A saved block may need several free ones.
    let larger = core.checkpoint_pool(pool).expect("nothing waits");
    restored.allocations.into_iter().for_each(|block| core.free(block).expect("ours"));
    core.begin_pool(pool, PoolFilter::All).expect("it is not routed");
    let halves: Vec<Allocation> = (0..8).map(|_| core.allocate(Bytes(1 << 19), StreamId::DEFAULT).expect("room")).collect();
    halves.into_iter().for_each(|block| core.free(block).expect("ours"));
    core.end_pool(pool).expect("it is routed");
    core.release_pool(pool).expect("one of two uses");
    let restored = core.restore_pool(&larger).expect("the segment is still there");
    assert_eq!((free(&core), restored.allocations.len()), (vec![1, 1], 2));
    restored.allocations.into_iter().for_each(|block| core.free(block).expect("ours"));
    core.release_pool(pool).expect("one use");
    core.release_cached_pool(pool).expect("a device");
    assert_eq!(core.heap().reserved(), Bytes::ZERO, "a pool without uses is released");
}
