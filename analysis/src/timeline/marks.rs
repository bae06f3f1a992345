//! What deserves a marker on a timeline, and the phases that the program named.

use std::sync::Arc;

use parkade_recording::{Action, Annotation, DeviceRecording};
use parkade_replay::{Operation, Requests};

/// What happened at a marker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MarkerKind {
    /// A request failed for lack of memory.
    OutOfMemory,
    /// The device refused; everything cached was given back, and it was asked again.
    Retry,
    /// The program called empty_cache, and that gave something back.
    EmptyCache,
}

impl MarkerKind {
    /// Its name in pages and in JSON.
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
    /// The moment before it, at which the heap shows why it happened; of an `EmptyCache` and an `OutOfMemory` the entry's number.
    pub moment: u32,
    /// What.
    pub kind: MarkerKind,
    /// Of an out-of-memory error the request, rounded, in bytes.
    pub bytes: Option<u64>,
}

/// The markers of a device's recording, by moment. `retries` are the moments behind the requests that were tried again.
#[must_use]
pub fn markers(recording: &DeviceRecording, retries: &[u32], requests: &Requests) -> Vec<Marker> {
    let mut markers: Vec<Marker> = Vec::new();
    for (at, entry) in recording.trace.iter().enumerate().filter(|(_, entry)| entry.action == Action::Oom) {
        markers.push(Marker { moment: at as u32, kind: MarkerKind::OutOfMemory, bytes: Some(entry.size) });
    }
    // Many programs call it in a row at one place; one marker says it.
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

/// A scope that the program named, such as an optimizer's step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Phase {
    /// Its name.
    pub name: Arc<str>,
    /// Its first moment.
    pub from: u32,
    /// The moment at its end.
    pub to: u32,
    /// How many others it is within.
    pub depth: u32,
}

/// The phases of one device, in the order in which they began. A file without times has none: nothing else places them.
#[must_use]
pub fn phases(annotations: &[Annotation], recording: &DeviceRecording) -> Vec<Phase> {
    let Some(times) = recording.trace.iter().map(|entry| entry.time()).collect::<Option<Vec<u64>>>() else { return Vec::new() };
    let end = times.len() as u32;
    let device = i64::from(recording.device);
    let mut phases: Vec<Phase> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for annotation in annotations.iter().filter(|annotation| annotation.device.is_none_or(|of| of == device)) {
        let Some(time) = annotation.time_us.and_then(|time| u64::try_from(time).ok()) else { continue };
        let moment = times.partition_point(|&at| at < time) as u32;
        if &*annotation.stage == "START" {
            open.push(phases.len());
            phases.push(Phase { name: annotation.name.clone(), from: moment, to: end, depth: open.len() as u32 - 1 });
        } else if let Some(place) = open.iter().rposition(|&place| phases[place].name == annotation.name) {
            // Whatever began inside and was not ended has lost its end.
            for place in open.drain(place..) {
                phases[place].to = moment.max(phases[place].from);
            }
        }
    }
    phases.retain(|phase| phase.from < end && phase.to > phase.from);
    phases
}

#[cfg(test)]
mod tests {
    use super::*;
    use parkade_recording::Entry;

    #[test]
    fn phases_lie_where_their_times_say() {
        let trace = (0..10)
            .map(|i| {
                let mut entry = Entry::new(Action::Snapshot, 0, 0, 0);
                entry.set_time(Some(100 + i));
                entry
            })
            .collect();
        let recording = DeviceRecording { trace, ..DeviceRecording::default() };
        let note = |name: &str, stage: &str, device, time: i64| Annotation {
            name: name.into(),
            stage: stage.into(),
            device,
            time_us: Some(time),
        };
        let annotations = [
            note("step", "START", Some(0), 102),
            note("elsewhere", "START", Some(1), 102),
            note("inner", "START", None, 104),
            note("inner", "END", None, 106),
            note("step", "END", Some(0), 108),
            note("never begun", "END", Some(0), 108),
            note("unfinished", "START", Some(0), 109),
            note("too late", "START", Some(0), 999),
        ];
        let found: Vec<_> = phases(&annotations, &recording)
            .iter()
            .map(|phase| (phase.name.to_string(), phase.from, phase.to, phase.depth))
            .collect();
        let phase = |name: &str, from, to, depth| (name.to_owned(), from, to, depth);
        assert_eq!(found, [phase("step", 2, 8, 0), phase("inner", 4, 6, 1), phase("unfinished", 9, 10, 0)]);
    }
}
