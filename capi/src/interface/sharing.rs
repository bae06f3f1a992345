//! Sharing memory of expandable segments between processes: one process shares it, others open it.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};

use parkade::units::{Bytes, DeviceAddress};
use parkade_gpu::SharedMemory;

use super::{answer, null, ours, place};
use crate::failure::Failure;
use crate::serve::{parkade_allocator, with_core};
use crate::types::parkade_shared_handle;
use crate::types::parkade_status::{self, *};

/// Memory of another process that is open in this one.
pub struct parkade_shared {
    memory: SharedMemory,
}

/// Calls `each` for every GPU memory handle under an allocated block in an expandable segment, lowest address first,
/// and writes the address where the first one is mapped. Another process finds the block at the same distance from the
/// start of the memory that it opens. It first duplicates the file descriptors (pidfd_getfd) or receives them
/// (SCM_RIGHTS). They stay open until the handle is unmapped; as long as a forked child has inherited copies of them,
/// the memory stays on the device. The block must stay allocated for as long as another process has it open. The
/// allocator does not break a shared handle.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `first` is null or writable; the function
/// can be called with `user` and does not call the allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_share(
    allocator: *mut parkade_allocator,
    address: *const c_void,
    first: *mut u64,
    each: Option<unsafe extern "C" fn(user: *mut c_void, handle: *const parkade_shared_handle)>,
    user: *mut c_void,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, first) = unsafe { (ours(allocator)?, place(first, "the output pointer for the address")?) };
        let each = each.ok_or_else(|| null("the function"))?;
        let address = DeviceAddress(address.addr() as u64);
        with_core!(allocator, core => {
            let placed = core.block(address).map_err(|error| Failure::new(PARKADE_UNKNOWN_ADDRESS, error))?;
            if !placed.is_expandable {
                return Err(Failure::new(
                    PARKADE_INVALID_ARGUMENT,
                    "the block's segment is not expandable: share it by calling cudaIpcGetMemHandle for its first byte",
                ));
            }
            let handles = core.allocator_mut().device_mut().share(address, placed.block.size)?;
            *first = handles.first().map_or(address.get(), |handle| handle.address.get());
            for handle in handles {
                let handle = parkade_shared_handle { bytes: handle.size.get(), file: handle.file.as_raw_fd() };
                // SAFETY: as the caller guarantees.
                unsafe { each(user, &raw const handle) };
            }
            Ok(())
        })?
    })
}

/// Opens handles of another process's expandable segment on the GPU with the index `device`, at consecutive addresses,
/// and writes their address in this process. The GPUs in `peers` also get access. The file descriptors must be valid in
/// this process, and may be closed afterwards. Close the memory with `parkade_shared_close`; until then, it stays on
/// the device, even if the other process has released it.
///
/// # Safety
/// `handles` and `peers` are null or have `count` and `peer_count` readable, aligned elements that nothing changes
/// during the call, and the file descriptors are open; `address` and `out` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_shared_open(
    device: u32,
    handles: *const parkade_shared_handle,
    count: usize,
    peers: *const u32,
    peer_count: usize,
    address: *mut *mut c_void,
    out: *mut *mut parkade_shared,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (address, out) =
            unsafe { (place(address, "the output pointer for the address")?, place(out, "the output pointer for the memory")?) };
        if handles.is_null() {
            return Err(null("the handles"));
        }
        // SAFETY: not null, so it has `count` elements, as the caller guarantees.
        let handles = unsafe { std::slice::from_raw_parts(handles, count) };
        // SAFETY: null, or it has `peer_count` elements, as the caller guarantees.
        let peers = if peers.is_null() { &[][..] } else { unsafe { std::slice::from_raw_parts(peers, peer_count) } };
        if handles.is_empty() || handles.iter().any(|handle| handle.file < 0 || handle.bytes == 0) {
            return Err(Failure::new(
                PARKADE_INVALID_ARGUMENT,
                "there is no handle, or a handle has no file descriptor or no \
                                                               size",
            ));
        }
        // SAFETY: open for the duration of the call, as the caller guarantees; -1 was refused.
        let borrowed = |handle: &parkade_shared_handle| (unsafe { BorrowedFd::borrow_raw(handle.file) }, Bytes(handle.bytes));
        let opened = SharedMemory::open(device, &handles.iter().map(borrowed).collect::<Vec<_>>(), peers);
        let memory = opened.map_err(Failure::of_absence)?;
        *address = std::ptr::with_exposed_provenance_mut(memory.address().get() as usize);
        *out = Box::into_raw(Box::new(parkade_shared { memory }));
        Ok(())
    })
}

/// Grants the GPU `peer` access to memory of another process.
///
/// # Safety
/// The memory was opened by `parkade_shared_open` and has not been closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_shared_let_peer_access(shared: *const parkade_shared, peer: u32) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let shared = unsafe { shared.as_ref() }.ok_or_else(|| null("the memory"))?;
        shared.memory.let_peer_access(peer).map_err(|error| Failure::of_device(error.into()))
    })
}

/// Waits for the GPU's work, then unmaps memory of another process. Does nothing for null.
///
/// # Safety
/// The memory was opened by `parkade_shared_open` and is closed only once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_shared_close(shared: *mut parkade_shared) {
    if !shared.is_null() {
        // SAFETY: created from a box, and closed only once.
        let shared = unsafe { Box::from_raw(shared) };
        drop(shared.memory);
    }
}
