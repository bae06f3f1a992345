//! Driver calls: their names, their result codes, and the log of them.

mod codes;
mod log;
mod name;

pub(crate) use codes::{
    INVALID_HANDLE, INVALID_VALUE, NOT_PERMITTED, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, UNKNOWN, code_of, driver_error,
};
pub(crate) use log::CallLog;
pub use log::{AddressName, Call, CallSubject};
pub use name::{CallName, LogLevel};
