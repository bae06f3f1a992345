//! Finds the scopes, phases and steps of a run: from the program's own annotations (`torch.profiler.record_function` scopes,
//! the profiler's and the optimizers' steps) or, without any, by repetition.
//!
//! A snapshot lists the starts and ends of scopes with their times (`external_annotations`); the times of trace entries place
//! them in the trace. [`scopes`] returns each scope as a range of moments, [`phase_at`] returns the scopes that are open at
//! one point in time (PyTorch's optimizers annotate themselves), and [`steps`] returns the ends of the training steps that
//! annotations mark.
//!
//! The profiler marks `ProfilerStep#12`, an optimizer `Optimizer.step#AdamW.step` and `Optimizer.zero_grad#AdamW.zero_grad`.
//! A step ends where its mark ends. Programs free gradients right after the optimizer's step or at the start of the next
//! step; if a `zero_grad` follows without an allocation in between, it belongs to the step.
//!
//! Steps without annotations are found by the number of blocks in use, which rises and then falls back to its former value.
//! A training step leaves memory as it found it: activations are freed, while parameters and states are kept. Between any two
//! steps, the same number of blocks is therefore live, regardless of their sizes. In the middle of a step, more blocks are
//! live, even if all layers are alike: each leaves blocks for the backward pass. If a step begins by freeing what the
//! previous one left, the previous step ends after these frees.

use std::collections::BTreeMap;
use std::sync::Arc;

use parkade_recording::{Action, Annotation, DeviceRecording, Entry};
use thiserror::Error;

use crate::ending::Ending;

/// A scope that the program annotated, such as an optimizer's step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scope {
    /// Its name.
    pub name: Arc<str>,
    /// Its first moment; moment `n` is the state after `n` entries.
    pub from: u32,
    /// The moment at its end.
    pub to: u32,
    /// The number of scopes that enclose it.
    pub depth: u32,
}

/// Returns the scopes of one device, in the order in which they began. The result is empty if an entry of the trace has no
/// time, because only times can place scopes in a trace.
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
            // The ends of inner scopes that are still open here are missing.
            for place in open.drain(place..) {
                scopes[place].to = moment.max(scopes[place].from);
            }
        }
    }
    scopes.retain(|scope| scope.from < end && scope.to > scope.from);
    scopes
}

/// The position of a point in time among the program's scopes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Phase {
    /// The open scopes, the outermost first.
    pub open: Vec<String>,
    /// The scope that ended last, and the number of scopes of that name that had ended by then.
    pub last_ended: Option<(String, usize)>,
}

/// Returns a device's phase at a given time, in microseconds since 1970, or `None` if the file has no timed scopes of this
/// device.
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

/// The end of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The step's number among all steps that the file marks, in chronological order, counted from 0.
    pub number: usize,
    /// Its last entry.
    pub last_entry: usize,
}

/// A program's steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Steps {
    /// The annotation that marks the steps.
    pub mark: String,
    /// The steps that end within the trace, in order.
    pub steps: Vec<Step>,
    /// The number of steps that ended before the trace's first entry.
    pub lost: usize,
}

/// The reason why there are no steps.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StepError {
    /// No annotation marks them.
    #[error("the file has no step annotations (none begins with {0}): --every 1000 shows every thousandth entry")]
    NoMark(String),
    /// The trace's entries have no times, which are needed to place the annotations.
    #[error("the trace's entries have no times, so its annotations cannot be placed: --every 1000 shows every thousandth entry")]
    NoTimes,
}

const PROFILER: &str = "ProfilerStep#";
const OPTIMIZER: &str = "Optimizer.step#";
const ZERO_GRAD: &str = "Optimizer.zero_grad#";

/// Finds the steps by the annotations whose name begins with `prefix`; without a prefix, by the profiler's or, if there are
/// none, by the optimizer's. If there are several optimizers, the one with the most steps counts; among equals, the first by
/// name.
///
/// # Errors
/// Returns [`StepError`] if nothing marks the steps, or if the trace has no times.
pub fn steps(annotations: &[Annotation], device: &DeviceRecording, prefix: Option<&str>) -> Result<Steps, StepError> {
    let default_marks = [PROFILER, OPTIMIZER];
    let prefixes: &[&str] = prefix.as_ref().map_or(&default_marks, std::slice::from_ref);
    let ends = |prefix: &str| annotations.iter().any(|annotation| is_end(annotation) && annotation.name.starts_with(prefix));
    let Some(mark) = prefixes.iter().find(|prefix| ends(prefix)) else {
        return Err(StepError::NoMark(prefixes.join(" or ")));
    };
    if device.trace.iter().all(|entry| entry.time().is_none()) {
        return Err(StepError::NoTimes);
    }
    let chosen = if *mark == OPTIMIZER { most_frequent(annotations, mark) } else { (*mark).to_owned() };
    let mut found = Steps { mark: chosen.clone(), steps: Vec::new(), lost: 0 };
    let mut ends = Vec::new();
    for (place, annotation) in annotations.iter().enumerate() {
        if !is_end(annotation) || !annotation.name.starts_with(&chosen) {
            continue;
        }
        if let Some(done) = annotation.time_us.map(|time| entries_until(&device.trace, time)) {
            let done = zero_grad_after(annotations.get(place + 1..).unwrap_or(&[]), device, done).unwrap_or(done);
            ends.push((done, annotation.time_us));
        }
    }
    // Annotations may not be in chronological order: a file may list them thread by thread.
    ends.sort_unstable();
    for (number, (done, _)) in ends.into_iter().enumerate() {
        match done.checked_sub(1) {
            Some(last_entry) => found.steps.push(Step { number, last_entry }),
            None => found.lost += 1,
        }
    }
    Ok(found)
}

fn is_end(annotation: &Annotation) -> bool {
    &*annotation.stage == "END"
}

fn most_frequent(annotations: &[Annotation], prefix: &str) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for annotation in annotations.iter().filter(|annotation| is_end(annotation) && annotation.name.starts_with(prefix)) {
        *counts.entry(&annotation.name).or_default() += 1;
    }
    // `max_by_key` returns the last of several maxima, so the order is reversed.
    counts.into_iter().rev().max_by_key(|&(_, count)| count).map_or_else(String::new, |(name, _)| name.to_owned())
}

/// Returns the number of entries that are no later than the given time. Times increase, except when the clock is adjusted.
fn entries_until(trace: &[Entry], time_us: i64) -> usize {
    trace.partition_point(|entry| entry.time().is_none_or(|time| i64::try_from(time).is_ok_and(|time| time <= time_us)))
}

/// Returns the number of entries up to the end of the next annotation, if that is a `zero_grad` and no allocation precedes
/// its end.
fn zero_grad_after(following: &[Annotation], device: &DeviceRecording, done: usize) -> Option<usize> {
    let next = following.iter().find(|annotation| is_end(annotation))?;
    let end = entries_until(&device.trace, next.time_us.filter(|_| next.name.starts_with(ZERO_GRAD))?);
    let between = device.trace.get(done..end)?;
    between.iter().all(|entry| !matches!(entry.action, Action::Alloc | Action::Oom)).then_some(end)
}

/// Repetition counts only with at least this many steps. Fewer may be coincidence.
const FEWEST: usize = 3;
/// The number of blocks live between steps is the minimum over the middle of a run, between these two eighths of it, because
/// the run does other work at its beginning and end.
const MIDDLE: (usize, usize) = (3, 7);
/// The number of blocks above that minimum that may be live between steps, or the share given by [`LOW_PART`] if that is
/// more.
const MORE_BLOCKS: i64 = 2;
/// Between steps, one part in this many of the blocks that a step adds may be live above the minimum.
const LOW_PART: i64 = 32;
/// A step adds at least one part in this many of the blocks that the largest step adds, and at least [`FEWEST_BLOCKS`].
const HIGH_PART: i64 = 2;
/// The minimum number of blocks that a step adds.
const FEWEST_BLOCKS: i64 = 6;
/// Two steps are alike if one has at most this many times the entries of the other (a fraction; the strictest one that yields
/// steps is used).
const ALIKE: [(usize, usize); 3] = [(5, 4), (3, 2), (2, 1)];
/// Steps repeat if this fraction of them is like the next one.
const MOST_PART: (usize, usize) = (3, 4);
/// A step may have this many parts in which memory rises and falls.
const MOST_PARTS: usize = 4;
/// At least this many pairs of parts must be compared to conclude that steps have parts.
const FEWEST_PAIRS: usize = 6;

/// The memory in use at a given moment, relative to the first moment.
#[derive(Clone, Copy, Default)]
struct InUse {
    bytes: i128,
    blocks: i64,
}

/// Returns the moments at which the steps of a run end, in order; moment `n` is the state after `n` entries. The result is
/// empty if the run does not repeat. The first step cannot be separated from what came before it, such as building the model,
/// and the last step may be cut short.
pub(crate) fn repeated_steps(recording: &DeviceRecording) -> Vec<u32> {
    let in_use = in_use(recording);
    let eighth = |part: usize| in_use.len() * part / 8;
    let middle = &in_use[eighth(MIDDLE.0)..eighth(MIDDLE.1)];
    let Some(least) = middle.iter().map(|one| one.blocks).min() else { return Vec::new() };
    let adds = middle.iter().map(|one| one.blocks).max().map_or(0, |most| most - least);
    let (low, high) = (least + MORE_BLOCKS.max(adds / LOW_PART), least + FEWEST_BLOCKS.max(adds / HIGH_PART));
    let mut ends = valleys(&in_use, low, high);
    // A step that an error ended does not count.
    let died = Ending::of(recording).death().map_or(usize::MAX, |error| error.entry);
    ends.retain(|&end| end <= died);
    let ends = of_whole_steps(&ends);
    if ends.len() < FEWEST { Vec::new() } else { ends.into_iter().map(|moment| moment as u32).collect() }
}

/// Selects the ends of complete steps from the ends of their parts: if gradients are kept, an optimizer's temporary blocks
/// make memory rise and fall once more in each step. The result is empty if the lengths do not repeat.
fn of_whole_steps(ends: &[usize]) -> Vec<usize> {
    let lengths: Vec<usize> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let repeats = |&((most, least), parts): &((usize, usize), usize)| {
        let pairs = lengths.len().saturating_sub(parts);
        let is_alike = |one: usize, other: usize| one.max(other) * least <= one.min(other) * most;
        let alike = (0..pairs).filter(|&place| is_alike(lengths[place], lengths[place + parts])).count();
        pairs >= if parts == 1 { 1 } else { FEWEST_PAIRS } && alike * MOST_PART.1 >= pairs * MOST_PART.0
    };
    let ways = ALIKE.iter().flat_map(|&alike| (1..=MOST_PARTS).map(move |parts| (alike, parts)));
    let Some((_, parts)) = { ways }.find(repeats) else { return Vec::new() };
    // A step begins with its longest part, the forward and backward pass.
    let total = |first: usize| lengths.iter().skip(first).step_by(parts).sum::<usize>();
    let first = (0..parts).rev().max_by_key(|&first| total(first)).unwrap_or(0);
    ends.iter().copied().skip(first).step_by(parts).collect()
}

/// Returns the memory in use after each entry, starting with moment 0.
fn in_use(recording: &DeviceRecording) -> Vec<InUse> {
    let after = |in_use: &mut InUse, entry: &Entry| {
        match entry.action {
            Action::Alloc => *in_use = InUse { bytes: in_use.bytes + i128::from(entry.size), blocks: in_use.blocks + 1 },
            Action::FreeRequested => *in_use = InUse { bytes: in_use.bytes - i128::from(entry.size), blocks: in_use.blocks - 1 },
            _ => {}
        }
        Some(*in_use)
    };
    [InUse::default()].into_iter().chain(recording.trace.iter().scan(InUse::default(), after)).collect()
}

/// Returns the last moment with the fewest bytes in each valley: a stretch with at most `low` live blocks, between moments
/// with more than `high`.
fn valleys(in_use: &[InUse], low: i64, high: i64) -> Vec<usize> {
    let mut found = Vec::new();
    let mut deepest: Option<(i128, usize)> = None;
    let mut was_high = false;
    for (moment, one) in in_use.iter().enumerate() {
        if one.blocks > high {
            found.extend(deepest.take().map(|(_, moment)| moment));
            was_high = true;
        } else if one.blocks <= low && was_high && deepest.is_none_or(|(bytes, _)| one.bytes <= bytes) {
            deepest = Some((one.bytes, moment));
        }
    }
    found.extend(deepest.map(|(_, moment)| moment));
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use parkade_recording::Recording;

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

    fn annotation(name: &str, time_us: i64) -> Annotation {
        Annotation { name: name.into(), stage: "END".into(), device: None, time_us: Some(time_us) }
    }

    fn device(actions: &[(Action, u64)]) -> DeviceRecording {
        let entry = |&(action, time)| {
            let mut entry = Entry::new(action, 1 << 40, 512, 0);
            entry.set_time(Some(time));
            entry
        };
        DeviceRecording { trace: actions.iter().map(entry).collect(), ..DeviceRecording::default() }
    }

    #[test]
    fn a_step_ends_with_the_optimizer_or_the_gradients_dropped_right_after_it() {
        use Action::{Alloc, FreeRequested};
        let device =
            device(&[(Alloc, 10), (FreeRequested, 20), (FreeRequested, 31), (Alloc, 40), (FreeRequested, 61), (Alloc, 70)]);
        let (step, zero) = ("Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad");
        let annotations =
            [annotation(step, 5), annotation(step, 30), annotation(zero, 32), annotation(step, 35), annotation(zero, 62)];
        let found = steps(&annotations, &device, None).expect("steps");
        let last = |number, last_entry| Step { number, last_entry };
        assert_eq!(found, Steps { mark: step.to_owned(), steps: vec![last(1, 2), last(2, 2)], lost: 1 });
        let annotations = [annotation("ProfilerStep#7", 10), annotation(step, 30), annotation("ProfilerStep#8", 65)];
        let found = steps(&annotations, &device, None).expect("steps");
        assert_eq!(found.steps, [last(0, 0), last(1, 4)]);
        assert_eq!(steps(&annotations, &device, Some("Optim")).expect("steps").steps, [last(0, 1)]);
    }

    #[test]
    fn steps_are_numbered_in_order_of_time_not_of_the_file() {
        let device = device(&[(Action::Alloc, 10), (Action::Alloc, 20), (Action::Alloc, 30)]);
        let step = "Optimizer.step#SGD.step";
        let annotations = [annotation(step, 31), annotation(step, 5), annotation(step, 21), annotation(step, 11)];
        let found = steps(&annotations, &device, None).expect("steps");
        let last = |number, last_entry| Step { number, last_entry };
        assert_eq!((found.steps, found.lost), (vec![last(1, 0), last(2, 1), last(3, 2)], 1));
    }

    #[test]
    fn a_file_without_marks_says_so() {
        let annotations = [annotation("forward", 10)];
        let error = steps(&annotations, &device(&[(Action::Alloc, 1)]), None).expect_err("no mark");
        assert!(error.to_string().contains("ProfilerStep# or Optimizer.step#") && error.to_string().contains("--every"));
        let untimed = DeviceRecording { trace: vec![Entry::new(Action::Alloc, 1, 1, 0)], ..DeviceRecording::default() };
        assert_eq!(steps(&annotations, &untimed, Some("fwd")), Err(StepError::NoMark("fwd".to_owned())));
        assert_eq!(steps(&annotations, &untimed, Some("forw")), Err(StepError::NoTimes));
    }

    fn shipped(name: &str) -> Recording {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/recordings");
        parkade_recording::read_file(folder.join(format!("{name}.pickle.xz"))).expect("a recording")
    }

    #[test]
    fn what_repeats_is_what_the_optimizers_mark() {
        for (name, told) in [("gpt2_varlen.default", 24), ("gpt2_varlen.frames_tail20k", 7), ("prefetch_streams.limit6", 30)] {
            let recording = shipped(name);
            let marked = steps(&recording.annotations, &recording.devices[0], None).expect("marks").steps;
            let found = repeated_steps(&recording.devices[0]);
            assert_eq!((found.len(), marked.len()), (told, told), "{name}");
            // The last step ends with the recording, where the program frees everything.
            for (end, mark) in found.iter().zip(&marked[..told - 1]) {
                assert!((*end as usize).abs_diff(mark.last_entry + 1) <= 16, "{name}: {end} and {mark:?}");
            }
        }
    }

    #[test]
    fn the_step_that_an_error_ended_is_none() {
        let (whole, died) = (shipped("resnet50_sweep.default"), shipped("resnet50_sweep.limit5_oom"));
        let (whole, died) = (repeated_steps(&whole.devices[0]), repeated_steps(&died.devices[0]));
        assert_eq!((whole.len(), died.len(), &whole[..5]), (6, 5, &died[..]));
    }

    /// Returns a run of repeated parts, each of which allocates this many blocks and then frees them.
    fn run(parts: &[u64], times: usize) -> DeviceRecording {
        let mut trace: Vec<Entry> = (0..20).map(|place| Entry::new(Action::Alloc, 1 << 40 | place << 20, 4096, 0)).collect();
        for part in parts.iter().cycle().take(parts.len() * times) {
            let all = |action| (0..*part).map(move |place| Entry::new(action, 1 << 41 | place << 20, 512 * (1 + place), 0));
            trace.extend(all(Action::Alloc).chain(all(Action::FreeRequested)));
        }
        DeviceRecording { trace, ..DeviceRecording::default() }
    }

    #[test]
    fn parts_of_a_step_are_put_together() {
        assert_eq!(repeated_steps(&run(&[40], 10)).len(), 10);
        // The forward and backward passes begin a step, and the optimizer's part ends it.
        let found = repeated_steps(&run(&[60, 31], 10));
        assert_eq!(found, (1..=10).map(|step| 20 + step * 2 * 91).collect::<Vec<u32>>());
        assert!(repeated_steps(&run(&[40], 2)).is_empty(), "too few");
        assert!(repeated_steps(&run(&[400, 20, 90, 300, 41, 170, 600, 35], 1)).is_empty(), "nothing repeats");
        assert!(repeated_steps(&DeviceRecording::default()).is_empty());
    }
}
