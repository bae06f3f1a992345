//! The search for a program that breaks a law: programs are drawn from a seed and run until one fails; that one is then shrunk.
//!
//! Proptest shrinks a program's values and length within a budget and may leave steps that the failure does not need; those
//! are removed afterwards.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;

use proptest::strategy::Strategy;
use proptest::test_runner::TestError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::step::{Setup, Step};
use crate::backend::{AnyBackend, EventTiming, Unable};
use crate::drawn;
use crate::law::Broken;
use crate::suite::{Effort, Evidence, PROGRAM, Requirement, Trouble, Verdict};

/// The budget for shrinking a failing program's values, as a number of performed steps.
const SHRINK_STEPS: usize = 20_000;

/// The reason why a program did not reach its end.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// A law was broken, with the script that reproduces it.
    Broken(Broken, String),
    /// There is no device for the program.
    Unable(Unable),
}

impl From<Unable> for Stopped {
    fn from(unable: Unable) -> Stopped {
        Stopped::Unable(unable)
    }
}

impl From<Stopped> for Trouble {
    fn from(stopped: Stopped) -> Trouble {
        match stopped {
            Stopped::Unable(unable) => unable.into(),
            Stopped::Broken(broken, script) => {
                Trouble::Fail { reason: broken.to_string(), script: Some(script).filter(|script| !script.is_empty()) }
            }
        }
    }
}

/// A drawn case, most of which is a list of steps.
pub(crate) trait Case: Clone + Debug + Serialize + DeserializeOwned + 'static {
    /// A step that can be removed.
    type Step: Clone;

    /// Returns the steps.
    fn steps(&mut self) -> &mut Vec<Self::Step>;
}

impl Case for (Setup, Vec<Step>) {
    type Step = Step;

    fn steps(&mut self) -> &mut Vec<Step> {
        &mut self.1
    }
}

impl<T: Clone + Debug + Serialize + DeserializeOwned + 'static> Case for (Setup, Vec<Step>, T) {
    type Step = Step;

    fn steps(&mut self) -> &mut Vec<Step> {
        &mut self.1
    }
}

/// Runs drawn cases, each of which returns its number of steps, until one breaks a law; if `effort` names a case, runs only
/// that one. The smallest case found that breaks the law is reported with its script.
pub(crate) fn run_cases<C: Case>(
    effort: &Effort,
    salt: u64,
    strategy: impl Strategy<Value = C> + 'static,
    one: impl Fn(&C) -> Result<u64, Stopped>,
) -> Verdict {
    match search(effort, salt, strategy, &one) {
        Ok(operations) => {
            let measured = format!("{operations} operations in {} programs", effort.cases);
            Ok(Evidence { operations, measured, text: String::new() })
        }
        Err(Failure::Unable(reason)) => Err(reason.into()),
        Err(Failure::Other(reason)) => Err(Trouble::fail(reason)),
        Err(Failure::Case { case, broken, script }) => {
            // Run the smallest program again: on a real device the failure may depend on timing.
            let (reason, script) = match one(&case) {
                Err(Stopped::Broken(again, script)) => (again.to_string(), script),
                _ => (format!("seen only once: {broken}"), script),
            };
            Err(Trouble::Fail { reason, script: Some(script + &program_line(&case)) })
        }
    }
}

/// The reason why a search ended early.
pub(crate) enum Failure<C> {
    /// There is no device for a program.
    Unable(Unable),
    /// A case breaks a law: the smallest one found, with the message and the script of the last failing run.
    Case { case: C, broken: Broken, script: String },
    /// No programs could be drawn.
    Other(String),
}

/// Runs random cases until one breaks a law, then shrinks it. Returns the number of steps performed if no law is broken.
pub(crate) fn search<C: Case>(
    effort: &Effort,
    salt: u64,
    strategy: impl Strategy<Value = C> + 'static,
    one: &dyn Fn(&C) -> Result<u64, Stopped>,
) -> Result<u64, Failure<C>> {
    let (operations, unable, broken) = (Cell::new(0), RefCell::new(None), RefCell::new(None));
    let spent = Cell::new(0);
    let test = |case: &C| {
        if broken.borrow().is_some() {
            spent.set(spent.get() + case.clone().steps().len());
        }
        // Cases beyond the budget count as passing, so that the smallest failing one so far is kept.
        if spent.get() > SHRINK_STEPS {
            return Ok(());
        }
        match one(case) {
            Ok(done) => {
                operations.set(operations.get() + done);
                Ok(())
            }
            Err(Stopped::Unable(reason)) => {
                unable.replace(Some(reason));
                Ok(())
            }
            Err(Stopped::Broken(found, script)) => {
                let message = found.to_string();
                broken.replace(Some((found, script)));
                Err(message)
            }
        }
    };
    let outcome = match effort.program {
        None => drawn::run(drawn::runner(effort.cases, effort.seed, salt), strategy, &test),
        Some(text) => match serde_json::from_str::<C>(text) {
            Err(error) => return Err(Failure::Other(format!("not a program: {error}"))),
            Ok(case) => test(&case).map_err(|error| TestError::Fail(error.into(), case)),
        },
    };
    if let Some(reason) = unable.take() {
        return Err(Failure::Unable(reason));
    }
    match (outcome, broken.take()) {
        (Ok(()), _) => Ok(operations.get()),
        (Err(TestError::Fail(_, mut case)), Some((found, script))) => {
            let steps = std::mem::take(case.steps());
            // If a different law broke, it would be a different failure.
            let fails = |steps: &[C::Step]| {
                let mut shorter = case.clone();
                *shorter.steps() = steps.to_vec();
                matches!(one(&shorter), Err(Stopped::Broken(again, _)) if again.law == found.law)
            };
            let steps = without_needless(steps, fails);
            *case.steps() = steps;
            Err(Failure::Case { case, broken: found, script })
        }
        (Err(error), _) => Err(Failure::Other(error.to_string())),
    }
}

/// The script line that names a program for [`Effort::program`].
pub(crate) fn program_line(program: &impl Serialize) -> String {
    let text = serde_json::to_string(program).unwrap_or_else(|error| format!("cannot be written: {error}"));
    format!("{PROGRAM}{text}\n")
}

/// Removes steps as long as `fails` reports that the program still fails, until no single step can be removed. A
/// program that does not fail is returned unchanged.
fn without_needless<S: Clone>(steps: Vec<S>, mut fails: impl FnMut(&[S]) -> bool) -> Vec<S> {
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

/// The event timings to check: all of them on a simulated device; a real device has its own.
pub(crate) fn timings(backend: &AnyBackend) -> Vec<(&'static str, EventTiming)> {
    if backend.is_simulated() {
        vec![
            ("clock", EventTiming::Clock),
            ("at-once", EventTiming::Eager),
            ("when-waited-for", EventTiming::Lazy),
            ("seeded", EventTiming::Seeded(0)),
        ]
    } else {
        vec![("device", EventTiming::Clock)]
    }
}

/// Whether expandable segments may be drawn: they need virtual memory.
pub(crate) fn may_expand(backend: &AnyBackend) -> bool {
    Requirement::ExpandableSegments.unmet(&backend.facts()).is_none()
}

/// A number sequence that is the same on every machine (SplitMix64, Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    /// Creates the sequence for a seed.
    pub(crate) fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    /// Returns a number below `bound`, which must be at least 1 and small enough that the modulo bias does not matter.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
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
