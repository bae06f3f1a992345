//! What is checked: a policy that can be made anew for each program, under a name.

use std::sync::Arc;

use parkade::policy::Policy;

use super::habits::Habits;
use super::step::{Setup, Step};
use super::trial::{Mode, Trial};
use super::watched::Reached;
use crate::backend::{Backend, Unable};
use crate::law::{Broken, Law};

/// A policy under a name.
pub(super) struct Subject<P> {
    pub(super) name: String,
    make: Arc<dyn Fn(u64) -> P + Send + Sync>,
    /// What may go wrong that is nobody's fault.
    mode: Mode,
    habits: Habits,
    /// The numbers that it is made with where calls fail.
    pub(super) fault_seeds: Vec<u64>,
}

impl<P> Clone for Subject<P> {
    fn clone(&self) -> Subject<P> {
        let (name, make, fault_seeds) = (self.name.clone(), Arc::clone(&self.make), self.fault_seeds.clone());
        Subject { name, make, mode: self.mode, habits: self.habits, fault_seeds }
    }
}

/// Why a program did not reach its end.
pub(super) enum Stopped {
    /// A law was broken; the script shows how.
    Broken(Broken, String),
    /// There is no device for it.
    Unable(Unable),
}

impl<P: Policy> Subject<P> {
    /// The policy that `make` makes; it is given a number that a drawn policy follows from.
    pub(super) fn new(name: impl Into<String>, make: impl Fn(u64) -> P + Send + Sync + 'static) -> Subject<P> {
        Subject { name: name.into(), make: Arc::new(make), mode: Mode::Honest, habits: Habits::default(), fault_seeds: vec![0] }
    }

    /// The same; where calls fail, all of these numbers take their turn.
    pub(super) fn failing_with(self, fault_seeds: Vec<u64>) -> Subject<P> {
        Subject { fault_seeds, ..self }
    }

    /// The same, with these habits.
    pub(super) fn with(self, habits: Habits) -> Subject<P> {
        Subject { habits, ..self }
    }

    /// The same, expected to give wrong answers.
    pub(super) fn expected_wrong(self) -> Subject<P> {
        Subject { mode: Mode::Wrong, ..self }
    }

    pub(super) fn trial<B: Backend>(&self, backend: &B, setup: &Setup) -> Result<Trial<B::Device, P>, Stopped> {
        Trial::new(backend, setup, (self.make)(setup.policy_seed), self.mode, self.habits).map_err(Stopped::Unable)
    }

    /// Carries out a program up to its end, but leaves everything as it is then.
    pub(super) fn play<B: Backend>(&self, backend: &B, setup: &Setup, steps: &[Step]) -> Result<Trial<B::Device, P>, Stopped> {
        let mut trial = self.trial(backend, setup)?;
        for (number, &step) in steps.iter().enumerate() {
            if let Err(broken) = trial.apply(step) {
                return Err(Stopped::Broken(broken.during(format!("step {number}, {step:?}")), trial.script()));
            }
        }
        Ok(trial)
    }

    /// Carries out a program and gives everything back; how often the policy did what it may do.
    pub(super) fn whole_run<B: Backend>(&self, backend: &B, setup: &Setup, steps: &[Step]) -> Result<Reached, Stopped> {
        let trial = self.play(backend, setup, steps)?;
        let (script, reached) = (trial.script(), trial.reached());
        let finished = trial.finish().map_err(|broken| Stopped::Broken(broken.during("giving everything back"), script))?;
        Ok(Reached { driver_ns: finished.driver_ns, ..reached })
    }

    /// Two runs of a program that must be the same.
    pub(super) fn twice<B: Backend>(&self, backend: &B, setup: &Setup, steps: &[Step]) -> Result<(), Stopped> {
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
            "two runs part at {pair:?}, or in their lengths, {} and {}, or statistics",
            first.trace.len(),
            second.trace.len()
        );
        Err(Stopped::Broken(Broken::new(Law::Determinism, seen), script))
    }
}
