//! The program's scopes as ranges of moments.

use std::sync::Arc;

use parkade_recording::{Annotation, DeviceRecording};

/// A scope that the program annotated, such as an optimizer's step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scope {
    /// Its name.
    pub name: Arc<str>,
    /// Its first moment; moment `n` is the state after `n` entries.
    pub from: u32,
    /// The moment at its end.
    pub to: u32,
    /// How many other scopes enclose it.
    pub depth: u32,
}

/// The scopes of one device, in the order in which they began. There are none if an entry of the trace has no time, because nothing else
/// places them.
#[must_use]
pub fn scopes(annotations: &[Annotation], recording: &DeviceRecording) -> Vec<Scope> {
    let Some(times) = recording.trace.iter().map(|entry| entry.time()).collect::<Option<Vec<u64>>>() else { return Vec::new() };
    let end = times.len() as u32;
    let device = i64::from(recording.device);
    let mut scopes: Vec<Scope> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for annotation in annotations.iter().filter(|annotation| annotation.device.is_none_or(|of| of == device)) {
        let Some(time) = annotation.time_us.and_then(|time| u64::try_from(time).ok()) else { continue };
        let moment = times.partition_point(|&at| at < time) as u32;
        if &*annotation.stage == "START" {
            open.push(scopes.len());
            scopes.push(Scope { name: annotation.name.clone(), from: moment, to: end, depth: open.len() as u32 - 1 });
        } else if let Some(place) = open.iter().rposition(|&place| scopes[place].name == annotation.name) {
            // Scopes inside it that have not ended have lost their ends.
            for place in open.drain(place..) {
                scopes[place].to = moment.max(scopes[place].from);
            }
        }
    }
    scopes.retain(|scope| scope.from < end && scope.to > scope.from);
    scopes
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Action, Entry};

    use super::*;

    #[test]
    fn times_place_scopes() {
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
        let found: Vec<_> = scopes(&annotations, &recording)
            .iter()
            .map(|scope| (scope.name.to_string(), scope.from, scope.to, scope.depth))
            .collect();
        let scope = |name: &str, from, to, depth| (name.to_owned(), from, to, depth);
        assert_eq!(found, [scope("step", 2, 8, 0), scope("inner", 4, 6, 1), scope("unfinished", 9, 10, 0)]);
    }
}
