//! Errors in a settings string, with PyTorch's messages.

use alloc::string::String;
use core::fmt;

/// The C++ exception that PyTorch raises (spec 8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// `c10::ValueError`, a `ValueError` in Python: an unknown key, or a value that its key does not allow.
    Value,
    /// `c10::Error` from a check, a `RuntimeError` in Python. Raised before 2.10, for any of the reasons for `Value`
    /// or for a missing value.
    Check,
    /// `c10::Error` from an internal assert, a `RuntimeError` in Python: a missing value, an unclosed bracket, or a
    /// different backend.
    Internal,
    /// `std::invalid_argument`, a `ValueError` in Python: a number without a digit.
    InvalidNumber,
    /// `std::out_of_range`, an `IndexError` in Python: a number that its type cannot hold.
    NumberOutOfRange,
}

/// PyTorch refuses a settings string. Settings applied before the error are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsError {
    kind: ErrorKind,
    message: String,
}

impl SettingsError {
    pub(super) fn value(message: impl Into<String>) -> SettingsError {
        SettingsError { kind: ErrorKind::Value, message: message.into() }
    }

    pub(super) fn check(message: impl Into<String>) -> SettingsError {
        SettingsError { kind: ErrorKind::Check, message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> SettingsError {
        SettingsError { kind: ErrorKind::Internal, message: message.into() }
    }

    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> SettingsError {
        SettingsError { kind, message: message.into() }
    }

    /// The exception that PyTorch raises.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// PyTorch's message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether PyTorch raises an exception of the C++ standard library instead of one of its own.
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
