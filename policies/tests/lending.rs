//! Private pools that take their memory from the default pool's segments: which memory they may take, that no memory
//! is used twice, and how it is returned.

mod preparing;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung, Wrapper};
use parkade::units::{Bytes, MIB, PoolClass, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, Heap, PoolFilter, PoolSlot};
use parkade_sim::address::Reuse;
use parkade_sim::{CallName, SimDevice, SimOptions};

const HERE: StreamId = StreamId::DEFAULT;
const THERE: StreamId = StreamId(0x1000);
const FIRST: PoolId = PoolId(0, 1);
const SECOND: PoolId = PoolId(0, 2);

/// A best-fit policy with handles of at least 8 MiB, whose private pools take the default pool's memory.
struct Toy;

/// The same, but each segment reserves the addresses of one handle.
struct Narrow(Toy);

impl Wrapper for Narrow {
    type Inner = Toy;

    fn inner(&self) -> &Toy {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut Toy {
        &mut self.0
    }

    fn reservation(&self, _: Bytes) -> Bytes {
        Bytes::mib(8)
    }
}

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

    fn lends_to_pools(&self) -> bool {
        true
    }

    fn handle(&self, _: &Heap, _: &Request, missing: Bytes) -> Option<Bytes> {
        Some(missing.max(Bytes::mib(8)))
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size),
        }
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, _: &Request, rung: u32) -> Relief {
        match rung {
            0 => Relief::Lend,
            1 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            2 => Relief::Wait,
            3 => Relief::Release { blocks: heap.releasable(), attempt: Attempt::AskAgain },
            _ => Relief::Done,
        }
    }
}

type Core = Allocator<SimDevice, Toy>;

fn on(capacity_mib: u64) -> Core {
    Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(capacity_mib))), Toy, ())
}

fn take<P: Policy>(core: &mut Allocator<SimDevice, P>, mib: u64, stream: StreamId) -> Allocation {
    let block = core.allocate(Bytes::mib(mib), stream).unwrap();
    core.check().unwrap();
    block
}

fn give<P: Policy>(core: &mut Allocator<SimDevice, P>, block: Allocation) {
    core.free(block).unwrap();
    core.check().unwrap();
}

fn begin<P: Policy>(core: &mut Allocator<SimDevice, P>, pool: PoolId) {
    core.begin_pool(pool, PoolFilter::All).unwrap();
    core.set_capturing(true);
    core.check().unwrap();
}

fn end<P: Policy>(core: &mut Allocator<SimDevice, P>, pool: PoolId) {
    core.set_capturing(false);
    core.end_pool(pool).unwrap();
    core.check().unwrap();
}

fn calls<P: Policy>(core: &Allocator<SimDevice, P>, name: CallName) -> u64 {
    core.device().totals(name).calls
}

/// The mapped runs by address: pool, MiB.
fn segments(core: &Core) -> Vec<(u64, u64)> {
    core.segments().iter().map(|segment| (segment.pool.1, segment.total.get() / MIB)).collect()
}

/// The free blocks of the default pool, in MiB.
fn free_mib(core: &Core) -> Vec<u64> {
    core.heap().free_blocks(PoolSlot::default_pool(PoolClass::Large)).map(|block| block.size.get() / MIB).collect()
}

#[test]
fn a_pool_does_not_grow_into_the_next_range_of_addresses() {
    let options = SimOptions::new(Bytes::mib(64)).reservation_model(Reuse::new());
    let mut core = Allocator::new(SimDevice::new(options), Narrow(Toy), ());
    let take = |core: &mut Allocator<SimDevice, Narrow>, mib| core.allocate(Bytes::mib(mib), HERE).unwrap();
    let ranges = [take(&mut core, 8), take(&mut core, 8)];
    let second = ranges[1].address();
    assert_eq!(second, ranges[0].address().offset(Bytes::mib(8)), "the ranges are side by side");
    ranges.into_iter().for_each(|block| core.free(block).map(drop).unwrap());
    core.begin_pool(FIRST, PoolFilter::All).unwrap();
    let (_kept, last) = (take(&mut core, 4), take(&mut core, 4));
    assert_eq!(last.address().get() + 4 * MIB, second.get(), "the pool's segment fills the first range");
    core.free(last).unwrap();
    // 2 MiB are missing behind the free end of the pool's segment, where the next range begins.
    assert_eq!(take(&mut core, 6).address(), second);
    core.check().unwrap();
}

#[test]
fn a_capture_is_served_from_what_is_free_and_its_pool_grows_at_its_end() {
    let mut core = on(32);
    let (kept, cached) = (take(&mut core, 4, HERE), take(&mut core, 28, HERE));
    give(&mut core, cached);
    let before = core.device().driver_calls();
    begin(&mut core, FIRST);
    let low = take(&mut core, 3, HERE);
    assert_eq!(low.address().get() - kept.address().get(), 4 * MIB);
    // Another stream gets a separate part.
    let other = take(&mut core, 5, THERE);
    give(&mut core, other);
    let again = take(&mut core, 4, THERE);
    assert_eq!(again.address(), other_address(&kept, 7), "memory that the pool has freed is reused first");
    // 1 MiB is free after it.
    let longer = take(&mut core, 6, THERE);
    assert_eq!(longer.address().get() - again.address().get(), 4 * MIB, "only 5 MiB more are taken");
    end(&mut core, FIRST);
    assert_eq!(segments(&core), [(0, 4), (1, 3), (1, 10), (0, 15)]);
    assert_eq!(core.heap().reserved(), Bytes::mib(32));
    // There are only event calls, which check whether the two streams that the heap knew at the beginning are idle.
    assert!(core.device().driver_calls() - before <= 4, "{} driver calls", core.device().driver_calls() - before);
    for block in [kept, low, again, longer] {
        give(&mut core, block);
    }
}

fn other_address(first: &Allocation, mib: u64) -> parkade::units::DeviceAddress {
    parkade::units::DeviceAddress(first.address().get() + mib * MIB)
}

#[test]
fn what_a_busy_stream_has_given_back_does_not_serve_a_capture() {
    let mut core = on(32);
    let (here, there) = (take(&mut core, 16, HERE), take(&mut core, 16, THERE));
    give(&mut core, here);
    give(&mut core, there);
    core.device_mut().spin(HERE, 1_000_000);
    begin(&mut core, FIRST);
    let served = take(&mut core, 16, HERE);
    assert_eq!(served.address(), there_address(&core), "the memory of the idle stream");
    let error = core.allocate(Bytes::mib(1), HERE).unwrap_err();
    assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
    assert!(core.device().now_ns() < 1_000_000, "no call waited");
    end(&mut core, FIRST);
    give(&mut core, served);
}

/// Returns the start of the private pool's only segment.
fn there_address(core: &Core) -> parkade::units::DeviceAddress {
    core.segments().iter().find(|segment| segment.pool == FIRST).expect("there is one").address
}

#[test]
fn what_is_given_back_during_the_capture_does_not_serve_it() {
    let mut core = on(32);
    let (first, second) = (take(&mut core, 8, HERE), take(&mut core, 24, HERE));
    core.begin_pool(FIRST, PoolFilter::Stream(THERE)).unwrap();
    core.set_capturing(true);
    give(&mut core, second);
    core.device_mut().spin(HERE, 1_000_000);
    core.allocate(Bytes::mib(4), THERE).unwrap_err();
    // The same applies to a block that was free at the beginning and has been used since.
    core.set_capturing(false);
    core.end_pool(FIRST).unwrap();
    core.device_mut().advance(2_000_000);
    core.begin_pool(FIRST, PoolFilter::Stream(THERE)).unwrap();
    core.set_capturing(true);
    let used = take(&mut core, 24, HERE);
    give(&mut core, used);
    core.allocate(Bytes::mib(4), THERE).unwrap_err();
    end(&mut core, FIRST);
    give(&mut core, first);
}

#[test]
fn a_pool_without_uses_gives_its_parts_to_the_next_one_and_to_the_default_pool() {
    let mut core = on(32);
    let cached = take(&mut core, 32, HERE);
    give(&mut core, cached);
    begin(&mut core, FIRST);
    let part = take(&mut core, 24, HERE);
    give(&mut core, part);
    end(&mut core, FIRST);
    let rest = take(&mut core, 8, HERE);
    give(&mut core, rest);
    let error = core.allocate(Bytes::mib(16), HERE).unwrap_err();
    assert!(matches!(error, AllocError::OutOfMemory(_)), "its graphs may be replayed: {error}");
    core.release_pool(FIRST).unwrap();
    begin(&mut core, SECOND);
    let whole = take(&mut core, 32, HERE);
    end(&mut core, SECOND);
    give(&mut core, whole);
    core.release_pool(SECOND).unwrap();
    // No capture has begun, so the request waits for all streams.
    core.device_mut().spin(HERE, 1_000_000);
    let whole = take(&mut core, 32, HERE);
    assert!(core.device().now_ns() >= 1_000_000);
    assert_eq!(segments(&core), [(0, 32)]);
    give(&mut core, whole);
    core.release_cached().unwrap();
    core.check().unwrap();
    assert_eq!((core.heap().reserved(), core.device().used_bytes()), (Bytes::ZERO, Bytes::ZERO));
    assert!(core.pool_use_count(FIRST).is_err() && core.pool_use_count(SECOND).is_err(), "the pools no longer exist");
}

#[test]
fn new_memory_is_mapped_in_the_default_pools_segment_and_serves_the_next_capture() {
    let mut core = on(64);
    let kept = take(&mut core, 6, HERE);
    // The next 2 MiB are free, but on a busy stream.
    core.device_mut().spin(HERE, 1_000_000);
    begin(&mut core, FIRST);
    let first = take(&mut core, 5, HERE);
    end(&mut core, FIRST);
    assert_eq!(first.address(), other_address(&kept, 8), "the free memory before it is not used");
    assert_eq!((segments(&core), calls(&core, CallName::MemCreate)), (vec![(0, 8), (1, 5), (0, 3)], 2));
    begin(&mut core, SECOND);
    let second = take(&mut core, 3, HERE);
    end(&mut core, SECOND);
    assert_eq!((segments(&core), calls(&core, CallName::MemCreate)), (vec![(0, 8), (1, 5), (2, 3)], 2));
    for block in [first, second] {
        give(&mut core, block);
    }
    core.release_pool(FIRST).unwrap();
    core.release_pool(SECOND).unwrap();
    core.release_cached().unwrap();
    core.check().unwrap();
    assert_eq!((segments(&core), free_mib(&core)), (vec![(0, 8)], vec![2]));
    give(&mut core, kept);
    core.release_cached().unwrap();
    assert_eq!(core.device().used_bytes(), Bytes::ZERO);
}

#[test]
fn a_handle_is_unmapped_only_when_all_of_it_is_back() {
    let mut core = on(32);
    let cached = take(&mut core, 32, HERE);
    give(&mut core, cached);
    begin(&mut core, FIRST);
    let live = take(&mut core, 4, HERE);
    end(&mut core, FIRST);
    core.release_cached().unwrap();
    core.check().unwrap();
    assert_eq!((calls(&core, CallName::MemUnmap), free_mib(&core)), (0, vec![28]));
    core.release_pool(FIRST).unwrap();
    core.release_cached().unwrap();
    assert_eq!(core.heap().reserved(), Bytes::mib(32), "a tensor of the pool is live");
    give(&mut core, live);
    core.release_cached_pool(FIRST).unwrap();
    core.check().unwrap();
    assert_eq!((core.heap().reserved(), core.device().used_bytes()), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn a_pool_is_saved_and_restored_although_it_has_grown() {
    let mut core = on(32);
    let cached = take(&mut core, 32, HERE);
    give(&mut core, cached);
    begin(&mut core, FIRST);
    let (gone, kept) = (take(&mut core, 2, HERE), take(&mut core, 3, HERE));
    give(&mut core, gone);
    end(&mut core, FIRST);
    let checkpoint = core.checkpoint_pool(FIRST).unwrap();
    begin(&mut core, FIRST);
    let more = take(&mut core, 7, HERE);
    end(&mut core, FIRST);
    assert_eq!(segments(&core), [(1, 12), (0, 20)]);
    let restored = core.restore_pool(&checkpoint).unwrap();
    core.check().unwrap();
    assert_eq!(restored.freed, [kept.address(), more.address()]);
    let addresses: Vec<_> = restored.allocations.iter().map(Allocation::address).collect();
    assert_eq!(addresses, [kept.address()]);
    for block in restored.allocations {
        give(&mut core, block);
    }
}

#[test]
fn nothing_comes_back_while_a_graph_is_captured() {
    let mut core = on(32);
    let cached = take(&mut core, 32, HERE);
    give(&mut core, cached);
    begin(&mut core, FIRST);
    let part = take(&mut core, 24, HERE);
    give(&mut core, part);
    end(&mut core, FIRST);
    begin(&mut core, SECOND);
    core.release_pool(FIRST).unwrap();
    let waits = calls(&core, CallName::StreamSynchronize);
    // Memory that is already free may be released, but the allocator must not wait for anything.
    core.release_cached().unwrap();
    core.check().unwrap();
    assert_eq!((calls(&core, CallName::StreamSynchronize), calls(&core, CallName::MemUnmap)), (waits, 0));
    end(&mut core, SECOND);
    core.release_pool(SECOND).unwrap();
    core.release_cached().unwrap();
    core.check().unwrap();
    assert_eq!(core.device().used_bytes(), Bytes::ZERO);
}
