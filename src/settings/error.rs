//! What can be wrong with a settings string, in PyTorch's words.

use alloc::string::String;
use core::fmt;

/// Which C++ exception PyTorch raises (spec 8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// `c10::ValueError`, a `ValueError` in Python: an unknown key, or a value that its key does not allow.
    Value,
    /// `c10::Error` from an internal assert, a `RuntimeError` in Python: a value is missing, a bracket is not closed, another
    /// backend is asked for.
    Internal,
    /// `std::invalid_argument`, a `ValueError` in Python: a number was expected and no digit found.
    InvalidNumber,
    /// `std::out_of_range`, an `IndexError` in Python: a number that its type cannot hold.
    NumberOutOfRange,
}

/// A settings string was refused. What it set before the error stays set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsError {
    kind: ErrorKind,
    message: String,
}

impl SettingsError {
    pub(super) fn value(message: impl Into<String>) -> SettingsError {
        SettingsError { kind: ErrorKind::Value, message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> SettingsError {
        SettingsError { kind: ErrorKind::Internal, message: message.into() }
    }

    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> SettingsError {
        SettingsError { kind, message: message.into() }
    }

    /// Which exception PyTorch raises.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// PyTorch's message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// True if PyTorch lets an exception of the C++ standard library through instead of one of its own.
    #[must_use]
    pub const fn is_std_exception(&self) -> bool {
        matches!(self.kind, ErrorKind::InvalidNumber | ErrorKind::NumberOutOfRange)
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl core::error::Error for SettingsError {}
