//! What can go wrong with a driver: there is none to speak to, or one of its calls refuses.

use parkade::device::BackendError;
use thiserror::Error;

/// A driver call that did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{call} failed with driver code {code}")]
pub struct DriverError {
    /// The call, by its driver name.
    pub call: &'static str,
    /// The driver's result code (a `CUresult`). A plain number: a newer driver has codes that older headers do not name.
    pub code: u32,
}

impl From<DriverError> for BackendError {
    fn from(error: DriverError) -> BackendError {
        BackendError::Driver { call: error.call, code: error.code }
    }
}

/// Why a device cannot be opened on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unavailable {
    /// The driver's library is not installed.
    #[error("no CUDA driver (its library was not found)")]
    NoDriver,
    /// The driver is too old, or what was found is not the driver.
    #[error("the CUDA driver lacks {0}")]
    MissingSymbol(&'static str),
    /// The driver has fewer devices.
    #[error("no CUDA device {ordinal}: the driver counts {count}")]
    NoDevice {
        /// The device that was to be opened.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The driver is there and refuses.
    #[error(transparent)]
    Refused(#[from] DriverError),
}
