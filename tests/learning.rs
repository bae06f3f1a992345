//! What a policy learns of the program's blocks: each allocation and each free, once, when the block is live.

use parkade::policy::{PyTorch, Wrapper};
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
use parkade::{AdoptedBlock, AdoptedContent, AdoptedSegment, Allocation, Allocator, Heap, LiveBlock, Neighbour, PoolFilter};

use crate::device::PlainDevice;

/// PyTorch's rules, and a note of everything that the policy learns: `+` or `-` and the requested bytes.
struct Noting(PyTorch, Vec<(char, u64)>);

impl Noting {
    fn note(&mut self, sign: char, heap: &Heap, block: LiveBlock<'_>) {
        assert!(heap.live_blocks(block.pool()).any(|live| live.id() == block.id()), "{block:?} is live");
        self.1.push((sign, block.requested().get()));
    }
}

impl Wrapper for Noting {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.0
    }

    fn allocated(&mut self, heap: &Heap, block: LiveBlock<'_>) {
        self.note('+', heap, block);
    }

    fn freed(&mut self, heap: &Heap, block: LiveBlock<'_>) {
        self.note('-', heap, block);
    }
}

type Core = Allocator<PlainDevice, Noting>;

fn core() -> Core {
    let policy = Noting(PyTorch::new(Settings::default()), Vec::new());
    Allocator::new(PlainDevice::new(Bytes::mib(64), 1 << 44), policy, ())
}

fn allocate(core: &mut Core, bytes: u64) -> Allocation {
    core.allocate(Bytes(bytes), StreamId::DEFAULT).expect("room")
}

#[track_caller]
fn assert_learned(core: &mut Core, expected: &[(char, u64)]) {
    assert_eq!(std::mem::take(&mut core.policy_mut().1), expected);
}

#[test]
fn each_request_that_is_served_and_each_free() {
    let mut core = core();
    let (first, second) = (allocate(&mut core, 100), allocate(&mut core, 3 << 20));
    core.allocate(Bytes::mib(100), StreamId::DEFAULT).expect_err("too large, after the entire ladder");
    assert_learned(&mut core, &[('+', 100), ('+', 3 << 20)]);
    let address = DeviceAddress(second.address().get() + (8 << 20));
    let third = core.allocate_at(Bytes(2 << 20), StreamId::DEFAULT, address).expect("a device").expect("it is free");
    assert_learned(&mut core, &[('+', 2 << 20)]);
    // The program frees the block now; it becomes free later.
    core.record_stream(&third, StreamId(7));
    core.free(third).expect("ours");
    assert_learned(&mut core, &[('-', 2 << 20)]);
    core.device_mut().is_idle = true;
    core.process_events().expect("a device");
    core.free(first.in_a_clone()).expect("ours");
    core.free(first).expect_err("it is free");
    assert_learned(&mut core, &[('-', 100)]);
    core.free(second).expect("ours");
    assert_learned(&mut core, &[('-', 3 << 20)]);
}

#[test]
fn a_restore_takes_blocks_back_and_hands_them_out_again() {
    let (mut core, pool) = (core(), PoolId(0, 1));
    core.begin_pool(pool, PoolFilter::All).expect("a new pool");
    let (_kept, gone) = (allocate(&mut core, 512), allocate(&mut core, 1024));
    core.free(gone).expect("ours");
    let checkpoint = core.checkpoint_pool(pool).expect("nothing waits");
    let _late = allocate(&mut core, 2048);
    assert_learned(&mut core, &[('+', 512), ('+', 1024), ('-', 1024), ('+', 2048)]);
    let _restored = core.restore_pool(&checkpoint).expect("it fits");
    assert_learned(&mut core, &[('-', 512), ('-', 2048), ('+', 512)]);
}

#[test]
fn the_live_blocks_of_an_adopted_segment_and_their_neighbours() {
    let mut core = core();
    let block = |size, content| AdoptedBlock { size: Bytes(size), content };
    let live = |bytes| AdoptedContent::Allocated(Bytes(bytes));
    let segment = AdoptedSegment {
        address: DeviceAddress(1 << 30),
        stream: StreamId::DEFAULT,
        pool: PoolId::DEFAULT,
        class: PoolClass::Small,
        page: None,
        blocks: vec![block(512, live(300)), block(1024, AdoptedContent::Free), block(512, live(512))],
    };
    core.device_mut().hold(segment.address, Bytes(2048));
    let adopted = core.adopt(&segment, &mut |_, pages| (Bytes::ZERO, pages)).expect("it fits");
    assert_learned(&mut core, &[('+', 300), ('+', 512)]);
    let heap = core.heap();
    let pool = heap.pool_slots().next().expect("the small default pool");
    let shown: Vec<LiveBlock<'_>> = heap.live_blocks(pool).collect();
    let addresses: Vec<DeviceAddress> = shown.iter().map(|block| block.address()).collect();
    assert_eq!(addresses, adopted.iter().map(Allocation::address).collect::<Vec<_>>());
    let [before, after] = heap.neighbours(shown[0].id());
    assert!(before.is_none() && matches!(after, Some(Neighbour::Free(free)) if free.size == Bytes(1024)), "{after:?}");
    let free = heap.free_blocks(pool).next().expect("one");
    let sizes = heap.neighbours(free.id).map(|neighbour| match neighbour {
        Some(Neighbour::Live(live)) => live.requested(),
        other => panic!("{other:?}"),
    });
    assert_eq!(sizes, [Bytes(300), Bytes(512)]);
    for block in adopted {
        core.free(block).expect("ours");
    }
    assert_learned(&mut core, &[('-', 300), ('-', 512)]);
}
