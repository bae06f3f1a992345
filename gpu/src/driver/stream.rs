//! Streams: queues of work that run concurrently.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUstream, CUstream_flags, CUstream_st};

use super::call::{Handle, NOT_READY, call};
use super::context::Context;
use crate::error::DriverError;

/// A stream, destroyed when dropped if it was created here.
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: Handle<CUstream_st>,
    /// Whether it was created here.
    is_own: bool,
}

/// The promise that every stream handle that a device is given is one: [`CudaDevice::trust_streams`](crate::CudaDevice::trust_streams).
#[derive(Clone, Copy, Debug)]
pub struct StreamsAreValid(());

impl StreamsAreValid {
    /// Makes the promise.
    ///
    /// # Safety
    /// Each handle that the device is then given must be that of a stream of its context, or, for
    /// [`CudaDevice::stream_elsewhere`](crate::CudaDevice::stream_elsewhere), of the primary context of the device that is named,
    /// which lives for as long as the device may use it: until the memory that was allocated or recorded for it has no work left. The driver does
    /// not check handles. While such a stream takes part in the capture of a graph, no other thread may give work to a stream of that capture
    /// during a call of the allocator: CUDA asks for it of every graph.
    #[must_use]
    pub const unsafe fn promise() -> StreamsAreValid {
        StreamsAreValid(())
    }
}

/// The promise that while the allocator serves a call, nobody else gives the device work that uses its memory:
/// [`CudaDevice::trust_work`](crate::CudaDevice::trust_work).
#[derive(Clone, Copy, Debug)]
pub struct WorkIsSerial(());

impl WorkIsSerial {
    /// Makes the promise.
    ///
    /// # Safety
    /// While the allocator serves a call that asks for memory or routes requests to a private pool, no other thread may queue work
    /// on the device that uses memory of the allocator, no other device may use it, and it may not be registered elsewhere, as for RDMA: the memory behind
    /// addresses that are in use can be replaced meanwhile, and what is written in between is lost.
    #[must_use]
    pub const unsafe fn promise() -> WorkIsSerial {
        WorkIsSerial(())
    }
}

impl Stream {
    /// Creates a non-blocking stream, which does not synchronize with the default stream, as PyTorch does.
    pub(crate) fn create(context: &Arc<Context>) -> Result<Stream, DriverError> {
        let _entered = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        unsafe { call!(context.cuStreamCreate(&raw mut handle, CUstream_flags::CU_STREAM_NON_BLOCKING as u32)) }?;
        Ok(Stream { context: Arc::clone(context), handle: Handle(handle), is_own: true })
    }

    /// A stream that somebody else created.
    pub(crate) fn foreign(context: &Arc<Context>, number: u64, _: StreamsAreValid) -> Stream {
        let handle = ptr::with_exposed_provenance_mut(number as usize);
        Stream { context: Arc::clone(context), handle: Handle(handle), is_own: false }
    }

    /// Its context.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The raw handle as a number: the core's id of the stream.
    pub(crate) fn number(&self) -> u64 {
        self.handle.0.addr() as u64
    }
}

/// Waits for all work on a stream; `None` is the default stream of the context.
pub(crate) fn synchronize(context: &Arc<Context>, stream: Option<&Stream>) -> Result<(), DriverError> {
    let context = stream.map_or(context, Stream::context);
    let _entered = context.enter()?;
    // SAFETY: the handle is live.
    unsafe { call!(context.cuStreamSynchronize(raw(stream))) }
}

/// Whether a stream has no work left; `None` is the default stream of the context.
pub(crate) fn is_idle(context: &Arc<Context>, stream: Option<&Stream>) -> Result<bool, DriverError> {
    let context = stream.map_or(context, Stream::context);
    let _entered = context.enter()?;
    // SAFETY: the handle is live.
    match unsafe { call!(context.cuStreamQuery(raw(stream))) } {
        Ok(()) => Ok(true),
        Err(DriverError { code: NOT_READY, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The raw handle. `None` is the default stream, whose handle is null and always valid.
pub(super) fn raw(stream: Option<&Stream>) -> CUstream {
    stream.map_or(ptr::null_mut(), |stream| stream.handle.0)
}

impl Drop for Stream {
    /// Queued work still runs; the driver does not wait for it.
    fn drop(&mut self) {
        let context = &self.context;
        if !self.is_own {
            return;
        }
        let Ok(_entered) = context.enter() else { return };
        // SAFETY: created once, destroyed once, and its context is alive. An error cannot be reported.
        let _: Result<(), DriverError> = unsafe { call!(context.cuStreamDestroy_v2(self.handle.0)) };
    }
}
