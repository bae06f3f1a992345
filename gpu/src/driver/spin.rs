//! A kernel that runs for a given time and touches no memory, like declared work on the simulated device.

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUfunc_st, CUmod_st};

use super::context::Context;
use super::stream::{Stream, raw};
use super::table::{Handle, INVALID_VALUE, call};
use crate::error::DriverError;

/// The longest time for one launch, in nanoseconds. A kernel cannot be stopped, and a device that also drives a display
/// has a watchdog.
pub const LONGEST_SPIN_NS: u64 = 5_000_000_000;

/// The kernel's text, with the terminating zero that the driver needs.
const TEXT: &str = concat!(include_str!("spin.ptx"), "\0");
/// The kernel's name in the text.
const NAME: &CStr = c"spin";

/// The kernel, which the driver compiles for the device and which is unloaded when dropped.
pub(crate) struct Spin {
    context: Arc<Context>,
    module: Handle<CUmod_st>,
    function: Handle<CUfunc_st>,
}

impl Spin {
    /// Loads the kernel, which may wait for running work.
    pub(crate) fn load(context: &Arc<Context>) -> Result<Spin, DriverError> {
        let _entered = context.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: writes one handle through the first pointer and reads the text through the second up to its
        // zero.
        unsafe { call!(context.cuModuleLoadData(&raw mut module, TEXT.as_ptr().cast())) }?;
        let mut spin = Spin { context: Arc::clone(context), module: Handle(module), function: Handle(ptr::null_mut()) };
        let function = &raw mut spin.function.0;
        // SAFETY: writes one handle through the pointer and reads the name up to its zero; the module was
        // loaded above.
        unsafe { call!(context.cuModuleGetFunction(function, module, NAME.as_ptr())) }?;
        Ok(spin)
    }

    /// Queues the kernel on a stream; `None` is the default stream.
    pub(crate) fn launch(&self, duration_ns: u64, stream: Option<&Stream>) -> Result<(), DriverError> {
        if duration_ns > LONGEST_SPIN_NS {
            return Err(DriverError { call: "cuLaunchKernel", code: INVALID_VALUE });
        }
        let mut duration_ns = duration_ns;
        let mut parameters = [(&raw mut duration_ns).cast()];
        let context = &self.context;
        let _entered = context.enter()?;
        let stream = raw(stream);
        // SAFETY: the function and the stream are live. The kernel has one 64-bit parameter, which the driver copies
        // before it returns; the pointer for the other way of passing parameters must then be null. The kernel
        // touches no memory.
        unsafe {
            call!(context.cuLaunchKernel(self.function.0, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), ptr::null_mut()))
        }
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        let context = &self.context;
        let Ok(_entered) = context.enter() else { return };
        // SAFETY: it is loaded once and unloaded once, and its context is alive. There is no caller to report an error
        // to.
        let _: Result<(), DriverError> = unsafe { call!(context.cuModuleUnload(self.module.0)) };
    }
}
