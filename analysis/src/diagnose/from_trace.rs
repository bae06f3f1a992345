//! Diagnoses a device's recording: finds the moment, replays the run up to it, and answers each question about the heap there.

use parkade::policy::{Policy, PyTorch};
use parkade::units::{Bytes, PoolId, StreamId};
use parkade_recording::{Action, DeviceRecording, Entry, Segment};
use parkade_replay::recognition::{capacity_hint as hint, segment_bytes, verify_finding_limit};
use parkade_replay::{DeviceVerdict, Operation, Requests, VerifyError, VerifyOptions};

use super::breakdown::{Asked, Breakdown};
use super::diagnosis::{DiagnoseError, DiagnoseOptions, Diagnosis, GivenBack, Request};
use super::excess::excess;
use super::fences::fences;
use super::from_segments::diagnose_segments;
use super::limit::Limit;
use super::moment::{Question, Seen, Target, Why, watch};
use super::onset::{Lows, Onset};
use super::owners::{Owners, live_by_stack};
use super::stranded::stranded;
use super::verdict::{Verdict, judge};
use crate::ending::Ending;

/// Diagnoses one device of a recording. `progress` is called now and then with the number of entries replayed.
///
/// # Errors
/// If the recording cannot be replayed, or has no entry of the chosen number.
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
    // Nothing comes before the first entry.
    let before = if target.entry.is_some() { &seen.before } else { segments };
    let (met, heap) = (stranded(before, asked.as_ref(), &policy), stranded(segments, asked.as_ref(), &policy));
    let owners = Owners::after(recording, entries);
    let concluded = seen.limit.conclude(options.known_limit_bytes(), heap.reserved_bytes);
    // The limit that advise assumes.
    let hinted = || hint(recording, &options.own.settings).map(|hint| hint.assumed_bytes());
    let assumed = assumed.or_else(|| if matches!(concluded, Limit::Between { .. }) { hinted() } else { None });
    let judged_by = assumed.map_or(concluded, |bytes| Limit::Given { bytes });
    let failed_bytes = asked.filter(|_| target.why == Why::OutOfMemory).map(|asked| asked.size.get());
    // What only the assumed limit decides is not known.
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

/// Replays the run, under the limit that garbage collection shows if none was given, and keeps what the diagnosis needs.
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

/// The moment to look at, and what a replay under these options shows of it. Where the peak is looked at, the trace nearly always tells
/// it beforehand; if not, the run is replayed once more, because the peak is that of the replay, as in every other command.
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

/// The request at an entry, if the entry is one.
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

/// What was given back to the device for a request, in the entries from `from` on.
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

/// Since when the heap has had at least half of its stranded bytes.
fn onset(lows: &Lows, heap: &Breakdown, trace: &[Entry]) -> Option<Onset> {
    let level_bytes = heap.stranded_bytes() / 2;
    if level_bytes == 0 {
        return None;
    }
    let entry = lows.since(level_bytes).and_then(|entries| entries.checked_sub(1));
    let time_us = entry.and_then(|entry| trace.get(entry)).and_then(Entry::time);
    Some(Onset { entry, level_bytes, time_us })
}
