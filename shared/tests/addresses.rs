//! Tests blocks by address: which addresses the allocator refuses, and with which error.

use std::sync::mpsc::channel;

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade::{AllocError, Allocator, PoolFilter};
use parkade_shared::{AddressError, ByAddress, Error};
use parkade_sim::{CallName, EventTiming, FaultError, FaultPlan, SimDevice, SimOptions, When};

type Core = ByAddress<SimDevice, PyTorch>;

fn core() -> Core {
    let device = SimDevice::new(SimOptions::new(Bytes::mib(256)).event_timing(EventTiming::Lazy));
    ByAddress::new(Allocator::new(device, PyTorch::new(Settings::default()), ()))
}

fn allocate(core: &mut Core, bytes: u64) -> DeviceAddress {
    core.allocate(Bytes(bytes), StreamId::DEFAULT).expect("there is memory")
}

#[test]
fn a_block_is_freed_by_its_address_once() {
    let mut core = core();
    let address = allocate(&mut core, 1_000);
    assert_eq!(core.free(address), Ok(()));
    assert_eq!(core.free(address), Err(Error::Address(AddressError::NotAllocated { address })));
    assert_eq!(allocate(&mut core, 1_000), address, "the block is free");
    assert_eq!(core.free(address), Ok(()));
}

#[test]
fn the_middle_of_a_block_is_refused_and_changes_nothing() {
    let mut core = core();
    let block = allocate(&mut core, 5_000);
    for offset in [1, 512, 5_119] {
        let address = block.offset(Bytes(offset));
        let inside = AddressError::Inside { address, block, size: Bytes(5_120) };
        assert_eq!(core.free(address), Err(Error::Address(inside)));
        assert_eq!(core.record_stream(address, StreamId(7)), Err(inside));
    }
    let rest = block.offset(Bytes(5_120));
    assert_eq!(core.free(rest), Err(Error::Address(AddressError::NotAllocated { address: rest })), "the remainder is free");
    assert_eq!(core.free(block), Ok(()));
}

#[test]
fn addresses_of_no_segment_are_foreign() {
    let mut core = core();
    let block = allocate(&mut core, 1_000);
    let after = block.offset(Bytes::mib(2));
    for address in [DeviceAddress(0), DeviceAddress(u64::MAX), after] {
        assert_eq!(core.free(address), Err(Error::Address(AddressError::Foreign { address })));
    }
    core.free(block).expect("it is allocated");
    core.allocator_mut().release_cached().expect("the device works");
    assert_eq!(core.free(block), Err(Error::Address(AddressError::Foreign { address: block })), "its segment was released");
}

#[test]
fn a_block_that_waits_for_events_is_not_allocated_any_more() {
    let mut core = core();
    let address = allocate(&mut core, 1_000);
    core.record_stream(address, StreamId(7)).expect("it is allocated");
    core.free(address).expect("it is allocated");
    assert_eq!(core.free(address), Err(Error::Address(AddressError::NotAllocated { address })));
    assert_ne!(allocate(&mut core, 1_000), address, "it waits");
}

#[test]
fn an_event_that_cannot_be_recorded_leaves_the_block_pending() {
    let mut core = core();
    let address = allocate(&mut core, 1_000);
    core.record_stream(address, StreamId(7)).expect("it is allocated");
    let plan = FaultPlan::none().and(When::NthOf(CallName::EventRecord, 1), FaultError::Code(719));
    core.allocator_mut().device_mut().set_fault_plan(plan);
    assert!(matches!(core.free(address), Err(Error::Pending(_))));
    assert_eq!(core.free(address), Err(Error::Address(AddressError::NotAllocated { address })), "the restore took it back");
}

#[test]
fn a_request_that_fails_is_the_allocators_error() {
    let mut core = core();
    assert_eq!(core.allocate(Bytes::ZERO, StreamId::DEFAULT), Err(AllocError::ZeroSize));
    assert!(matches!(core.allocate(Bytes(1 << 60), StreamId::DEFAULT), Err(AllocError::TooLarge { .. })));
    assert!(matches!(core.raw_allocate(Bytes(1 << 60), StreamId::DEFAULT), Err(AllocError::OutOfMemory(_))));
}

#[test]
fn blocks_change_between_handle_and_address() {
    let mut core = core();
    let handle = core.allocator_mut().allocate(Bytes(1_000), StreamId::DEFAULT).expect("there is memory");
    let address = handle.address();
    assert_eq!(core.free(address), Err(Error::Address(AddressError::HeldByHandle { address })));
    assert_eq!(core.hold(handle), address);
    let handle = core.release(address).expect("it is held by its address");
    assert_eq!(core.record_stream(address, StreamId(7)), Err(AddressError::HeldByHandle { address }));
    core.allocator_mut().free(handle).expect("it is allocated");
}

#[test]
fn a_handle_of_another_allocator_is_refused_when_it_is_freed() {
    let (mut core, mut other) = (core(), core());
    let address = allocate(&mut other, 1_000);
    let handle = other.release(address).expect("it is held by its address");
    core.hold(handle);
    assert_eq!(core.free(address), Err(Error::Address(AddressError::Foreign { address })));
}

/// A restored pool has the blocks of the checkpoint, with new handles, and none of its blocks from before the restore.
#[test]
fn restored_blocks_are_freed_by_their_addresses() {
    let (mut core, pool) = (core(), PoolId(0, 1));
    core.allocator_mut().begin_pool(pool, PoolFilter::All).expect("a new pool");
    let kept = allocate(&mut core, 1_000);
    core.allocator_mut().end_pool(pool).expect("requests are routed there");
    let checkpoint = core.allocator_mut().checkpoint_pool(pool).expect("no block waits");
    core.free(kept).expect("it is allocated");
    core.allocator_mut().begin_pool(pool, PoolFilter::All).expect("the pool exists");
    let (first, second) = (allocate(&mut core, 1_000), allocate(&mut core, 1_000));
    core.allocator_mut().end_pool(pool).expect("requests are routed there");
    assert_eq!(first, kept);

    let restored = core.restore_pool(&checkpoint).expect("its segments exist");
    assert_eq!((restored.freed, restored.allocated), (vec![first, second], vec![kept]));
    assert_eq!(
        core.free(second),
        Err(Error::Address(AddressError::NotAllocated { address: second })),
        "the restore took it \
                                                                                                        back"
    );
    assert_eq!(core.free(kept), Ok(()));
    assert_eq!(core.free(kept), Err(Error::Address(AddressError::NotAllocated { address: kept })));
}

/// The test bypasses the table when it restores the pool, so the table's handle for the block becomes invalid.
#[test]
fn a_stream_is_not_recorded_for_a_handle_that_is_void() {
    let mut core = core();
    let pool = PoolId(1, 0);
    core.allocator_mut().begin_pool(pool, PoolFilter::All).expect("the first");
    let address = allocate(&mut core, 1_000);
    core.allocator_mut().end_pool(pool).expect("it is routed to");
    let checkpoint = core.allocator_mut().checkpoint_pool(pool).expect("no block waits");
    let restored = core.allocator_mut().restore_pool(&checkpoint).expect("its segments exist");
    let elsewhere = Err(AddressError::HeldByHandle { address });
    assert_eq!(core.record_stream(address, StreamId(7)), elsewhere);
    for handle in restored.allocations {
        assert_eq!(core.hold(handle), address);
    }
    assert_eq!(allocate(&mut core, 1_000), address.offset(Bytes::mib(2)), "it is served by the default pool");
    assert_eq!(core.record_stream(address, StreamId(7)), Ok(()));
    assert_eq!(core.free(address), Ok(()));
}

/// A callback of [`ByAddress`] frees blocks by their addresses, however the request that it serves was made.
#[test]
fn a_callback_frees_by_address_during_any_request() {
    type Request = fn(&mut Core) -> Result<DeviceAddress, AllocError>;
    const BYTES: Bytes = Bytes::mib(200);
    let requests: [Request; 4] = [
        |core| core.allocate(BYTES, StreamId::DEFAULT),
        |core| core.raw_allocate(BYTES, StreamId::DEFAULT),
        |core| core.allocator_mut().allocate(BYTES, StreamId::DEFAULT).map(|handle| core.hold(handle)),
        |core| core.allocator_mut().raw_allocate(BYTES, StreamId::DEFAULT).map(|handle| core.hold(handle)),
    ];
    for (number, request) in requests.into_iter().enumerate() {
        let mut core = core();
        let spare = core.allocate(BYTES, StreamId::DEFAULT).expect("there is memory");
        let (send, freed) = channel();
        core.register_free_memory_callback(move |inside| {
            send.send([inside.free(spare), inside.free(spare)]).expect("it is received");
            true
        });
        assert_eq!(request(&mut core), Ok(spare), "request {number}");
        let twice = Err(Error::Address(AddressError::NotAllocated { address: spare }));
        assert_eq!(freed.recv(), Ok([Ok(()), twice]), "request {number}");
        assert_eq!(core.free(spare), Ok(()), "it was handed out again");
    }
}
