//! The functions that C calls. Each one checks its pointers, does its work, and converts the outcome into a code.
//!
//! Every `unsafe` block here relies on these rules in the header: a pointer is null or points to a valid value of its
//! type for the duration of the call; an allocator, checkpoint or snapshot was created by this interface and has not
//! been destroyed.

pub(crate) mod lifecycle;
pub(crate) mod memory;
pub(crate) mod plug;
pub(crate) mod pools;
pub(crate) mod reading;
pub(crate) mod sharing;

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use parkade::units::PoolId;

use crate::failure::{Failure, LAST};
use crate::serve::parkade_allocator;
use crate::types::parkade_pool;
use crate::types::parkade_status::{self, *};

/// Does the work of a call. Keeps a failure for `parkade_error_text`; a panic is also a failure.
fn answer(work: impl FnOnce() -> Result<(), Failure>) -> parkade_status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => PARKADE_OK,
        Ok(Err(failure)) => failure.keep(),
        Err(_) => {
            let text = "a defect in parkade: it panicked, and stderr shows where; please report it";
            Failure::new(PARKADE_INTERNAL_ERROR, text).keep()
        }
    }
}

fn null(what: &str) -> Failure {
    Failure::new(PARKADE_INVALID_ARGUMENT, format!("{what} is a null pointer"))
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
