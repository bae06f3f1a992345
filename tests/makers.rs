//! Tests that an allocation goes back to the allocator that made it, and memory to the pool for which it was taken.

use crate::device::PlainDevice;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{Allocator, FreeError, PoolFilter};

type Core = Allocator<PlainDevice, PyTorch>;

fn core() -> Core {
    Allocator::new(PlainDevice::new(Bytes::mib(256), 1 << 44), PyTorch::new(Settings::default()), ())
}

/// Both allocators have a block under the same numbers, even at the same address.
#[test]
fn another_allocators_block_is_refused() {
    let (mut one, mut other) = (core(), core());
    let foreign = one.allocate(Bytes::mib(5), StreamId::DEFAULT).expect("room");
    let own = other.allocate(Bytes(100), StreamId::DEFAULT).expect("room");
    assert_eq!(other.segment_of(&foreign), None);
    other.record_stream(&foreign, StreamId(7));
    let same = foreign.in_a_clone();
    let Err(FreeError::NotAllocated(foreign)) = other.free(foreign) else { panic!("it is foreign") };
    assert_eq!(foreign, same, "the error returns it");
    assert_eq!(other.heap().reserved(), Bytes::mib(2), "nothing has changed");
    other.free(own).expect("its own block, and no other stream uses it");
    assert_eq!(other.stats().family(parkade::stats::Family::ActiveBytes).all.current, 0, "not pending: no use was recorded");
    other.check().expect("a sound heap");
    one.free(foreign).expect("its own block");
}

#[test]
fn a_clone_takes_back_what_its_originals_made_and_keeps_its_own() {
    let mut first = core();
    let early = first.allocate(Bytes(100), StreamId::DEFAULT).expect("room");
    let mut second = first.clone();
    let later = second.allocate(Bytes(600), StreamId::DEFAULT).expect("room");
    let mut third = second.clone();
    third.free(early.in_a_clone()).expect("allocated by the original's original");
    third.free(later.in_a_clone()).expect("allocated by the original");
    third.check().expect("a sound heap");
    let same_numbers = first.allocate(Bytes(600), StreamId::DEFAULT).expect("room");
    assert_eq!(format!("{same_numbers:?}"), format!("{later:?}"), "nothing shows which allocator created it");
    assert!(matches!(first.free(later), Err(FreeError::NotAllocated(_))), "allocated by its clone");
    first.free(same_numbers).expect("its own");
    first.free(early).expect("its own");
}

/// A callback abandons the pool of the request that it is called for, releases it, and makes another, which
/// would get the first one's number.
#[test]
fn memory_does_not_end_up_in_a_pool_that_a_callback_makes() {
    const FIRST: PoolId = PoolId(0, 1);
    const SECOND: PoolId = PoolId(0, 2);
    let mut core = core();
    core.begin_pool(FIRST, PoolFilter::All).expect("a new pool");
    core.register_free_memory_callback(Box::new(|core: &mut Core| {
        if core.pool_use_count(SECOND).is_err() {
            core.end_pool(FIRST).expect("routed to");
            core.release_pool(FIRST).expect("in use");
            core.release_cached().expect("a device");
            core.create_pool(SECOND).expect("a new pool");
        }
        true
    }));
    let taken = core.allocate(Bytes(100), StreamId::DEFAULT).expect("room");
    core.check().expect("a sound heap");
    let pools: Vec<PoolId> = core.segments().iter().map(|segment| segment.pool).collect();
    assert_eq!(pools, [FIRST]);
    core.free(taken).expect("ours");
    core.release_cached().expect("a device");
    assert_eq!((core.heap().reserved(), core.pool_use_count(FIRST).is_err()), (Bytes::ZERO, true), "abandoned, so it goes");
    assert_eq!(core.pool_use_count(SECOND), Ok(1));
}
