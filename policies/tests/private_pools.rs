//! Private pools under the rules of libraries that have none: what a pool takes from the device, worked out by hand.

mod policy_run;

use parkade::PoolFilter;
use parkade::units::{Bytes, MIB, PoolId};
use parkade_policies::RmmArena;
use parkade_sim::SimOptions;
use policy_run::Run;

fn pool(number: u64) -> PoolId {
    PoolId(number, 0)
}

/// Takes blocks of these MiB in a private pool, gives them back, and returns the sizes of the pool's segments in MiB.
fn in_pool(run: &mut Run, number: u64, blocks_mib: &[u64]) -> Vec<u64> {
    run.core.begin_pool(pool(number), PoolFilter::All).expect("not routed");
    for (name, mib) in ('k'..).zip(blocks_mib) {
        run.take_mib(name, *mib);
    }
    run.core.end_pool(pool(number)).expect("routed");
    run.give(&('k'..).take(blocks_mib.len()).collect::<String>());
    let segments = run.core.segments().into_iter().filter(|segment| segment.pool == pool(number));
    segments.map(|segment| segment.total.get() / MIB).collect()
}

/// Nothing uses the pool any more, and its memory goes back.
fn drop_pool(run: &mut Run, number: u64) {
    run.core.release_pool(pool(number)).expect("in use");
    run.core.release_cached().expect("the device takes it back");
    run.core.check().expect("a sound heap");
}

#[test]
fn each_private_pool_of_bfc_begins_with_2_mib() {
    let mut run = Run::new("bfc", 4096);
    for number in 1..12 {
        assert_eq!(in_pool(&mut run, number, &[1, 3]), [2, 4], "pool {number}");
        drop_pool(&mut run, number);
    }
}

#[test]
fn a_private_pool_of_arenas_takes_what_requests_need() {
    let mut run = Run::new("rmm-arena", 1024);
    run.take_mib('a', 1);
    assert_eq!(run.segments_mib(), [512]);
    for number in 1..12 {
        assert_eq!(in_pool(&mut run, number, &[1, 1, 3, 20]), [2, 4, 20], "pool {number}: 1 and 1 share an area");
    }
    drop_pool(&mut run, 3);
    assert_eq!(in_pool(&mut run, 12, &[5, 7]), [6, 8], "under the number of the pool that is gone");
    assert_eq!(run.reserved_mib(), 512 + 10 * 26 + 14);
}

#[test]
fn an_arena_of_the_whole_device_leaves_no_room_for_a_private_pool() {
    let mut run = Run::of(Box::new(RmmArena::whole()), SimOptions::new(Bytes::mib(64)));
    run.take_mib('a', 1);
    assert_eq!(run.segments_mib(), [64]);
    run.core.begin_pool(pool(1), PoolFilter::All).expect("not routed");
    assert!(run.is_out(1));
}
