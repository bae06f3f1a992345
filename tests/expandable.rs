//! A request larger than the address range reserved for an expandable segment (9/8 of the device's memory).

use crate::device::PlainDevice;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocator, PoolFilter};

type Core = Allocator<PlainDevice, PyTorch>;

fn core(profile: &'static Profile, capacity: Bytes) -> Core {
    let settings = Settings { expandable_segments: true, ..Settings::default() };
    let mut device = PlainDevice::new(Bytes::mib(1024), 1 << 44);
    device.capacity = capacity.get();
    Allocator::new(device, PyTorch::of(profile, settings), ())
}

fn request(core: &mut Core, mib: u64) -> Result<(), AllocError> {
    let outcome = core.allocate(Bytes::mib(mib), StreamId::DEFAULT);
    core.check().expect("a valid heap");
    outcome.map(|allocation| core.free(allocation).expect("ours"))
}

/// All are out of memory: before 2.15 each range that was reserved is kept and used later; 2.15 frees it.
#[test]
fn a_request_beyond_the_reserve_is_out_of_memory() {
    let kept = [&Profile::PYTORCH_2_11, &Profile::PYTORCH_2_13, &Profile::PYTORCH_2_14].map(|profile| (profile, 2));
    for (profile, ranges) in kept.into_iter().chain([(&Profile::PYTORCH_2_15, 0)]) {
        let mut core = core(profile, Bytes::mib(1024));
        assert!(matches!(request(&mut core, 1229), Err(AllocError::OutOfMemory(_))), "{}", profile.name);
        assert_eq!(core.expandable_segments().len(), ranges, "one for each attempt of {}", profile.name);
        assert_eq!(core.heap().reserved(), Bytes::ZERO);
        request(&mut core, 100).expect("there is room");
        assert_eq!(core.expandable_segments().len(), ranges.max(1));
    }
}

/// A device that has more memory than it reports: 2.11 would map the whole range and then run off its end.
#[test]
fn a_range_that_is_too_short_ends_in_an_error() {
    let mut core = core(&Profile::PYTORCH_2_11, Bytes::mib(4096));
    let requested = Bytes::mib(1229);
    assert_eq!(request(&mut core, 1229), Err(AllocError::TooLarge { requested }));
    request(&mut core, 100).expect("the mapped memory is free");
    assert_eq!(core.expandable_segments().len(), 1);
    core.release_cached().expect("a device");
    assert_eq!(core.heap().reserved(), Bytes::ZERO);
}

/// A private pool that got addresses but no memory leaves nothing behind.
#[test]
fn addresses_of_a_forgotten_pool_go_back() {
    let mut core = core(&Profile::PYTORCH_2_11, Bytes::mib(64));
    let pool = PoolId(0, 1);
    core.begin_pool(pool, PoolFilter::All).expect("a new pool");
    assert!(request(&mut core, 100).is_err());
    assert_eq!(core.expandable_segments().len(), 1);
    core.end_pool(pool).expect("routed to");
    core.release_pool(pool).expect("in use");
    core.release_cached().expect("a device");
    assert_eq!(core.expandable_segments(), []);
    assert!(core.pool_use_count(pool).is_err(), "forgotten");
}

/// A block that could grow is used last: between 40 MiB before a gap of 40 MiB and 60 MiB before a used
/// block, the latter serves (spec 2.5, step 3).
#[test]
fn a_block_that_could_grow_is_used_last() {
    let mut core = core(&Profile::PYTORCH_2_11, Bytes::mib(1024));
    let take = |core: &mut Core, mib| core.allocate(Bytes::mib(mib), StreamId::DEFAULT).expect("there is room");
    let [first, gap, _used, second, _last] = [40, 40, 20, 60, 20].map(|mib| take(&mut core, mib));
    let expected = second.address();
    core.free(gap).expect("ours");
    core.release_cached().expect("a device");
    core.free(first).expect("ours");
    core.free(second).expect("ours");
    assert_eq!(take(&mut core, 30).address(), expected);
}
