//! The reason why a call failed: a code, and a text that the thread keeps until its next failure.

use std::cell::RefCell;
use std::ffi::CString;

use parkade::checkpoint::CheckpointError;
use parkade::device::BackendError;
use parkade::profile::Profile;
use parkade::{AllocError, PoolError};
use parkade_gpu::Unavailable;
use parkade_shared::Error;

use crate::types::{parkade_shortage, parkade_status};
use parkade_status::*;

/// The reason why a call failed. The type is small so that successful calls return quickly.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", .0.text)]
pub struct Failure(Box<Reason>);

/// A code with its text.
#[derive(Clone, Debug)]
struct Reason {
    /// The code.
    pub status: parkade_status,
    /// The text: what happened, what it means and what to do.
    pub text: String,
    /// The numbers of an out-of-memory error.
    pub shortage: Option<parkade_shortage>,
}

impl Failure {
    pub(crate) fn new(status: parkade_status, text: impl ToString) -> Failure {
        Failure(Box::new(Reason { status, text: text.to_string(), shortage: None }))
    }

    /// Refuses unknown flags; `known` names the known ones. A later version may give the unknown flags a meaning.
    #[inline]
    pub(crate) fn check_flags(whose: &str, flags: u32, known: &[(u32, &str)]) -> Result<(), Failure> {
        let all = known.iter().fold(0, |all, (flag, _)| all | flag);
        if flags & !all == 0 { Ok(()) } else { Err(Failure::of_flags(whose, flags, known)) }
    }

    #[cold]
    fn of_flags(whose: &str, flags: u32, known: &[(u32, &str)]) -> Failure {
        let names: Vec<&str> = known.iter().map(|(_, name)| *name).collect();
        let known = names.join(", ");
        let text = format!("{whose} has the flags {flags:#x}, but this library knows only these: {known}");
        Failure::new(PARKADE_INVALID_ARGUMENT, text)
    }

    /// Converts the reason why a GPU is not available, or why one of its driver calls failed.
    pub(crate) fn of_absence(reason: Unavailable) -> Failure {
        match reason {
            Unavailable::Refused(error) => Failure::of_device(error.into()),
            absent => Failure::new(PARKADE_NO_DEVICE, absent),
        }
    }

    /// Converts the reason why a request failed. The text is worded as in a PyTorch release.
    pub(crate) fn of_request(error: &AllocError, profile: &Profile) -> Failure {
        let status = match error {
            AllocError::OutOfMemory(_) | AllocError::Rejected { .. } | AllocError::TooLarge { .. } => PARKADE_OUT_OF_MEMORY,
            AllocError::ZeroSize => PARKADE_INVALID_ARGUMENT,
            AllocError::Pool(_) => PARKADE_POOL_ERROR,
            AllocError::Device(error) => Failure::of_device(*error).0.status,
            AllocError::Policy(_) => PARKADE_INTERNAL_ERROR,
            _ => PARKADE_DEVICE_ERROR,
        };
        let shortage = match error {
            AllocError::OutOfMemory(report) => Some(parkade_shortage {
                segment_bytes: report.segment_bytes.get(),
                device_total: report.device_total.get(),
                device_free: report.device_free.get(),
                limit_bytes: report.limit.map_or(0, |limit| limit.get()),
            }),
            _ => None,
        };
        Failure(Box::new(Reason { status, text: error.message(profile), shortage }))
    }

    /// Whether the call was made from within another call.
    pub(crate) fn is_reentered(&self) -> bool {
        self.0.status == PARKADE_REENTERED
    }

    /// Whether the allocator belongs to this process's parent.
    pub(crate) fn is_forked(&self) -> bool {
        self.0.status == PARKADE_FORKED
    }

    /// Converts a failure of the device.
    pub(crate) fn of_device(error: BackendError) -> Failure {
        let status = match error {
            BackendError::OutOfMemory { .. } => PARKADE_OUT_OF_MEMORY,
            BackendError::Driver { .. } => PARKADE_DEVICE_ERROR,
        };
        Failure::new(status, error)
    }

    /// Converts a failure of the wrapper for several threads. The text is worded as in a PyTorch release.
    pub(crate) fn of_shared(error: &Error, profile: &Profile) -> Failure {
        match error {
            Error::Refused(error) => Failure::of_request(error, profile),
            Error::Address(_) => Failure::new(PARKADE_UNKNOWN_ADDRESS, error),
            Error::Pending(_) => Failure::new(PARKADE_DEVICE_ERROR, error),
            Error::Poisoned => Failure::new(PARKADE_INTERNAL_ERROR, error),
            Error::Reentered => Failure::new(PARKADE_REENTERED, error),
        }
    }

    /// Converts a failure of a private pool. The text is worded as in a PyTorch release.
    pub(crate) fn of_pool(error: &PoolError, profile: &Profile) -> Failure {
        Failure::new(PARKADE_POOL_ERROR, error.message(profile))
    }

    /// Converts a failure to save or restore a private pool.
    pub(crate) fn of_checkpoint(error: &CheckpointError) -> Failure {
        Failure::new(PARKADE_CHECKPOINT_ERROR, error)
    }

    /// Keeps the failure as the thread's last one, and returns its code.
    #[cold]
    pub(crate) fn keep(self) -> parkade_status {
        let Reason { status, text, shortage } = *self.0;
        // While a thread ends, the program's destructors may still make calls; in that case, only the code is
        // available.
        let _ = LAST.try_with(|last| {
            // Text from C contains no NUL. In any other text, a NUL would hide the rest, so it is replaced with a
            // space.
            let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
            *last.borrow_mut() = Last { text, shortage };
        });
        status
    }
}

/// Returns the thread's last failure.
#[derive(Default)]
pub(crate) struct Last {
    pub(crate) text: CString,
    pub(crate) shortage: Option<parkade_shortage>,
}

thread_local! {
    pub(crate) static LAST: RefCell<Last> = RefCell::default();
}
