//! Broken handles: whole pages of any size are released, and some answers from a policy are refused.

use parkade::Allocation;

use super::*;

/// Two 36 MiB handles, filled with 6 MiB blocks; the second block in each stays allocated.
fn partly_free(toy: Toy) -> (Allocator<SimDevice, Toy>, Vec<Allocation>) {
    let mut allocator = on(72, Toy { least: 36 * MIB, breaks: true, ..toy });
    let blocks: Vec<Allocation> = (0..12).map(|_| allocator.allocate(Bytes::mib(6), HERE).unwrap()).collect();
    assert_eq!((allocator.heap().reserved(), calls(&allocator, CallName::MemCreate)), (Bytes::mib(72), 2));
    let mut kept = Vec::new();
    for (place, block) in blocks.into_iter().enumerate() {
        if place % 6 == 1 { kept.push(block) } else { allocator.free(block).unwrap() }
    }
    (allocator, kept)
}

#[test]
fn broken_handles_give_their_free_pages_whatever_a_page_is() {
    for page_mib in [2, 4, 6, 12] {
        let (mut allocator, kept) = partly_free(Toy { page_mib, ..TOY });
        // With pages of 4 or 12 MiB, some pages are only partly free.
        let free: u64 = allocator
            .heap()
            .partly_free(PoolSlot::default_pool(PoolClass::Large), Bytes::mib(page_mib))
            .iter()
            .map(|part| part.free.get())
            .sum();
        let large = allocator.allocate(Bytes(free / (page_mib * MIB) * page_mib * MIB), HERE).unwrap();
        allocator.check().unwrap_or_else(|violation| panic!("pages of {page_mib} MiB: {violation}"));
        for block in kept.iter().chain([&large]) {
            allocator.device_mut().fill(block.address(), Bytes::mib(6), 1, HERE).unwrap();
        }
        kept.into_iter().chain([large]).for_each(|block| allocator.free(block).unwrap());
        allocator.release_cached().unwrap();
        allocator.check().unwrap();
        assert_eq!((allocator.heap().reserved(), allocator.device().used_bytes()), (Bytes::ZERO, Bytes::ZERO), "{page_mib}");
    }
    assert!(partly_free(TOY).0.heap().partly_free(PoolSlot::default_pool(PoolClass::Large), Bytes::ZERO).is_empty());
}

#[test]
fn a_handle_that_does_not_exist_or_is_named_twice_is_not_broken() {
    let wrong: [Chosen; 2] = [|partly| vec![partly[0], partly[0]], |partly| vec![DeviceAddress(partly[0].get() + 2 * MIB)]];
    for moved in wrong {
        let (mut allocator, kept) = partly_free(Toy { moved, ..TOY });
        let before = calls(&allocator, CallName::MemUnmap);
        let fault = allocator.allocate(Bytes::mib(40), HERE).unwrap_err();
        assert!(fault.to_string().contains("breaks a handle that does not exist, or breaks one twice"), "{fault}");
        assert_eq!(calls(&allocator, CallName::MemUnmap), before);
        allocator.check().unwrap();
        kept.into_iter().for_each(|block| allocator.free(block).unwrap());
    }
}
