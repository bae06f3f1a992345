//! The moment that is looked at: which entry, and the heap before and after the operation there.
//!
//! Two heaps matter at an out-of-memory error: the one that the request met, and the one that remained when the allocator had given
//! back all it could and still failed. One pass over the run keeps both, and what else the diagnosis needs of the run up to there.

use std::cmp::Reverse;

use parkade::PoolSlot;
use parkade::policy::{Policy, PyTorch};
use parkade::snapshot::SegmentInfo;
use parkade::stats::Family;
use parkade::units::Bytes;
use parkade_recording::{Action, DeviceRecording, Entry};
use parkade_replay::{VerifyError, VerifyOptions, watch_device};

use super::limit::LimitEvidence;
use super::onset::Lows;
use crate::reserved::{growth_bytes, reserved_at_start};

/// Why this moment is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// A request was out of memory there. Without a choice of the caller it is the first such request.
    OutOfMemory,
    /// The caller chose this entry, and no request failed there.
    Chosen,
    /// Nothing failed. Of the requests that raised reserved memory to at least 99 % of its peak, it is the one that added the most.
    Peak,
    /// The file has no trace: the heap at the end is all there is.
    End,
}

/// An entry to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) entry: usize,
    pub(super) why: Why,
}

impl Target {
    /// The entry that the caller chose, or the first out-of-memory error, or the growth to the peak.
    pub(super) fn find(recording: &DeviceRecording, chosen: Option<usize>) -> Target {
        let trace = &recording.trace;
        let is_oom = |entry: &Entry| entry.action == Action::Oom;
        if let Some(entry) = chosen {
            let why = if trace.get(entry).is_some_and(is_oom) { Why::OutOfMemory } else { Why::Chosen };
            return Target { entry, why };
        }
        match trace.iter().position(is_oom) {
            Some(entry) => Target { entry, why: Why::OutOfMemory },
            None => Target { entry: peak(recording), why: Why::Peak },
        }
    }
}

/// Of the requests that raised reserved memory to at least 99 % of its peak, the first of those that added the most; 0 if there is none.
/// The very last bytes of a peak are often one small segment, which tells little.
fn peak(recording: &DeviceRecording) -> usize {
    let trace = &recording.trace;
    let start = reserved_at_start(recording);
    let reserved = || {
        trace.iter().enumerate().scan(start, |reserved, (place, entry)| {
            *reserved += growth_bytes(entry);
            Some((place, *reserved))
        })
    };
    let most = reserved().map(|(_, bytes)| bytes).max().unwrap_or(0).max(start);
    let high = reserved().filter(|&(place, bytes)| growth_bytes(&trace[place]) > 0 && bytes * 100 >= most * 99);
    let step = high.min_by_key(|&(place, _)| Reverse(growth_bytes(&trace[place])));
    let Some((at, _)) = step else { return 0 };
    // The entry of the request that the memory was for comes right after it.
    (at + trace[at..].iter().take_while(|entry| is_inner(entry)).count()).min(trace.len() - 1)
}

/// Whether an entry is, or may be, part of a larger operation.
fn is_inner(entry: &Entry) -> bool {
    !matches!(entry.action, Action::Alloc | Action::Oom | Action::FreeRequested | Action::Snapshot)
}

/// What one pass over the run keeps.
#[derive(Default)]
pub(super) struct Seen {
    /// The heap before the operation at the target.
    pub(super) before: Vec<SegmentInfo>,
    /// How many entries come before it.
    pub(super) before_entries: usize,
    /// The heap after it.
    pub(super) after: Vec<SegmentInfo>,
    /// How many entries come before that heap, the operation's own included.
    pub(super) after_entries: usize,
    /// Retries up to the target.
    pub(super) retries: i64,
    /// Reserved minus allocated bytes up to the target.
    pub(super) lows: Lows,
    /// What the whole run shows about the limit.
    pub(super) limit: LimitEvidence,
}

/// Replays the recording and keeps what the diagnosis of `target` needs.
pub(super) fn watch(
    recording: &DeviceRecording,
    own: &VerifyOptions,
    policy: &PyTorch,
    target: Target,
) -> Result<Seen, VerifyError> {
    let trace = &recording.trace;
    let collects = policy.settings.garbage_collection_threshold > 0.0;
    let first_inner = trace[..target.entry].iter().rev().take_while(|entry| is_inner(entry)).count();
    let mut seen = Seen::default();
    // Counted from the trace, so that the evidence about the limit does not depend on how exact the replay is.
    let mut reserved_now = reserved_at_start(recording);
    let (mut entries_before, mut reserved_before, mut retries_before) = (0, 0_u64, 0);
    let mut is_after = false;
    watch_device(recording, own, &mut |moment| {
        let (stats, entries) = (moment.stats(), moment.entries);
        let current = |family| u64::try_from(stats.family(family).all.current).unwrap_or(0);
        reserved_now += trace[entries_before..entries].iter().map(growth_bytes).sum::<i128>();
        let reserved = u64::try_from(reserved_now).unwrap_or(0);
        let stranded = current(Family::ReservedBytes).saturating_sub(current(Family::AllocatedBytes));
        seen.limit.serve(reserved, entries);
        let request = entries.checked_sub(1).and_then(|last| Some((last, trace.get(last)?)));
        if let Some((place, entry)) = request.filter(|_| entries > entries_before) {
            let was_retried = stats.num_alloc_retries > retries_before && !collects;
            if let Some(bytes) = refused_bytes(entry, reserved_before, reserved, was_retried) {
                seen.limit.refuse(bytes.saturating_add(segment_bytes(entry, policy)), place);
            }
        }
        if entries <= target.entry {
            seen.lows.push(entries, stranded);
            seen.retries = stats.num_alloc_retries;
            // The target may be the second entry of a free, whose operation begins one entry earlier.
            if entries + first_inner + 1 >= target.entry {
                (seen.before, seen.before_entries) = (moment.segments(), entries);
            }
        } else if !is_after {
            is_after = true;
            (seen.after, seen.after_entries) = (moment.segments(), entries);
            if target.why == Why::OutOfMemory {
                seen.retries = stats.num_alloc_retries;
                seen.lows.push(entries, stranded);
            }
        }
        (entries_before, reserved_before, retries_before) = (entries, reserved, stats.num_alloc_retries);
    })?;
    if let Some(oom) = trace.get(target.entry).filter(|entry| entry.action == Action::Oom) {
        (seen.limit.device_free_bytes, seen.limit.tried_bytes) = (Some(oom.address), Some(segment_bytes(oom, policy)));
    }
    Ok(seen)
}

/// The bytes that were reserved when the device or the limit refused memory to the request of this entry; `None` if neither did.
/// `was_retried`: the request was served only after a retry, and no garbage collection came before the first attempt.
fn refused_bytes(request: &Entry, before_bytes: u64, after_bytes: u64, was_retried: bool) -> Option<u64> {
    match request.action {
        // The last attempt, after every rung of the retry ladder (the steps taken when no free block serves a request).
        Action::Oom => Some(after_bytes),
        // The first attempt, before the ladder released anything.
        Action::Alloc if was_retried => Some(before_bytes),
        _ => None,
    }
}

/// The most that a request would take from the device: a segment, or as many pages of an expandable segment.
pub(super) fn segment_bytes(request: &Entry, policy: &PyTorch) -> u64 {
    let Some(size) = policy.round(Bytes(request.size)) else { return u64::MAX };
    let segment = policy.segment_for(size).unwrap_or(Bytes::MAX);
    if !policy.settings.expandable_segments {
        return segment.get();
    }
    let page = policy.page(PoolSlot::default_pool(policy.classify(size)));
    size.checked_round_up(page).unwrap_or(Bytes::MAX).max(segment).get()
}
