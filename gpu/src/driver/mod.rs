//! The CUDA driver behind types that cannot be misused: a context, and the memory, streams and events that live in it.
//!
//! This module and its children are the only ones with unsafe code. What makes their functions safe to call: a handle cannot be
//! made up, only obtained from the driver; whatever lives in a context keeps it alive; a handle is given back once, by
//! its owner; reads and writes stay inside the memory that they name, which is the device's. Work that is queued on memory which
//! is then unmapped fails on the device: to wait for it first is the caller's business, as with the driver itself.

mod context;
mod event;
mod identity;
mod memory;
mod peer;
mod physical;
mod reservation;
mod span;
mod spin;
mod stream;
mod table;

pub(crate) use context::Context;
pub use event::CudaEvent;
pub(crate) use memory::Memory;
pub(crate) use peer::{PEER_ACCESS_NOT_ENABLED, Peer, can_access_peer};
pub use physical::CudaPhysical;
pub(crate) use physical::granularity_bytes;
pub(crate) use reservation::Reservation;
pub(crate) use span::Span;
pub use spin::LONGEST_SPIN_NS;
pub(crate) use spin::Spin;
pub(crate) use stream::{Stream, synchronize as synchronize_stream};

use cudarc::driver::sys::CUresult;

use crate::error::DriverError;

/// Driver code: an argument is not what the call wants.
pub(crate) const INVALID_VALUE: u32 = CUresult::CUDA_ERROR_INVALID_VALUE as u32;
/// Driver code: no room.
pub(crate) const OUT_OF_MEMORY: u32 = CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32;
/// Driver code: a stream or event that does not exist (any more).
pub(crate) const INVALID_HANDLE: u32 = CUresult::CUDA_ERROR_INVALID_HANDLE as u32;
/// Driver code of a query: not yet, which is no failure.
const NOT_READY: u32 = CUresult::CUDA_ERROR_NOT_READY as u32;

/// An opaque handle of the driver's. It is never dereferenced on this side.
struct Handle<T>(*mut T);

// SAFETY: a handle is a name that the driver understands on every thread: its calls may come from any thread and several at
// once, and each of ours makes the right context current first. Nothing is read through the pointer here.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as for `Send`; nothing can be done with a shared handle but pass it to the driver, which has locks of its own.
unsafe impl<T> Sync for Handle<T> {}

/// A result code as a result.
fn check(call: &'static str, code: u32) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError { call, code }) }
}

/// A number of bytes as the driver takes it; `code` if it does not fit.
fn size_of(call: &'static str, bytes: u64, code: u32) -> Result<usize, DriverError> {
    usize::try_from(bytes).map_err(|_| DriverError { call, code })
}

/// Calls a driver function, names it in the error, and counts the call: `call!(context.cuMemFree_v2(address))`, inside `unsafe`.
macro_rules! call {
    ($context:ident.$name:ident($($argument:expr),*)) => {{
        $context.count_call();
        $crate::driver::check(stringify!($name), ($context.table.$name)($($argument),*))
    }};
}
use call;
