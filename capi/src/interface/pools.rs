//! Private pools and their checkpoints.

use std::ffi::c_void;

use parkade::PoolFilter;
use parkade::checkpoint::PoolCheckpoint;
use parkade::units::{DeviceAddress, StreamId};

use super::{answer, id, null, ours, place};
use crate::callbacks::User;
use crate::device::Lender;
use crate::failure::Failure;
use crate::serve::{parkade_allocator, with_core};
use crate::types::parkade_status::{self, PARKADE_INVALID_ARGUMENT};
use crate::types::{parkade_give_back, parkade_pool, parkade_restored, parkade_route, parkade_take};

/// The state of a private pool.
pub struct parkade_checkpoint(PoolCheckpoint);

/// Makes a call on the core's pools and returns the call's status.
macro_rules! on_pools {
    ($allocator:expr, $core:ident => $call:expr) => {
        answer(|| {
            // SAFETY: null or valid, as the caller guarantees.
            let allocator = unsafe { ours($allocator) }?;
            let outcome = with_core!(allocator, core => {
                let $core = core.allocator_mut();
                $call
            })?;
            outcome.map_err(|error| Failure::of_pool(&error, allocator.profile))
        })
    };
}

/// Creates a private pool, or adds a use to it.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_pool_create(allocator: *mut parkade_allocator, pool: parkade_pool) -> parkade_status {
    on_pools!(allocator, core => core.create_pool(id(pool)))
}

/// Routes requests to a pool from now on, and adds a use to it. `route` is a `parkade_route`; `stream` matters only for
/// `PARKADE_ROUTE_STREAM`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_pool_begin(
    allocator: *mut parkade_allocator,
    pool: parkade_pool,
    route: i32,
    stream: u64,
) -> parkade_status {
    let filter = match route {
        _ if route == parkade_route::PARKADE_ROUTE_ALL as i32 => PoolFilter::All,
        _ if route == parkade_route::PARKADE_ROUTE_STREAM as i32 => PoolFilter::Stream(StreamId(stream)),
        _ if route == parkade_route::PARKADE_ROUTE_CHOSEN as i32 => PoolFilter::Chosen,
        _ => return Failure::new(PARKADE_INVALID_ARGUMENT, format!("{route} is not a parkade_route")).keep(),
    };
    on_pools!(allocator, core => core.begin_pool(id(pool), filter))
}

/// Stops routing requests to a pool. This does not remove a use.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_pool_end(allocator: *mut parkade_allocator, pool: parkade_pool) -> parkade_status {
    on_pools!(allocator, core => core.end_pool(id(pool)))
}

/// Removes a use. The memory of a pool without uses is released at the next opportunity.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_pool_release(allocator: *mut parkade_allocator, pool: parkade_pool) -> parkade_status {
    on_pools!(allocator, core => core.release_pool(id(pool)))
}

/// Writes the number of uses of a pool to `out`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_pool_use_count(
    allocator: *mut parkade_allocator,
    pool: parkade_pool,
    out: *mut i64,
) -> parkade_status {
    on_pools!(allocator, core => core.pool_use_count(id(pool)).map(|uses| {
        // SAFETY: null or writable, as the caller guarantees.
        if let Some(out) = unsafe { out.as_mut() } {
            *out = uses;
        }
    }))
}

/// Sets whether a pool's free blocks may serve requests to the default pool when the device is out of memory.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_pool_set_use_on_oom(
    allocator: *mut parkade_allocator,
    pool: parkade_pool,
    serves: bool,
) -> parkade_status {
    on_pools!(allocator, core => {
        core.set_pool_use_on_oom(id(pool), serves);
        Ok(())
    })
}

/// Stops splitting a pool's blocks.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_pool_set_no_split(allocator: *mut parkade_allocator, pool: parkade_pool) -> parkade_status {
    on_pools!(allocator, core => {
        core.set_pool_no_split(id(pool));
        Ok(())
    })
}

/// Sets the source of the memory for a pool's segments: these functions of the program, or the device if `take` is
/// null. This affects only requests that choose the pool with `PARKADE_CHOOSES_POOL`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed. The functions may be called with `user` on
/// any thread that calls the allocator, until all memory from `take` has been returned. The memory that they return is
/// usable by the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_pool_set_memory(
    allocator: *mut parkade_allocator,
    pool: parkade_pool,
    take: parkade_take,
    give_back: parkade_give_back,
    user: *mut c_void,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        let lender = match (take, give_back) {
            (None, _) => None,
            (Some(take), Some(give_back)) => Some(Lender { take, give_back, user: User(user) }),
            (Some(_), None) => return Err(null("the function that frees memory")),
        };
        allocator.set_lender(id(pool), lender);
        Ok(())
    })
}

/// Writes whether exactly these blocks of a pool are allocated to `out`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `addresses` has `count` elements; `out` is
/// null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_pool_live_allocations_are(
    allocator: *mut parkade_allocator,
    pool: parkade_pool,
    addresses: *const u64,
    count: usize,
    out: *mut bool,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, out) = unsafe { (ours(allocator)?, place(out, "the output pointer for the answer")?) };
        // SAFETY: the caller states the number of addresses.
        let expected = if count == 0 { &[] } else { unsafe { slice(addresses, count)? } };
        let expected: Vec<DeviceAddress> = expected.iter().map(|&address| DeviceAddress(address)).collect();
        let answer = with_core!(allocator, core => core.allocator().pool_live_allocations_are(id(pool), &expected))?;
        *out = answer.map_err(|error| Failure::of_checkpoint(&error))?;
        Ok(())
    })
}

/// # Safety
/// `from` is null or has `count` numbers.
unsafe fn slice<'a>(from: *const u64, count: usize) -> Result<&'a [u64], Failure> {
    if from.is_null() {
        return Err(null("the list of addresses"));
    }
    // SAFETY: as the caller guarantees, and not null.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// Saves the state of a private pool. Free the checkpoint with `parkade_checkpoint_free`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_checkpoint_save(
    allocator: *mut parkade_allocator,
    pool: parkade_pool,
    out: *mut *mut parkade_checkpoint,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, out) = unsafe { (ours(allocator)?, place(out, "the output pointer for the checkpoint")?) };
        let saved = with_core!(allocator, core => core.allocator_mut().checkpoint_pool(id(pool)))?;
        let saved = saved.map_err(|error| Failure::of_checkpoint(&error))?;
        *out = Box::into_raw(Box::new(parkade_checkpoint(saved)));
        Ok(())
    })
}

/// Restores a pool. Writes the blocks that were taken back and the blocks that are now handed out to `out`; free these
/// lists with `parkade_restored_free`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed, the checkpoint was
/// created by `parkade_checkpoint_save`, and `out` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_checkpoint_restore(
    allocator: *mut parkade_allocator,
    checkpoint: *const parkade_checkpoint,
    out: *mut parkade_restored,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, checkpoint, out) =
            unsafe { (ours(allocator)?, checkpoint.as_ref(), place(out, "the output pointer for the answer")?) };
        let checkpoint = checkpoint.ok_or_else(|| null("the checkpoint"))?;
        let restored = with_core!(allocator, core => core.restore_pool(&checkpoint.0))?;
        let restored = restored.map_err(|error| Failure::of_checkpoint(&error))?;
        let (freed, freed_count) = leak(restored.freed);
        let (allocated, allocated_count) = leak(restored.allocated);
        *out = parkade_restored { freed, freed_count, allocated, allocated_count };
        Ok(())
    })
}

/// Turns the addresses into a list that C owns.
fn leak(addresses: Vec<DeviceAddress>) -> (*const u64, usize) {
    let list: Box<[u64]> = addresses.into_iter().map(DeviceAddress::get).collect();
    let list = Box::leak(list);
    (list.as_ptr(), list.len())
}

/// Frees the lists of a restore.
///
/// # Safety
/// `restored` was written by `parkade_checkpoint_restore`, and is freed only once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_restored_free(restored: *mut parkade_restored) {
    // SAFETY: null or valid, as the caller guarantees.
    let Some(restored) = (unsafe { restored.as_mut() }) else { return };
    for (list, count) in [(restored.freed, restored.freed_count), (restored.allocated, restored.allocated_count)] {
        if !list.is_null() {
            // SAFETY: leaked by `leak` with this length.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list.cast_mut(), count)) });
        }
    }
    *restored = parkade_restored { freed: std::ptr::null(), freed_count: 0, allocated: std::ptr::null(), allocated_count: 0 };
}

/// Frees a checkpoint. Does nothing for null.
///
/// # Safety
/// The checkpoint was created by `parkade_checkpoint_save` and is freed only once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_checkpoint_free(checkpoint: *mut parkade_checkpoint) {
    if !checkpoint.is_null() {
        // SAFETY: created from a box, and freed only once.
        drop(unsafe { Box::from_raw(checkpoint) });
    }
}
