//! Draws and runs a law's cases, and shrinks those that break it.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;

use crate::law::{Broken, Law};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// The maximum number of shrinking steps for a failing case.
const SHRINKS: u32 = 4000;

/// The number of cases to draw, and the seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Draws {
    /// The number of random cases for each law.
    pub cases: u32,
    /// The seed from which they are drawn.
    pub seed: u64,
}

impl Draws {
    /// Returns a reduced number of cases (at least one) for a law in which each case takes as long as this many other
    /// cases.
    pub(crate) fn each_for(self, cases: u32) -> Draws {
        Draws { cases: self.cases / cases + 1, ..self }
    }
}

/// The outcome of a check: the number of operations, or the failure.
pub type Outcome = Result<u64, Failure>;

/// A broken law.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The law, and the observation that broke it.
    pub broken: Broken,
    /// The smallest case found that breaks it, as comments in a script.
    pub script: String,
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Failure {
        Failure { broken, script: String::new() }
    }
}

/// Runs drawn cases, each of which returns its number of operations.
pub(crate) fn run<S>(draws: &Draws, salt: u64, strategy: &S, one: impl Fn(&S::Value) -> Result<u64, Broken>) -> Outcome
where
    S: Strategy,
    S::Value: Debug,
{
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&draws.seed.to_le_bytes());
    seed[8..16].copy_from_slice(&salt.to_le_bytes());
    let config = Config { cases: draws.cases, failure_persistence: None, max_shrink_iters: SHRINKS, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let (operations, broken) = (Cell::new(0), RefCell::new(None));
    let outcome = runner.run(strategy, |case| match one(&case) {
        Ok(done) => {
            operations.set(operations.get() + done);
            Ok(())
        }
        Err(found) => {
            let message = found.to_string();
            // The last failing case is the smallest.
            broken.replace(Some(found));
            Err(TestCaseError::fail(message))
        }
    });
    match outcome {
        Ok(()) => Ok(operations.get()),
        Err(TestError::Fail(reason, case)) => {
            let broken = broken.take().unwrap_or_else(|| Broken::new(Law::Reference, reason));
            Err(Failure { broken, script: format!("# {case:?}\n") })
        }
        Err(TestError::Abort(reason)) => Err(Broken::new(Law::Reference, reason).into()),
    }
}
