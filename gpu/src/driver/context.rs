//! A device's primary context: the one that the CUDA runtime, and with it PyTorch, uses too.
//!
//! Calls of the driver act on the calling thread's current context. Each of ours makes its own current first and leaves the
//! thread as it was, so that a device may be used from any thread and beside other users of CUDA.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cudarc::driver::sys::{CUcontext, CUctx_st, CUdevice};

use super::table::{Table, table};
use super::{Handle, call, check};
use crate::error::{DriverError, Unavailable};

/// A device's primary context, retained until dropped.
pub(crate) struct Context {
    pub(super) table: &'static Table,
    pub(super) device: CUdevice,
    handle: Handle<CUctx_st>,
    calls: AtomicU64,
    /// Events that live.
    pub(super) events: AtomicUsize,
    /// Physical memory that is ours.
    pub(super) handles: AtomicUsize,
}

impl Context {
    /// Retains the primary context of a device, after a look at whether there are a driver and a device at all.
    pub(crate) fn open(ordinal: u32) -> Result<Arc<Context>, Unavailable> {
        let (table, count) = table_and_count()?;
        let place = i32::try_from(ordinal).ok().filter(|&place| place < count);
        let Some(place) = place else {
            return Err(Unavailable::NoDevice { ordinal, count: u32::try_from(count).unwrap_or(0) });
        };
        let mut device = 0;
        // SAFETY: writes one device through the pointer.
        check("cuDeviceGet", unsafe { (table.cuDeviceGet)(&raw mut device, place) })?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle through the pointer; `device` is the driver's.
        check("cuDevicePrimaryCtxRetain", unsafe { (table.cuDevicePrimaryCtxRetain)(&raw mut handle, device) })?;
        let (events, handles) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Ok(Arc::new(Context { table, device, handle: Handle(handle), calls: AtomicU64::new(0), events, handles }))
    }

    /// How many devices the driver has.
    pub(crate) fn count() -> Result<u32, Unavailable> {
        Ok(u32::try_from(table_and_count()?.1).unwrap_or(0))
    }

    /// Makes the context current on this thread until the answer is dropped.
    pub(super) fn enter(&self) -> Result<Entered<'_>, DriverError> {
        let mut previous = ptr::null_mut();
        // SAFETY: writes one handle, possibly null, through the pointer.
        check("cuCtxGetCurrent", unsafe { (self.table.cuCtxGetCurrent)(&raw mut previous) })?;
        if previous != self.handle.0 {
            // SAFETY: the context is retained while `self` lives.
            check("cuCtxSetCurrent", unsafe { (self.table.cuCtxSetCurrent)(self.handle.0) })?;
        }
        Ok(Entered { context: self, previous })
    }

    pub(super) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls made so far, other than those that make the context current.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Events made through this context that are not destroyed.
    pub(crate) fn live_events(&self) -> usize {
        self.events.load(Ordering::Relaxed)
    }

    /// Memory created through this context that is not released.
    pub(crate) fn live_handles(&self) -> usize {
        self.handles.load(Ordering::Relaxed)
    }

    /// Free and total memory in bytes as the driver sees them now.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64), DriverError> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: writes two sizes through the pointers.
        unsafe { call!(self.cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
        Ok((free as u64, total as u64))
    }

    /// Waits until the device has done everything that the context was given, on all its streams.
    pub(crate) fn synchronize(&self) -> Result<(), DriverError> {
        let _entered = self.enter()?;
        // SAFETY: takes nothing.
        unsafe { call!(self.cuCtxSynchronize()) }
    }
}

/// The driver, initialised, and how many devices it has.
fn table_and_count() -> Result<(&'static Table, c_int), Unavailable> {
    let table = table()?;
    // SAFETY: takes a number, which must be 0.
    check("cuInit", unsafe { (table.cuInit)(0) })?;
    let mut count = 0;
    // SAFETY: writes one int through the pointer.
    check("cuDeviceGetCount", unsafe { (table.cuDeviceGetCount)(&raw mut count) })?;
    Ok((table, count))
}

impl Drop for Context {
    /// Lets go of the context; the driver destroys it if nobody else holds it.
    fn drop(&mut self) {
        // SAFETY: retained once in `open`, released once here. Nobody is left to tell of an error.
        unsafe { (self.table.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// While this lives, the context is current on the thread that made it.
pub(super) struct Entered<'a> {
    context: &'a Context,
    previous: CUcontext,
}

impl Drop for Entered<'_> {
    /// Gives the thread back what it had, also when that is nothing: otherwise it would be left with a context that may be gone
    /// when it looks again. A thread of PyTorch's has the primary context already, and pays for neither change.
    fn drop(&mut self) {
        if self.previous != self.context.handle.0 {
            // SAFETY: null, or a handle that was current on this thread a moment ago. If this fails, the thread's next CUDA call
            // will too.
            unsafe { (self.context.table.cuCtxSetCurrent)(self.previous) };
        }
    }
}
