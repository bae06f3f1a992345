//! Diagnosis of an out-of-memory error: what a snapshot, or the message alone, says of its cause.
//!
//! It is the documents' five-step workflow (capacity? fragmentation? settings? empty_cache? the snapshot) carried out on the heap
//! that the failing request met. `moment` finds that heap, `stranded` breaks it down, `limit` says what is known of the memory
//! that there was, `verdict` answers the five questions, `owners` and `fences` name the stacks and blocks, `onset` says when it
//! began. `message` does what can be done without a snapshot. All of it is plain data; nothing here is printed.

mod device;
mod end;
mod fences;
mod limit;
mod message;
mod moment;
mod onset;
mod owners;
mod phase;
mod stranded;
#[cfg(test)]
mod tests;
mod verdict;

pub use device::diagnose_device;
pub use fences::{Fence, fences};
pub use limit::{Contradiction, Limit, LimitEvidence};
pub use message::{Certainty, MessageDiagnosis, MessageVerdict, diagnose_message};
pub use moment::Why;
pub use onset::Lows;
pub use owners::{Owner, Owners, StackUse, live_by_stack};
pub use phase::{Phase, phase_at};
pub use stranded::{Asked, Breakdown, Cause, Hole, PINNED_PART, Strand, stranded};
pub use verdict::{Applies, Steps, Verdict, judge};

use parkade_recording::StackId;
use parkade_replay::{DeviceVerdict, VerifyError, VerifyOptions};

/// Where nothing failed, a request tells why what is free did not serve it only if it is at least this part of that.
pub const TELLING_PART: u64 = 100;

/// What to diagnose, and what is known beside the file.
#[derive(Clone, Debug)]
pub struct DiagnoseOptions {
    /// The settings and the limit of the recorded run.
    pub own: VerifyOptions,
    /// The memory that the device had for the allocator, if the caller knows.
    pub capacity_bytes: Option<u64>,
    /// The entry to look at, if not the first out-of-memory point.
    pub entry: Option<usize>,
    /// How many fences to name.
    pub fences: usize,
}

/// The request at the moment that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The search that it made.
    pub asked: Asked,
    /// What the program asked for; an out-of-memory entry has only the rounded size.
    pub requested_bytes: u64,
    /// What it would take from the device, or took.
    pub segment_bytes: u64,
    /// Where it came from.
    pub stack: StackId,
}

/// What the allocator gave back for want of memory, before it served the request or gave up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GivenBack {
    /// Segments, or runs of pages.
    pub segments: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The first and the last of these entries.
    pub entries: Option<(usize, usize)>,
    /// Blocks for whose events it waited.
    pub completed: usize,
}

/// When the stranded bytes rose to what they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Onset {
    /// The entry since which reserved minus allocated bytes have stayed at `level_bytes` and more. `None`: since before the first
    /// entry.
    pub entry: Option<usize>,
    /// Half of what is stranded at the end.
    pub level_bytes: u64,
    /// When that entry was, in microseconds since 1970.
    pub time_us: Option<u64>,
}

/// A diagnosis of one device.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The device's number.
    pub device: u32,
    /// Why this moment is looked at.
    pub why: Why,
    /// Its entry; `None` without a trace.
    pub entry: Option<usize>,
    /// When that was, in microseconds since 1970, if the file says.
    pub time_us: Option<u64>,
    /// The request there, if it is one.
    pub request: Option<Request>,
    /// Whether the heaps are broken down as the request saw them. Not without one; nor at a peak where it asked for less than one
    /// part in [`TELLING_PART`] of what was free: why so little was not served says nothing of the rest.
    pub is_for_request: bool,
    /// The heap that the request met.
    pub met: Breakdown,
    /// The heap that is judged: at an out-of-memory point what was left once all that could be given back was; else `met`.
    pub heap: Breakdown,
    /// What was reserved once the operation there was over.
    pub reserved_after_bytes: u64,
    /// What the allocator gave back for the request.
    pub given_back: GivenBack,
    /// Requests that were out of memory in all of the trace.
    pub ooms: usize,
    /// Retries up to this moment, the failing request's own included (`num_alloc_retries`).
    pub retries: i64,
    /// The limit that was assumed for the replay: garbage collection depends on it, none was given, and under this one every
    /// decision is the recorded one.
    pub assumed_limit_bytes: Option<u64>,
    /// What is known of the limit.
    pub limit: Limit,
    /// From what.
    pub evidence: LimitEvidence,
    /// What it was.
    pub verdict: Verdict,
    /// The five steps.
    pub steps: Steps,
    /// When it began; `None` if nothing is stranded, or without a trace.
    pub onset: Option<Onset>,
    /// What each stack holds, the most first.
    pub stacks: Vec<StackUse>,
    /// Blocks that fence the holes.
    pub fences: Vec<Fence>,
    /// How exact the recording is; `None` without a trace.
    pub exactness: Option<DeviceVerdict>,
}

/// Why there is no diagnosis.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DiagnoseError {
    /// The recording cannot be replayed.
    #[error(transparent)]
    Replay(#[from] VerifyError),
    /// The trace has no such entry.
    #[error("there is no entry {entry}: the trace has {entries}, counted from 0")]
    NoSuchEntry {
        /// The number that was asked for.
        entry: usize,
        /// How many there are.
        entries: usize,
    },
}
