//! The driver's result codes, and the core's errors made of them.

use parkade::device::BackendError;

use super::name::CallName;

/// An argument is not what the call wants.
pub(crate) const INVALID_VALUE: u32 = 1;
/// No room.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// An event that does not exist (any more).
pub(crate) const INVALID_HANDLE: u32 = 400;
/// A query's "not yet", which is no failure.
pub(crate) const NOT_READY: u32 = 600;
/// This process may not.
pub(crate) const NOT_PERMITTED: u32 = 800;
/// The driver could do this and does not.
pub(crate) const NOT_SUPPORTED: u32 = 801;
/// Something went wrong inside; here, an address model that gave a place that is taken.
pub(crate) const UNKNOWN: u32 = 999;

/// The code of an outcome: zero for success.
pub(crate) fn code_of<T>(outcome: &Result<T, u32>) -> u32 {
    outcome.as_ref().err().copied().unwrap_or(0)
}

/// The core's error for a driver code.
pub(crate) fn driver_error(name: CallName, code: u32) -> BackendError {
    BackendError::Driver { call: name.as_str(), code }
}
