//! The subject of a check: a named policy that is created anew for each program.

use std::sync::Arc;

use parkade::policy::Policy;

use super::step::{Setup, Step};
use super::trial::Habits;
use super::trial::{Expected, Trial};
use super::watched::Reached;
use crate::backend::{AnyBackend, Unable};
use crate::law::{Broken, Law};

/// A named policy. Its type is erased, so that the checks are compiled once.
pub(super) struct Subject {
    pub(super) name: String,
    make: Arc<dyn Fn(u64) -> Box<dyn Policy> + Send + Sync>,
    /// Which errors are expected.
    pub(super) expected: Expected,
    habits: Habits,
    /// The seeds that it is created with when calls are made to fail.
    pub(super) fault_seeds: Vec<u64>,
}

impl Clone for Subject {
    fn clone(&self) -> Subject {
        let (name, make, fault_seeds) = (self.name.clone(), Arc::clone(&self.make), self.fault_seeds.clone());
        Subject { name, make, expected: self.expected, habits: self.habits, fault_seeds }
    }
}

/// Why a program stopped early.
pub(super) enum Stopped {
    /// A law was broken, with the script that shows it.
    Broken(Broken, String),
    /// There is no device for the program.
    Unable(Unable),
}

impl Subject {
    /// The policy that `make` creates from a seed, which randomly assembled policies use.
    pub(super) fn new<P: Policy + 'static>(name: impl Into<String>, make: impl Fn(u64) -> P + Send + Sync + 'static) -> Subject {
        Subject {
            name: name.into(),
            make: Arc::new(move |seed| Box::new(make(seed))),
            expected: Expected::default(),
            habits: Habits::default(),
            fault_seeds: vec![0],
        }
    }

    /// The same subject, created with each of these seeds when calls are made to fail.
    pub(super) fn failing_with(self, fault_seeds: Vec<u64>) -> Subject {
        Subject { fault_seeds, ..self }
    }

    /// The same subject, with these habits.
    pub(super) fn with(self, habits: Habits) -> Subject {
        Subject { habits, ..self }
    }

    /// The same subject, expected to give invalid answers.
    pub(super) fn expected_wrong(self) -> Subject {
        Subject { expected: Expected { wrong_answers: true, ..self.expected }, ..self }
    }

    pub(super) fn trial(&self, backend: &AnyBackend, setup: &Setup) -> Result<Trial, Stopped> {
        Trial::new(backend, setup, (self.make)(setup.policy_seed), self.expected, self.habits).map_err(Stopped::Unable)
    }

    /// Runs a program to its end, and leaves the resulting state in place.
    pub(super) fn play(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<Trial, Stopped> {
        let mut trial = self.trial(backend, setup)?;
        for (number, &step) in steps.iter().enumerate() {
            if let Err(broken) = trial.apply(step) {
                return Err(Stopped::Broken(broken.during(format!("step {number}, {step:?}")), trial.script()));
            }
        }
        Ok(trial)
    }

    /// Runs a program and gives everything back; returns how often the policy did what.
    pub(super) fn whole_run(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<Reached, Stopped> {
        let trial = self.play(backend, setup, steps)?;
        let (script, reached) = (trial.script(), trial.reached());
        let finished = trial.finish().map_err(|broken| Stopped::Broken(broken.during("giving everything back"), script))?;
        Ok(Reached { driver_ns: finished.driver_ns, ..reached })
    }

    /// Checks that two runs of a program are the same.
    pub(super) fn twice(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<(), Stopped> {
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
            "two runs differ at {pair:?}, or in their lengths {} and {}, or in their statistics",
            first.trace.len(),
            second.trace.len()
        );
        Err(Stopped::Broken(Broken::new(Law::Determinism, seen), script))
    }
}
