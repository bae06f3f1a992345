//! The driver's result codes, and the core's errors for them.

use parkade::device::BackendError;

use super::name::CallName;

/// An argument is not valid.
pub(crate) const INVALID_VALUE: u32 = 1;
/// There is no room.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// The event does not exist, or no longer.
pub(crate) const INVALID_HANDLE: u32 = 400;
/// A query's answer that the event is not complete. Not a failure.
pub(crate) const NOT_READY: u32 = 600;
/// This process has no permission.
pub(crate) const NOT_PERMITTED: u32 = 800;
/// The driver does not support this.
pub(crate) const NOT_SUPPORTED: u32 = 801;
/// An internal error: here, an address model that returned an unusable address.
pub(crate) const UNKNOWN: u32 = 999;

/// The result code of an outcome; zero for success.
pub(crate) fn code_of<T>(outcome: &Result<T, u32>) -> u32 {
    outcome.as_ref().err().copied().unwrap_or(0)
}

/// The core's error for a driver code.
pub(crate) fn driver_error(name: CallName, code: u32) -> BackendError {
    BackendError::Driver { call: name.as_str(), code }
}
