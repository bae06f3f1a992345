//! Private pools under the rules of libraries that have none. The memory that a pool should take from the device was
//! worked out by hand.

use crate::policy_run::Run;
use parkade::PoolFilter;
use parkade::units::{MIB, PoolId};
use parkade_policies::{CATALOGUE, named, pools_are_allocators};

fn pool(number: u64) -> PoolId {
    PoolId(number, 0)
}

/// The sizes of a pool's segments in MiB.
fn segments_mib_of(run: &Run, number: u64) -> Vec<u64> {
    let segments = run.core.segments().into_iter().filter(|segment| segment.pool == pool(number));
    segments.map(|segment| segment.total.get() / MIB).collect()
}

/// Allocates blocks of these sizes in a private pool, frees them, and returns the sizes of the pool's segments, all in
/// MiB.
fn in_pool(run: &mut Run, number: u64, blocks_mib: &[u64]) -> Vec<u64> {
    run.core.begin_pool(pool(number), PoolFilter::All).expect("not routed");
    for (name, mib) in ('k'..).zip(blocks_mib) {
        run.take_mib(name, *mib);
    }
    run.core.end_pool(pool(number)).expect("routed");
    run.give(&('k'..).take(blocks_mib.len()).collect::<String>());
    segments_mib_of(run, number)
}

/// Drops the pool, which nothing uses any more, so its memory is released.
fn drop_pool(run: &mut Run, number: u64) {
    run.core.release_pool(pool(number)).expect("in use");
    run.core.release_cached().expect("the device gets it back");
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

const ALLOCATORS_OF_THEIR_OWN: [&str; 5] = ["bfc", "bfc:kind=one-region", "bfc:kind=xla", "bfc:kind=xla-growth", "rmm-pool"];

/// The program does not call `empty_cache`; the pool's memory is released at the next request that no free block can
/// serve.
#[test]
fn a_pool_that_is_gone_gives_back_what_is_free_before_anything_is_asked_for() {
    for name in ALLOCATORS_OF_THEIR_OWN {
        let mut run = Run::new(name, 64);
        run.core.begin_pool(pool(1), PoolFilter::All).expect("not routed");
        run.take_mib('a', 16);
        run.core.end_pool(pool(1)).expect("routed");
        run.core.release_pool(pool(1)).expect("in use");
        let held = segments_mib_of(&run, 1);
        assert!(run.is_out(65 * MIB));
        assert_eq!(segments_mib_of(&run, 1), held, "{name}: a block in it is live");

        run.give("a");
        run.core.begin_pool(pool(2), PoolFilter::All).expect("not routed");
        run.take_mib('b', 8);
        assert_eq!(segments_mib_of(&run, 1), held, "{name}: nothing is released while a graph is captured");
        run.core.end_pool(pool(2)).expect("routed");
        assert!(run.is_out(65 * MIB));
        assert_eq!(segments_mib_of(&run, 1), [], "{name}: nothing in it is live");
        assert_ne!(segments_mib_of(&run, 2), [], "{name}: that pool is in use");
    }
}

#[test]
fn a_pool_without_uses_still_serves_what_is_routed_to_it() {
    for name in ALLOCATORS_OF_THEIR_OWN {
        let mut run = Run::new(name, 64);
        run.core.begin_pool(pool(1), PoolFilter::All).expect("not routed");
        run.core.release_pool(pool(1)).expect("in use");
        run.take_mib('a', 8);
        run.give("a");
        run.take_mib('b', 12);
        assert!(run.is_out(60 * MIB), "{name}: the request is refused, but not because of a fault in the policy");
        run.core.end_pool(pool(1)).expect("routed");
        run.core.check().expect("a sound heap");
    }
}

#[test]
fn which_policies_those_are() {
    let own: Vec<_> = CATALOGUE.iter().map(|policy| &*policy.name).filter(|name| pools_are_allocators(name)).collect();
    let mut expected = ALLOCATORS_OF_THEIR_OWN.to_vec();
    expected.sort_unstable_by_key(|name| own.iter().position(|own| own == name));
    assert_eq!(own, expected);
    for name in own {
        let policy = named(name).expect("listed").make();
        assert!(pools_are_allocators(policy.name()), "studies look it up by the policy's own name");
    }
}
