//! The reference law: PyTorch's allocator and the reference allocator play the same programs, and everything that can be seen of
//! them is the same after every step: answers, errors with their texts, device calls with their arguments, trace entries, statistics,
//! segments, and what the heap answers to policies.
//!
//! Programs use all that callers can do, under the rules of both releases: private pools, captures, checkpoints, callbacks, limits,
//! settings. The same holds while driver calls fail.

mod adopted;
mod compare;
mod play;
mod step;

use std::fmt::Write;

use parkade_sim::{FaultError, FaultPlan, When};
use proptest::prelude::*;

use super::campaign::Stopped;
use super::cases;
use crate::backend::{Backend, EventTiming};
use crate::checks::draw::timings;
use crate::suite::{Effort, Entry, Group, Requirement, Verdict};
use play::Play;
use step::{Scene, Step, program, scene};

/// The most steps of a program.
const LONGEST: usize = 140;

/// The most calls of a program that may fail.
const MOST_FAILURES: u64 = 300;

/// The entries of this law.
pub(super) fn entries<B: Backend + 'static>(backend: &B) -> Vec<Entry<B>> {
    let says = "every decision, device call, statistic, trace entry and error is that of the reference allocator";
    let mut entries: Vec<Entry<B>> = timings(backend)
        .into_iter()
        .map(|(name, timing)| {
            let run = move |backend: &B, effort: &Effort| check(backend, effort, timing);
            Entry::new(Group::Law, format!("reference/{name}"), says, run).requires(Requirement::ExpandableSegments)
        })
        .collect();
    let says = "the same while every n-th driver call fails, for n from 1 to 12";
    let failing = Entry::new(Group::Law, "reference/every-nth-call-fails", says, check_failing);
    entries.push(failing.requires(Requirement::ExpandableSegments));
    entries
}

fn check<B: Backend>(backend: &B, effort: &Effort, timing: EventTiming) -> Verdict {
    let strategy = (scene(timing), program(1..LONGEST));
    cases::run(effort, 31, &strategy, |(scene, steps)| play(backend, scene, steps, None))
}

fn check_failing<B: Backend>(backend: &B, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(0) } else { EventTiming::Clock };
    let errors = vec![FaultError::OutOfMemory, FaultError::Code(700), FaultError::Code(1)];
    let strategy = (scene(timing), program(1..LONGEST), 1..=12_u64, prop::sample::select(errors));
    cases::run(effort, 32, &strategy, |(scene, steps, n, error)| play(backend, scene, steps, Some((*n, *error))))
}

/// Plays a program to its end, with every n-th call failing if one is given. Returns the number of steps.
fn play<B: Backend>(backend: &B, scene: &Scene, steps: &[Step], failing: Option<(u64, FaultError)>) -> Result<u64, Stopped> {
    let mut play = Play::new(backend, scene).map_err(Stopped::Unable)?;
    play.adopt().map_err(|broken| Stopped::Broken(broken.during("adopting segments"), script(scene, &[], failing)))?;
    if let Some((n, error)) = failing {
        let plan = (1..=MOST_FAILURES / n).fold(FaultPlan::none(), |plan, turn| plan.and(When::Nth(turn * n), error));
        play.plan_faults(plan);
    }
    for (number, step) in steps.iter().enumerate() {
        play.apply(step).map_err(|broken| {
            Stopped::Broken(broken.during(format!("step {number}, {step:?}")), script(scene, &steps[..=number], failing))
        })?;
    }
    play.finish().map_err(|broken| Stopped::Broken(broken.during("giving everything back"), script(scene, steps, failing)))?;
    Ok(steps.len() as u64)
}

/// A program in words. It may use what scripts of `parkade ops` cannot say, so every line is a comment.
fn script(scene: &Scene, steps: &[Step], failing: Option<(u64, FaultError)>) -> String {
    let mut text = format!("# {scene:?}\n# settings: {:?}\n", scene.text(scene.settings));
    if let Some((n, error)) = failing {
        let _ = writeln!(text, "# every call number {n} fails: {error:?}");
    }
    for step in steps {
        let _ = writeln!(text, "# {step:?}");
    }
    text
}
