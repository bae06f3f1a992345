//! What a recorded run looked like over its length, as plain data to draw: levels, lives of blocks and segments, markers, phases.
//!
//! A *moment* is a number of entries that are done: moment 0 is the state before the first entry, moment `n` that after the last of
//! `n`. `log` says which blocks and segments there were from which moment to which, so the heap at any moment, the levels and who
//! holds the memory all follow from one list. `buckets` aggregates levels for drawing, `marks` finds what deserves a marker,
//! `what_if` runs the same requests under other settings, and `columns` packs a log into few bytes and reads it back.

mod buckets;
mod columns;
mod heap;
mod holders;
mod log;
mod marks;
mod times;
mod what_if;

pub use buckets::{Bucket, Curve, Levels};
pub use columns::{Column, Packed, PackedError, pack_numbers};
pub use heap::{BlockNow, SegmentNow};
pub use holders::{Holder, HolderKey, holders};
pub use log::{BlockLife, HeapLog, NEVER, SegmentLife};
pub use marks::{Marker, MarkerKind, Phase, markers, phases};
pub use times::TimeSamples;
pub use what_if::{WhatIf, WhatIfRun, what_if};

use parkade_recording::DeviceRecording;
use parkade_replay::{Requests, VerifyError, VerifyOptions};

/// One device's run.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// How many entries its trace has.
    pub entries: usize,
    /// Which blocks and segments there were when.
    pub log: HeapLog,
    /// Its levels at every moment.
    pub levels: Levels,
    /// Out of memory, retries, calls of empty_cache, by moment.
    pub markers: Vec<Marker>,
}

impl Timeline {
    /// The run of one device of a recording. `own` are the settings and the limit of the recorded run, `requests` what it asked for.
    ///
    /// A device without a trace has one moment, that of its segments.
    ///
    /// # Errors
    /// As for verifying it: see [`VerifyError`].
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
