//! Runs programs on one policy. The subject is a named policy that is created anew for each program. Random programs
//! are drawn, run under every law, and shrunk if one of them breaks a law.
//!
//! Proptest shrinks a program's values and length within a budget and may leave steps that the failure does not need;
//! those are removed afterwards.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use parkade::policy::Policy;
use parkade_policies::Named;
use proptest::test_runner::{TestCaseError, TestError};

use super::programs::{Setup, Step, programs};
use super::trial::{Expected, Habits, Trial};
use super::watched::Reached;
use crate::backend::{AnyBackend, EventTiming, Unable};
use crate::checks::draw::{hunt, program_line};
use crate::law::{Broken, Law};
use crate::suite::{Effort, Evidence, Trouble, Verdict};

/// A named policy. Its type is erased, so that the checks are compiled once.
pub(super) struct Subject {
    pub(super) name: String,
    make: Arc<dyn Fn(u64) -> Box<dyn Policy> + Send + Sync>,
    /// The errors that are expected from the policy.
    pub(super) expected: Expected,
    habits: Habits,
    /// The policy's seeds for runs in which driver calls are made to fail.
    pub(super) fault_seeds: Vec<u64>,
}

impl Clone for Subject {
    fn clone(&self) -> Subject {
        let (name, make, fault_seeds) = (self.name.clone(), Arc::clone(&self.make), self.fault_seeds.clone());
        Subject { name, make, expected: self.expected, habits: self.habits, fault_seeds }
    }
}

/// The reason why a program stopped early.
pub(super) enum Stopped {
    /// A law was broken, with the script that reproduces it.
    Broken(Broken, String),
    /// There is no device for the program.
    Unable(Unable),
}

impl Subject {
    /// Returns a policy by its name.
    pub(super) fn of(named: &Named) -> Subject {
        let made = named.clone();
        Subject::new(&*named.name, move |_| made.make()).with(Habits::of(named))
    }

    /// Returns the policy that `make` creates from a seed. Only randomly assembled policies use the
    /// seed.
    pub(super) fn new<P: Policy + 'static>(name: impl Into<String>, make: impl Fn(u64) -> P + Send + Sync + 'static) -> Subject {
        Subject {
            name: name.into(),
            make: Arc::new(move |seed| Box::new(make(seed))),
            expected: Expected::default(),
            habits: Habits::default(),
            fault_seeds: vec![0],
        }
    }

    /// Returns the same subject, created with each of these seeds when driver calls are made to
    /// fail.
    pub(super) fn failing_with(self, fault_seeds: Vec<u64>) -> Subject {
        Subject { fault_seeds, ..self }
    }

    /// Returns the same subject with these habits.
    pub(super) fn with(self, habits: Habits) -> Subject {
        Subject { habits, ..self }
    }

    /// Returns the same subject, expected to give invalid answers.
    pub(super) fn expected_wrong(self) -> Subject {
        Subject { expected: Expected { wrong_answers: true, ..self.expected }, ..self }
    }

    pub(super) fn trial(&self, backend: &AnyBackend, setup: &Setup) -> Result<Trial, Stopped> {
        Trial::new(backend, setup, (self.make)(setup.policy_seed), self.expected, self.habits).map_err(Stopped::Unable)
    }

    /// Runs a program to its end and keeps the resulting state.
    fn play(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<Trial, Stopped> {
        let mut trial = self.trial(backend, setup)?;
        for (number, &step) in steps.iter().enumerate() {
            if let Err(broken) = trial.apply(step) {
                return Err(Stopped::Broken(broken.during(format!("step {number}, {step:?}")), trial.script()));
            }
        }
        Ok(trial)
    }

    /// Runs a program and returns all memory to the device; returns how often the policy took each kind of action.
    pub(super) fn whole_run(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<Reached, Stopped> {
        let trial = self.play(backend, setup, steps)?;
        let (script, reached) = (trial.script(), trial.reached());
        let finished = trial.finish().map_err(|broken| Stopped::Broken(broken.during("returning all memory"), script))?;
        Ok(Reached { driver_ns: finished.driver_ns, ..reached })
    }

    /// Checks that two runs of a program are identical.
    fn twice(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<(), Stopped> {
        let run = || -> Result<_, Stopped> {
            let trial = self.play(backend, setup, steps)?;
            let script = trial.script();
            let finished = trial.finish().map_err(|broken| Stopped::Broken(broken, script.clone()))?;
            Ok((finished, script))
        };
        let ((first, script), (second, _)) = (run()?, run()?);
        if first == second {
            return Ok(());
        }
        let place = first.trace.iter().zip(&second.trace).position(|(a, b)| a != b);
        let pair = place.map(|place| (place, &first.trace[place], &second.trace[place]));
        let seen = format!(
            "two runs differ at {pair:?}, in their lengths ({} and {}) or in their statistics",
            first.trace.len(),
            second.trace.len()
        );
        Err(Stopped::Broken(Broken::new(Law::Determinism, seen), script))
    }
}

/// The budget for shrinking a failing program's values, as a number of performed steps. Afterwards, unneeded steps are
/// removed.
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
        "{reuses} reuses, {refusals} refusals, {transfers} transfers, {remaps} remaps, {releases} releases, {private} \
         requests to private pools, {loads} loads{}",
        driver_time(driver_ns)
    );
    Ok(Evidence { measured: format!("{}: {reached}", evidence.measured), ..evidence })
}

/// Returns the time of the driver calls as text, or an empty text if the device does not report it.
pub(super) fn driver_time(driver_ns: u64) -> String {
    if driver_ns == 0 { String::new() } else { format!("; driver {} ms", driver_ns / 1_000_000) }
}

/// Checks that the same program leads to the same decisions.
pub(super) fn determinism(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Verdict {
    random(&a_part(effort), 0x901d, EventTiming::Seeded(0), |setup, steps| subject.twice(backend, setup, steps))
}

/// Checks that an allocator returns all its memory whenever it is dropped.
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
    // Run the smallest program again: on a real device the failure may depend on timing.
    let (reason, script) = match one(&failure.setup, &failure.steps) {
        Err(Stopped::Broken(again, script)) => (again.to_string(), script),
        _ => (format!("seen only once: {}", failure.broken), failure.script),
    };
    Err(Trouble::Fail { reason, script: Some(script + &program_line(&(failure.setup, failure.steps))) })
}

/// The reason why a search ended early.
pub(super) enum Failure {
    /// There is no device for a program.
    Unable(Unable),
    /// A program breaks a law.
    Program(Box<Failing>),
    /// No programs could be drawn.
    Other(String),
}

/// Returns the smallest failing program found.
pub(super) struct Failing {
    pub(super) setup: Setup,
    pub(super) steps: Vec<Step>,
    /// The message of the last failing run during shrinking, and its script.
    broken: String,
    script: String,
}

/// Runs random programs until one breaks a law, then shrinks it. Returns the number of steps performed if no law is broken.
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
        // Programs beyond the budget count as passing, so that the smallest failing one so far is
        // kept.
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
            // If a different law broke, it would be a different failure.
            let fails = |steps: &[Step]| matches!(one(&setup, steps), Err(Stopped::Broken(again, _)) if again.law == found.law);
            let steps = without_needless(steps, fails);
            Err(Failure::Program(Box::new(Failing { setup, steps, broken: found.to_string(), script })))
        }
        (Err(error), _) => Err(Failure::Other(error.to_string())),
    }
}

/// Removes steps as long as `fails` reports that the program still fails, until no single step can be removed. A
/// program that does not fail is returned unchanged.
fn without_needless<S: Copy>(steps: Vec<S>, mut fails: impl FnMut(&[S]) -> bool) -> Vec<S> {
    if !fails(&steps) {
        return steps;
    }
    let mut left = steps;
    // Start with many steps at once, because that takes fewer runs, and at the end, because few steps depend on the
    // last ones.
    let mut together = (left.len() / 2).max(1);
    loop {
        let before = left.len();
        let mut end = left.len();
        while end > 0 {
            let start = end.saturating_sub(together);
            let shorter = [&left[..start], &left[end..]].concat();
            if fails(&shorter) {
                left = shorter;
            }
            end = start;
        }
        match together {
            1 if left.len() == before => return left,
            1 => {}
            _ => together /= 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_together_stays_and_nothing_else() {
        let steps: Vec<u32> = (0..100).collect();
        // In this test, 41 cannot be removed before 40.
        let fails = |steps: &[u32]| steps.contains(&7) && steps.contains(&93) && (!steps.contains(&40) || steps.contains(&41));
        assert_eq!(without_needless(steps, fails), [7, 93]);
        assert_eq!(without_needless(vec![1, 2], |_| false), [1, 2]);
        assert_eq!(without_needless(vec![1, 2], |_| true), [0; 0]);
    }

    #[test]
    fn a_step_that_can_go_after_another_goes() {
        // Each step needs the one before it, so only the last step can be removed at any time; the first, which is the
        // failure, must remain.
        let fails = |steps: &[u32]| steps.first() == Some(&0) && steps.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert_eq!(without_needless((0..50).collect(), fails), [0]);
        let fails = |steps: &[u32]| steps.last() == Some(&9) && steps.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert_eq!(without_needless((0..10).collect(), fails), [9]);
    }
}
