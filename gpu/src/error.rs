//! Driver errors: the driver is missing, or one of its calls fails.

use parkade::device::BackendError;
use thiserror::Error;

/// A driver call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{}", BackendError::from(*self))]
pub struct DriverError {
    /// The call, by its driver name.
    pub call: &'static str,
    /// The driver's result code (a `CUresult`) as a number, because a newer driver may have codes that older headers do
    /// not name.
    pub code: u32,
}

impl From<DriverError> for BackendError {
    fn from(error: DriverError) -> BackendError {
        BackendError::Driver { call: error.call, code: error.code }
    }
}

/// The reason why a device cannot be opened on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unavailable {
    /// The driver's library was not found.
    #[error("no CUDA driver (its library was not found)")]
    NoDriver,
    /// The library lacks this function: the driver is too old, or the library is a different one.
    #[error("the CUDA driver lacks {0}")]
    MissingSymbol(&'static str),
    /// There is no device with this index.
    #[error("no CUDA device {ordinal}: the driver reports {count}")]
    NoDevice {
        /// The index of the device that the caller wanted to open.
        ordinal: u32,
        /// The number of devices that the driver reports.
        count: u32,
    },
    /// There is a driver, but a call failed.
    #[error(transparent)]
    Refused(#[from] DriverError),
}
