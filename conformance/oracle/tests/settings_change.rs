//! Settings changed in mid-run: a free block that is only a part of its segment can become "oversize" afterwards.
//!
//! With constant settings such a block does not exist, and PyTorch gives an oversize block back without looking whether it is whole:
//! lowering `max_split_size_mb` at run time makes it call cudaFree in the middle of a segment (spec 2.9). Here parts are passed over.

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, MIB, StreamId};
use parkade::{AllocError, Allocation, Allocator};
use parkade_sim::{CallName, SimDevice, SimOptions};

type Core = Allocator<SimDevice, PyTorch, Vec<TraceEntry>>;

fn core(capacity: u64) -> Core {
    let device = SimDevice::new(SimOptions::fake_driver(Bytes(capacity)));
    Allocator::new(device, PyTorch::new(Settings::default()), Vec::new())
}

fn allocate(core: &mut Core, mib: u64) -> Result<Allocation, AllocError> {
    let answer = core.allocate(Bytes::mib(mib), StreamId::DEFAULT);
    core.check().expect("the heap is valid");
    answer
}

fn give_back(core: &mut Core, allocation: Allocation) {
    core.free(allocation).expect("it is ours");
    core.check().expect("the heap is valid");
}

fn set(core: &mut Core, text: &str) {
    core.policy_mut().settings.apply(text).expect("legal settings");
}

fn segments_given_back(core: &Core) -> Vec<u64> {
    let frees = core.observer().iter().filter(|entry| entry.action == TraceAction::SegmentFree);
    frees.map(|entry| entry.size / MIB).collect()
}

/// A 100 MiB segment of which 10 MiB are handed out, so that 90 MiB are a free part of it.
fn with_a_large_part(core: &mut Core) -> Allocation {
    let whole = allocate(core, 100).expect("room");
    give_back(core, whole);
    let low = allocate(core, 10).expect("the cached segment");
    assert_eq!(core.heap().largest_free(), Bytes::mib(90));
    low
}

#[test]
fn a_part_of_a_segment_that_alone_would_suffice_is_not_given_back() {
    let mut core = core(128 * MIB);
    let low = with_a_large_part(&mut core);
    set(&mut core, "max_split_size_mb:32");
    // 90 MiB are 20 MiB or more above the request: refused, and the device has no room for 60 more. PyTorch now frees the part.
    let refused = allocate(&mut core, 60);
    assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
    assert_eq!(segments_given_back(&core), [0_u64; 0]);
    assert_eq!(core.device().totals(CallName::Free).calls, 0, "cudaFree was never called");
    assert_eq!(core.heap().largest_free(), Bytes::mib(90), "the part is still there");
    // Whole again, the segment is an oversize block like any other.
    give_back(&mut core, low);
    let served = allocate(&mut core, 60).expect("room, once the segment is given back");
    assert_eq!(segments_given_back(&core), [100]);
    assert_eq!(core.stats().num_alloc_retries, 1, "only the request that was refused climbed to the last rung");
    give_back(&mut core, served);
    core.release_cached().expect("a device that works");
    assert_eq!(core.device().used_bytes(), Bytes::ZERO);
}

#[test]
fn parts_are_passed_over_on_the_way_down_too() {
    let mut core = core(220 * MIB);
    let (first, second) = (allocate(&mut core, 92).expect("room"), allocate(&mut core, 24).expect("room"));
    let _low = with_a_large_part(&mut core);
    give_back(&mut core, second);
    give_back(&mut core, first);
    // The free blocks are 24 (whole), 90 (a part) and 92 (whole). No one suffices for 110, 92 and 24 together do.
    set(&mut core, "max_split_size_mb:20");
    let _large = allocate(&mut core, 110).expect("room, once 92 and 24 are given back");
    assert_eq!(segments_given_back(&core), [92, 24]);
    assert_eq!(core.heap().largest_free(), Bytes::mib(90));
    assert_eq!(core.stats().num_alloc_retries, 0, "the oversize blocks sufficed");
}

#[test]
fn raising_the_size_again_lets_the_part_be_used() {
    let mut core = core(128 * MIB);
    let low = with_a_large_part(&mut core);
    set(&mut core, "max_split_size_mb:32");
    // 10 MiB are below the split size, the part is above: it is not cut up.
    let apart = allocate(&mut core, 10).expect("room for a segment of its own");
    assert_eq!(core.stats().num_device_alloc, 2);
    set(&mut core, "");
    let upper = allocate(&mut core, 90).expect("the part");
    assert_eq!(upper.address().get(), low.address().get() + 10 * MIB);
    assert_eq!(core.stats().num_device_alloc, 2);
    for allocation in [apart, upper, low] {
        give_back(&mut core, allocation);
    }
    core.release_cached().expect("a device that works");
    assert_eq!(core.device().used_bytes(), Bytes::ZERO);
}
