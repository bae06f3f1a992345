//! The operations that a policy can request in addition to PyTorch's: blocks that change streams, pages that move, and
//! segments of a different size. A wrong answer is an error that changes nothing.

use std::cell::Cell;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, MIB, PoolClass, PoolId, StreamId};
use parkade::{AllocError, Allocator, Heap, PoolFilter, PoolSlot};
use parkade_sim::{CallName, SimDevice, SimOptions};

const MEBIBYTE: u64 = MIB;

/// A policy for one test.
#[derive(Clone)]
struct Toy {
    grows: bool,
    releases_during_captures: bool,
    relieve: fn(&Heap, &Request, u32) -> Relief,
    /// Whether it alternates between refusing and agreeing to split a block.
    is_fickle: bool,
    /// The number of times that the allocator has asked whether to split a block.
    asked: Cell<u32>,
}

impl Default for Toy {
    fn default() -> Toy {
        Toy { grows: false, releases_during_captures: false, relieve: ask, is_fickle: false, asked: Cell::new(0) }
    }
}

/// Asks the device, releases everything, and asks again.
fn ask(heap: &Heap, _: &Request, rung: u32) -> Relief {
    match rung {
        0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
        1 => Relief::Wait,
        2 => Relief::Release { blocks: heap.releasable(), attempt: Attempt::AskAgain },
        _ => Relief::Done,
    }
}

impl Policy for Toy {
    fn releases_during_captures(&self) -> bool {
        self.releases_during_captures
    }

    fn name(&self) -> &'static str {
        "toy"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn is_expandable(&self, _: PoolSlot) -> bool {
        self.grows
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size.max(Bytes::mib(16))),
        }
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        self.asked.set(self.asked.get() + 1);
        !self.is_fickle || self.asked.get().is_multiple_of(2)
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        (self.relieve)(heap, request, rung)
    }
}

fn on(capacity_mib: u64, toy: Toy) -> Allocator<SimDevice, Toy> {
    Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(capacity_mib))), toy, ())
}

fn free_sizes(allocator: &mut Allocator<SimDevice, Toy>) -> Vec<u64> {
    let blocks = allocator.segments().into_iter().flat_map(|segment| segment.blocks);
    let free = blocks.filter(|block| block.state == parkade::snapshot::BlockActivity::Inactive);
    free.map(|block| block.size.get() / MEBIBYTE).collect()
}

/// Takes the first free block of any other stream that is large enough, with a wait.
fn transfer(heap: &Heap, request: &Request, rung: u32, waits: bool) -> Relief {
    let other = heap.free_blocks(request.pool).find(|block| block.stream != request.stream && block.size >= request.size);
    match (rung, other) {
        (0, Some(block)) => Relief::Transfer { block: block.id, waits },
        (0, None) => Relief::Release { blocks: Vec::new(), attempt: Attempt::No },
        _ => ask(heap, request, rung - 1),
    }
}

#[test]
fn a_block_changes_streams_behind_a_wait_and_its_neighbours_become_one_once_all_is_waited_for() {
    let relieve = |heap: &Heap, request: &Request, rung: u32| transfer(heap, request, rung, true);
    let mut allocator = on(16, Toy { relieve, ..Toy::default() });
    let (here, there) = (StreamId::DEFAULT, StreamId(0x1000));
    let low = allocator.allocate(Bytes::mib(6), here).unwrap();
    allocator.device_mut().spin(here, 1_000_000);
    // The device is full, and 10 MiB are free on this stream.
    let moved = allocator.allocate(Bytes::mib(4), there).unwrap();
    allocator.check().unwrap();
    assert_eq!(moved.address().get(), low.address().get() + 6 * MEBIBYTE);
    assert_eq!(allocator.device().totals(CallName::StreamWaitEvent).calls, 1);
    allocator.free(low).unwrap();
    allocator.free(moved).unwrap();
    allocator.check().unwrap();
    assert_eq!(free_sizes(&mut allocator), [6, 10], "blocks of two streams stay apart");
    assert!(allocator.device().now_ns() < 1_000_000, "the host has not waited");
    // This is too large for either block. After the allocator has waited for all work, the segment is entirely free
    // and is released.
    let whole = allocator.allocate(Bytes::mib(15), there).unwrap();
    assert!(allocator.device().now_ns() >= 1_000_000);
    allocator.check().unwrap();
    allocator.free(whole).unwrap();
    allocator.release_cached().unwrap();
    assert_eq!(allocator.heap().reserved(), Bytes::ZERO);
}

const HERE: StreamId = StreamId(0x1000);
const THERE: StreamId = StreamId(0x2000);

/// Each free block of every stream.
fn free_by_stream(allocator: &Allocator<SimDevice, Toy>) -> Vec<(StreamId, u64)> {
    let pool = PoolSlot::default_pool(PoolClass::Large);
    allocator.heap().free_blocks(pool).map(|block| (block.stream, block.size.get() / MEBIBYTE)).collect()
}

#[test]
fn a_segment_is_provided_on_a_stream_and_another_takes_what_it_needs_of_it() {
    let relieve = |heap: &Heap, request: &Request, rung: u32| {
        let other = heap.free_blocks(request.pool).find(|block| block.stream != request.stream && block.size >= request.size);
        match (rung, other) {
            (0, None) if heap.reserved() == Bytes::ZERO => Relief::Provide { bytes: Bytes::mib(32), stream: request.stream },
            (0 | 1, Some(block)) => Relief::TransferPart { block: block.id },
            _ => Relief::Done,
        }
    };
    let mut allocator = on(32, Toy { relieve, ..Toy::default() });
    let waits = |allocator: &Allocator<SimDevice, Toy>| allocator.device().totals(CallName::StreamWaitEvent).calls;
    allocator.allocate(Bytes::mib(64), THERE).unwrap_err();
    assert_eq!((allocator.heap().reserved(), waits(&allocator)), (Bytes::mib(32), 0), "it is provided anyway");
    let low = allocator.allocate(Bytes::mib(6), HERE).unwrap();
    allocator.check().unwrap();
    assert_eq!((allocator.heap().reserved(), waits(&allocator)), (Bytes::mib(32), 1));
    assert_eq!(free_by_stream(&allocator), [(THERE, 26)], "the rest stays with its stream");
    let high = allocator.allocate(Bytes::mib(26), THERE).unwrap();
    assert_eq!((high.address().get() - low.address().get(), waits(&allocator)), (6 * MEBIBYTE, 1));
    allocator.free(low).unwrap();
    assert_eq!(free_by_stream(&allocator), [(HERE, 6)], "the part belongs to the stream that took it");
    allocator.free(high).unwrap();
    allocator.check().unwrap();
    assert_eq!(free_by_stream(&allocator), [(HERE, 6), (THERE, 26)]);
    // The request takes an entire block.
    let all = allocator.allocate(Bytes::mib(26), HERE).unwrap();
    allocator.check().unwrap();
    allocator.free(all).unwrap();
    allocator.check().unwrap();
    assert_eq!(free_by_stream(&allocator), [(HERE, 32)]);
}

/// If a second answer counted, the rest of the moved block would be free next to another free block of its stream.
#[test]
fn whether_a_block_of_another_stream_is_split_is_asked_once() {
    let relieve = |heap: &Heap, request: &Request, rung: u32| {
        let other = heap.free_blocks(request.pool).find(|block| block.stream != request.stream && block.size >= request.size);
        match (rung, other) {
            (0, Some(block)) => Relief::TransferPart { block: block.id },
            _ => ask(heap, request, rung),
        }
    };
    let mut allocator = on(16, Toy { relieve, ..Toy::default() });
    let (here, there) = (StreamId::DEFAULT, StreamId(0x1000));
    let [_low, middle, high] = [10, 4, 2].map(|mib| allocator.allocate(Bytes::mib(mib), here).unwrap());
    allocator.free(middle).unwrap();
    let moved = allocator.allocate(Bytes::mib(4), there).unwrap();
    allocator.free(moved).unwrap();
    allocator.free(high).unwrap();
    assert_eq!(free_by_stream(&allocator), [(here, 2), (there, 4)]);
    allocator.policy_mut().is_fickle = true;
    allocator.policy_mut().asked.set(0);
    let _served = allocator.allocate(Bytes::mib(3), here).unwrap();
    assert_eq!(allocator.policy().asked.get(), 1);
    assert_eq!(free_by_stream(&allocator), [(here, 2)], "the request has the entire 4 MiB block");
    allocator.check().unwrap();
}

#[test]
fn all_blocks_of_a_stream_move_and_become_one_with_those_beside_them() {
    let relieve =
        |heap: &Heap, request: &Request, rung: u32| match (rung, heap.first_at_least(request.pool, request.stream, request.size))
        {
            (0, _) if heap.reserved() == Bytes::ZERO => ask(heap, request, 0),
            (0, _) => Relief::TransferAll { from: THERE },
            (1, Some(block)) => Relief::Reuse(block.id),
            _ => Relief::Done,
        };
    let mut allocator = on(16, Toy { relieve, ..Toy::default() });
    let [first, second, third, last] = [4, 2, 4, 6].map(|mib| allocator.allocate(Bytes::mib(mib), THERE).unwrap());
    let start = first.address();
    allocator.free(first).unwrap();
    allocator.free(third).unwrap();
    allocator.device_mut().spin(THERE, 1_000_000);
    let moved = allocator.allocate(Bytes::mib(3), HERE).unwrap();
    allocator.check().unwrap();
    assert_eq!(moved.address(), start);
    assert_eq!(allocator.device().totals(CallName::StreamWaitEvent).calls, 1);
    assert!(allocator.device().now_ns() < 1_000_000, "the host has not waited");
    assert_eq!(free_by_stream(&allocator), [(HERE, 1), (HERE, 4)]);
    for block in [second, last, moved] {
        allocator.free(block).unwrap();
    }
    allocator.check().unwrap();
    assert_eq!(free_by_stream(&allocator), [(HERE, 4), (HERE, 4), (THERE, 2), (THERE, 6)]);
    let whole = allocator.allocate(Bytes::mib(16), HERE).unwrap();
    assert_eq!(whole.address(), start);
    allocator.free(whole).unwrap();
    allocator.check().unwrap();
}

#[test]
fn without_a_wait_only_an_idle_stream_gives_a_block() {
    let relieve = |heap: &Heap, request: &Request, rung: u32| transfer(heap, request, rung, false);
    let mut allocator = on(64, Toy { relieve, ..Toy::default() });
    let (here, there) = (StreamId::DEFAULT, StreamId(0x1000));
    let mine = allocator.allocate(Bytes::mib(6), here).unwrap();
    allocator.device_mut().spin(here, 1_000_000_000);
    let busy = allocator.allocate(Bytes::mib(4), there).unwrap();
    assert_eq!(allocator.heap().reserved(), Bytes::mib(32), "the stream was busy, so the request got its own segment");
    allocator.device_mut().advance(2_000_000_000);
    let idle = allocator.allocate(Bytes::mib(13), there);
    assert_eq!(allocator.heap().reserved(), Bytes::mib(48));
    let given = allocator.allocate(Bytes::mib(10), StreamId(0x2000)).unwrap();
    assert_eq!(allocator.heap().reserved(), Bytes::mib(48), "the stream had no work left");
    allocator.check().unwrap();
    assert_eq!(allocator.device().totals(CallName::StreamWaitEvent).calls, 0);
    for allocation in [mine, busy, idle.unwrap(), given] {
        allocator.free(allocation).unwrap();
    }
    allocator.check().unwrap();
    allocator.release_cached().unwrap();
    assert_eq!(allocator.heap().reserved(), Bytes::ZERO);
}

#[test]
fn pages_go_where_they_are_needed_without_new_ones() {
    let relieve = |heap: &Heap, request: &Request, rung: u32| match rung {
        0 => {
            let free = heap.free_blocks(request.pool).filter(|block| block.is_expandable);
            Relief::Remap { blocks: free.map(|block| block.id).collect() }
        }
        _ => ask(heap, request, rung - 1),
    };
    let mut allocator = on(16, Toy { grows: true, relieve, ..Toy::default() });
    let blocks: Vec<_> = (0..8).map(|_| allocator.allocate(Bytes::mib(2), StreamId::DEFAULT).unwrap()).collect();
    let created = allocator.device().totals(CallName::MemCreate).calls;
    let mut kept = Vec::new();
    for (place, block) in blocks.into_iter().enumerate() {
        if place % 2 == 0 { allocator.free(block).unwrap() } else { kept.push(block) }
    }
    // Four pages are free, and no two of them are adjacent.
    let large = allocator.allocate(Bytes::mib(8), StreamId::DEFAULT).unwrap();
    allocator.check().unwrap();
    assert_eq!(allocator.heap().reserved(), Bytes::mib(16));
    assert_eq!(allocator.device().totals(CallName::MemCreate).calls, created, "their memory was reused");
    assert_eq!(allocator.device().totals(CallName::MemRelease).calls, 0);
    allocator.free(large).unwrap();
    for block in kept {
        allocator.free(block).unwrap();
    }
    allocator.release_cached().unwrap();
    assert_eq!((allocator.heap().reserved(), allocator.device().live_physical()), (Bytes::ZERO, 0));
}

#[test]
fn pages_of_a_captured_stream_stay_until_its_capture_ends() {
    let relieve = |heap: &Heap, request: &Request, rung: u32| match rung {
        0 => Relief::Remap { blocks: heap.free_blocks(request.pool).map(|block| block.id).collect() },
        _ => Relief::Done,
    };
    let mut allocator = on(16, Toy { grows: true, relieve, ..Toy::default() });
    let (here, there) = (StreamId::DEFAULT, StreamId(0x1000));
    let block = allocator.allocate(Bytes::mib(12), there).unwrap();
    allocator.free(block).unwrap();
    let waits = |allocator: &Allocator<SimDevice, Toy>| allocator.device().totals(CallName::StreamSynchronize).calls;
    allocator.device_mut().begin_capture(there);
    let refused = allocator.allocate(Bytes::mib(12), here);
    assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
    allocator.release_cached().unwrap();
    allocator.check().unwrap();
    assert_eq!((waits(&allocator), allocator.heap().reserved()), (0, Bytes::mib(12)));
    allocator.device_mut().end_capture(there);
    let served = allocator.allocate(Bytes::mib(12), here).unwrap();
    allocator.check().unwrap();
    assert_eq!((waits(&allocator), allocator.heap().reserved()), (1, Bytes::mib(12)));
    allocator.free(served).unwrap();
}

#[test]
fn a_remap_takes_no_pages_of_a_captured_stream_even_if_the_policy_releases_memory_during_captures() {
    let relieve = |heap: &Heap, request: &Request, rung: u32| match rung {
        0 => Relief::Remap { blocks: heap.free_blocks(request.pool).map(|block| block.id).collect() },
        _ => Relief::Done,
    };
    let mut allocator = on(16, Toy { grows: true, releases_during_captures: true, relieve, ..Toy::default() });
    let (here, there) = (StreamId::DEFAULT, StreamId(0x1000));
    let block = allocator.allocate(Bytes::mib(12), there).unwrap();
    allocator.free(block).unwrap();
    allocator.device_mut().begin_capture(there);
    let refused = allocator.allocate(Bytes::mib(12), here);
    assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
    assert_eq!(allocator.device().totals(CallName::StreamSynchronize).calls, 0);
    // The cache is released as PyTorch releases it: the host waits without asking.
    allocator.release_cached().unwrap();
    assert_eq!(allocator.device().totals(CallName::StreamSynchronize).calls, 1);
    allocator.check().unwrap();
}

#[test]
fn a_segment_of_another_size_is_asked_for_but_never_too_small_a_one() {
    let relieve = |_: &Heap, request: &Request, rung: u32| match rung {
        0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::AskFor(Bytes::mib(40)) },
        1 => Relief::Release { blocks: Vec::new(), attempt: Attempt::AskFor(Bytes::mib(20)) },
        _ => Relief::Release { blocks: Vec::new(), attempt: Attempt::AskFor(Bytes(request.size.get() - 512)) },
    };
    let mut allocator = on(32, Toy { relieve, ..Toy::default() });
    let block = allocator.allocate(Bytes::mib(4), StreamId::DEFAULT).unwrap();
    assert_eq!(allocator.heap().reserved(), Bytes::mib(20));
    let refused = allocator.allocate(Bytes::mib(17), StreamId::DEFAULT);
    assert!(matches!(refused, Err(AllocError::Policy(_))), "{refused:?}");
    allocator.check().unwrap();
    allocator.free(block).unwrap();
}

const GRAPH: PoolId = PoolId(7, 0);

#[test]
fn nothing_is_waited_for_during_a_capture() {
    let mut allocator = on(64, Toy::default());
    let there = StreamId(0x1000);
    allocator.create_pool(GRAPH).unwrap();
    allocator.begin_pool(GRAPH, PoolFilter::All).unwrap();
    let used = allocator.allocate(Bytes::mib(48), StreamId::DEFAULT).unwrap();
    let address = used.address();
    allocator.device_mut().spin(there, 1_000_000_000);
    allocator.record_stream(&used, there);
    allocator.free(used).unwrap();
    let again = allocator.allocate(Bytes::mib(48), StreamId::DEFAULT);
    assert!(matches!(again, Err(AllocError::OutOfMemory(_))), "memory at {address:?} was handed out while in use: {again:?}");
    assert!(allocator.device().now_ns() < 1_000_000_000);
    allocator.check().unwrap();
    allocator.end_pool(GRAPH).unwrap();
    let again = allocator.allocate(Bytes::mib(48), StreamId::DEFAULT);
    assert!(matches!(again, Err(AllocError::OutOfMemory(_))), "the pool keeps its memory");
}

#[test]
fn memory_of_a_pool_in_use_is_not_taken_from_under_its_graphs() {
    let relieve = |heap: &Heap, request: &Request, _: u32| Relief::Release {
        blocks: heap.free_blocks(request.pool).map(|block| block.id).collect(),
        attempt: Attempt::Ask,
    };
    let mut allocator = on(64, Toy { relieve, ..Toy::default() });
    allocator.create_pool(GRAPH).unwrap();
    allocator.begin_pool(GRAPH, PoolFilter::All).unwrap();
    let block = allocator.allocate(Bytes::mib(16), StreamId::DEFAULT).unwrap();
    allocator.free(block).unwrap();
    let refused = allocator.allocate(Bytes::mib(40), StreamId::DEFAULT);
    assert!(matches!(refused, Err(AllocError::Policy(_))), "{refused:?}");
    assert_eq!(allocator.heap().reserved(), Bytes::mib(16));
    allocator.check().unwrap();
}
