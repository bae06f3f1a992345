//! The timeline of one device's run.

use parkade_recording::DeviceRecording;
use parkade_replay::{Requests, VerifyError, VerifyOptions};

use super::levels::Levels;
use super::log::HeapLog;
use super::markers::{Marker, markers};

/// One device's run over its length.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// How many entries its trace has.
    pub entries: usize,
    /// When each block and segment existed.
    pub log: HeapLog,
    /// Its levels of memory at every moment.
    pub levels: Levels,
    /// Out-of-memory errors, retries and calls of `empty_cache`, by moment.
    pub markers: Vec<Marker>,
}

impl Timeline {
    /// The timeline of one device of a recording. `own` are the settings and the limit of the recorded run, `requests` its requests. A
    /// device without a trace has a single moment, that of its final segments.
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
