//! Explains why a recorded program ran out of memory, from its snapshot or from the error message alone.
//!
//! [`diagnose_device`] follows the documents' five-step workflow (capacity? fragmentation? settings? empty_cache? the
//! snapshot) on the heap that the failing request met. `moment` replays the recording to find that heap, and the point at
//! which the stranded bytes last rose past half of their amount in it. `breakdown` breaks the heap down ([`Breakdown`]), and
//! `verdict` infers the limit and answers the five questions. The answer names stacks and [`Fence`]s: blocks in use next to
//! free ones; if a fence were freed, it and its free neighbours would coalesce into one hole. If nothing failed, [`excess`]
//! explains why more memory is reserved than allocated at the peak. A file without a trace is diagnosed from its final
//! segments, because it contains nothing else. [`diagnose_message`] does what is possible without a snapshot, from a complete
//! or partial message.

mod breakdown;
mod message;
mod moment;
mod verdict;

pub use breakdown::{Asked, Breakdown, Cause, Excess, ExcessCause, ExcessPart, Hole, PINNED_PART, Strand, excess, stranded};
pub use message::{Certainty, MessageDiagnosis, MessageVerdict, NO_DEVICE_BYTES, diagnose_message};
pub use moment::{Onset, Peak, Peaks, Question, Why};
pub use verdict::{Applies, Contradiction, Limit, LimitEvidence, Steps, Verdict};

use std::cmp::Reverse;

use parkade::policy::{Policy, PyTorch};
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::{Bytes, PoolId, StreamId};
use parkade_recording::{Action, BlockState, DeviceRecording, Entry, Segment, StackId};
use parkade_replay::recognition::{capacity_hint as hint, segment_bytes, verify_finding_limit};
use parkade_replay::{DeviceVerdict, Operation, Requests, VerifyError, VerifyOptions};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::ending::Ending;
use crate::fragmentation::recorded_heap;
use crate::stacks::{StackUse, by_stack};
use moment::{Lows, Seen, Target, watch};
use verdict::judge;

/// The point in time to diagnose, and the facts that the caller knows in addition to the file.
#[derive(Clone, Debug)]
pub struct DiagnoseOptions {
    /// The recorded run's settings and limit.
    pub own: VerifyOptions,
    /// The device memory that was available to the allocator, if known.
    pub capacity_bytes: Option<u64>,
    /// The entry to diagnose, counted from 0; if `None`, the first out-of-memory error.
    pub entry: Option<usize>,
    /// The number of fences to name.
    pub fences: usize,
}

impl DiagnoseOptions {
    /// Returns the smaller of the limit and the capacity that the caller specified.
    fn known_limit_bytes(&self) -> Option<u64> {
        self.own.limit_bytes.into_iter().chain(self.capacity_bytes).min()
    }
}

/// The request at the diagnosed moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The request as the allocator's search sees it.
    pub asked: Asked,
    /// The bytes that the program requested; an out-of-memory entry has only the rounded size.
    pub requested_bytes: u64,
    /// The bytes that the request would take, or took, from the device.
    pub segment_bytes: u64,
    /// The stack of the request.
    pub stack: StackId,
}

/// The memory that the allocator released to the device when memory was short, before it served the request or failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GivenBack {
    /// The number of segments, or of runs of pages.
    pub segments: usize,
    /// The sum of their bytes.
    pub bytes: u64,
    /// The first and the last entry of these releases.
    pub entries: Option<(usize, usize)>,
    /// The number of blocks whose events the allocator waited for.
    pub completed: usize,
}

/// The diagnosis of one device.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The device's number.
    pub device: u32,
    /// The reason why this moment was chosen.
    pub why: Why,
    /// The question that the diagnosis answers.
    pub question: Question,
    /// The entry of the moment; `None` if there is no trace, or if the moment is before the first entry.
    pub entry: Option<usize>,
    /// The time of the entry, in microseconds since 1970, if the file has it.
    pub time_us: Option<u64>,
    /// The request there, if the entry belongs to one.
    pub request: Option<Request>,
    /// Whether `met` and `heap` are broken down from the point of view of the request. False if there is no request, and also
    /// if the question is why more is reserved than allocated, because the next request reveals little about that.
    pub is_for_request: bool,
    /// The heap when the request arrived.
    pub met: Breakdown,
    /// The heap that is judged: after an out-of-memory error, what remained once the allocator had released everything it
    /// could; for the question of why more is reserved than allocated, the heap after the entry; in all other cases, `met`.
    pub heap: Breakdown,
    /// The reason why more is reserved than allocated in this heap, independently of any request.
    pub excess: Excess,
    /// The peaks of the entire run; `None` if there is no trace.
    pub peaks: Option<Peaks>,
    /// Bytes reserved after the operation.
    pub reserved_after_bytes: u64,
    /// The memory that the allocator released for the request.
    pub given_back: GivenBack,
    /// The number of requests in the entire trace that ran out of memory.
    pub ooms: usize,
    /// Retries up to this moment, including that of the failing request (`num_alloc_retries`).
    pub retries: i64,
    /// The limit that the replay assumed, in bytes; present if garbage collection depends on a limit, the caller specified
    /// none, and every decision under this limit matches the recording.
    pub assumed_limit_bytes: Option<u64>,
    /// How the run ended.
    pub ending: Ending,
    /// The facts known about the limit.
    pub limit: Limit,
    /// The evidence for `limit`.
    pub evidence: LimitEvidence,
    /// Why the request failed.
    pub verdict: Verdict,
    /// The answers of the five-step workflow.
    pub steps: Steps,
    /// The point since which this much memory has been stranded; `None` if nothing is stranded, or if there is no trace.
    pub onset: Option<Onset>,
    /// The memory that each stack holds, the largest first.
    pub stacks: Vec<StackUse>,
    /// The live blocks between the holes.
    pub fences: Vec<Fence>,
    /// The accuracy with which the replay reproduces the recording; `None` if there is no trace.
    pub exactness: Option<DeviceVerdict>,
}

/// The reason why there is no diagnosis.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DiagnoseError {
    /// The recording cannot be replayed.
    #[error(transparent)]
    Replay(#[from] VerifyError),
    /// The trace does not contain the entry.
    #[error("there is no entry {entry}: the trace has {entries} entries, counted from 0")]
    NoSuchEntry {
        /// The entry asked for.
        entry: usize,
        /// The number of entries of the trace.
        entries: usize,
    },
}

/// Diagnoses one device of a recording. `progress` is called periodically with the number of entries replayed.
///
/// # Errors
/// Fails if the recording cannot be replayed, or has no entry with the chosen number.
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
        return Ok(diagnose_segments(recording, options, &policy));
    }
    let Run { exactness, seen, assumed, target } = run(recording, options, &policy, progress)?;
    let request = match target.entry {
        Some(entry) => request_at(recording, options, entry, &policy)?,
        None => None,
    };
    let asked = request.map(|request| request.asked).filter(|_| target.question != Question::ReservedAboveAllocated);
    let (segments, entries) =
        if target.is_after() { (&seen.after, seen.after_entries) } else { (&seen.before, seen.before_entries) };
    // Nothing precedes the first entry.
    let before = if target.entry.is_some() { &seen.before } else { segments };
    let (met, heap) = (stranded(before, asked.as_ref(), &policy), stranded(segments, asked.as_ref(), &policy));
    let owners = Owners::after(recording, entries);
    let concluded = seen.limit.conclude(options.known_limit_bytes(), heap.reserved_bytes);
    // The limit that `advise` assumes.
    let hinted = || hint(recording, &options.own.settings).map(|hint| hint.assumed_bytes());
    let assumed = assumed.or_else(|| if matches!(concluded, Limit::Between { .. }) { hinted() } else { None });
    let judged_by = assumed.map_or(concluded, |bytes| Limit::Given { bytes });
    let failed_bytes = asked.filter(|_| target.why == Why::OutOfMemory).map(|asked| asked.size.get());
    // A verdict that depends on the assumed limit counts as undecided.
    let undecided = Some(judge(&heap, failed_bytes, concluded)).filter(|(verdict, _)| *verdict == Verdict::Undecided);
    let (verdict, steps) = undecided.unwrap_or_else(|| judge(&heap, failed_bytes, judged_by));
    Ok(Diagnosis {
        device: recording.device,
        why: target.why,
        question: target.question,
        entry: target.entry,
        time_us: target.entry.and_then(|entry| trace[entry].time()),
        request,
        is_for_request: asked.is_some(),
        onset: onset(&seen.lows, &heap, trace),
        reserved_after_bytes: seen.after.iter().fold(0, |sum: u64, segment| sum.saturating_add(segment.total.get())),
        given_back: given_back(&trace[..seen.after_entries], seen.before_entries, request.is_some()),
        ooms: trace.iter().filter(|entry| entry.action == Action::Oom).count(),
        retries: seen.retries,
        peaks: Some(seen.peaks),
        assumed_limit_bytes: assumed,
        ending: Ending::of(recording),
        limit: concluded,
        evidence: seen.limit,
        verdict,
        steps,
        stacks: live_by_stack(segments, &owners),
        fences: fences(segments, asked.as_ref(), &policy, &owners, options.fences),
        excess: excess(segments, &policy),
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
    target: Target,
}

/// Replays the run and keeps what the diagnosis needs. If no limit was specified, the run is replayed under the limit that
/// garbage collection reveals.
fn run(
    recording: &DeviceRecording,
    options: &DiagnoseOptions,
    policy: &PyTorch,
    progress: &mut dyn FnMut(usize),
) -> Result<Run, VerifyError> {
    let (exactness, assumed) = verify_finding_limit(recording, &options.own, progress)?;
    let own = VerifyOptions { limit_bytes: options.own.limit_bytes.or(assumed), ..options.own.clone() };
    let (seen, target) = see(recording, options, &own, policy)?;
    Ok(Run { exactness, seen, assumed, target })
}

/// Finds the moment to diagnose and replays the run to see it. The trace alone nearly always shows where the peak is; if not,
/// the run is replayed once more, because the peak is the replay's, as in every other command.
fn see(
    recording: &DeviceRecording,
    options: &DiagnoseOptions,
    own: &VerifyOptions,
    policy: &PyTorch,
) -> Result<(Seen, Target), VerifyError> {
    let target = Target::find(recording, options.entry);
    let seen = watch(recording, own, policy, target)?;
    let peak = Target::peak(seen.peaks.moment());
    if target.why != Why::Peak || target == peak {
        return Ok((seen, target));
    }
    Ok((watch(recording, own, policy, peak)?, peak))
}

/// Returns the request at an entry, if there is one.
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

/// Returns what the allocator released to the device for a request, in the entries starting at `from`.
fn given_back(trace: &[Entry], from: usize, is_request: bool) -> GivenBack {
    let mut given = GivenBack::default();
    for (at, entry) in trace.iter().enumerate().skip(from).filter(|_| is_request) {
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

/// Returns the point since which the heap has had at least half of its stranded bytes.
fn onset(lows: &Lows, heap: &Breakdown, trace: &[Entry]) -> Option<Onset> {
    let level_bytes = heap.stranded_bytes() / 2;
    if level_bytes == 0 {
        return None;
    }
    let entry = lows.since(level_bytes).and_then(|entries| entries.checked_sub(1));
    let time_us = entry.and_then(|entry| trace.get(entry)).and_then(Entry::time);
    Some(Onset { entry, level_bytes, time_us })
}

/// Diagnoses the final heap, without a request.
fn diagnose_segments(recording: &DeviceRecording, options: &DiagnoseOptions, policy: &PyTorch) -> Diagnosis {
    let segments = recorded_heap(&recording.segments);
    let owners = Owners::after(recording, 0);
    let heap = stranded(&segments, None, policy);
    let evidence = LimitEvidence { served: Some((heap.reserved_bytes, 0)), ..LimitEvidence::default() };
    let limit = evidence.conclude(options.known_limit_bytes(), heap.reserved_bytes);
    let (verdict, steps) = judge(&heap, None, limit);
    // Without a history, there is no way to know whether a request failed.
    let steps = Steps { capacity: Applies::Unknown, fragmentation: Applies::Unknown, settings: Applies::Unknown, ..steps };
    Diagnosis {
        device: recording.device,
        why: Why::End,
        question: Question::ReservedAboveAllocated,
        entry: None,
        time_us: None,
        request: None,
        is_for_request: false,
        met: heap.clone(),
        reserved_after_bytes: heap.reserved_bytes,
        given_back: GivenBack::default(),
        ooms: 0,
        retries: 0,
        peaks: None,
        assumed_limit_bytes: None,
        ending: Ending::of(recording),
        limit,
        evidence,
        verdict,
        steps,
        onset: None,
        stacks: live_by_stack(&segments, &owners),
        fences: fences(&segments, None, policy, &owners, options.fences),
        excess: excess(&segments, policy),
        heap,
        exactness: None,
    }
}

/// A block in use next to free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether the program has freed it and it is waiting for events.
    pub is_pending: bool,
    /// The free bytes next to it.
    pub beside_bytes: u64,
    /// The size of the hole that freeing it would leave.
    pub opens_bytes: u64,
    /// Whether that hole would be large enough for the request.
    pub is_enough: bool,
    /// Whether that hole would be the entire segment, which could then be released.
    pub frees_segment: bool,
    /// The allocation that created it.
    pub owner: Owner,
}

/// Returns the fences in the pool, stream and size class that could serve the request, at most `most` of them. Fences that
/// would make room for the request if nothing else were freed come first, the smallest first; then come the fences with the
/// most free memory beside them, small fences before large ones.
fn fences(segments: &[SegmentInfo], asked: Option<&Asked>, policy: &PyTorch, owners: &Owners, most: usize) -> Vec<Fence> {
    let mut fences = Vec::new();
    let place_of = |asked: &Asked| (asked.pool, asked.stream, policy.classify(asked.size));
    let wanted = asked.map(place_of);
    let is_reachable =
        |segment: &&SegmentInfo| wanted.is_none_or(|wanted| wanted == (segment.pool, segment.stream, segment.class));
    for segment in segments.iter().filter(is_reachable) {
        let free = |place: Option<usize>| {
            let block = place.and_then(|place| segment.blocks.get(place));
            block.filter(|block| block.state == BlockActivity::Inactive).map_or(0, |block| block.size.get())
        };
        for (place, block) in segment.blocks.iter().enumerate() {
            let beside_bytes = free(place.checked_sub(1)).saturating_add(free(place.checked_add(1)));
            if block.state == BlockActivity::Inactive || beside_bytes == 0 {
                continue;
            }
            let opens_bytes = beside_bytes.saturating_add(block.size.get());
            fences.push(Fence {
                address: block.address.get(),
                bytes: block.size.get(),
                is_pending: block.state == BlockActivity::PendingFree,
                beside_bytes,
                opens_bytes,
                is_enough: asked.is_some_and(|asked| opens_bytes >= asked.size.get()),
                frees_segment: opens_bytes == segment.total.get(),
                owner: owners.of(block.address.get()),
            });
        }
    }
    // A block that is larger than the free memory beside it is no obstacle: blocks exist to use memory.
    let rank = |fence: &Fence| {
        let is_small = fence.bytes < fence.beside_bytes;
        let is_key = fence.is_enough && is_small;
        (!is_key, if is_key { fence.bytes } else { 0 }, !is_small, Reverse(fence.beside_bytes), fence.address)
    };
    fences.sort_by_key(rank);
    fences.truncate(most);
    fences
}

/// The allocation that created a live block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The entry of the allocation; `None` if it came before the first entry.
    pub entry: Option<usize>,
    /// Its stack; [`StackId::NONE`] if the file has none.
    pub stack: StackId,
    /// Its time, in microseconds since 1970, if the file has it.
    pub time_us: Option<u64>,
}

/// The owners of all blocks in use at a given moment.
#[derive(Clone, Debug, Default)]
struct Owners {
    served: FxHashMap<u64, Owner>,
}

impl Owners {
    /// Returns the owners after the first `entries` entries of the trace.
    fn after(recording: &DeviceRecording, entries: usize) -> Owners {
        let mut served = FxHashMap::default();
        let (before, later) = recording.trace.split_at(entries.min(recording.trace.len()));
        let later: FxHashSet<u64> =
            later.iter().filter(|entry| entry.action == Action::Alloc).map(|entry| entry.address).collect();
        // If a block was in use from before the first entry until the end, the final segments record its stack.
        for block in recording.segments.iter().flat_map(|segment| &segment.blocks) {
            if block.state != BlockState::Inactive && !later.contains(&block.address) {
                served.insert(block.address, Owner { entry: None, stack: block.stack, time_us: None });
            }
        }
        for (at, entry) in before.iter().enumerate().filter(|(_, entry)| entry.action == Action::Alloc) {
            served.insert(entry.address, Owner { entry: Some(at), stack: entry.stack, time_us: entry.time() });
        }
        Owners { served }
    }

    /// Returns the owner of the block in use at this address.
    fn of(&self, address: u64) -> Owner {
        self.served.get(&address).copied().unwrap_or(Owner { entry: None, stack: StackId::NONE, time_us: None })
    }
}

/// Returns the bytes of a heap's live blocks that each stack holds, the largest first.
fn live_by_stack(segments: &[SegmentInfo], owners: &Owners) -> Vec<StackUse> {
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let live = blocks.filter(|block| block.state == BlockActivity::Allocated);
    by_stack(live.map(|block| (owners.of(block.address.get()).stack, block.size.get())).collect())
}

#[cfg(test)]
mod tests {
    use parkade::units::{MIB, PoolClass};
    use proptest::option;
    use proptest::prelude::*;

    use super::breakdown::sample_heaps::{Is, KIB, UNIT, asked, heaps, segment_of, under};
    use super::*;
    use crate::drawn_runs::{DrawnRun, programs};

    #[test]
    fn the_smallest_fence_that_opens_enough_comes_first() {
        let live = |size: u64| (size, Is::Live(size));
        let blocks = [(30 * MIB, Is::Free), live(MIB), (40 * MIB, Is::Free), live(4 * KIB), (10 * MIB, Is::Free), live(9 * MIB)];
        let segments = [segment_of(0, &blocks), segment_of(1 << 30, &[(64 * MIB, Is::Free), live(512)])];
        let found = |request: u64| {
            let fences = fences(&segments, Some(&asked(request)), &under(""), &Owners::default(), 3);
            fences.iter().map(|fence| (fence.bytes, fence.opens_bytes, fence.is_enough, fence.frees_segment)).collect::<Vec<_>>()
        };
        let (one, two) = ((MIB, 71 * MIB, false, false), (4 * KIB, 50 * MIB + 4 * KIB, false, false));
        assert_eq!(found(80 * MIB), [one, (512, 64 * MIB + 512, false, true), two]);
        let enough = |(bytes, opens, _, frees)| (bytes, opens, true, frees);
        assert_eq!(found(50 * MIB), [(512, 64 * MIB + 512, true, true), enough(two), enough(one)]);
    }

    /// Returns the size of the hole that a block becomes part of if it is freed.
    fn freed(segment: &SegmentInfo, place: usize) -> u64 {
        let is_free = |at: usize| at == place || segment.blocks[at].state == BlockActivity::Inactive;
        let first = (0..=place).rev().take_while(|&at| is_free(at)).last().expect("it is free itself");
        (first..segment.blocks.len()).take_while(|&at| is_free(at)).map(|at| segment.blocks[at].size.get()).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// Compares with freeing each block in use, one at a time.
        #[test]
        fn fences_are_the_blocks_whose_free_joins_holes(
            segments in heaps(),
            request in option::of(1..200_u64),
            most in 0..12_usize,
        ) {
            let policy = under("");
            let asked = request.map(|units| asked(units * UNIT));
            let is_reachable = |segment: &&SegmentInfo| {
                asked.is_none_or(|asked| {
                    let class = if asked.size.get() <= MIB { PoolClass::Small } else { PoolClass::Large };
                    (segment.pool, segment.stream, segment.class) == (asked.pool, asked.stream, class)
                })
            };
            let mut expected = Vec::new();
            for segment in segments.iter().filter(is_reachable) {
                for (place, block) in
                    segment.blocks.iter().enumerate().filter(|(_, block)| block.state != BlockActivity::Inactive)
                {
                    let (bytes, opens_bytes) = (block.size.get(), freed(segment, place));
                    if opens_bytes > bytes {
                        expected.push(Fence {
                            address: block.address.get(),
                            bytes,
                            is_pending: block.state == BlockActivity::PendingFree,
                            beside_bytes: opens_bytes - bytes,
                            opens_bytes,
                            is_enough: asked.is_some_and(|asked| opens_bytes >= asked.size.get()),
                            frees_segment: opens_bytes == segment.total.get(),
                            owner: Owners::default().of(0),
                        });
                    }
                }
            }
            // Selects the next fence again and again.
            let is_small = |fence: &Fence| fence.bytes < fence.beside_bytes;
            let is_key = |fence: &Fence| fence.is_enough && is_small(fence);
            let comes_before = |one: &Fence, other: &Fence| match (is_key(one), is_key(other)) {
                (true, false) => true,
                (false, true) => false,
                (true, true) if one.bytes != other.bytes => one.bytes < other.bytes,
                _ if is_small(one) != is_small(other) => is_small(one),
                _ if one.beside_bytes != other.beside_bytes => one.beside_bytes > other.beside_bytes,
                _ => one.address < other.address,
            };
            let mut sorted = Vec::new();
            while sorted.len() < most && !expected.is_empty() {
                let first = (0..expected.len()).find(|&at| !expected.iter().any(|other| comes_before(other, &expected[at])));
                sorted.push(expected.remove(first.expect("one comes before all others")));
            }
            prop_assert_eq!(fences(&segments, asked.as_ref(), &policy, &Owners::default(), most), sorted);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        /// Compares with the core's own states: the heaps before and after the operation, the peaks, and what is released.
        #[test]
        fn a_diagnosis_is_of_the_heaps_that_the_core_had(steps in programs(24), chosen in option::of(0..64_usize)) {
            let limit = 80 * MIB;
            let run = DrawnRun::of(&steps, "", Some(limit));
            prop_assume!(!run.trace().is_empty());
            let requests = (0..run.trace().len()).filter(|&at| matches!(run.trace()[at].action, Action::Alloc | Action::Oom));
            let requests: Vec<usize> = requests.collect();
            let chosen = chosen.filter(|_| !requests.is_empty()).map(|chosen| requests[chosen % requests.len()]);
            let options = DiagnoseOptions { own: run.own.clone(), capacity_bytes: None, entry: chosen, fences: 3 };
            let found = diagnose_device(run.device(), &options, &mut |_| ()).expect("it replays");
            prop_assert_eq!(found.exactness.as_ref().map(|exactness| exactness.mismatches), Some(0));
            prop_assert_eq!(found.evidence.contradiction(limit), None, "{:?}", found.evidence);
            let peak = run.states.iter().map(|state| (state.reserved_bytes, state.allocated_bytes)).max().expect("a state");
            let is_peak = |state: &&crate::drawn_runs::State| (state.reserved_bytes, state.allocated_bytes) == peak;
            let at_peak = run.states.iter().find(is_peak).expect("the peak is a state").entries;
            let failed = Ending::of(run.device()).death().map(|death| death.entry);
            let failed = failed.or_else(|| run.trace().iter().position(|entry| entry.action == Action::Oom));
            prop_assert_eq!(found.entry, chosen.or(failed).or(at_peak.checked_sub(1)));
            prop_assert_eq!(found.ooms, run.trace().iter().filter(|entry| entry.action == Action::Oom).count());
            let Some(entry) = found.entry else { return Ok(()) };
            let after = run.states.iter().position(|state| state.entries > entry).expect("the end of the operation");
            let (before, after) = (&run.states[after - 1], &run.states[after]);
            let judged = if found.question == Question::NewMemory { before } else { after };
            prop_assert_eq!(
                (found.met.reserved_bytes, found.met.allocated_bytes()),
                (before.reserved_bytes, before.allocated_bytes)
            );
            prop_assert_eq!(
                (found.heap.reserved_bytes, found.heap.allocated_bytes()),
                (judged.reserved_bytes, judged.allocated_bytes)
            );
            prop_assert_eq!(found.excess.bytes(), judged.reserved_bytes - judged.allocated_bytes);
            prop_assert_eq!(found.reserved_after_bytes, after.reserved_bytes);
            let entries = &run.trace()[before.entries..after.entries];
            let sum = |actions: [Action; 2]| {
                let all = entries.iter().filter(|entry| actions.contains(&entry.action));
                (all.clone().count(), all.map(|entry| entry.size).sum::<u64>())
            };
            let takes = sum([Action::SegmentAlloc, Action::SegmentMap]).0 > 0;
            let question = match run.trace()[entry].action {
                Action::Oom => Question::OutOfMemory,
                Action::Alloc if takes && chosen.is_some() => Question::NewMemory,
                _ => Question::ReservedAboveAllocated,
            };
            prop_assert_eq!(found.question, question);
            if found.request.is_some() {
                let released = sum([Action::SegmentFree, Action::SegmentUnmap]);
                prop_assert_eq!((found.given_back.segments, found.given_back.bytes), released);
                prop_assert_eq!(found.given_back.completed, sum([Action::FreeCompleted; 2]).0);
            }
        }
    }
}
