//! In which scopes of the program a point in time lies. PyTorch's optimizers annotate themselves.

use parkade_recording::Annotation;

/// Where a point in time lies among the program's scopes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Phase {
    /// The open scopes, the outermost first.
    pub open: Vec<String>,
    /// The scope that ended last, and how often a scope of its name had ended by then.
    pub last_ended: Option<(String, usize)>,
}

/// The phase of a device at a time, in microseconds since 1970; `None` if the file has no timed scopes of this device.
#[must_use]
pub fn phase_at(annotations: &[Annotation], device: u32, time_us: u64) -> Option<Phase> {
    let is_here = |annotation: &&Annotation| annotation.device.is_none_or(|number| number == i64::from(device));
    let timed: Vec<(&Annotation, i64)> =
        annotations.iter().filter(is_here).filter_map(|annotation| Some((annotation, annotation.time_us?))).collect();
    if timed.is_empty() {
        return None;
    }
    let mut phase = Phase::default();
    let before = timed.iter().filter(|(_, at)| u64::try_from(*at).unwrap_or(0) <= time_us);
    for (annotation, _) in before.clone() {
        let name = annotation.name.as_ref();
        if annotation.stage.as_ref() == "START" {
            phase.open.push(name.to_owned());
        } else if let Some(place) = phase.open.iter().rposition(|open| open == name) {
            let ended = phase.open.remove(place);
            phase.last_ended = Some((ended, 0));
        }
    }
    if let Some((name, times)) = &mut phase.last_ended {
        *times = before.filter(|(other, _)| other.stage.as_ref() == "END" && other.name.as_ref() == name).count();
    }
    Some(phase)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(name: &str, stage: &str, device: Option<i64>, time_us: Option<i64>) -> Annotation {
        Annotation { name: name.into(), stage: stage.into(), device, time_us }
    }

    #[test]
    fn scopes_open_and_end() {
        let scopes = [
            scope("train", "START", None, Some(5)),
            scope("step", "START", Some(0), Some(10)),
            scope("step", "END", Some(0), Some(20)),
            scope("step", "START", Some(0), Some(30)),
            scope("other", "START", Some(1), Some(31)),
            scope("untimed", "START", Some(0), None),
            scope("step", "END", Some(0), Some(40)),
        ];
        let at = |device, time_us| phase_at(&scopes, device, time_us).map(|phase| (phase.open.join("/"), phase.last_ended));
        let ended = |times| Some(("step".to_owned(), times));
        assert_eq!(at(0, 4), Some((String::new(), None)));
        assert_eq!(at(0, 10), Some(("train/step".to_owned(), None)));
        assert_eq!(at(0, 25), Some(("train".to_owned(), ended(1))));
        assert_eq!(at(0, 35), Some(("train/step".to_owned(), ended(1))));
        assert_eq!(at(0, 40), Some(("train".to_owned(), ended(2))));
        assert_eq!(at(1, 50), Some(("train/other".to_owned(), None)));
        assert_eq!(phase_at(&scopes[5..6], 0, 50), None);
    }
}
