//! Draws and runs a law's cases, and shrinks those that break it.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;

use proptest::strategy::Strategy;
use proptest::test_runner::TestError;

use crate::drawn;
use crate::law::{Broken, Law};

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
pub(crate) fn run<C: Debug + Clone + 'static>(
    draws: &Draws,
    salt: u64,
    strategy: impl Strategy<Value = C> + 'static,
    one: impl Fn(&C) -> Result<u64, Broken>,
) -> Outcome {
    let (operations, broken) = (Cell::new(0), RefCell::new(None));
    let test = |case: &C| match one(case) {
        Ok(done) => {
            operations.set(operations.get() + done);
            Ok(())
        }
        Err(found) => {
            let message = found.to_string();
            // The last failing case is the smallest.
            broken.replace(Some(found));
            Err(message)
        }
    };
    let outcome = drawn::run(drawn::runner(draws.cases, draws.seed, salt), strategy, &test);
    match outcome {
        Ok(()) => Ok(operations.get()),
        Err(TestError::Fail(reason, case)) => {
            let broken = broken.take().unwrap_or_else(|| Broken::new(Law::Reference, reason));
            Err(Failure { broken, script: format!("# {case:?}\n") })
        }
        Err(TestError::Abort(reason)) => Err(Broken::new(Law::Reference, reason).into()),
    }
}
