//! A recorded run over time, as plain data for drawing: levels, lifetimes of blocks and segments, and markers.
//!
//! A *moment* is a number of completed entries: moment 0 is the state before the first entry, moment `n` the state after `n`
//! entries. `log` records the moments between which each block and segment existed; the heap at any moment, the levels, and
//! what holds the memory all follow from it. [`Timeline`] holds the log of one device's run, its levels and its markers:
//! out-of-memory errors, retries, and calls to `empty_cache`. `levels` aggregates levels for drawing and runs the same
//! requests under other settings, and `packed` packs a log into few bytes and reads it back.

mod levels;
mod log;
mod packed;

pub use levels::{Bucket, Curve, Levels, Rest, Span, WhatIf, WhatIfRun, in_use, what_if};
pub use log::{BlockLife, BlockNow, HeapLog, Holder, HolderKey, NEVER, SegmentLife, SegmentNow, holders};
pub use packed::{Column, Packed, PackedError, TimeSamples, pack_numbers};

use parkade_recording::{Action, DeviceRecording};
use parkade_replay::{Operation, Requests, VerifyError, VerifyOptions};

/// One device's run over time.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The number of entries in its trace.
    pub entries: usize,
    /// The lifetime of each block and segment.
    pub log: HeapLog,
    /// Its memory levels at every moment.
    pub levels: Levels,
    /// Out-of-memory errors, retries and calls to `empty_cache`, by moment.
    pub markers: Vec<Marker>,
}

impl Timeline {
    /// The timeline of one device of a recording. `own` holds the recorded run's settings and limit, and `requests` holds its
    /// requests. A device without a trace has a single moment, that of its final segments.
    ///
    /// # Errors
    /// If the recording cannot be replayed.
    pub fn of_device(recording: &DeviceRecording, own: &VerifyOptions, requests: &Requests) -> Result<Timeline, VerifyError> {
        let entries = recording.trace.len();
        if entries == 0 {
            let log = HeapLog::of_segments(&recording.segments);
            let levels = log.levels(0);
            return Ok(Timeline { entries, log, levels, markers: Vec::new() });
        }
        let (log, retries) = HeapLog::of_trace(recording, own, !requests.pools.is_empty())?;
        let levels = log.levels(entries);
        let markers = markers(recording, &retries, requests);
        Ok(Timeline { entries, log, levels, markers })
    }
}

/// What happened at a marker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MarkerKind {
    /// A request ran out of memory.
    OutOfMemory,
    /// The device refused memory; the allocator released its cache and retried.
    Retry,
    /// The program called `empty_cache`, and memory was released.
    EmptyCache,
}

parkade_recording::names! {
    MarkerKind {
        MarkerKind::OutOfMemory => "oom",
        MarkerKind::Retry => "retry",
        MarkerKind::EmptyCache => "empty_cache",
    }
}

/// An event at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// The moment before the event, when the heap shows why the event happened.
    pub moment: u32,
    /// What happened.
    pub kind: MarkerKind,
    /// The size of the request that ran out of memory or was retried.
    pub bytes: Option<u64>,
}

/// The markers of a device's recording, by moment. `retries` are the moments after the requests that were retried.
fn markers(recording: &DeviceRecording, retries: &[u32], requests: &Requests) -> Vec<Marker> {
    let mut markers: Vec<Marker> = Vec::new();
    for (at, entry) in recording.trace.iter().enumerate().filter(|(_, entry)| entry.action == Action::Oom) {
        markers.push(Marker { moment: at as u32, kind: MarkerKind::OutOfMemory, bytes: Some(entry.size) });
    }
    // Programs often call `empty_cache` several times in a row; one marker is enough.
    let mut calls: Vec<usize> =
        requests.operations.iter().filter(|(_, what)| *what == Operation::EmptyCache).map(|&(at, _)| at).collect();
    calls.dedup();
    markers.extend(calls.iter().map(|&at| Marker { moment: at as u32, kind: MarkerKind::EmptyCache, bytes: None }));
    markers.extend(retries.iter().map(|&moment| Marker {
        moment: moment.saturating_sub(1),
        kind: MarkerKind::Retry,
        bytes: recording.trace.get(moment.saturating_sub(1) as usize).map(|entry| entry.size),
    }));
    markers.sort_by_key(|marker| (marker.moment, marker.kind));
    markers
}
