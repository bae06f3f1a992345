//! Failures as the harness prints them: which C++ exception it would have caught, and its message.

use parkade::profile::Profile;
use parkade::settings::SettingsError;
use parkade::{AllocError, FreeError, PoolError};

use super::line::Unreadable;

/// Why an operation failed.
pub(super) struct Failure {
    /// `c10` for `c10::Error`, `oom` for `c10::OutOfMemoryError`, `std` for any other `std::exception`.
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

    pub(super) fn alloc(profile: &Profile) -> impl Fn(AllocError) -> Failure {
        |error| {
            let kind = match error {
                AllocError::OutOfMemory(_) | AllocError::Rejected { .. } | AllocError::TooLarge { .. } => "oom",
                _ => "c10",
            };
            Failure { kind, message: error.message(profile) }
        }
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

#[cfg(test)]
mod tests {
    use parkade::units::PoolId;

    use super::*;

    #[test]
    fn a_request_that_a_pool_refuses_fails_with_the_message_of_the_release() {
        let error = AllocError::Pool(PoolError::Abandoned(PoolId(0, 1)));
        let of = |profile: &Profile| Failure::alloc(profile)(error.clone()).message;
        assert_eq!(of(&Profile::PYTORCH_2_15), PoolError::Abandoned(PoolId(0, 1)).message(&Profile::PYTORCH_2_15));
        assert_ne!(of(&Profile::PYTORCH_2_15), of(&Profile::PYTORCH_2_11));
    }
}
