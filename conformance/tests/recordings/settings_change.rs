//! Tests settings that change during a run: they can turn a free block that is only part of its segment into an
//! "oversize" block.
//!
//! With constant settings, this cannot happen, so PyTorch releases an oversize block without checking that it is an
//! entire segment: after `max_split_size_mb` is lowered at run time, it calls cudaFree in the middle of a segment (spec
//! 2.9). parkade skips these parts.

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

fn free(core: &mut Core, allocation: Allocation) {
    core.free(allocation).expect("the allocation belongs to this allocator");
    core.check().expect("the heap is valid");
}

fn set(core: &mut Core, text: &str) {
    core.policy_mut().settings.apply(text).expect("legal settings");
}

fn segments_released(core: &Core) -> Vec<u64> {
    let frees = core.observer().iter().filter(|entry| entry.action == TraceAction::SegmentFree);
    frees.map(|entry| entry.size / MIB).collect()
}

/// Allocates 10 MiB of a cached 100 MiB segment, so that 90 MiB of it are free.
fn with_a_large_part(core: &mut Core) -> Allocation {
    let whole = allocate(core, 100).expect("room");
    free(core, whole);
    let low = allocate(core, 10).expect("the cached segment");
    assert_eq!(core.heap().largest_free(), Bytes::mib(90));
    low
}

#[test]
fn a_part_of_a_segment_is_not_released_even_if_it_is_large_enough() {
    let mut core = core(128 * MIB);
    let low = with_a_large_part(&mut core);
    set(&mut core, "max_split_size_mb:32");
    // The free 90 MiB exceed the request by 20 MiB or more, so they are not used, and the device has no room for 60 MiB.
    // PyTorch would now free the part.
    let refused = allocate(&mut core, 60);
    assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
    assert_eq!(segments_released(&core), [0_u64; 0]);
    assert_eq!(core.device().totals(CallName::Free).calls, 0, "cudaFree was never called");
    assert_eq!(core.heap().largest_free(), Bytes::mib(90), "the part is still reserved");
    // When the segment is whole again, it is an oversize block like any other.
    free(&mut core, low);
    let served = allocate(&mut core, 60).expect("there is room once the segment is released");
    assert_eq!(segments_released(&core), [100]);
    assert_eq!(core.stats().num_alloc_retries, 1, "only the refused request reached the last step of the retry ladder");
    free(&mut core, served);
    core.release_cached().expect("a device that works");
    assert_eq!(core.device().used_bytes(), Bytes::ZERO);
}

#[test]
fn parts_are_skipped_when_several_blocks_are_released() {
    let mut core = core(220 * MIB);
    let (first, second) = (allocate(&mut core, 92).expect("room"), allocate(&mut core, 24).expect("room"));
    let _low = with_a_large_part(&mut core);
    free(&mut core, second);
    free(&mut core, first);
    // The free blocks are 24 (whole), 90 (a part) and 92 (whole). None is large enough for 110; 92 and 24 together are.
    set(&mut core, "max_split_size_mb:20");
    let _large = allocate(&mut core, 110).expect("there is room once 92 and 24 are released");
    assert_eq!(segments_released(&core), [92, 24]);
    assert_eq!(core.heap().largest_free(), Bytes::mib(90));
    assert_eq!(core.stats().num_alloc_retries, 0, "releasing oversize blocks was enough");
}

#[test]
fn raising_the_size_again_lets_the_part_be_used() {
    let mut core = core(128 * MIB);
    let low = with_a_large_part(&mut core);
    set(&mut core, "max_split_size_mb:32");
    // The request is below the split size and the part is above it, so the part is not split.
    let apart = allocate(&mut core, 10).expect("there is room for a separate segment");
    assert_eq!(core.stats().num_device_alloc, 2);
    set(&mut core, "");
    let upper = allocate(&mut core, 90).expect("the part");
    assert_eq!(upper.address().get(), low.address().get() + 10 * MIB);
    assert_eq!(core.stats().num_device_alloc, 2);
    for allocation in [apart, upper, low] {
        free(&mut core, allocation);
    }
    core.release_cached().expect("a device that works");
    assert_eq!(core.device().used_bytes(), Bytes::ZERO);
}
