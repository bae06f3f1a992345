//! The moment that is looked at: which entry, and the heap before and after what was done there.
//!
//! An out-of-memory point has two heaps that matter: the one that the request met, and the one that was left once the allocator
//! had given back all it could and still had no room. One pass over the run keeps both, and what else has to be known of the way
//! there.

use std::cmp::Reverse;

use parkade::PoolSlot;
use parkade::policy::{Policy, PyTorch};
use parkade::snapshot::SegmentInfo;
use parkade::stats::Family;
use parkade::units::Bytes;

use super::limit::LimitEvidence;
use super::onset::Lows;
use parkade_recording::{Action, DeviceRecording, Entry};
use parkade_replay::{VerifyError, VerifyOptions, watch_device};

/// Why this moment is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// A request was out of memory there; the first one, if nothing else was asked for.
    OutOfMemory,
    /// The caller chose this entry, and no request failed there.
    Chosen,
    /// Nothing failed: of the requests that brought reserved memory to 99 % of its peak or more, the one that added most.
    Peak,
    /// The file has no trace: it is the heap at the end.
    End,
}

/// An entry to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) entry: usize,
    pub(super) why: Why,
}

impl Target {
    /// The entry that the caller chose; else the first out-of-memory point; else the growth to the peak.
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

/// By how much an entry changes what is reserved.
fn growth(entry: &Entry) -> i128 {
    match entry.action {
        Action::SegmentAlloc | Action::SegmentMap => i128::from(entry.size),
        Action::SegmentFree | Action::SegmentUnmap => -i128::from(entry.size),
        _ => 0,
    }
}

/// What was reserved before the first entry: what is at the end, walked back.
fn reserved_at_start(recording: &DeviceRecording) -> i128 {
    let end: i128 = recording.segments.iter().map(|segment| i128::from(segment.total_bytes)).sum();
    end - recording.trace.iter().map(growth).sum::<i128>()
}

/// Of the requests that brought reserved memory to 99 % of its peak or more, the first of those that added most: the last bytes
/// of a peak are often a small segment that says nothing. 0 if nothing was added up there.
fn peak(recording: &DeviceRecording) -> usize {
    let trace = &recording.trace;
    let start = reserved_at_start(recording);
    let reserved = || {
        trace.iter().enumerate().scan(start, |reserved, (place, entry)| {
            *reserved += growth(entry);
            Some((place, *reserved))
        })
    };
    let most = reserved().map(|(_, bytes)| bytes).max().unwrap_or(0).max(start);
    let high = reserved().filter(|&(place, bytes)| growth(&trace[place]) > 0 && bytes * 100 >= most * 99);
    let step = high.min_by_key(|&(place, _)| Reverse(growth(&trace[place])));
    let Some((at, _)) = step else { return 0 };
    // The request that it was for comes right behind it.
    (at + trace[at..].iter().take_while(|entry| is_inner(entry)).count()).min(trace.len() - 1)
}

/// Whether an entry is a part of a larger operation, or may be.
fn is_inner(entry: &Entry) -> bool {
    !matches!(entry.action, Action::Alloc | Action::Oom | Action::FreeRequested | Action::Snapshot)
}

/// What one pass over the run keeps.
pub(super) struct Seen {
    /// The heap before the operation at the target.
    pub(super) before: Vec<SegmentInfo>,
    /// How many entries were done then.
    pub(super) before_entries: usize,
    /// The heap after it.
    pub(super) after: Vec<SegmentInfo>,
    /// How many entries were done then.
    pub(super) after_entries: usize,
    /// Retries up to it.
    pub(super) retries: i64,
    /// The timeline of reserved minus allocated bytes up to the target, as far as it is needed.
    pub(super) lows: Lows,
    pub(super) limit: LimitEvidence,
}

/// Runs the recording and keeps what the diagnosis of `target` needs.
pub(super) fn watch(
    recording: &DeviceRecording,
    own: &VerifyOptions,
    policy: &PyTorch,
    target: Target,
) -> Result<Seen, VerifyError> {
    let trace = &recording.trace;
    let collects = policy.settings.garbage_collection_threshold > 0.0;
    let first_inner = trace[..target.entry].iter().rev().take_while(|entry| is_inner(entry)).count();
    let mut seen = Seen {
        before: Vec::new(),
        before_entries: 0,
        after: Vec::new(),
        after_entries: 0,
        retries: 0,
        lows: Lows::default(),
        limit: LimitEvidence::default(),
    };
    // As the trace says, so that what is known of the limit does not depend on how exact the replay is.
    let mut reserved_now = reserved_at_start(recording);
    let (mut entries_before, mut reserved_before, mut retries_before) = (0, 0_u64, 0);
    let mut is_after = false;
    watch_device(recording, own, &mut |moment| {
        let (stats, entries) = (moment.stats(), moment.entries);
        let current = |family| u64::try_from(stats.family(family).all.current).unwrap_or(0);
        reserved_now += trace[entries_before..entries].iter().map(growth).sum::<i128>();
        let reserved = u64::try_from(reserved_now).unwrap_or(0);
        let stranded = current(Family::ReservedBytes).saturating_sub(current(Family::AllocatedBytes));
        seen.limit.serve(reserved, entries);
        let request = entries.checked_sub(1).and_then(|last| Some((last, trace.get(last)?)));
        if let Some((place, entry)) = request.filter(|_| entries > entries_before) {
            let wanted = segment_bytes(entry, policy);
            if entry.action == Action::Oom {
                // After the ladder, the last try.
                seen.limit.refuse(reserved.saturating_add(wanted), place);
            } else if entry.action == Action::Alloc && stats.num_alloc_retries > retries_before && !collects {
                // Before the ladder, the first try. Garbage collection would have come before that.
                seen.limit.refuse(reserved_before.saturating_add(wanted), place);
            }
        }
        if entries <= target.entry {
            seen.lows.push(entries, stranded);
            seen.retries = stats.num_alloc_retries;
            // The target may be the second entry of a block given back.
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

/// The most that a request would take from the device: a segment, or as many pages of an expandable one.
pub(super) fn segment_bytes(request: &Entry, policy: &PyTorch) -> u64 {
    let Some(size) = policy.round(Bytes(request.size)) else { return u64::MAX };
    let segment = policy.segment_for(size).unwrap_or(Bytes::MAX);
    if !policy.settings.expandable_segments {
        return segment.get();
    }
    let page = policy.page(PoolSlot::default_pool(policy.classify(size)));
    size.checked_round_up(page).unwrap_or(Bytes::MAX).max(segment).get()
}
