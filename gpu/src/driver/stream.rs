//! Streams: queues of work that run beside each other.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUstream, CUstream_flags, CUstream_st};

use super::context::Context;
use super::{Handle, call};
use crate::error::DriverError;

/// A stream of our own, destroyed when dropped.
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: Handle<CUstream_st>,
}

impl Stream {
    /// A stream that does not wait for the default stream nor lets it wait, like those that PyTorch makes.
    pub(crate) fn create(context: &Arc<Context>) -> Result<Stream, DriverError> {
        let _entered = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        unsafe { call!(context.cuStreamCreate(&raw mut handle, CUstream_flags::CU_STREAM_NON_BLOCKING as u32)) }?;
        Ok(Stream { context: Arc::clone(context), handle: Handle(handle) })
    }

    /// The raw handle as a number, by which the core names the stream.
    pub(crate) fn number(&self) -> u64 {
        self.handle.0.addr() as u64
    }
}

/// Waits until everything that the stream was given is done; without a stream, the default stream.
pub(crate) fn synchronize(context: &Context, stream: Option<&Stream>) -> Result<(), DriverError> {
    let _entered = context.enter()?;
    // SAFETY: the handle lives.
    unsafe { call!(context.cuStreamSynchronize(raw(stream))) }
}

/// The raw handle; without a stream that of the default stream, which is null and always exists.
pub(super) fn raw(stream: Option<&Stream>) -> CUstream {
    stream.map_or(ptr::null_mut(), |stream| stream.handle.0)
}

impl Drop for Stream {
    /// The driver lets what is queued finish.
    fn drop(&mut self) {
        let context = &self.context;
        let Ok(_entered) = context.enter() else { return };
        // SAFETY: created once, destroyed once, and its context still lives. Nobody is left to tell of an error.
        let _: Result<(), DriverError> = unsafe { call!(context.cuStreamDestroy_v2(self.handle.0)) };
    }
}
