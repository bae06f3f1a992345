//! Memory: requests, frees, uses by other streams, cached memory, and the limit.

use std::ffi::c_void;
use std::ptr;

use parkade::policy::Policy;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_shared::ByAddress;

use super::{answer, id, ours, place};
use crate::callbacks::{Told, User, run_noting_frees};
use crate::device::Device;
use crate::failure::Failure;
use crate::serve::{Core, is_capturing, parkade_allocator, with_core, with_core_so};
use crate::types::parkade_status::{self, *};
use crate::types::{
    parkade_block_info, parkade_free_memory, parkade_observer, parkade_pool, parkade_request, parkade_rescue_observer,
};

/// Serves a request of `bytes` for `stream`, as PyTorch's tensor path does, and writes the address to `out`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_allocate(
    allocator: *mut parkade_allocator,
    bytes: u64,
    stream: u64,
    out: *mut *mut c_void,
) -> parkade_status {
    let request = parkade_request { bytes, stream, flags: 0, pool: parkade_pool::default() };
    // SAFETY: as the caller guarantees; the request is a local.
    unsafe { parkade_serve(allocator, &raw const request, out) }
}

/// Serves a request with flags or a pool, and writes the address to `out`. Like every call with flags, it fails with
/// `PARKADE_INVALID_ARGUMENT` for unknown flags.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `request` is null or readable, `out` null
/// or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_serve(
    allocator: *mut parkade_allocator,
    request: *const parkade_request,
    out: *mut *mut c_void,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, request, out) =
            unsafe { (ours(allocator)?, request.as_ref(), place(out, "the output pointer for the address")?) };
        let request = request.ok_or_else(|| super::null("the request"))?;
        let address = allocator.allocate(request)?;
        *out = address.map_or(ptr::null_mut(), |address| ptr::with_exposed_provenance_mut(address.get() as usize));
        Ok(())
    })
}

/// Serves a request at `at`, a multiple of 512, from a free block in the request's pool and stream that has enough
/// bytes from there onwards, and writes the address to `out`. Writes null if there is no such block, and does not ask
/// the device for memory. Like PyTorch's `allocateWithAddress`, it first hands out the memory before `at` and takes it
/// back afterwards; observers see both.
///
/// # Safety
/// As for `parkade_serve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_serve_at(
    allocator: *mut parkade_allocator,
    request: *const parkade_request,
    at: *mut c_void,
    out: *mut *mut c_void,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, request, out) =
            unsafe { (ours(allocator)?, request.as_ref(), place(out, "the output pointer for the address")?) };
        let request = request.ok_or_else(|| super::null("the request"))?;
        let address = allocator.allocate_at(request, DeviceAddress(at.addr() as u64))?;
        *out = address.map_or(ptr::null_mut(), |address| ptr::with_exposed_provenance_mut(address.get() as usize));
        Ok(())
    })
}

/// Frees a block. Does nothing for null, or in a forked child, because the memory belongs to the parent.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed. The caller has recorded all work on other
/// streams that uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_free(allocator: *mut parkade_allocator, address: *mut c_void) -> parkade_status {
    if address.is_null() {
        return PARKADE_OK;
    }
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        unsafe { ours(allocator) }?.free(DeviceAddress(address.addr() as u64))
    })
}

/// Like `parkade_free`, but takes `PARKADE_CAPTURING` or 0 as flags; fails for other flags.
///
/// # Safety
/// As for `parkade_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_free_so(allocator: *mut parkade_allocator, address: *mut c_void, flags: u32) -> parkade_status {
    answer(|| {
        if address.is_null() {
            return is_capturing(flags).map(drop);
        }
        // SAFETY: null or valid, as the caller guarantees.
        unsafe { ours(allocator) }?.free_so(DeviceAddress(address.addr() as u64), flags)
    })
}

/// Records that work on `stream` uses the block. After the block is freed, it stays pending until that work is done.
/// The flags are `PARKADE_CAPTURING` or 0; the call fails for other flags.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_record_stream(
    allocator: *mut parkade_allocator,
    address: *mut c_void,
    stream: u64,
    flags: u32,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        let address = DeviceAddress(address.addr() as u64);
        let recorded = with_core_so!(allocator, flags, core => core.record_stream(address, StreamId(stream)))?;
        recorded.map_err(|error| Failure::new(PARKADE_UNKNOWN_ADDRESS, error))
    })
}

/// Like `parkade_record_stream`, but for a stream of the GPU with the index `device`, which may differ from the
/// allocator's GPU. 0 is the default stream of that GPU. Like PyTorch, the policy `pytorch` ignores a stream with the
/// same handle as the block's stream. If the block was allocated for the default stream, it therefore also ignores the
/// default streams of other GPUs. After the first stream of another GPU, the allocator no longer breaks handles. Work
/// on other GPUs' streams must be done before the allocator is destroyed.
///
/// # Safety
/// As for `parkade_record_stream`; the stream belongs to that GPU's primary context, and exists for as long as it has
/// work that uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_record_stream_of(
    allocator: *mut parkade_allocator,
    address: *mut c_void,
    device: u32,
    stream: u64,
    flags: u32,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        let address = DeviceAddress(address.addr() as u64);
        let compares_handles = matches!(allocator.core, Core::PyTorch(_));
        with_core_so!(allocator, flags, core => record_elsewhere(core, address, device, stream, compares_handles))?
    })
}

/// Records a stream of any GPU. If the policy compares handles, the handle for which the block was allocated never
/// counts as a handle of another GPU.
fn record_elsewhere<P: Policy>(
    core: &mut ByAddress<Device, P, Told>,
    address: DeviceAddress,
    device: u32,
    stream: u64,
    compares_handles: bool,
) -> Result<(), Failure> {
    let unknown = |error| Failure::new(PARKADE_UNKNOWN_ADDRESS, error);
    if compares_handles && core.block(address).map_err(unknown)?.stream.0 == stream {
        return Ok(());
    }
    let id = core.allocator_mut().device_mut().stream_elsewhere(device, stream)?;
    core.record_stream(address, id).map_err(unknown)
}

/// Writes what the allocator knows about an allocated block and its segment to `out`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_block(
    allocator: *mut parkade_allocator,
    address: *const c_void,
    out: *mut parkade_block_info,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, out) = unsafe { (ours(allocator)?, place(out, "the output pointer for the block")?) };
        let address = DeviceAddress(address.addr() as u64);
        let found = with_core!(allocator, core => core.block(address))?;
        let placed = found.map_err(|error| Failure::new(PARKADE_UNKNOWN_ADDRESS, error))?;
        *out = parkade_block_info {
            size: placed.block.size.get(),
            requested: placed.block.requested.get(),
            segment: placed.segment.get(),
            segment_size: placed.segment_size.get(),
            is_expandable: placed.is_expandable,
        };
        Ok(())
    })
}

/// Returns cached memory to the device: all of it, or the memory of one private pool without uses. The flags are
/// `PARKADE_CAPTURING` or 0; the call fails for other flags.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `pool` is null or
/// readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_empty_cache(
    allocator: *mut parkade_allocator,
    pool: *const parkade_pool,
    flags: u32,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, pool) = unsafe { (ours(allocator)?, pool.as_ref()) };
        let released = with_core_so!(allocator, flags, core => match pool {
            None => core.allocator_mut().release_cached(),
            Some(pool) => core.allocator_mut().release_cached_pool(id(*pool)),
        })?;
        released.map_err(|error| Failure::of_request(&error, allocator.profile))
    })
}

/// Limits the memory taken from the device to a fraction of its total memory, from 0 to 1; 1 removes the limit.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_set_memory_fraction(allocator: *mut parkade_allocator, fraction: f64) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        let set = with_core!(allocator, core => core.allocator_mut().set_memory_fraction(fraction))?;
        set.map_err(|error| Failure::new(PARKADE_INVALID_ARGUMENT, error.message(allocator.profile)))
    })
}

/// Writes the limit as a fraction of the device's total memory to `out`; 1 if there is no limit.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_memory_fraction(allocator: *mut parkade_allocator, out: *mut f64) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, out) = unsafe { (ours(allocator)?, place(out, "the output pointer for the fraction")?) };
        *out = with_core!(allocator, core => core.allocator().memory_fraction())?;
        Ok(())
    })
}

/// Limits the memory taken from the device to this many bytes; 0 removes the limit.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_set_limit(allocator: *mut parkade_allocator, limit_bytes: u64) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        let limit = (limit_bytes != 0).then_some(Bytes(limit_bytes));
        with_core!(allocator, core => core.allocator_mut().set_limit(limit))
    })
}

/// Grants another GPU access to the allocator's current and future expandable segments.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_let_peer_access(allocator: *mut parkade_allocator, peer: u32) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        with_core!(allocator, core => core.allocator_mut().device_mut().let_peer_access(peer))?
    })
}

/// Sets the observer, which receives an entry for every action of the allocator; null removes it.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed. The function may be called with `user` on
/// any thread that calls the allocator, until a different observer is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_set_observer(
    allocator: *mut parkade_allocator,
    observer: parkade_observer,
    user: *mut c_void,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        with_core!(allocator, core => core.allocator_mut().observer_mut().set(observer, user))
    })
}

/// Sets the function that is called for each rescued request; null removes it.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed. The function may be called with `user` on
/// any thread that calls the allocator, until a different function is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_set_rescue_observer(
    allocator: *mut parkade_allocator,
    observer: parkade_rescue_observer,
    user: *mut c_void,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        with_core!(allocator, core => core.allocator_mut().observer_mut().set_rescues(observer, user))
    })
}

/// Adds a function that may free memory when no free block serves a request.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed. The function may be called with `user` on
/// any thread that calls the allocator, for as long as the allocator exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_add_free_memory_callback(
    allocator: *mut parkade_allocator,
    callback: parkade_free_memory,
    user: *mut c_void,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        let call = callback.ok_or_else(|| super::null("the callback"))?;
        let (user, number) = (User(user), allocator.number);
        let run = move || {
            let user = user;
            // SAFETY: the program supplied the function for this purpose, with its pointer.
            run_noting_frees(number, || unsafe { call(user.0) })
        };
        with_core!(allocator, core => core.register_free_memory_callback(move |inside| {
            let (answer, freed) = run();
            for address in freed {
                // For the callback, the block is free at this point. An address that no block has is ignored; if an
                // event could not be recorded, the block stays pending.
                let _ = inside.free(DeviceAddress(address));
            }
            answer
        }))
    })
}

/// Returns whether this process was forked from the one that created the allocator.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_is_forked(allocator: *const parkade_allocator) -> bool {
    // SAFETY: null or valid, as the caller guarantees.
    unsafe { allocator.as_ref() }.is_some_and(|allocator| allocator.check_process().is_err())
}
