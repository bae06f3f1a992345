//! Streams: queues of work that run concurrently.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUstream, CUstream_flags, CUstream_st};

use super::call::{Handle, call};
use super::context::Context;
use crate::error::DriverError;

/// A stream, destroyed when dropped.
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: Handle<CUstream_st>,
}

impl Stream {
    /// Creates a non-blocking stream, which does not synchronize with the default stream, as PyTorch does.
    pub(crate) fn create(context: &Arc<Context>) -> Result<Stream, DriverError> {
        let _entered = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        unsafe { call!(context.cuStreamCreate(&raw mut handle, CUstream_flags::CU_STREAM_NON_BLOCKING as u32)) }?;
        Ok(Stream { context: Arc::clone(context), handle: Handle(handle) })
    }

    /// The raw handle as a number: the core's id of the stream.
    pub(crate) fn number(&self) -> u64 {
        self.handle.0.addr() as u64
    }
}

/// Waits for all work on a stream; `None` is the default stream.
pub(crate) fn synchronize(context: &Context, stream: Option<&Stream>) -> Result<(), DriverError> {
    let _entered = context.enter()?;
    // SAFETY: the handle is live.
    unsafe { call!(context.cuStreamSynchronize(raw(stream))) }
}

/// The raw handle. `None` is the default stream, whose handle is null and always valid.
pub(super) fn raw(stream: Option<&Stream>) -> CUstream {
    stream.map_or(ptr::null_mut(), |stream| stream.handle.0)
}

impl Drop for Stream {
    /// Queued work still runs; the driver does not wait for it.
    fn drop(&mut self) {
        let context = &self.context;
        let Ok(_entered) = context.enter() else { return };
        // SAFETY: created once, destroyed once, and its context is alive. An error cannot be reported.
        let _: Result<(), DriverError> = unsafe { call!(context.cuStreamDestroy_v2(self.handle.0)) };
    }
}
