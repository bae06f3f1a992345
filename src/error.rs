//! The allocator's errors.
//!
//! After any of them, the heap is valid, the statistics are consistent with it, and no memory is lost.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use crate::allocator::Allocation;
use crate::device::BackendError;
use crate::device_ranges::WrongAnswer;
use crate::heap::PoolError;
use crate::policy::PolicyFault;
use crate::profile::Profile;
use crate::texts::OutOfMemory;
use crate::units::Bytes;

/// The reason why a request failed.
#[derive(Clone, PartialEq, Debug)]
pub enum AllocError {
    /// A request of 0 bytes. PyTorch's entry points return a null pointer for it without calling the allocator (spec
    /// 2.1).
    ZeroSize,
    /// The request is for at least 2^60 bytes through [`crate::Allocator::allocate`], its rounded size exceeds 64 bits, or
    /// an expandable segment has too few addresses for it.
    TooLarge {
        /// The requested bytes.
        requested: Bytes,
    },
    /// There was no memory, even after the retry ladder.
    OutOfMemory(Box<OutOfMemory>),
    /// The policy rejected the request before the device was asked
    /// ([`Policy::rejects`](crate::policy::Policy::rejects)).
    Rejected {
        /// The requested bytes.
        requested: Bytes,
    },
    /// An internal assert of PyTorch before 2.5 fails: for a large request, it would release a free block of an
    /// expandable segment as if the block were an entire segment (spec 2.9). The effects of earlier rungs remain.
    ExpandableRelease,
    /// An internal assert of PyTorch fails: while a graph counted as being captured, the program emptied the cache of a
    /// private pool without uses or, before 2.8, the entire cache. Nothing has been released.
    Capturing,
    /// An internal assert of PyTorch fails, with the setting graph_capture_record_stream_reuse. In release 2.9, it
    /// fails for a request on a stream that is not being captured while other requests are routed to a private pool.
    /// In later releases, it fails for a request on a stream that is being captured if no routing accepts the request
    /// (spec 3.8).
    NotCaptured,
    /// The device failed for a reason other than lack of memory.
    Device(BackendError),
    /// The device returned a range that cannot be used. The effects of earlier rungs remain.
    Answer(WrongAnswer),
    /// There are more than 65,535 different streams.
    TooManyStreams,
    /// The policy returned an answer that cannot be carried out.
    Policy(PolicyFault),
    /// A private pool that should serve requests when the device is out of memory cannot be used.
    Pool(PoolError),
}

impl AllocError {
    /// The message in a given PyTorch release; for pools, releases differ ([`PoolError::message`]).
    #[must_use]
    pub fn message(&self, profile: &Profile) -> String {
        match self {
            AllocError::Pool(error) => error.message(profile),
            AllocError::ExpandableRelease | AllocError::Capturing | AllocError::NotCaptured => self.assertion(profile),
            error => error.to_string(),
        }
    }

    /// The message of an internal assert that exists only in some releases.
    fn assertion(&self, profile: &Profile) -> String {
        let asserts = &profile.asserts;
        let (of_stream, mut more) = (asserts.stream.unwrap_or_default().0, "");
        let (condition, line) = match self {
            AllocError::Capturing => asserts.capture,
            AllocError::NotCaptured if profile.reuses_by_graph => {
                more = "Could not find memory pool id for capture.";
                ("found", of_stream)
            }
            AllocError::NotCaptured => {
                more = "Invalid stream capture status";
                ("status == cudaStreamCaptureStatusActive", of_stream)
            }
            _ => ("!block->expandable_segment_", asserts.expandable.unwrap_or_default()),
        };
        format!("{condition} INTERNAL ASSERT FAILED at \"{}\":{line}, please report a bug to PyTorch. {more}", asserts.file)
    }
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::ZeroSize => f.write_str("a request of 0 bytes has no block: use a null pointer for it"),
            AllocError::TooLarge { .. } => f.write_str(crate::texts::MORE_THAN_ONE_EXABYTE),
            AllocError::OutOfMemory(report) => report.fmt(f),
            AllocError::Rejected { requested } => f.write_str(&crate::texts::rejection_message(*requested)),
            AllocError::ExpandableRelease => f.write_str(&self.assertion(&Profile::PYTORCH_2_4)),
            AllocError::Capturing => f.write_str(&self.assertion(&Profile::PYTORCH_2_11)),
            AllocError::NotCaptured => f.write_str(&self.assertion(&Profile::PYTORCH_2_9)),
            AllocError::Device(error) => error.fmt(f),
            AllocError::Answer(wrong) => wrong.fmt(f),
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

impl From<WrongAnswer> for AllocError {
    fn from(wrong: WrongAnswer) -> AllocError {
        AllocError::Answer(wrong)
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

/// The reason why an allocation could not be freed.
#[derive(PartialEq, Eq, Debug)]
pub enum FreeError {
    /// A different allocator made the allocation, or restoring a pool took its block back. Nothing has changed, and the
    /// caller gets the allocation back.
    NotAllocated(Allocation),
    /// The block was freed, but an event could not be recorded. The block stays pending, and the next request tries
    /// again.
    Device(BackendError),
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FreeError::NotAllocated(_) => f.write_str(
                "the allocation does not belong to this allocator, or no longer does: only the allocator that made it can free it",
            ),
            FreeError::Device(error) => write!(f, "the block stays pending: {error}"),
        }
    }
}

impl core::error::Error for FreeError {}
