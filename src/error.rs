//! Why the allocator refused.
//!
//! After any of these the heap is valid, the statistics agree with it, and nothing is lost (architecture invariant 4).

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use core::fmt;

use crate::device::BackendError;
use crate::heap::PoolError;
use crate::policy::PolicyFault;
use crate::profile::Profile;
use crate::texts::OutOfMemory;
use crate::units::Bytes;

/// Why a request was not served.
#[derive(Clone, PartialEq, Debug)]
pub enum AllocError {
    /// A request of no bytes; PyTorch's entry points answer it with a null pointer before they reach the allocator (spec 2.1).
    ZeroSize,
    /// More than can be asked for: 2^60 bytes through [`crate::Allocator::allocate`], or a size that exceeds 64 bits when rounded.
    TooLarge {
        /// What was asked for.
        requested: Bytes,
    },
    /// No memory, after everything that could be released was.
    OutOfMemory(Box<OutOfMemory>),
    /// Rejected before the device was asked, because the settings say so.
    Rejected {
        /// What was asked for.
        requested: Bytes,
    },
    /// The device failed for another reason than lack of memory.
    Device(BackendError),
    /// More than 65,535 different streams.
    TooManyStreams,
    /// The policy gave an answer that cannot be acted upon.
    Policy(PolicyFault),
    /// A pool that is to serve when memory is out cannot be used.
    Pool(PoolError),
}

impl AllocError {
    /// The message of a version of PyTorch, as far as it differs: [`PoolError::message`].
    #[must_use]
    pub fn message(&self, profile: &Profile) -> String {
        match self {
            AllocError::Pool(error) => error.message(profile),
            error => error.to_string(),
        }
    }
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::ZeroSize => f.write_str("a request of 0 bytes has no block: use a null pointer for it"),
            AllocError::TooLarge { .. } => f.write_str(crate::texts::MORE_THAN_ONE_EXABYTE),
            AllocError::OutOfMemory(report) => report.fmt(f),
            AllocError::Rejected { requested } => f.write_str(&crate::texts::rejection_message(*requested)),
            AllocError::Device(error) => error.fmt(f),
            AllocError::TooManyStreams => f.write_str("more than 65535 streams: the heap numbers them with 16 bits"),
            AllocError::Policy(fault) => fault.fmt(f),
            AllocError::Pool(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for AllocError {}

impl From<BackendError> for AllocError {
    fn from(error: BackendError) -> AllocError {
        AllocError::Device(error)
    }
}

impl From<PoolError> for AllocError {
    fn from(error: PoolError) -> AllocError {
        AllocError::Pool(error)
    }
}

impl From<PolicyFault> for AllocError {
    fn from(fault: PolicyFault) -> AllocError {
        AllocError::Policy(fault)
    }
}

/// Why a block was not given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// The allocation is not one of this allocator's, or no longer. Nothing has changed.
    NotAllocated,
    /// The block was given back, but an event could not be recorded; it stays pending, and the next request tries again.
    Device(BackendError),
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FreeError::NotAllocated => f.write_str("the allocation does not belong to this allocator"),
            FreeError::Device(error) => write!(f, "the block stays pending: {error}"),
        }
    }
}

impl core::error::Error for FreeError {}
