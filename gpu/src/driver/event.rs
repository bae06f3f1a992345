//! Events: marks in a stream's queue.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::sys::{CUevent_flags, CUevent_st};

use super::call::{CONTEXT_IS_DESTROYED, Handle, NOT_READY, call};
use super::context::Context;
use super::stream::{Stream, raw};
use crate::error::DriverError;

/// An event of a [`CudaDevice`](crate::CudaDevice), destroyed when dropped. It keeps the device's context
/// alive.
pub struct CudaEvent {
    context: Arc<Context>,
    handle: Handle<CUevent_st>,
}

impl CudaEvent {
    /// Creates an event without time stamps, which is cheaper, as PyTorch's allocator does.
    pub(crate) fn create(context: &Arc<Context>) -> Result<CudaEvent, DriverError> {
        let _entered = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        unsafe { call!(context.cuEventCreate(&raw mut handle, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)) }?;
        context.events.fetch_add(1, Ordering::Relaxed);
        Ok(CudaEvent { context: Arc::clone(context), handle: Handle(handle) })
    }

    /// Records the event on a stream; `None` is the default stream of the context. An event is of one context only, so it is
    /// created anew for a stream of another.
    pub(crate) fn record(&mut self, context: &Arc<Context>, stream: Option<&Stream>) -> Result<(), DriverError> {
        let context = stream.map_or(context, Stream::context);
        if !Arc::ptr_eq(context, &self.context) {
            *self = CudaEvent::create(context)?;
        }
        let _entered = context.enter()?;
        // SAFETY: both handles are live, and of this context.
        unsafe { call!(context.cuEventRecord(self.handle.0, raw(stream))) }
    }

    /// Makes the stream's later work wait for the work before the event. An event never recorded is not
    /// waited for. `None` is the default stream of the context; the event may be of another.
    pub(crate) fn hold_back(&self, context: &Arc<Context>, stream: Option<&Stream>) -> Result<(), DriverError> {
        let context = stream.map_or(context, Stream::context);
        let _entered = context.enter()?;
        // SAFETY: both handles are live. The flags must be 0.
        unsafe { call!(context.cuStreamWaitEvent(raw(stream), self.handle.0, 0)) }
    }

    /// Whether everything before the event is done. True for an event never recorded, and for one of another device than the
    /// `own` context's that was reset: its work is gone.
    pub(crate) fn is_complete(&self, own: &Arc<Context>) -> Result<bool, DriverError> {
        let context = &self.context;
        let _entered = match context.enter() {
            Err(error) if error.code == CONTEXT_IS_DESTROYED && !Arc::ptr_eq(context, own) => return Ok(true),
            entered => entered?,
        };
        // SAFETY: the handle is live.
        match unsafe { call!(context.cuEventQuery(self.handle.0)) } {
            Ok(()) => Ok(true),
            Err(error) if error.code == NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until everything before the event is done.
    pub(crate) fn wait(&self) -> Result<(), DriverError> {
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the handle is live.
        unsafe { call!(context.cuEventSynchronize(self.handle.0)) }
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let context = &self.context;
        let Ok(_entered) = context.enter() else { return };
        // SAFETY: created once, destroyed once, and its context is alive. An error cannot be reported.
        if unsafe { call!(context.cuEventDestroy_v2(self.handle.0)) }.is_ok() {
            context.events.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
