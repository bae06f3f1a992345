//! Where a program's training steps end, as far as its annotations mark them.
//!
//! The profiler marks `ProfilerStep#12`, an optimizer `Optimizer.step#AdamW.step` and `Optimizer.zero_grad#AdamW.zero_grad`. A step ends
//! where such a mark ends. Programs free gradients right after the optimizer's step or at the start of the next step; a `zero_grad`
//! that follows without an allocation in between belongs to the step.

use std::collections::BTreeMap;

use parkade_recording::{Action, Annotation, DeviceRecording, Entry};
use thiserror::Error;

/// The end of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The step's number among all that the file marks, in order of time, counted from 0.
    pub number: usize,
    /// Its last entry.
    pub last_entry: usize,
}

/// A program's steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Steps {
    /// The annotation that marks them.
    pub mark: String,
    /// The steps that end within the trace, in order.
    pub steps: Vec<Step>,
    /// How many ended before the trace's first entry.
    pub lost: usize,
}

/// Why there are no steps.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StepError {
    /// No annotation marks them.
    #[error("the file marks no steps (no annotation begins with {0}): --every 1000 shows every thousandth entry")]
    NoMark(String),
    /// The trace's entries have no times, which are needed to place the annotations.
    #[error("the trace's entries have no times, so its annotations cannot be placed: --every 1000 shows every thousandth entry")]
    NoTimes,
}

const PROFILER: &str = "ProfilerStep#";
const OPTIMIZER: &str = "Optimizer.step#";
const ZERO_GRAD: &str = "Optimizer.zero_grad#";

/// Finds the steps: by the annotations whose name begins with `prefix`; without a prefix by the profiler's, else by the optimizer's. Of
/// several optimizers the one with the most steps counts, and among equals the first by name.
///
/// # Errors
/// [`StepError`] if nothing marks the steps, or the trace has no times.
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
    // Annotations may not be in order of time: a file may list them thread by thread.
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
    // `max_by_key` returns the last of equals, so the order is reversed.
    counts.into_iter().rev().max_by_key(|&(_, count)| count).map_or_else(String::new, |(name, _)| name.to_owned())
}

/// How many entries are no later than that time. Times increase, except when the clock is adjusted.
fn entries_until(trace: &[Entry], time_us: i64) -> usize {
    trace.partition_point(|entry| entry.time().is_none_or(|time| i64::try_from(time).is_ok_and(|time| time <= time_us)))
}

/// If the next annotation is a `zero_grad` and nothing is allocated before its end: how many entries are done then.
fn zero_grad_after(following: &[Annotation], device: &DeviceRecording, done: usize) -> Option<usize> {
    let next = following.iter().find(|annotation| is_end(annotation))?;
    let end = entries_until(&device.trace, next.time_us.filter(|_| next.name.starts_with(ZERO_GRAD))?);
    let between = device.trace.get(done..end)?;
    between.iter().all(|entry| !matches!(entry.action, Action::Alloc | Action::Oom)).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
