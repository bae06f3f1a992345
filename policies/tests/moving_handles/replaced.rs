//! Handles that are returned to the device and replaced by new ones.

use parkade_sim::{FaultError, FaultPlan, When};

use super::*;

#[test]
fn replaced_handles_go_back_and_new_ones_end_where_the_request_does() {
    let mut allocator = on(48, Toy { replaces: true, ..TOY });
    let [kept, large] = [8, 40].map(|mib| allocator.allocate(Bytes::mib(mib), THERE).unwrap());
    allocator.free(large).unwrap();
    let exact = allocator.allocate(Bytes::mib(10), HERE).unwrap();
    allocator.check().unwrap();
    assert_eq!((allocator.heap().reserved(), free_mib(&allocator)), (Bytes::mib(18), vec![]));
    assert_eq!((calls(&allocator, CallName::MemUnmap), calls(&allocator, CallName::MemRelease)), (1, 1));
    assert_eq!(allocator.device().used_bytes(), Bytes::mib(18));
    for block in [kept, exact] {
        allocator.free(block).unwrap();
    }
}

/// Before it takes new memory, the allocator retries releases that have failed, so it still serves the request.
#[test]
fn a_replaced_handle_that_is_not_released_at_first_does_not_fail_the_request() {
    let mut allocator = on(64, Toy { replaces: true, ..TOY });
    let blocks = [24, 8, 24].map(|mib| allocator.allocate(Bytes::mib(mib), THERE).unwrap());
    let [first, kept, last] = blocks;
    allocator.free(first).unwrap();
    allocator.free(last).unwrap();
    allocator.device_mut().set_fault_plan(FaultPlan::none().and(When::NthOf(CallName::MemRelease, 1), FaultError::Code(719)));
    let served = allocator.allocate(Bytes::mib(56), HERE).unwrap();
    allocator.check().unwrap();
    assert_eq!((allocator.heap().reserved(), calls(&allocator, CallName::MemRelease)), (Bytes::mib(64), 3), "one failed");
    for block in [kept, served] {
        allocator.free(block).unwrap();
    }
    allocator.release_cached().unwrap();
    assert_eq!(allocator.device().used_bytes(), Bytes::ZERO);
}
