//! Tests private pools: reused ids, and the rules for pools that wait to be released.

use crate::device::PlainDevice;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocator, PoolError, PoolFilter};

/// Up to 2.13 "never split" is remembered for the id, from 2.14 on for the pool (asked of all).
#[test]
fn never_split_ends_with_the_pool_or_stays_with_the_id() {
    for (profile, later_bytes) in [
        (&Profile::PYTORCH_2_11, 2 << 20),
        (&Profile::PYTORCH_2_13, 2 << 20),
        (&Profile::PYTORCH_2_14, 512),
        (&Profile::PYTORCH_2_15, 512),
    ] {
        let device = PlainDevice::new(Bytes::mib(64), 1 << 44);
        let mut core = Allocator::new(device, PyTorch::of(profile, Settings::default()), ());
        let pool = PoolId(0, 1);
        for (is_first, bytes) in [(true, 2 << 20), (false, later_bytes)] {
            core.create_pool(pool).expect("a new pool");
            if is_first {
                core.set_pool_no_split(pool);
            }
            core.begin_pool(pool, PoolFilter::All).expect("not routed to");
            let allocation = core.allocate(Bytes(100), StreamId::DEFAULT).expect("there is room");
            core.end_pool(pool).expect("routed to");
            let sizes: Vec<u64> = core.segments()[0].blocks.iter().map(|block| block.size.get()).collect();
            assert_eq!(sizes[0], bytes, "{}, first {is_first}", profile.name);
            core.free(allocation).expect("ours");
            core.release_pool(pool).and_then(|()| core.release_pool(pool)).expect("two uses");
            core.release_cached().expect("a device");
            assert!(core.pool_use_count(pool).is_err(), "gone");
        }
    }
}

/// New segments, garbage collection and the release of oversize blocks keep a pool without uses; only
/// releasing everything ends it (asked of 2.11 and 2.15). Until then its id cannot be used again, and a
/// request that looks into it when out of memory fails.
#[test]
fn an_abandoned_pool_ends_when_everything_goes_back() {
    for profile in [&Profile::PYTORCH_2_11, &Profile::PYTORCH_2_15] {
        let device = PlainDevice::new(Bytes::mib(56), 1 << 44);
        let settings = Settings { max_split_bytes: 20 << 20, ..Settings::default() };
        let mut core = Allocator::new(device, PyTorch::of(profile, settings), ());
        let pool = PoolId(0, 1);
        core.create_pool(pool).and_then(|()| core.release_pool(pool)).expect("a new pool");
        let whole = core.allocate(Bytes::mib(40), StreamId::DEFAULT).expect("there is room");
        assert_eq!(core.pool_use_count(pool), Ok(0), "{}: a segment was created", profile.name);
        core.free(whole).expect("ours");
        let _kept = core.allocate(Bytes::mib(19), StreamId::DEFAULT).expect("there is room once the oversize block is released");
        assert_eq!(core.pool_use_count(pool), Ok(0), "{}: an oversize block was released", profile.name);
        core.release_cached().expect("a device");
        assert!(core.pool_use_count(pool).is_err(), "{}: gone", profile.name);
    }
}

/// While the caller's stream is captured, 2.15 waits for nothing and its default pool releases nothing; 2.11
/// looks at routings instead.
#[test]
fn a_capture_defers_where_the_version_looks_at_it() {
    for (profile, is_deferring) in [(&Profile::PYTORCH_2_11, false), (&Profile::PYTORCH_2_15, true)] {
        let mut device = PlainDevice::new(Bytes::mib(64), 1 << 44);
        device.is_idle = true;
        let mut core = Allocator::new(device, PyTorch::of(profile, Settings::default()), ());
        let [used, whole] = [100, 3 << 20].map(|bytes| core.allocate(Bytes(bytes), StreamId::DEFAULT).expect("there is room"));
        core.record_stream(&used, StreamId(7));
        core.set_capturing(true);
        core.free(used).expect("ours");
        core.free(whole).expect("ours");
        core.process_events().expect("a device");
        core.release_cached().expect("a device");
        let kept = Bytes::mib(if is_deferring { 22 } else { 0 });
        assert_eq!((core.heap().is_deferring(), core.heap().reserved()), (is_deferring, kept), "{}", profile.name);
        core.set_capturing(false);
        core.release_cached().expect("a device");
        assert_eq!(core.heap().reserved(), Bytes::ZERO, "{}", profile.name);
    }
}

/// PyTorch's messages, with each release's source lines.
#[test]
fn what_pool_errors_say() {
    let pool = PoolId(0, 1);
    let mut core = Allocator::new(PlainDevice::new(Bytes::mib(64), 1 << 44), PyTorch::new(Settings::default()), ());
    let unknown = core.release_pool(pool).expect_err("never made");
    core.begin_pool(pool, PoolFilter::All).expect("a new pool");
    let twice = core.begin_pool(pool, PoolFilter::All).expect_err("routed to");
    core.end_pool(pool).expect("routed to");
    let not_routed = core.end_pool(pool).expect_err("no longer");
    assert_eq!(core.pool_use_count(pool), Ok(2), "the failed call counts");
    core.release_pool(pool).and_then(|()| core.release_pool(pool)).expect("two uses");
    let not_in_use = core.release_pool(pool).expect_err("no use is left");
    let abandoned = core.create_pool(pool).expect_err("it waits until its memory is returned");
    let Err(AllocError::Pool(overreleased)) = core.release_cached() else {
        panic!("the pool was released more often than it was used")
    };
    let (old, new) = (&Profile::PYTORCH_2_11, &Profile::PYTORCH_2_15);
    assert_eq!(twice.to_string(), "beginAllocateToPool: already recording to mempool_id");
    assert_eq!(not_routed.to_string(), "endAllocatePool: not currently recording to mempool_id");
    for (error, condition, lines) in [
        (unknown, "it != graph_pools.end()", [2807, 3481]),
        (abandoned, "it->second->use_count > 0", [2799, 3473]),
        (not_in_use, "uc >= 0", [2698, 3373]),
        (overreleased, "it->second->use_count == 0", [3473, 4249]),
    ] {
        for (profile, line) in [old, new].into_iter().zip(lines) {
            let message = error.message(profile);
            assert!(message.starts_with(condition) && message.contains(&format!(":{line}, please report")), "{message}");
        }
        assert_eq!(error.to_string(), error.message(old));
    }
}

/// A pool that serves when the device is out of memory lends no block of an expandable segment (spec 5.6).
#[test]
fn expandable_segments_are_not_lent() {
    for (expandable_segments, is_served) in [(false, true), (true, false)] {
        let settings = Settings { expandable_segments, ..Settings::default() };
        let mut core = Allocator::new(PlainDevice::new(Bytes::mib(64), 1 << 44), PyTorch::new(settings), ());
        let pool = PoolId(0, 1);
        core.begin_pool(pool, PoolFilter::All).expect("a new pool");
        let free = core.allocate(Bytes::mib(40), StreamId::DEFAULT).expect("there is room");
        core.free(free).expect("ours");
        core.end_pool(pool).expect("routed to");
        core.set_pool_use_on_oom(pool, true);
        let answer = core.allocate(Bytes::mib(30), StreamId::DEFAULT);
        assert_eq!(answer.is_ok(), is_served, "expandable: {expandable_segments}");
        core.check().expect("a sound heap");
        answer.into_iter().for_each(|allocation| core.free(allocation).expect("ours"));
    }
}

/// A block that two streams use becomes free after both events, and only once.
#[test]
fn emptying_a_pool_waits_for_every_stream_of_a_block() {
    let mut allocator = Allocator::new(PlainDevice::new(Bytes::mib(64), 1 << 44), PyTorch::new(Settings::default()), ());
    let pool = PoolId(0, 7);
    allocator.begin_pool(pool, PoolFilter::All).expect("nothing fails here");
    let block = allocator.allocate(Bytes::mib(4), StreamId::DEFAULT).expect("nothing fails here");
    allocator.end_pool(pool).expect("nothing fails here");
    for stream in [1, 2] {
        allocator.record_stream(&block, StreamId(stream));
    }
    allocator.free(block).expect("nothing fails here");
    allocator.release_pool(pool).expect("nothing fails here");
    allocator.release_cached_pool(pool).expect("nothing fails here");
    allocator.check().expect("nothing fails here");
    assert_eq!(allocator.heap().reserved(), Bytes::ZERO);
}

/// Pools of two graphs and three users, each of which has cached one segment; the numbers are of their segments.
fn five_pools() -> (Allocator<PlainDevice, PyTorch, Vec<TraceEntry>>, [PoolId; 5]) {
    let pools = [PoolId(1, 0), PoolId(2, 0), PoolId(0, 3), PoolId(0, 4), PoolId(0, 1)];
    let mut core = Allocator::new(PlainDevice::new(Bytes::mib(100), 1 << 44), PyTorch::new(Settings::default()), Vec::new());
    for pool in pools {
        core.begin_pool(pool, PoolFilter::All).expect("a new pool");
        let free = core.allocate(Bytes::mib(5), StreamId::DEFAULT).expect("there is room");
        core.free(free).expect("ours");
        core.end_pool(pool).expect("routed to");
    }
    (core, pools)
}

/// The order of their ids in PyTorch's hash tables.
const ORDER: [PoolId; 5] = [PoolId(2, 0), PoolId(0, 4), PoolId(1, 0), PoolId(0, 1), PoolId(0, 3)];

/// The pools in which the entries of an action were.
fn pools_of(core: &Allocator<PlainDevice, PyTorch, Vec<TraceEntry>>, action: TraceAction) -> Vec<PoolId> {
    core.observer().iter().filter(|entry| entry.action == action).map(|entry| entry.pool).collect()
}

/// Both binaries answer so: pools that serve are asked in the order of a hash table of their ids.
#[test]
fn pools_that_serve_are_asked_in_the_order_of_pytorch() {
    let (mut core, pools) = five_pools();
    for pool in pools {
        core.set_pool_use_on_oom(pool, true);
    }
    let lent: Vec<_> = (0..5).map(|_| core.allocate(Bytes::mib(18), StreamId::DEFAULT).expect("one of them serves")).collect();
    assert_eq!(pools_of(&core, TraceAction::Alloc)[5..], ORDER);
    lent.into_iter().for_each(|allocation| core.free(allocation).expect("ours"));
}

/// And so do pools go back that nobody uses; one that was released too often stays, and with it those behind it.
#[test]
fn pools_without_uses_go_back_in_the_order_of_pytorch() {
    let (mut core, pools) = five_pools();
    for pool in pools {
        core.release_pool(pool).expect("one use");
    }
    let mut other = core.clone();
    core.release_cached().expect("nothing fails here");
    assert_eq!(pools_of(&core, TraceAction::SegmentFree), ORDER);
    other.release_pool(ORDER[2]).expect_err("no use is left");
    other.release_cached().expect_err("one pool was released too often");
    assert_eq!(pools_of(&other, TraceAction::SegmentFree), ORDER[..2]);
    assert!(other.pool_use_count(ORDER[1]).is_err() && other.pool_use_count(ORDER[3]) == Ok(0));
}

/// Ids can be chosen for an order: those at places a bucket apart go back in it, in whatever order they were made
/// and left.
#[test]
fn pools_with_ids_for_an_order_go_back_in_it() {
    let ids: Vec<PoolId> = (0..7).map(|number| PoolId::walked_at(number * (u64::MAX / 7) + 1)).collect();
    let mut core = Allocator::new(PlainDevice::new(Bytes::mib(200), 1 << 44), PyTorch::new(Settings::default()), Vec::new());
    for made in [3, 6, 0, 5, 1, 4, 2].map(|number: usize| ids[number]) {
        core.begin_pool(made, PoolFilter::All).expect("a new pool");
        let free = core.allocate(Bytes::mib(5), StreamId::DEFAULT).expect("there is room");
        core.free(free).expect("ours");
        core.end_pool(made).expect("routed to");
        core.release_pool(made).expect("one use");
    }
    core.release_cached().expect("nothing fails here");
    assert_eq!(pools_of(&core, TraceAction::SegmentFree), ids);
}

/// To empty the cache of one pool forgets that pool only, in both binaries.
#[test]
fn emptying_one_pool_forgets_no_other() {
    let (mut core, _) = five_pools();
    let (emptied, other) = (PoolId(0, 8), PoolId(0, 9));
    for pool in [emptied, other] {
        core.create_pool(pool).and_then(|()| core.release_pool(pool)).expect("a new pool");
    }
    core.release_cached_pool(emptied).expect("nothing fails here");
    assert_eq!((core.pool_use_count(emptied), core.pool_use_count(other)), (Err(PoolError::Unknown(emptied)), Ok(0)));
    core.release_cached().expect("nothing fails here");
    assert_eq!(core.pool_use_count(other), Err(PoolError::Unknown(other)));
}

/// Requests of a thread go to the pool that the caller chooses for it, and the newest routing still decides.
#[test]
fn a_chosen_pool_serves_the_requests_that_choose_it() {
    let mut core = Allocator::new(PlainDevice::new(Bytes::mib(64), 1 << 44), PyTorch::new(Settings::default()), ());
    let [first, second] = [PoolId(0, 1), PoolId(0, 2)];
    for pool in [first, second] {
        core.begin_pool(pool, PoolFilter::Chosen).expect("a new pool");
    }
    let pool_of = |core: &mut Allocator<PlainDevice, PyTorch>, chosen| {
        core.choose_pool(chosen);
        let allocation = core.allocate(Bytes(100), StreamId::DEFAULT).expect("there is room");
        let at = allocation.address();
        let pool = core.segments().iter().find(|segment| segment.address == at).map(|segment| segment.pool);
        core.free(allocation).expect("ours");
        pool.expect("the first block in its segment")
    };
    assert_eq!(pool_of(&mut core, None), PoolId::DEFAULT);
    assert_eq!(pool_of(&mut core, Some(first)), first);
    assert_eq!(pool_of(&mut core, Some(second)), second);
    assert_eq!(pool_of(&mut core, Some(PoolId(0, 3))), PoolId::DEFAULT, "no request is routed to it");
    core.end_pool(first).expect("routed to");
    assert_eq!(pool_of(&mut core, Some(first)), PoolId::DEFAULT, "no longer");
    core.begin_pool(PoolId(0, 4), PoolFilter::All).expect("a new pool");
    assert_eq!(pool_of(&mut core, Some(second)), PoolId(0, 4), "a newer routing takes precedence");
}
