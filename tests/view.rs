//! Tests what callers see of an allocator, and what its errors say.

use crate::device::PlainDevice;
use parkade::device::BackendError;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::snapshot::BlockActivity;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, FreeError, PoolFilter};

type Core = Allocator<PlainDevice, PyTorch, Vec<TraceEntry>>;

const FIRST: u64 = 1 << 44;

fn core(settings: Settings) -> Core {
    Allocator::new(PlainDevice::new(Bytes::mib(256), FIRST), PyTorch::new(settings), Vec::new())
}

fn take(core: &mut Core, bytes: u64) -> Allocation {
    core.allocate(Bytes(bytes), StreamId::DEFAULT).expect("there is room")
}

#[test]
fn the_limit_is_a_fraction_of_the_whole() {
    let mut core = core(Settings::default());
    assert_eq!((core.memory_fraction(), core.heap().limit()), (1.0, None));
    core.set_memory_fraction(0.25).expect("legal");
    assert_eq!((core.memory_fraction(), core.heap().limit()), (0.25, Some(Bytes::mib(64))));
    core.set_limit(Some(Bytes::mib(32)));
    assert_eq!(core.memory_fraction(), 0.125);
    for illegal in [-0.1, 1.1, f64::NAN] {
        let error = core.set_memory_fraction(illegal).expect_err("illegal");
        assert!(!error.to_string().is_empty());
        assert_eq!(core.memory_fraction(), 0.125, "nothing has changed");
    }
    core.set_memory_fraction(1.0).expect("legal");
    assert_eq!(core.heap().limit(), None);
}

#[test]
fn the_largest_free_block_of_all_pools_and_streams() {
    let mut core = core(Settings::default());
    assert_eq!(core.heap().largest_free(), Bytes::ZERO);
    let small = take(&mut core, 512);
    assert_eq!(core.heap().largest_free(), Bytes(2 * MIB - 512));
    let large = core.allocate(Bytes::mib(24), StreamId(7)).expect("there is room");
    core.free(large).expect("ours");
    assert_eq!(core.heap().largest_free(), Bytes::mib(24));
    core.free(small).expect("ours");
    // Many of one size and a larger one: an oversized bin.
    let many: Vec<Allocation> = (0..40).map(|number| take(&mut core, MIB - 512 * (number % 2))).collect();
    core.release_cached().expect("a device");
    for allocation in many {
        core.free(allocation).expect("ours");
    }
    assert_eq!(core.heap().largest_free(), Bytes::mib(2));
}

#[test]
fn the_segment_that_an_allocation_is_a_part_of() {
    let mut core = core(Settings::default());
    let [first, second] = [600, 700].map(|bytes| take(&mut core, bytes));
    let whole = take(&mut core, 12 * MIB);
    let small = Some((DeviceAddress(FIRST), Bytes::mib(2)));
    assert_eq!((core.segment_of(&first), core.segment_of(&second)), (small, small));
    assert_eq!(core.segment_of(&whole), Some((whole.address(), Bytes::mib(12))));
    let segments = core.segments();
    let totals: Vec<_> = segments.iter().map(|segment| (segment.total.get(), segment.class, segment.expandable)).collect();
    assert_eq!(totals, [(2 * MIB, PoolClass::Small, false), (12 * MIB, PoolClass::Large, false)]);
    let sums = |place: usize| [segments[place].allocated, segments[place].active, segments[place].requested].map(Bytes::get);
    assert_eq!((sums(0), sums(1)), ([2048, 2048, 1300], [12 * MIB; 3]));
    let names = segments[0].blocks.iter().map(|block| block.state.name()).collect::<Vec<_>>();
    assert_eq!(names, ["active_allocated", "active_allocated", "inactive"]);
    assert_eq!(BlockActivity::PendingFree.name(), "active_pending_free");
    for allocation in [first, second, whole] {
        core.free(allocation).expect("ours");
    }
}

/// A private pool can be examined, and released once it has no uses.
#[test]
fn one_private_pool_alone() {
    let mut core = core(Settings::default());
    let pool = PoolId(0, 1);
    let [kept, gone] = [(None, 100), (Some(pool), 200)].map(|(pool, bytes)| {
        let begun = pool.map(|pool| core.begin_pool(pool, PoolFilter::All));
        assert!(begun.is_none_or(|begun| begun.is_ok()));
        let allocation = take(&mut core, bytes);
        assert!(pool.is_none_or(|pool| core.end_pool(pool).is_ok()));
        allocation
    });
    let seen = core.snapshot_pool(pool);
    assert_eq!(seen.iter().map(|segment| (segment.pool, segment.requested)).collect::<Vec<_>>(), [(pool, Bytes(200))]);
    let last = core.observer().last().expect("told of");
    assert_eq!((last.action, last.size, last.pool), (TraceAction::Snapshot, 512, pool));
    core.free(kept).expect("ours");
    // It waits for the use of another stream.
    core.record_stream(&gone, StreamId(7));
    core.free(gone).expect("ours");
    core.release_cached_pool(pool).expect("a device");
    assert_eq!(core.heap().reserved(), Bytes::mib(4), "it is in use");
    core.release_pool(pool).expect("one use");
    core.release_cached_pool(pool).expect("a device");
    assert_eq!(core.heap().reserved(), Bytes::mib(2), "the default pool keeps its memory");
    assert!(core.pool_use_count(pool).is_err());
    core.release_cached_pool(pool).expect("nothing to do");
    core.check().expect("a sound heap");
}

#[test]
fn what_errors_say() {
    let device = BackendError::Driver { call: "cudaFree", code: 700 };
    let foreign = core(Settings::default()).allocate(Bytes(1), StreamId::DEFAULT).expect("room");
    let texts = [
        (AllocError::ZeroSize.to_string(), "0 bytes"),
        (AllocError::TooLarge { requested: Bytes::MAX }.to_string(), "more than 1EB"),
        (AllocError::Rejected { requested: Bytes(512) }.to_string(), "512"),
        (AllocError::Device(device).to_string(), "cudaFree"),
        (AllocError::TooManyStreams.to_string(), "65535 streams"),
        (FreeError::NotAllocated(foreign).to_string(), "does not belong"),
        (FreeError::Device(device).to_string(), "stays pending"),
    ];
    for (text, part) in texts {
        assert!(text.contains(part), "{text:?}");
    }
    let mut core = core(Settings::default());
    assert_eq!(core.allocate(Bytes::ZERO, StreamId::DEFAULT), Err(AllocError::ZeroSize));
    assert_eq!(
        core.allocate(Bytes(1 << 60), StreamId::DEFAULT).map(|_| ()),
        Err(AllocError::TooLarge { requested: Bytes(1 << 60) })
    );
    assert!(matches!(core.raw_allocate(Bytes(1 << 60), StreamId::DEFAULT), Err(AllocError::OutOfMemory(_))));
    assert_eq!(core.raw_allocate(Bytes::MAX, StreamId::DEFAULT).map(|_| ()), Err(AllocError::TooLarge { requested: Bytes::MAX }));
}
