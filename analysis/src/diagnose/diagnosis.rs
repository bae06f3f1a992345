//! What to diagnose, and what a diagnosis consists of.

use parkade_recording::StackId;
use parkade_replay::{DeviceVerdict, VerifyError, VerifyOptions};

use super::breakdown::{Asked, Breakdown};
use super::excess::Excess;
use super::fences::Fence;
use super::limit::{Limit, LimitEvidence};
use super::moment::{Question, Why};
use super::onset::Onset;
use super::peaks::Peaks;
use super::verdict::{Steps, Verdict};
use crate::ending::Ending;
use crate::stacks::StackUse;

/// What to diagnose, and what the caller knows beside the file.
#[derive(Clone, Debug)]
pub struct DiagnoseOptions {
    /// Settings and limit of the recorded run.
    pub own: VerifyOptions,
    /// The memory that the device had for the allocator, if known.
    pub capacity_bytes: Option<u64>,
    /// The entry to look at, counted from 0; if `None`, the first out-of-memory error.
    pub entry: Option<usize>,
    /// How many fences to name.
    pub fences: usize,
}

impl DiagnoseOptions {
    /// The smaller of the limit and the capacity that the caller gave.
    pub(super) fn known_limit_bytes(&self) -> Option<u64> {
        self.own.limit_bytes.into_iter().chain(self.capacity_bytes).min()
    }
}

/// The request at the moment that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The request as the allocator's search sees it.
    pub asked: Asked,
    /// The bytes that the program requested; an out-of-memory entry has only the rounded size.
    pub requested_bytes: u64,
    /// The bytes that it would take from the device, or took.
    pub segment_bytes: u64,
    /// The stack that requested it.
    pub stack: StackId,
}

/// What the allocator gave back to the device for lack of memory, before it served the request or failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GivenBack {
    /// Segments, or runs of pages.
    pub segments: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The first and the last of their entries.
    pub entries: Option<(usize, usize)>,
    /// Blocks whose events it waited for.
    pub completed: usize,
}

/// The diagnosis of one device.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The device's number.
    pub device: u32,
    /// Why this moment is looked at.
    pub why: Why,
    /// What is asked about it.
    pub question: Question,
    /// Its entry; `None` without a trace, or if it is before the first entry.
    pub entry: Option<usize>,
    /// Its time, in microseconds since 1970, if the file states it.
    pub time_us: Option<u64>,
    /// The request there, if the entry belongs to one.
    pub request: Option<Request>,
    /// Whether `met` and `heap` are broken down as the request saw them. Not if there is none, nor if the question is why more is reserved
    /// than allocated, because the next request says little about that.
    pub is_for_request: bool,
    /// The heap that the request met.
    pub met: Breakdown,
    /// The heap that is judged: after an out-of-memory error, what remained once everything possible was given back; where more is reserved
    /// than allocated, what there was after the entry; otherwise `met`.
    pub heap: Breakdown,
    /// Why this heap has more reserved than allocated, whatever is requested.
    pub excess: Excess,
    /// The peaks of the whole run; `None` without a trace.
    pub peaks: Option<Peaks>,
    /// Bytes reserved after the operation.
    pub reserved_after_bytes: u64,
    /// What the allocator gave back for the request.
    pub given_back: GivenBack,
    /// How many requests in the whole trace were out of memory.
    pub ooms: usize,
    /// Retries up to this moment, that of the failing request included (`num_alloc_retries`).
    pub retries: i64,
    /// The limit that the replay assumed, in bytes: garbage collection depends on it, none was given, and under this one every decision is
    /// the recorded one.
    pub assumed_limit_bytes: Option<u64>,
    /// How the run ended.
    pub ending: Ending,
    /// What is known of the limit.
    pub limit: Limit,
    /// The evidence for that.
    pub evidence: LimitEvidence,
    /// Why the request failed.
    pub verdict: Verdict,
    /// The answers of the five-step workflow.
    pub steps: Steps,
    /// Since when so much memory is stranded; `None` if nothing is stranded, or without a trace.
    pub onset: Option<Onset>,
    /// What each stack holds, the largest first.
    pub stacks: Vec<StackUse>,
    /// The live blocks between the holes.
    pub fences: Vec<Fence>,
    /// How exactly the replay reproduces the recording; `None` without a trace.
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
        /// The entry asked for.
        entry: usize,
        /// How many entries the trace has.
        entries: usize,
    },
}
