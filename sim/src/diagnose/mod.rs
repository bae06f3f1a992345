//! Diagnosis of an out-of-memory error: what a snapshot, or the message alone, says of its cause.
//!
//! It is the documents' five-step workflow (capacity? fragmentation? settings? empty_cache? the snapshot) carried out on the heap that
//! the failing request met. `moment` finds that heap, `stranded` breaks it down, `limit` says what is known of the memory that there was,
//! `verdict` answers the five questions, `owners` and `fences` name the stacks and blocks, `onset` says when it began. `message` does
//! what can be done without a snapshot. All of it is plain data; nothing here is printed.

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

use parkade::policy::{Policy, PyTorch};
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};

pub use fences::{Fence, fences};
pub use limit::{Limit, LimitEvidence};
pub use message::{Certainty, MessageDiagnosis, diagnose_message};
pub use moment::Why;
pub use onset::Lows;
pub use owners::{Owner, Owners, StackUse, live_by_stack};
pub use phase::{Phase, phase_at};
pub use stranded::{Asked, Breakdown, Cause, Hole, PINNED_PART, Strand, stranded};
pub use verdict::{Applies, Steps, Verdict, judge};

use crate::recording::{Action, BlockState, DeviceRecording, Entry, Segment, StackId};
use crate::replay::{DeviceVerdict, Operation, Requests, VerifyError, VerifyOptions, verify_device};
use moment::{Seen, Target, segment_bytes, watch};

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

/// What the allocator gave back between the two heaps of an out-of-memory point.
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
    /// The entry since which reserved minus allocated bytes have stayed at `level_bytes` and more. `None`: since before the first entry.
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
    /// The heap that the request met.
    pub met: Breakdown,
    /// The heap that is judged: at an out-of-memory point what was left once all that could be given back was; else `met`.
    pub heap: Breakdown,
    /// What was reserved once the operation there was over.
    pub reserved_after_bytes: u64,
    /// What the allocator gave back at an out-of-memory point.
    pub given_back: GivenBack,
    /// Requests that were out of memory in all of the trace.
    pub ooms: usize,
    /// Retries before this moment.
    pub retries: i64,
    /// The limit that was assumed for the replay: garbage collection depends on it, none was given, and under this one every decision
    /// is the recorded one.
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

/// Diagnoses one device of a recording. `progress` is told now and then how many entries are done.
///
/// # Errors
/// As for verifying it: see [`VerifyError`]; and if there is no entry of the chosen number.
pub fn diagnose_device(
    recording: &DeviceRecording,
    options: &DiagnoseOptions,
    progress: &mut dyn FnMut(usize),
) -> Result<Diagnosis, DiagnoseError> {
    let trace = &recording.trace;
    if let Some(entry) = options.entry.filter(|&entry| entry >= trace.len()) {
        return Err(DiagnoseError::NoSuchEntry { entry, entries: trace.len() });
    }
    let policy = PyTorch::of(options.own.settings.profile, options.own.settings.settings.clone());
    if trace.is_empty() {
        return Ok(diagnose_end(recording, options, &policy));
    }
    let target = Target::find(recording, options.entry);
    let Run { exactness, seen, assumed } = run(recording, options, &policy, target, progress)?;
    let place = &trace[target.entry];
    let request = request_at(recording, options, target.entry, &policy)?;
    let asked = request.map(|request| request.asked);
    let is_oom = target.why == Why::OutOfMemory;
    let met = stranded(&seen.before, asked.as_ref(), &policy);
    let (segments, entries) = if is_oom { (&seen.after, seen.after_entries) } else { (&seen.before, seen.before_entries) };
    let heap = if is_oom { stranded(segments, asked.as_ref(), &policy) } else { met.clone() };
    let owners = Owners::after(recording, entries);
    let given = known_limit(options);
    let limit = seen.limit.conclude(given, heap.reserved_bytes);
    let (verdict, steps) = judge(&heap, asked.filter(|_| is_oom).map(|asked| asked.size.get()), limit);
    Ok(Diagnosis {
        device: recording.device,
        why: target.why,
        entry: Some(target.entry),
        time_us: place.time(),
        request,
        onset: onset(&seen.lows, &heap, trace),
        reserved_after_bytes: seen.after.iter().fold(0, |sum: u64, segment| sum.saturating_add(segment.total.get())),
        given_back: if is_oom { given_back(&trace[..seen.after_entries], seen.before_entries) } else { GivenBack::default() },
        ooms: trace.iter().filter(|entry| entry.action == Action::Oom).count(),
        retries: seen.retries,
        assumed_limit_bytes: assumed,
        limit,
        evidence: seen.limit,
        verdict,
        steps,
        stacks: live_by_stack(segments, &owners),
        fences: fences(segments, asked.as_ref(), &policy, &owners, options.fences),
        met,
        heap,
        exactness: Some(exactness),
    })
}

/// The recorded run, replayed.
struct Run {
    exactness: DeviceVerdict,
    seen: Seen,
    assumed: Option<u64>,
}

/// Replays the run and keeps what the diagnosis needs. Garbage collection depends on the limit: if none was given and decisions differ,
/// one is looked for that explains every one of them, among the whole gibibytes that the refusals leave.
fn run(
    recording: &DeviceRecording,
    options: &DiagnoseOptions,
    policy: &PyTorch,
    target: Target,
    progress: &mut dyn FnMut(usize),
) -> Result<Run, VerifyError> {
    let exactness = verify_device(recording, &options.own, progress)?;
    let seen = watch(recording, &options.own, policy, target)?;
    let collects = policy.settings.garbage_collection_threshold > 0.0;
    if exactness.mismatches > 0 && collects && options.own.limit_bytes.is_none() {
        for bytes in seen.limit.whole_gibibytes() {
            let own = VerifyOptions { limit_bytes: Some(bytes), ..options.own.clone() };
            let exactness = verify_device(recording, &own, progress)?;
            if exactness.mismatches == 0 {
                return Ok(Run { exactness, seen: watch(recording, &own, policy, target)?, assumed: Some(bytes) });
            }
        }
    }
    Ok(Run { exactness, seen, assumed: None })
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

/// Without a trace: the heap at the end, with no request.
fn diagnose_end(recording: &DeviceRecording, options: &DiagnoseOptions, policy: &PyTorch) -> Diagnosis {
    let segments: Vec<SegmentInfo> = recording.segments.iter().map(segment_info).collect();
    let owners = Owners::after(recording, 0);
    let heap = stranded(&segments, None, policy);
    let evidence = LimitEvidence { served: Some((heap.reserved_bytes, 0)), ..LimitEvidence::default() };
    let limit = evidence.conclude(known_limit(options), heap.reserved_bytes);
    let (verdict, steps) = judge(&heap, None, limit);
    Diagnosis {
        device: recording.device,
        why: Why::End,
        entry: None,
        time_us: None,
        request: None,
        met: heap.clone(),
        reserved_after_bytes: heap.reserved_bytes,
        given_back: GivenBack::default(),
        ooms: 0,
        retries: 0,
        assumed_limit_bytes: None,
        limit,
        evidence,
        verdict,
        steps,
        onset: None,
        stacks: live_by_stack(&segments, &owners),
        fences: fences(&segments, None, policy, &owners, options.fences),
        heap,
        exactness: None,
    }
}

fn known_limit(options: &DiagnoseOptions) -> Option<u64> {
    options.own.limit_bytes.into_iter().chain(options.capacity_bytes).min()
}

/// The request at an entry, if it is one.
fn request_at(
    recording: &DeviceRecording,
    options: &DiagnoseOptions,
    at: usize,
    policy: &PyTorch,
) -> Result<Option<Request>, VerifyError> {
    let entry = &recording.trace[at];
    let Some(size) = policy.round(Bytes(entry.size)).filter(|_| matches!(entry.action, Action::Alloc | Action::Oom)) else {
        return Ok(None);
    };
    let is_private = |segment: &Segment| segment.pool.is_some_and(|pool| pool != (0, 0));
    let pool = if recording.segments.iter().any(is_private) {
        let requests = Requests::of_recording(recording, &options.own, &mut |_| ())?;
        let at_entry = requests.operations.iter().find_map(|(place, operation)| match operation {
            Operation::Allocate { pool, .. } if *place == at => Some(*pool),
            _ => None,
        });
        at_entry.unwrap_or(PoolId::DEFAULT)
    } else {
        PoolId::DEFAULT
    };
    let asked = Asked { size, stream: StreamId(entry.stream), pool };
    let segment_bytes = segment_bytes(entry, policy);
    Ok(Some(Request { asked, requested_bytes: entry.size, segment_bytes, stack: entry.stack }))
}

/// What went back to the device in the entries from `from` on.
fn given_back(trace: &[Entry], from: usize) -> GivenBack {
    let mut given = GivenBack::default();
    for (at, entry) in trace.iter().enumerate().skip(from) {
        match entry.action {
            Action::SegmentFree | Action::SegmentUnmap => {
                given.segments += 1;
                given.bytes = given.bytes.saturating_add(entry.size);
                given.entries = Some((given.entries.map_or(at, |(first, _)| first), at));
            }
            Action::FreeCompleted => given.completed += 1,
            _ => {}
        }
    }
    given
}

fn onset(lows: &Lows, heap: &Breakdown, trace: &[Entry]) -> Option<Onset> {
    let level_bytes = heap.stranded_bytes() / 2;
    if level_bytes == 0 {
        return None;
    }
    let entry = lows.since(level_bytes).and_then(|entries| entries.checked_sub(1));
    let time_us = entry.and_then(|entry| trace.get(entry)).and_then(Entry::time);
    Some(Onset { entry, level_bytes, time_us })
}

/// A recorded segment in the shape of the core's.
fn segment_info(segment: &Segment) -> SegmentInfo {
    let blocks: Vec<BlockInfo> = segment.blocks.iter().map(block_info).collect();
    let sum = |counts: fn(&BlockInfo) -> u64| Bytes(blocks.iter().map(counts).fold(0, u64::saturating_add));
    SegmentInfo {
        address: DeviceAddress(segment.address),
        total: Bytes(segment.total_bytes),
        allocated: sum(|block| if block.state == BlockActivity::Allocated { block.size.get() } else { 0 }),
        active: sum(|block| if block.state == BlockActivity::Inactive { 0 } else { block.size.get() }),
        requested: sum(|block| if block.state == BlockActivity::Inactive { 0 } else { block.requested.get() }),
        stream: StreamId(segment.stream),
        pool: segment.pool.map_or(PoolId::DEFAULT, |(first, second)| PoolId(first, second)),
        class: if segment.large { PoolClass::Large } else { PoolClass::Small },
        expandable: segment.expandable,
        rank: 0,
        blocks,
    }
}

/// A block without its requested size counts as asked for whole.
fn block_info(block: &crate::recording::Block) -> BlockInfo {
    BlockInfo {
        address: DeviceAddress(block.address),
        size: Bytes(block.size),
        requested: Bytes(block.requested.unwrap_or(block.size)),
        state: match block.state {
            BlockState::ActiveAllocated => BlockActivity::Allocated,
            BlockState::ActivePendingFree => BlockActivity::PendingFree,
            BlockState::Inactive => BlockActivity::Inactive,
        },
    }
}
