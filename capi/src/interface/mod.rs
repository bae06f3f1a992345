//! The functions that C calls. Each one checks its pointers, does its work, and converts the outcome into a code. This
//! file contains the steps that all of them share, and the functions that create and destroy allocators, list policies
//! and explain errors.
//!
//! Every `unsafe` block here relies on these rules in the header: a pointer is null or points to a valid value of its
//! type for the duration of the call; an allocator, checkpoint or snapshot was created by this interface and has not
//! been destroyed.

pub(crate) mod memory;
pub(crate) mod plug;
pub(crate) mod pools;
pub(crate) mod reading;
pub(crate) mod sharing;

use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;

use parkade::units::PoolId;
use parkade_gpu::{CudaDevice, StreamsAreValid, WorkIsSerial};
use parkade_policies::{Entry, Reach};

use crate::device::Device;
use crate::failure::{Failure, LAST};
use crate::own::{declared, listed};
use crate::serve::{Wanted, choose_policy, parkade_allocator};
use crate::types::parkade_status::{self, *};
use crate::types::{
    PARKADE_INTERFACE_VERSION, PARKADE_KEEPS_CONTEXT, PARKADE_RESCUE, PARKADE_RESCUE_FREE, PARKADE_WORK_IS_SERIAL,
    parkade_options, parkade_pool, parkade_shortage,
};

/// Does the work of a call. Keeps a failure for `parkade_error_text`; a panic counts as a failure.
fn answer(work: impl FnOnce() -> Result<(), Failure>) -> parkade_status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => PARKADE_OK,
        Ok(Err(failure)) => failure.keep(),
        Err(_) => {
            let text = "parkade panicked, which is a defect; please report it with the output on stderr";
            Failure::new(PARKADE_INTERNAL_ERROR, text).keep()
        }
    }
}

/// Declares a library's own policies, as [`policies!`](crate::policies) does. Fails if a declaration is wrong, if its
/// name is taken, or if a policy was looked up before; `parkade_error_text` says which.
#[must_use]
pub fn declare(own: &'static [Entry]) -> parkade_status {
    answer(|| declared(own))
}

fn null(what: &str) -> Failure {
    Failure::new(PARKADE_INVALID_ARGUMENT, format!("{what} is null"))
}

/// Returns the allocator if the pointer is not null and this process created the allocator.
///
/// # Safety
/// See the module documentation.
unsafe fn ours<'a>(allocator: *const parkade_allocator) -> Result<&'a parkade_allocator, Failure> {
    // SAFETY: null or an allocator; see the module documentation.
    let allocator = unsafe { allocator.as_ref() }.ok_or_else(|| null("the allocator"))?;
    allocator.check_process()?;
    Ok(allocator)
}

/// Returns the variable that receives an answer.
///
/// # Safety
/// See the module documentation.
unsafe fn place<'a, T>(out: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: null or writable; see the module documentation.
    unsafe { out.as_mut() }.ok_or_else(|| null(what))
}

/// Returns a string from C; `None` if the pointer is null.
///
/// # Safety
/// See the module documentation; the text ends with a NUL.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so it is a text that ends with a NUL.
    let text = unsafe { CStr::from_ptr(text) };
    let unreadable = |_| Failure::new(PARKADE_INVALID_ARGUMENT, format!("{what} is not UTF-8"));
    text.to_str().map(Some).map_err(unreadable)
}

fn id(pool: parkade_pool) -> PoolId {
    PoolId(pool.first, pool.second)
}

fn in_c(pool: PoolId) -> parkade_pool {
    parkade_pool { first: pool.0, second: pool.1 }
}

/// Returns this library's interface version: `PARKADE_INTERFACE_VERSION` in its header.
#[unsafe(no_mangle)]
pub extern "C" fn parkade_interface_version() -> u32 {
    PARKADE_INTERFACE_VERSION
}

/// Returns the text of the calling thread's last failure: what happened, what it means and what to do. The text is
/// valid until the thread's next failure. It is empty if there was no failure, or while the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn parkade_error_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Writes the numbers of the calling thread's last failure to `out`. Returns false if the cause of that failure was not
/// a lack of memory.
///
/// # Safety
/// `out` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_error_shortage(out: *mut parkade_shortage) -> bool {
    let shortage = LAST.try_with(|last| last.borrow().shortage).unwrap_or_default();
    // SAFETY: null or writable, as the caller guarantees.
    match (shortage, unsafe { out.as_mut() }) {
        (Some(shortage), Some(out)) => {
            *out = shortage;
            true
        }
        _ => false,
    }
}

/// Returns the text of this library's header, for programs that compile other programs.
#[unsafe(no_mangle)]
pub extern "C" fn parkade_header() -> *const c_char {
    const HEADER: &str = concat!(include_str!("../../include/parkade.h"), "\0");
    HEADER.as_ptr().cast()
}

/// Writes the number of GPUs that the driver reports to `out`.
///
/// # Safety
/// `out` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_device_count(out: *mut u32) -> parkade_status {
    answer(|| {
        // SAFETY: null or writable, as the caller guarantees.
        let out = unsafe { place(out, "the output pointer for the count") }?;
        *out = CudaDevice::count().map_err(|reason| Failure::new(PARKADE_NO_DEVICE, reason))?;
        Ok(())
    })
}

/// Returns the name of the policy at an index, counted from 0; null beyond the last one. The name
/// is valid forever.
#[unsafe(no_mangle)]
pub extern "C" fn parkade_policy_name(at: usize) -> *const c_char {
    named(at, |policy| &policy.0)
}

/// Returns a short description of the policy at an index; null beyond the last one. The description is valid forever.
#[unsafe(no_mangle)]
pub extern "C" fn parkade_policy_says(at: usize) -> *const c_char {
    named(at, |policy| &policy.1)
}

fn named(at: usize, part: impl Fn(&(CString, CString)) -> &CString) -> *const c_char {
    static NAMES: OnceLock<Vec<(CString, CString)>> = OnceLock::new();
    let made = |text: &str| CString::new(text).unwrap_or_default();
    NAMES
        .get_or_init(|| listed().map(|policy| (made(&policy.name), made(&policy.says))).collect())
        .get(at)
        .map_or(ptr::null(), |policy| part(policy).as_ptr())
}

/// Creates an allocator and writes it to `out`. Destroy it with `parkade_destroy`, or keep it
/// forever.
///
/// Each stream handle passed to the allocator must be a stream of the device's primary context, and must live for as
/// long as memory is allocated or recorded for it. The driver does not check handles. While one of these streams takes
/// part in a graph capture, no other thread may submit work to a stream in that capture during a call to the allocator:
/// CUDA requires this for every graph.
///
/// # Safety
/// `options` and the data to which it points are readable, `out` is writable, the streams are as described above, and
/// work is serial if the flag `PARKADE_WORK_IS_SERIAL` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_create(options: *const parkade_options, out: *mut *mut parkade_allocator) -> parkade_status {
    answer(|| {
        // SAFETY: null or readable and writable, as the caller guarantees.
        let (options, out) = unsafe { (options.as_ref(), place(out, "the output pointer for the allocator")?) };
        let options = options.ok_or_else(|| null("the options"))?;
        if options.size != size_of::<parkade_options>() {
            let (theirs, ours) = (options.size, size_of::<parkade_options>());
            let text = format!(
                "the options have {theirs} bytes, but this library's options have {ours}: set `size`, and compile the program \
                 with this library's header"
            );
            return Err(Failure::new(PARKADE_INVALID_ARGUMENT, text));
        }
        let known = [
            (PARKADE_KEEPS_CONTEXT, "PARKADE_KEEPS_CONTEXT"),
            (PARKADE_WORK_IS_SERIAL, "PARKADE_WORK_IS_SERIAL"),
            (PARKADE_RESCUE, "PARKADE_RESCUE"),
            (PARKADE_RESCUE_FREE, "PARKADE_RESCUE_FREE"),
        ];
        Failure::check_flags("parkade_options", options.flags, &known)?;
        let rescue = match (options.flags & PARKADE_RESCUE != 0, options.flags & PARKADE_RESCUE_FREE != 0) {
            (true, true) => {
                let text = "PARKADE_RESCUE and PARKADE_RESCUE_FREE are mutually exclusive";
                return Err(Failure::new(PARKADE_INVALID_ARGUMENT, text));
            }
            (true, false) => Some(Reach::Breaks),
            (false, true) => Some(Reach::Free),
            (false, false) => None,
        };
        // SAFETY: null or strings, as the caller guarantees.
        let (policy, settings, release) = unsafe {
            (text(options.policy, "the policy")?, text(options.settings, "the settings")?, text(options.release, "the release")?)
        };
        let is_serial = options.flags & PARKADE_WORK_IS_SERIAL != 0;
        let chosen = choose_policy(&Wanted {
            policy,
            settings,
            release,
            is_serial: is_serial || options.simulated_bytes != 0,
            rescue,
            most_rescues: options.most_rescues,
        })?;
        let mut device = match options.simulated_bytes {
            // SAFETY: the caller guarantees that the streams are valid.
            0 => Device::cuda(options.device, unsafe { StreamsAreValid::promise() })?,
            bytes => Device::simulated(options.device, bytes),
        };
        if options.flags & PARKADE_KEEPS_CONTEXT != 0 {
            device.keep_context();
        }
        if is_serial {
            // SAFETY: by setting the flag, the caller makes the same promise.
            device.trust_work(unsafe { WorkIsSerial::promise() });
        }
        *out = Box::into_raw(Box::new(parkade_allocator::new(device, chosen)?));
        Ok(())
    })
}

/// Destroys an allocator: waits for the device's work and returns all of the allocator's memory, even memory that is
/// still handed out. Does nothing for null, or in a forked child for an allocator of the parent.
///
/// # Safety
/// The allocator was created by `parkade_create`, no other call on it is running, and none follows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_destroy(allocator: *mut parkade_allocator) {
    // SAFETY: null or an allocator, as the caller guarantees.
    if unsafe { ours(allocator) }.is_ok() {
        // SAFETY: created by `parkade_create` from a box, and destroyed only once.
        let ended = unsafe { Box::from_raw(allocator) };
        answer(|| {
            drop(ended);
            Ok(())
        });
    }
}
