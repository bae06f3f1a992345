//! Events worth a marker on a timeline: out-of-memory errors, retries, calls of `empty_cache`.

use parkade_recording::{Action, DeviceRecording};
use parkade_replay::{Operation, Requests};

/// What happened at a marker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MarkerKind {
    /// A request was out of memory.
    OutOfMemory,
    /// The device refused memory; the allocator released its cache and asked again.
    Retry,
    /// The program called `empty_cache`, which released something.
    EmptyCache,
}

impl MarkerKind {
    /// Its name in JSON and in report pages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MarkerKind::OutOfMemory => "oom",
            MarkerKind::Retry => "retry",
            MarkerKind::EmptyCache => "empty_cache",
        }
    }
}

/// Something that happened at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// The moment before it, at which the heap shows why it happened.
    pub moment: u32,
    /// What happened.
    pub kind: MarkerKind,
    /// The bytes of the request that was out of memory or tried again.
    pub bytes: Option<u64>,
}

/// The markers of a device's recording, by moment. `retries` are the moments after the requests that were tried again.
pub(super) fn markers(recording: &DeviceRecording, retries: &[u32], requests: &Requests) -> Vec<Marker> {
    let mut markers: Vec<Marker> = Vec::new();
    for (at, entry) in recording.trace.iter().enumerate().filter(|(_, entry)| entry.action == Action::Oom) {
        markers.push(Marker { moment: at as u32, kind: MarkerKind::OutOfMemory, bytes: Some(entry.size) });
    }
    // Programs often call it several times in a row; one marker is enough.
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
