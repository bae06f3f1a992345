//! Random programs for one policy: drawn, run under every law, and shrunk if one breaks.

use std::cell::{Cell, RefCell};

use proptest::test_runner::{TestCaseError, TestError};

use super::shrink::without_needless;
use super::step::{Setup, Step, programs};
use super::subject::{Stopped, Subject};
use super::watched::Reached;
use crate::backend::{AnyBackend, EventTiming, Unable};
use crate::checks::draw::{hunt, program_line};
use crate::suite::{Effort, Evidence, Trouble, Verdict};

/// The budget for shrinking a failing program's values, in steps performed. After that, unneeded steps are removed.
const SHRINK_STEPS: usize = 5000;
/// The maximum number of steps of a program.
const LONGEST: usize = 100;

/// Checks every law after every step, and at the end.
pub(super) fn every_law(subject: &Subject, backend: &AnyBackend, effort: &Effort, timing: EventTiming) -> Verdict {
    let total = Cell::new(Reached::default());
    let evidence = random(effort, 0x901c, timing, |setup, steps| {
        let reached = subject.whole_run(backend, setup, steps)?;
        total.set(total.get().and(reached));
        Ok(())
    })?;
    let Reached { reuses, transfers, remaps, releases, refusals, private, loads, driver_ns } = total.get();
    let reached = format!(
        "{reuses} reuses, {refusals} refusals, {transfers} transfers, {remaps} remaps, {releases} releases, {private} requests of private \
         pools, {loads} loads{}",
        driver_time(driver_ns)
    );
    Ok(Evidence { measured: format!("{}: {reached}", evidence.measured), ..evidence })
}

/// The time of the driver calls as text; empty if the device does not report it.
pub(super) fn driver_time(driver_ns: u64) -> String {
    if driver_ns == 0 { String::new() } else { format!("; driver {} ms", driver_ns / 1_000_000) }
}

/// The same program leads to the same decisions.
pub(super) fn determinism(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Verdict {
    random(&a_part(effort), 0x901d, EventTiming::Seeded(0), |setup, steps| subject.twice(backend, setup, steps))
}

/// An allocator dropped at any moment gives everything back.
pub(super) fn dropped(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Verdict {
    random(&a_part(effort), 0x901e, EventTiming::Seeded(0), |setup, steps| {
        let trial = subject.play(backend, setup, steps)?;
        let script = trial.script();
        trial.abandon().map(drop).map_err(|broken| Stopped::Broken(broken.during("dropped"), script))
    })
}

fn a_part(effort: &Effort) -> Effort {
    Effort { cases: effort.cases.div_ceil(4), ..*effort }
}

fn random(effort: &Effort, salt: u64, timing: EventTiming, one: impl Fn(&Setup, &[Step]) -> Result<(), Stopped>) -> Verdict {
    let failure = match search(effort, salt, timing, &one) {
        Ok(operations) => {
            let measured = format!("{operations} steps in {} programs", effort.cases);
            return Ok(Evidence { operations, measured, text: String::new() });
        }
        Err(Failure::Unable(reason)) => return Err(reason.into()),
        Err(Failure::Other(reason)) => return Err(Trouble::fail(reason)),
        Err(Failure::Program(failure)) => failure,
    };
    // Run the smallest one again: on a real device the failure may depend on timing.
    let (reason, script) = match one(&failure.setup, &failure.steps) {
        Err(Stopped::Broken(again, script)) => (again.to_string(), script),
        _ => (format!("seen only once: {}", failure.broken), failure.script),
    };
    Err(Trouble::Fail { reason, script: Some(script + &program_line(&(failure.setup, failure.steps))) })
}

/// Why a search ended early.
pub(super) enum Failure {
    /// There is no device for a program.
    Unable(Unable),
    /// A program breaks a law.
    Program(Box<Failing>),
    /// No programs could be drawn.
    Other(String),
}

/// The smallest failing program found.
pub(super) struct Failing {
    pub(super) setup: Setup,
    pub(super) steps: Vec<Step>,
    /// What the last failing run during shrinking showed, and its script.
    broken: String,
    script: String,
}

/// Runs random programs until one breaks a law, then shrinks it. Returns the number of steps performed if none does.
pub(super) fn search(
    effort: &Effort,
    salt: u64,
    timing: EventTiming,
    one: &impl Fn(&Setup, &[Step]) -> Result<(), Stopped>,
) -> Result<u64, Failure> {
    let (operations, unable, broken) = (Cell::new(0), RefCell::new(None), RefCell::new(None));
    let spent = Cell::new(0);
    let outcome = hunt(effort, salt, &programs(timing, LONGEST), |(setup, steps)| {
        if broken.borrow().is_some() {
            spent.set(spent.get() + steps.len());
        }
        // Programs beyond the budget count as passing, so that the smallest one so far stays.
        if spent.get() > SHRINK_STEPS {
            return Ok(());
        }
        match one(&setup, &steps) {
            Ok(()) => {
                operations.set(operations.get() + steps.len() as u64);
                Ok(())
            }
            Err(Stopped::Unable(reason)) => {
                unable.replace(Some(reason));
                Ok(())
            }
            Err(Stopped::Broken(found, script)) => {
                let message = found.to_string();
                broken.replace(Some((found, script)));
                Err(TestCaseError::fail(message))
            }
        }
    });
    if let Some(reason) = unable.take() {
        return Err(Failure::Unable(reason));
    }
    match (outcome, broken.take()) {
        (Ok(()), _) => Ok(operations.get()),
        (Err(TestError::Fail(_, (setup, steps))), Some((found, script))) => {
            // A different broken law would be a different failure.
            let fails = |steps: &[Step]| matches!(one(&setup, steps), Err(Stopped::Broken(again, _)) if again.law == found.law);
            let steps = without_needless(steps, fails);
            Err(Failure::Program(Box::new(Failing { setup, steps, broken: found.to_string(), script })))
        }
        (Err(error), _) => Err(Failure::Other(error.to_string())),
    }
}
