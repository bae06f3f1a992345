//! Checkpoints of private pools: PyTorch's own tests of them (TestBlockStateAbsorption, spec 12.3) under
//! their names, each with segments of fixed size and with expandable ones, and what those leave open.

use crate::device::PlainDevice;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade::{Allocation, Allocator, CheckpointError, FreeError, PoolFilter};

type Core = Allocator<PlainDevice, PyTorch, Vec<TraceEntry>>;

const POOL: PoolId = PoolId(1, 0);
const MIN_BLOCK_SIZE: Bytes = Bytes(512);
const SMALL_SIZE: Bytes = Bytes::mib(1);
const SMALL_BUFFER: Bytes = Bytes::mib(2);
const LARGE_BUFFER: Bytes = Bytes::mib(20);

fn core(settings: &str) -> Core {
    core_at(settings, 1 << 44)
}

fn core_at(settings: &str, first_address: u64) -> Core {
    let mut parsed = Settings::default();
    parsed.apply(settings).expect("legal settings");
    let mut core = Allocator::new(PlainDevice::new(Bytes::mib(1024), first_address), PyTorch::new(parsed), Vec::new());
    core.create_pool(POOL).expect("a new pool");
    core
}

/// Both kinds of segments.
fn cores() -> [Core; 2] {
    [core(""), core("expandable_segments:True")]
}

fn allocate(core: &mut Core, size: Bytes) -> Allocation {
    core.begin_pool(POOL, PoolFilter::All).expect("not routed to");
    let allocation = core.allocate(size, StreamId::DEFAULT).expect("there is room");
    core.end_pool(POOL).expect("routed to");
    core.release_pool(POOL).expect("in use");
    allocation
}

fn several(core: &mut Core, size: Bytes, count: usize) -> Vec<Allocation> {
    (0..count).map(|_| allocate(core, size)).collect()
}

/// Gives back all but those at the given places.
fn keep(core: &mut Core, all: Vec<Allocation>, places: &[usize]) -> Vec<Allocation> {
    let (kept, rest): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(place, _)| places.contains(place));
    rest.into_iter().for_each(|(_, allocation)| core.free(allocation).expect("ours"));
    kept.into_iter().map(|(_, allocation)| allocation).collect()
}

/// Addresses and states of the pool's blocks; requested sizes are not restored (spec 5.8).
fn layout(core: &Core) -> Vec<(u64, Vec<(u64, BlockActivity)>)> {
    let segments = core.segments().into_iter().filter(|segment| segment.pool == POOL);
    let blocks = |segment: &SegmentInfo| segment.blocks.iter().map(|block| (block.size.get(), block.state)).collect();
    segments.map(|segment| (segment.address.get(), blocks(&segment))).collect()
}

fn live_blocks(core: &Core) -> usize {
    layout(core).iter().flat_map(|(_, blocks)| blocks).filter(|block| block.1 == BlockActivity::Allocated).count()
}

fn addresses(all: &[Allocation]) -> Vec<DeviceAddress> {
    let mut addresses: Vec<DeviceAddress> = all.iter().map(Allocation::address).collect();
    addresses.sort_unstable();
    addresses
}

/// Runs the function, saves the pool, restores it: everything is as it was (checkFunction). Then runs the
/// function again on top and restores once more: the same blocks are handed out, and no others.
fn check_function(function: impl Fn(&mut Core) -> Vec<Allocation>) {
    for mut core in cores() {
        let outputs = function(&mut core);
        let before = layout(&core);
        let state = core.checkpoint_pool(POOL).expect("nothing waits");
        let restored = core.restore_pool(&state).expect("nothing has changed");
        core.check().expect("a valid heap");
        assert_eq!(layout(&core), before);
        assert_eq!(addresses(&restored.allocations), addresses(&outputs));
        let more = function(&mut core);
        assert_ne!(layout(&core), before, "the second run changes the layout");
        let again = core.restore_pool(&state).expect("the pool has only grown");
        core.check().expect("a valid heap");
        assert_eq!(again.freed.len(), restored.allocations.len() + more.len());
        assert_eq!(addresses(&again.allocations), addresses(&outputs));
        assert_eq!(live_blocks(&core), outputs.len());
        for allocation in again.allocations {
            core.free(allocation).expect("restored blocks count as handed out");
            core.check().expect("a valid heap");
        }
        assert_eq!(live_blocks(&core), 0);
    }
}

#[test]
fn simple() {
    check_function(|core| {
        // x = zeros(8 SMALL_SIZE); x = x + x; three sums of temporaries; y; z
        let x = allocate(core, Bytes(8 * SMALL_SIZE.get()));
        let twice = allocate(core, Bytes(8 * SMALL_SIZE.get()));
        core.free(x).expect("ours");
        let parts = several(core, SMALL_SIZE, 5);
        let x1 = keep(core, parts, &[4]);
        let term = allocate(core, SMALL_SIZE);
        let y = allocate(core, SMALL_SIZE);
        x1.into_iter().chain([term]).for_each(|allocation| core.free(allocation).expect("ours"));
        let z = allocate(core, SMALL_SIZE);
        vec![twice, y, z]
    });
}

#[test]
fn allocated_in_middle_of_segment() {
    check_function(|core| {
        let buffers = several(core, MIN_BLOCK_SIZE, 11);
        keep(core, buffers, &[5])
    });
}

#[test]
fn multiple_middle_allocations() {
    check_function(|core| {
        let buffers = several(core, MIN_BLOCK_SIZE, 11);
        keep(core, buffers, &[5, 8])
    });
}

#[test]
fn middle_allocations_contiguous() {
    check_function(|core| {
        let buffers = several(core, MIN_BLOCK_SIZE, 11);
        keep(core, buffers, &[5, 6])
    });
}

#[test]
fn additional_free_following_checkpoint() {
    for mut core in cores() {
        let output = allocate(&mut core, MIN_BLOCK_SIZE);
        let before = layout(&core);
        let state = core.checkpoint_pool(POOL).expect("nothing waits");
        let later = allocate(&mut core, MIN_BLOCK_SIZE);
        let restored = core.restore_pool(&state).expect("it fits");
        assert_eq!(restored.freed, [output.address(), later.address()]);
        assert_eq!(layout(&core), before);
    }
}

#[test]
fn tensor_dies_after_checkpoint() {
    for mut core in cores() {
        let outputs = several(&mut core, MIN_BLOCK_SIZE, 2);
        let state = core.checkpoint_pool(POOL).expect("nothing waits");
        keep(&mut core, outputs, &[]);
        assert_eq!(live_blocks(&core), 0);
        let restored = core.restore_pool(&state).expect("it fits");
        assert!(restored.freed.is_empty());
        assert_eq!(live_blocks(&core), 2);
        for (allocation, left) in restored.allocations.into_iter().zip([1, 0]) {
            core.free(allocation).expect("a restored block");
            core.check().expect("a valid heap");
            assert_eq!(live_blocks(&core), left);
        }
    }
}

#[test]
fn assigning_back_deleter_fns_to_tensor() {
    for mut core in cores() {
        let mut outputs: Vec<Allocation> = Vec::new();
        for size in [SMALL_BUFFER, SMALL_BUFFER, LARGE_BUFFER] {
            // int8_cuda(size) + x: the first term dies.
            let term = allocate(&mut core, size);
            outputs.push(allocate(&mut core, size));
            core.free(term).expect("ours");
        }
        let addresses: Vec<DeviceAddress> = outputs.iter().map(Allocation::address).collect();
        let before = layout(&core);
        let state = core.checkpoint_pool(POOL).expect("nothing waits");
        keep(&mut core, outputs, &[]);
        let mut restored = core.restore_pool(&state).expect("it fits").allocations;
        assert_eq!(layout(&core), before);
        assert!(addresses.iter().all(|address| restored.iter().any(|allocation| allocation.address() == *address)));
        for left in [3, 2, 1, 0] {
            assert_eq!(live_blocks(&core), left);
            if let Some(allocation) = restored.pop() {
                core.free(allocation).expect("a restored block");
            }
        }
    }
}

#[test]
fn check_pool_live_allocations() {
    for mut core in cores() {
        let output = allocate(&mut core, Bytes(16));
        let elsewhere = core.allocate(Bytes(16), StreamId::DEFAULT).expect("there is room");
        let address = output.address();
        let check = |core: &Core, live: &[DeviceAddress]| core.pool_live_allocations_are(POOL, live).expect("a pool");
        assert!(check(&core, &[address]));
        assert!(check(&core, &[address, address]), "a set");
        assert!(!check(&core, &[address, DeviceAddress(0)]));
        assert!(!check(&core, &[]));
        assert!(!check(&core, &[elsewhere.address()]), "the default pool's");
        core.free(output).expect("ours");
        assert!(check(&core, &[]));
        assert_eq!(core.pool_live_allocations_are(PoolId(9, 9), &[]), Err(CheckpointError::UnknownPool(PoolId(9, 9))));
        core.free(elsewhere).expect("ours");
    }
}

#[test]
fn expandable_segment_checkpoint_growth() {
    let mut core = core("expandable_segments:True");
    let sizes = |core: &Core| -> Vec<(u64, BlockActivity)> {
        layout(core).iter().flat_map(|(_, blocks)| blocks).map(|&(size, state)| (size >> 20, state)).collect()
    };
    let (used, free) = (BlockActivity::Allocated, BlockActivity::Inactive);
    let first = allocate(&mut core, Bytes::mib(2));
    assert_eq!(sizes(&core), [(2, used), (18, free)]);
    let state = core.checkpoint_pool(POOL).expect("nothing waits");
    core.free(first).expect("ours");
    let _larger = allocate(&mut core, Bytes::mib(32));
    assert_eq!(sizes(&core), [(32, used), (8, free)]);
    let restored = core.restore_pool(&state).expect("it has grown");
    core.check().expect("a valid heap");
    assert_eq!(sizes(&core), [(2, used), (38, free)]);
    assert_eq!(restored.allocations.len(), 1);
}

/// Allocations that a restore takes back are void: they cannot be freed.
#[test]
fn old_allocations_are_void_after_a_restore() {
    for mut core in cores() {
        let old = allocate(&mut core, Bytes::mib(30));
        let state = core.checkpoint_pool(POOL).expect("nothing waits");
        let restored = core.restore_pool(&state).expect("it fits");
        assert_eq!(restored.allocations[0].address(), old.address());
        assert!(matches!(core.free(old), Err(FreeError::NotAllocated(_))));
        assert_eq!(live_blocks(&core), 1);
        for allocation in restored.allocations {
            core.free(allocation).expect("the new holder");
        }
    }
}

/// Every refusal, with PyTorch's text, changes nothing.
#[test]
fn what_does_not_fit_is_refused() {
    let refused = |core: &mut Core, state: &parkade::PoolCheckpoint, text: &str| {
        let (segments, stats) = (core.segments(), core.stats().clone());
        let error = core.restore_pool(state).expect_err("it cannot be restored");
        assert_eq!(error.to_string(), text);
        assert_eq!((core.segments(), core.stats()), (segments, &stats));
        core.check().expect("a valid heap");
    };
    for mut core in cores() {
        assert_eq!(core.checkpoint_pool(PoolId::DEFAULT), Err(CheckpointError::UnknownPool(PoolId::DEFAULT)));
        let low = allocate(&mut core, Bytes::mib(2));
        let high = allocate(&mut core, Bytes::mib(18));
        let state = core.checkpoint_pool(POOL).expect("nothing waits");
        // Another allocator's checkpoint: the addresses differ.
        let mut other = core_at("", 1 << 45);
        let foreign = allocate(&mut other, Bytes::mib(2));
        let theirs = other.checkpoint_pool(POOL).expect("nothing waits");
        refused(&mut core, &theirs, &format!(" could not find {:#x}", foreign.address().get()));
        // Memory that another stream uses does not become free at once.
        core.record_stream(&high, StreamId(1));
        refused(&mut core, &state, "Events should have synchronized when setting checkpointed block");
        core.record_stream(&low, StreamId(1));
        refused(&mut core, &state, &format!(" could not find {:#x}", low.address().get()));
        core.free(high).expect("ours");
        assert_eq!(
            core.checkpoint_pool(POOL).expect_err("an event waits").to_string(),
            "Events should have synchronized when checkpointing block"
        );
        core.free(low).expect("ours");
        core.release_pool(POOL).expect("in use");
        refused(&mut core, &state, "Not expected to checkpoint freeable graph");
        core.release_cached().expect("a device");
        refused(&mut core, &state, "Could not find private pool id");
        assert_eq!(core.checkpoint_pool(POOL).expect_err("gone").to_string(), "Could not find pool of id");
    }
}

/// An expandable segment whose growth is in use by another stream keeps it, if it is one block; more than
/// that is refused.
#[test]
fn a_tail_that_waits_is_kept_or_refused() {
    let grown = |sizes: [u64; 2]| {
        let mut core = core("expandable_segments:True");
        let _low = several(&mut core, Bytes::mib(10), 2);
        let state = core.checkpoint_pool(POOL).expect("nothing waits");
        for size in sizes.into_iter().filter(|&size| size != 0) {
            let more = allocate(&mut core, Bytes::mib(size));
            core.record_stream(&more, StreamId(1));
        }
        let outcome = core.restore_pool(&state);
        core.check().expect("a valid heap");
        (outcome, live_blocks(&core))
    };
    let (kept, live) = grown([20, 0]);
    assert_eq!((kept.expect("one block").allocations.len(), live), (2, 2));
    let (refused, live) = grown([10, 10]);
    assert_eq!(refused.expect_err("two blocks").to_string(), "Invalid expandable segment structure during checkpoint restore");
    assert_eq!(live, 4);
}

/// The one error that changes something: everything was taken back, and the block waits for its event.
#[test]
fn an_event_that_cannot_be_recorded_leaves_a_valid_heap() {
    for mut core in cores() {
        let _kept = allocate(&mut core, Bytes::mib(2));
        let state = core.checkpoint_pool(POOL).expect("nothing waits");
        let _filler = allocate(&mut core, Bytes::mib(18));
        let later = allocate(&mut core, Bytes::mib(20));
        core.record_stream(&later, StreamId(1));
        core.device_mut().refuses_events = true;
        assert!(matches!(core.restore_pool(&state), Err(CheckpointError::Device(_))));
        core.check().expect("a valid heap");
        assert_eq!(live_blocks(&core), 0);
        core.device_mut().is_idle = true;
        core.process_events().expect("a device");
        assert!(core.restore_pool(&state).is_ok(), "a later attempt succeeds");
        core.check().expect("a valid heap");
        assert_eq!(live_blocks(&core), 1);
    }
}

/// No saved pool has a block of 0 bytes. PyTorch makes a block without bytes of it (fidelity.md, section 5).
#[test]
fn a_saved_block_of_0_bytes_is_refused() {
    for mut core in cores() {
        let saved = allocate(&mut core, SMALL_SIZE);
        let address = saved.address();
        let mut state = core.checkpoint_pool(POOL).expect("nothing waits");
        core.free(saved).expect("ours");
        let mut empty = state.segments[0].blocks[0];
        empty.size = Bytes::ZERO;
        state.segments[0].blocks.insert(0, empty);
        assert_eq!(core.restore_pool(&state), Err(CheckpointError::SizeDiffers(address)));
        core.check().expect("a valid heap");
        assert_eq!(live_blocks(&core), 0);
    }
}

/// A saved block that meets one which waits for another stream is refused as that, where it would begin
/// there; where the cuts differ, as that.
#[test]
fn a_block_that_waits_is_told_from_one_that_is_cut_otherwise() {
    for (first_saved, expected) in
        [(512, CheckpointError::BlockPending as fn(DeviceAddress) -> _), (1 << 20, CheckpointError::SizeDiffers)]
    {
        let mut core = core("");
        let saved: Vec<Allocation> = [first_saved, 1 << 20].map(|bytes| allocate(&mut core, Bytes(bytes))).into();
        let start = saved[0].address();
        let state = core.checkpoint_pool(POOL).expect("nothing waits");
        for allocation in saved {
            core.free(allocation).expect("ours");
        }
        let [first, second] = [512, 1 << 20].map(|bytes| allocate(&mut core, Bytes(bytes)));
        core.record_stream(&second, StreamId(7));
        let at = if first_saved == 512 { start.offset(Bytes(512)) } else { start };
        assert_eq!(core.restore_pool(&state), Err(expected(at)), "saved {first_saved} first");
        core.check().expect("a valid heap");
        for allocation in [first, second] {
            core.free(allocation).expect("nothing was taken back");
        }
    }
}
