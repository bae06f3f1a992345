//! What every driver call needs: result codes, handles, and the macro that makes the call.

use std::ops::RangeInclusive;

use cudarc::driver::sys::CUresult;

use crate::error::DriverError;

/// Driver code: an argument is not valid.
pub(crate) const INVALID_VALUE: u32 = CUresult::CUDA_ERROR_INVALID_VALUE as u32;
/// Driver code: out of memory.
pub(crate) const OUT_OF_MEMORY: u32 = CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32;
/// Driver code: the context was destroyed.
pub(super) const CONTEXT_IS_DESTROYED: u32 = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as u32;
/// Driver code: the stream or event does not exist, or no longer.
pub(crate) const INVALID_HANDLE: u32 = CUresult::CUDA_ERROR_INVALID_HANDLE as u32;
/// Driver codes: not while a graph is captured.
pub(crate) const STREAM_CAPTURE_CODES: RangeInclusive<u32> =
    CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as u32;
/// Driver code of a query: not complete yet. Not a failure.
pub(super) const NOT_READY: u32 = CUresult::CUDA_ERROR_NOT_READY as u32;

/// An opaque handle of the driver. It is never dereferenced here.
pub(super) struct Handle<T>(pub(super) *mut T);

// SAFETY: the driver accepts a handle on any thread, and calls from several threads at once. Each of our
// calls makes the right context current first, and nothing is read through the pointer here.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as for `Send`. A shared handle can only be passed to the driver, which does its own locking.
unsafe impl<T> Sync for Handle<T> {}

/// A result code as a result.
pub(super) fn check(call: &'static str, code: u32) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError { call, code }) }
}

/// A number of bytes as the driver's `size_t`.
///
/// # Errors
/// `code`, if it does not fit.
pub(super) fn size_of(call: &'static str, bytes: u64, code: u32) -> Result<usize, DriverError> {
    usize::try_from(bytes).map_err(|_| DriverError { call, code })
}

/// Calls a driver function and counts the call; an error names the function. Use it inside `unsafe`, after
/// `context.enter()` where the function needs a current context: `call!(context.cuMemFree_v2(address))`.
macro_rules! call {
    ($context:ident.$name:ident($($argument:expr),*)) => {{
        $context.count_call();
        $crate::driver::call::check(stringify!($name), ($context.table.$name)($($argument),*))
    }};
}
pub(super) use call;
