//! Handles of several sizes: the memory taken from the device, which handles move for a request and which stay, and
//! which answers from a policy are errors.

mod broken;
mod replaced;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AllocError, Allocator, Heap, PoolFilter, PoolSlot};
use parkade_sim::{CallName, SimDevice, SimOptions};

const HERE: StreamId = StreamId::DEFAULT;
const THERE: StreamId = StreamId(0x1000);

/// Chooses some of these handles, by address.
type Chosen = fn(&[DeviceAddress]) -> Vec<DeviceAddress>;

/// A best-fit policy in which one handle of at least `least` bytes covers the missing bytes.
#[derive(Clone, Copy)]
struct Toy {
    least: u64,
    takes_high_end: bool,
    /// Whether a request first takes the necessary part of another stream's block, or waits, before handles move.
    transfers: bool,
    /// The offset in a free block from which it serves a request; best fit if 0.
    offset: u64,
    /// Whether handles are replaced instead of moved.
    replaces: bool,
    /// Whether partly free handles are broken instead, after which the device is asked again.
    breaks: bool,
    /// The page size of a segment, in MiB.
    page_mib: u64,
    /// Chooses which of the free handles, by address, move for a request.
    moved: Chosen,
}

const TOY: Toy = Toy {
    least: 8 * MIB,
    takes_high_end: false,
    transfers: false,
    offset: 0,
    replaces: false,
    breaks: false,
    page_mib: 2,
    moved: <[DeviceAddress]>::to_vec,
};

impl Policy for Toy {
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
        true
    }

    fn page(&self, _: PoolSlot) -> Bytes {
        Bytes::mib(self.page_mib)
    }

    fn handle(&self, _: &Heap, _: &Request, missing: Bytes) -> Option<Bytes> {
        Some(missing.max(Bytes(self.least)))
    }

    fn takes_high_end(&self, _: &Request) -> bool {
        self.takes_high_end
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) if self.offset == 0 => Placement::Reuse(block.id),
            _ => Placement::Segment(request.size),
        }
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if let Some(block) = heap.first_at_least(request.pool, request.stream, request.size).filter(|_| self.offset > 0) {
            return Relief::ReuseAt { block: block.id, offset: Bytes(self.offset) };
        }
        let mut elsewhere = heap.first_at_least_elsewhere(request.pool, request.stream, request.size);
        match rung {
            0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            1 if self.transfers => elsewhere.next().map_or(Relief::Wait, |block| Relief::TransferPart { block: block.id }),
            1 if self.breaks => {
                let partly = heap.partly_free(request.pool, Bytes::mib(self.page_mib));
                let addresses: Vec<DeviceAddress> = partly.into_iter().map(|part| part.handle.address).collect();
                Relief::Break { handles: (self.moved)(&addresses) }
            }
            2 if self.breaks => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            1 | 2 => {
                let free = heap.free_blocks(PoolSlot::default_pool(request.pool.class()));
                let mut handles: Vec<DeviceAddress> =
                    free.flat_map(|block| heap.handles_in(block.id)).map(|handle| handle.address).collect();
                handles.sort_unstable();
                let handles = (self.moved)(&handles);
                if self.replaces { Relief::Replace { handles } } else { Relief::Move { handles } }
            }
            _ => Relief::Done,
        }
    }
}

fn on(capacity_mib: u64, toy: Toy) -> Allocator<SimDevice, Toy> {
    Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(capacity_mib))), toy, ())
}

fn calls(allocator: &Allocator<SimDevice, Toy>, name: CallName) -> u64 {
    allocator.device().totals(name).calls
}

/// The bytes of all free blocks, in MiB.
fn free_mib(allocator: &Allocator<SimDevice, Toy>) -> Vec<u64> {
    let heap = allocator.heap();
    heap.pool_slots().flat_map(|pool| heap.free_blocks(pool)).map(|block| block.size.get() / MIB).collect()
}

#[test]
fn a_handle_larger_than_what_is_missing_is_one_call_and_serves_the_next_requests() {
    let mut allocator = on(64, TOY);
    let first = allocator.allocate(Bytes::mib(3), HERE).unwrap();
    assert_eq!((allocator.heap().reserved(), calls(&allocator, CallName::MemCreate)), (Bytes::mib(8), 1));
    let second = allocator.allocate(Bytes::mib(5), HERE).unwrap();
    assert_eq!(second.address().get() - first.address().get(), 3 * MIB);
    assert_eq!(calls(&allocator, CallName::MemCreate), 1, "the rest of the handle was enough");
    // If a free block covers the beginning of a request, only the rest is missing.
    allocator.free(second).unwrap();
    let third = allocator.allocate(Bytes::mib(15), HERE).unwrap();
    assert_eq!(third.address().get() - first.address().get(), 3 * MIB);
    assert_eq!((allocator.heap().reserved(), calls(&allocator, CallName::MemCreate)), (Bytes::mib(18), 2));
    allocator.check().unwrap();
    for block in [first, third] {
        allocator.free(block).unwrap();
    }
    allocator.release_cached().unwrap();
    allocator.check().unwrap();
    assert_eq!((allocator.heap().reserved(), allocator.device().used_bytes()), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(calls(&allocator, CallName::MemUnmap), 2, "each handle as a whole");
}

#[test]
fn a_handle_with_something_in_it_stays_when_the_cache_is_released() {
    let mut allocator = on(64, Toy { least: 16 * MIB, ..TOY });
    let [low, high] = [4, 20].map(|mib| allocator.allocate(Bytes::mib(mib), HERE).unwrap());
    assert_eq!(allocator.heap().reserved(), Bytes::mib(32), "two handles, the second block on both");
    allocator.free(high).unwrap();
    allocator.release_cached().unwrap();
    allocator.check().unwrap();
    assert_eq!((allocator.heap().reserved(), free_mib(&allocator)), (Bytes::mib(16), vec![12]));
    allocator.free(low).unwrap();
}

#[test]
fn handles_move_between_streams_and_the_others_stay() {
    let mut allocator = on(64, TOY);
    let [first, kept, last] = [24, 8, 24].map(|mib| allocator.allocate(Bytes::mib(mib), THERE).unwrap());
    allocator.free(first).unwrap();
    allocator.free(last).unwrap();
    let created = calls(&allocator, CallName::MemCreate);
    let moved = allocator.allocate(Bytes::mib(56), HERE).unwrap();
    allocator.check().unwrap();
    assert_eq!((allocator.heap().reserved(), calls(&allocator, CallName::MemUnmap)), (Bytes::mib(64), 2));
    assert_eq!(calls(&allocator, CallName::MemCreate), created + 2, "one was refused, and one was for the missing bytes");
    assert_eq!(calls(&allocator, CallName::MemRelease), 0);
    for block in [kept, moved] {
        allocator.free(block).unwrap();
    }
    allocator.release_cached().unwrap();
    allocator.check().unwrap();
    assert_eq!(allocator.device().used_bytes(), Bytes::ZERO);
}

#[test]
fn what_the_request_does_not_need_is_free_behind_it() {
    let mut allocator = on(48, TOY);
    let [first, kept, last] = [16, 8, 24].map(|mib| allocator.allocate(Bytes::mib(mib), THERE).unwrap());
    allocator.free(first).unwrap();
    allocator.free(last).unwrap();
    let moved = allocator.allocate(Bytes::mib(20), HERE).unwrap();
    allocator.check().unwrap();
    assert_eq!((allocator.heap().reserved(), free_mib(&allocator)), (Bytes::mib(48), vec![20]));
    assert_eq!(calls(&allocator, CallName::MemRelease), 0);
    for block in [kept, moved] {
        allocator.free(block).unwrap();
    }
}

#[test]
fn while_a_graph_is_captured_the_memory_of_captured_streams_stays() {
    let mut allocator = on(32, TOY);
    let [here, there] = [HERE, THERE].map(|stream| allocator.allocate(Bytes::mib(16), stream).unwrap());
    allocator.free(here).unwrap();
    allocator.free(there).unwrap();
    allocator.begin_pool(PoolId(0, 1), PoolFilter::All).unwrap();
    allocator.set_capturing(true);
    allocator.device_mut().begin_capture(HERE);
    let waits = calls(&allocator, CallName::StreamSynchronize);
    let graph = allocator.allocate(Bytes::mib(8), HERE).unwrap();
    assert_eq!((calls(&allocator, CallName::MemUnmap), calls(&allocator, CallName::StreamSynchronize)), (1, waits + 1));
    assert_eq!(free_mib(&allocator), [16, 8], "the captured stream's memory, and what the request left");
    let error = allocator.allocate(Bytes::mib(20), HERE).unwrap_err();
    assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
    allocator.check().unwrap();
    allocator.device_mut().end_capture(HERE);
    allocator.set_capturing(false);
    allocator.end_pool(PoolId(0, 1)).unwrap();
    allocator.free(graph).unwrap();
    let elsewhere = allocator.allocate(Bytes::mib(8), StreamId(0x1000)).unwrap();
    assert_eq!(calls(&allocator, CallName::MemUnmap), 2, "afterwards it moves too");
    allocator.free(elsewhere).unwrap();
    allocator.check().unwrap();
}

#[test]
fn a_limit_bounds_handles_to_the_byte() {
    let mut allocator = on(64, Toy { least: 32 * MIB, ..TOY });
    allocator.set_limit(Some(Bytes::mib(20)));
    let first = allocator.allocate(Bytes::mib(6), HERE).unwrap();
    assert_eq!(allocator.heap().reserved(), Bytes::mib(20), "only the part of the handle that the limit allows");
    let error = allocator.allocate(Bytes::mib(15), HERE).unwrap_err();
    assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
    let second = allocator.allocate(Bytes::mib(14), HERE).unwrap();
    for block in [first, second] {
        allocator.free(block).unwrap();
    }
}

#[test]
fn where_the_device_has_less_than_a_handle_what_is_missing_is_taken() {
    let mut allocator = on(20, Toy { least: 32 * MIB, ..TOY });
    let block = allocator.allocate(Bytes::mib(6), HERE).unwrap();
    assert_eq!(allocator.heap().reserved(), Bytes::mib(6));
    allocator.free(block).unwrap();
}

#[test]
fn the_high_end_of_a_block_serves_and_the_low_end_stays_free() {
    let mut allocator = on(64, Toy { takes_high_end: true, ..TOY });
    let first = allocator.allocate(Bytes::mib(3), HERE).unwrap();
    let second = allocator.allocate(Bytes::mib(2), HERE).unwrap();
    allocator.check().unwrap();
    assert_eq!((first.address().get() - second.address().get(), free_mib(&allocator)), (2 * MIB, vec![3]));
    for block in [first, second] {
        allocator.free(block).unwrap();
    }
    assert_eq!(free_mib(&allocator), [8], "everything has coalesced again");
}

/// The free blocks of the default pool: stream, and size in MiB.
fn free_by_stream(allocator: &Allocator<SimDevice, Toy>) -> Vec<(StreamId, u64)> {
    let free = allocator.heap().free_blocks(PoolSlot::default_pool(PoolClass::Large));
    free.map(|block| (block.stream, block.size.get() / MIB)).collect()
}

#[test]
fn a_part_of_another_streams_segment_serves_behind_its_work_and_nothing_is_unmapped() {
    let mut allocator = on(30, Toy { transfers: true, ..TOY });
    let low = allocator.allocate(Bytes::mib(6), HERE).unwrap();
    let cached = allocator.allocate(Bytes::mib(24), HERE).unwrap();
    allocator.free(cached).unwrap();
    allocator.device_mut().spin(HERE, 1_000_000);
    let moved = allocator.allocate(Bytes::mib(4), THERE).unwrap();
    allocator.check().unwrap();
    assert_eq!(moved.address().get() - low.address().get(), 6 * MIB);
    assert_eq!((calls(&allocator, CallName::StreamWaitEvent), calls(&allocator, CallName::MemUnmap)), (1, 0));
    assert!(allocator.device().now_ns() < 1_000_000, "the host has not waited");
    allocator.free(moved).unwrap();
    allocator.free(low).unwrap();
    allocator.check().unwrap();
    assert_eq!(free_by_stream(&allocator), [(HERE, 6), (HERE, 20), (THERE, 4)], "blocks of two streams stay apart");
    // After all work is done, they coalesce again, and all handles can move.
    let whole = allocator.allocate(Bytes::mib(30), THERE).unwrap();
    assert!(allocator.device().now_ns() >= 1_000_000);
    allocator.check().unwrap();
    assert_eq!((calls(&allocator, CallName::MemUnmap), calls(&allocator, CallName::MemRelease)), (2, 0));
    allocator.free(whole).unwrap();
    allocator.release_cached().unwrap();
    allocator.check().unwrap();
    assert_eq!(allocator.device().used_bytes(), Bytes::ZERO);
}

#[test]
fn a_handle_moves_once_the_stream_that_took_it_over_is_done() {
    let mut allocator = on(32, Toy { transfers: true, ..TOY });
    let [used, cached] = [8, 24].map(|mib| allocator.allocate(Bytes::mib(mib), HERE).unwrap());
    allocator.free(cached).unwrap();
    let taken = allocator.allocate(Bytes::mib(24), THERE).unwrap();
    assert_eq!(calls(&allocator, CallName::StreamWaitEvent), 1);
    allocator.device_mut().spin(THERE, 1_000_000);
    allocator.free(taken).unwrap();
    allocator.policy_mut().transfers = false;
    let moved = allocator.allocate(Bytes::mib(24), StreamId(0x2000)).unwrap();
    assert!(allocator.device().now_ns() >= 1_000_000, "unmapping does not wait for work, so the allocator must");
    assert_eq!(calls(&allocator, CallName::MemUnmap), 1);
    allocator.check().unwrap();
    for block in [used, moved] {
        allocator.free(block).unwrap();
    }
    allocator.release_cached().unwrap();
    allocator.check().unwrap();
    assert_eq!(allocator.device().used_bytes(), Bytes::ZERO);
}

#[test]
fn a_segment_does_not_grow_over_what_another_stream_took_over() {
    let mut allocator = on(96, Toy { transfers: true, ..TOY });
    allocator.set_limit(Some(Bytes::mib(32)));
    let [used, cached] = [8, 24].map(|mib| allocator.allocate(Bytes::mib(mib), HERE).unwrap());
    allocator.free(cached).unwrap();
    let taken = allocator.allocate(Bytes::mib(24), THERE).unwrap();
    allocator.free(taken).unwrap();
    allocator.set_limit(None);
    let grown = allocator.allocate(Bytes::mib(26), HERE).unwrap();
    allocator.check().unwrap();
    assert_eq!((grown.address().get() - used.address().get(), allocator.heap().reserved()), (32 * MIB, Bytes::mib(58)));
    for block in [used, grown] {
        allocator.free(block).unwrap();
    }
}

#[test]
fn a_private_pool_is_restored_although_blocks_of_others_have_changed_streams() {
    let mut allocator = on(64, Toy { transfers: true, ..TOY });
    allocator.begin_pool(PoolId(0, 1), PoolFilter::All).unwrap();
    let kept = allocator.allocate(Bytes::mib(8), HERE).unwrap();
    allocator.end_pool(PoolId(0, 1)).unwrap();
    let checkpoint = allocator.checkpoint_pool(PoolId(0, 1)).unwrap();
    let cached = allocator.allocate(Bytes::mib(56), HERE).unwrap();
    allocator.free(cached).unwrap();
    let taken = allocator.allocate(Bytes::mib(8), THERE).unwrap();
    assert_eq!(calls(&allocator, CallName::StreamWaitEvent), 1);
    let restored = allocator.restore_pool(&checkpoint).unwrap();
    allocator.check().unwrap();
    assert_eq!(restored.freed, [kept.address()]);
    for block in restored.allocations.into_iter().chain([taken]) {
        allocator.free(block).unwrap();
    }
}

#[test]
fn what_stays_free_before_the_high_end_is_one_block_also_from_an_offset_on() {
    let mut allocator = on(64, Toy { takes_high_end: true, ..TOY });
    let cached = allocator.allocate(Bytes::mib(8), HERE).unwrap();
    allocator.free(cached).unwrap();
    allocator.policy_mut().offset = MIB;
    let high = allocator.allocate(Bytes::mib(2), HERE).unwrap();
    allocator.check().unwrap();
    assert_eq!(free_mib(&allocator), [6]);
    allocator.free(high).unwrap();
}

/// Returns the error for a 46 MiB request that moves these handles, chosen from handles of 32, 8 and 8 MiB of which
/// the second is in use.
fn refused(moved: fn(&[DeviceAddress]) -> Vec<DeviceAddress>) -> String {
    let mut allocator = on(48, Toy { moved, ..TOY });
    let [free, used, other] = [32, 8, 8].map(|mib| allocator.allocate(Bytes::mib(mib), HERE).unwrap());
    allocator.free(free).unwrap();
    allocator.free(other).unwrap();
    let before = allocator.segments();
    let error = allocator.allocate(Bytes::mib(46), HERE).unwrap_err();
    allocator.check().unwrap();
    assert_eq!(allocator.segments(), before, "nothing has changed");
    allocator.free(used).unwrap();
    error.to_string()
}

#[test]
fn wrong_answers_about_handles_are_errors_that_change_nothing() {
    assert_eq!(refused(|_| vec![DeviceAddress(512)]), "policy toy moves a handle that does not exist");
    assert_eq!(refused(|free| vec![free[0], free[0]]), "policy toy moves a handle twice");
    let in_use = |free: &[DeviceAddress]| vec![free[0], DeviceAddress(free[1].get() - 8 * MIB)];
    assert_eq!(
        refused(in_use),
        "policy toy moves a handle that is not entirely free, or that a private pool in use has handed out"
    );
}
