//! Failures in the harness's terms.

use parkade::profile::Profile;
use parkade::settings::SettingsError;
use parkade::{AllocError, FreeError, PoolError};

use super::words::Unreadable;

/// Why an operation failed, in the harness's terms: which exception it would have caught.
pub(super) struct Failure {
    pub(super) kind: &'static str,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn c10(message: impl ToString) -> Failure {
        Failure { kind: "c10", message: message.to_string() }
    }

    pub(super) fn pool(profile: &Profile) -> impl Fn(PoolError) -> Failure {
        |error| Failure::c10(error.message(profile))
    }

    pub(super) fn std(message: impl ToString) -> Failure {
        Failure { kind: "std", message: message.to_string() }
    }
}

impl From<Unreadable> for Failure {
    fn from(what: Unreadable) -> Failure {
        Failure::std(what)
    }
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Failure {
        let kind = match error {
            AllocError::OutOfMemory(_) | AllocError::Rejected { .. } | AllocError::TooLarge { .. } => "oom",
            _ => "c10",
        };
        Failure { kind, message: error.to_string() }
    }
}

impl From<FreeError> for Failure {
    fn from(error: FreeError) -> Failure {
        Failure::c10(error)
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Failure {
        if error.is_std_exception() { Failure::std(error) } else { Failure::c10(error) }
    }
}
