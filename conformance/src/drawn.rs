//! Draws cases from a seed, runs them until one fails, and shrinks that one.
//!
//! Strategies have large types. Here they are boxed, and cases are erased, so that proptest's machinery is compiled once
//! instead of once for each law.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::rc::Rc;

use proptest::prelude::Rng;
use proptest::strategy::{BoxedStrategy, NewTree, Strategy, ValueTree};
use proptest::test_runner::{Config, Reason, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::law::{Broken, Law};

/// The maximum number of shrinking steps for a failing case; more would take minutes on a real device.
const SHRINKS: u32 = 4000;

/// Returns a runner whose draws depend only on the seed and the salt.
pub(crate) fn runner(cases: u32, seed: u64, salt: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&salt.to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: SHRINKS, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Runs drawn cases until one fails.
///
/// # Errors
/// The smallest failing case that was found, or the reason why no cases could be drawn.
pub(crate) fn run<C: Debug + Clone + 'static>(
    runner: TestRunner,
    strategy: impl Strategy<Value = C> + 'static,
    test: &dyn Fn(&C) -> Result<(), String>,
) -> Result<(), TestError<C>> {
    let cases = strategy.prop_map(|case| Rc::new(case) as Rc<dyn AnyCase>).boxed();
    let test = |case: &dyn Any| case.downcast_ref().map_or_else(|| Err("a case of another type".to_owned()), test);
    run_any(runner, &cases, &test).map_err(|error| match error {
        TestError::Abort(reason) => TestError::Abort(reason),
        TestError::Fail(reason, case) => match (case as Rc<dyn Any>).downcast() {
            Ok(case) => TestError::Fail(reason, Rc::unwrap_or_clone(case)),
            Err(_) => TestError::Abort(reason),
        },
    })
}

/// A case of any type.
trait AnyCase: Any + Debug {}

impl<C: Any + Debug> AnyCase for C {}

fn run_any(
    mut runner: TestRunner,
    cases: &BoxedStrategy<Rc<dyn AnyCase>>,
    test: &dyn Fn(&dyn Any) -> Result<(), String>,
) -> Result<(), TestError<Rc<dyn AnyCase>>> {
    runner.run(cases, |case| test(&*case as &dyn Any).map_err(|reason| TestCaseError::Fail(Reason::from(reason))))
}

/// Draws from one of several strategies, each of which has a weight ([`one_of!`]).
///
/// Unlike proptest's unions, it shrinks only within the chosen strategy, and prepares nothing for the others, so drawing takes
/// much less time.
#[derive(Clone, Debug)]
pub(crate) struct OneOf<T: Debug> {
    weighted: Vec<(u32, BoxedStrategy<T>)>,
}

impl<T: Debug> OneOf<T> {
    /// Draws from these; at least one needs a weight above 0.
    pub(crate) fn new(weighted: Vec<(u32, BoxedStrategy<T>)>) -> OneOf<T> {
        OneOf { weighted }
    }
}

impl<T: Debug> Strategy for OneOf<T> {
    type Tree = Box<dyn ValueTree<Value = T>>;
    type Value = T;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let total: u32 = self.weighted.iter().map(|(weight, _)| weight).sum();
        let mut left = runner.rng().next_u32() % total.max(1);
        for (weight, strategy) in &self.weighted {
            if left < *weight {
                return strategy.new_tree(runner);
            }
            left -= weight;
        }
        Err(Reason::from("nothing to draw from"))
    }
}

/// A strategy that draws from one of several, with or without weights, as in `one_of![3 => any::<u8>(), 1 => Just(0)]`.
macro_rules! one_of {
    ($($weight:literal => $strategy:expr),+ $(,)?) => {
        $crate::drawn::OneOf::new(vec![$(($weight, proptest::strategy::Strategy::boxed($strategy))),+])
    };
    ($($strategy:expr),+ $(,)?) => { $crate::drawn::one_of![$(1 => $strategy),+] };
}
pub(crate) use one_of;

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

/// Runs a law's cases, each of which returns its number of operations, and shrinks those that break it.
pub(crate) fn run_law<C: Debug + Clone + 'static>(
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
    let outcome = run(runner(draws.cases, draws.seed, salt), strategy, &test);
    match outcome {
        Ok(()) => Ok(operations.get()),
        Err(TestError::Fail(reason, case)) => {
            let broken = broken.take().unwrap_or_else(|| Broken::new(Law::Reference, reason));
            Err(Failure { broken, script: format!("# {case:?}\n") })
        }
        Err(TestError::Abort(reason)) => Err(Broken::new(Law::Reference, reason).into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_strategy_is_drawn_as_often_as_its_weight_says() {
        let strategy = one_of![3 => Just(0_usize), 1 => 1..3_usize, 0 => Just(9)];
        let mut runner = runner(1, 7, 0);
        let mut counts = [0; 10];
        for _ in 0..4000 {
            counts[strategy.new_tree(&mut runner).expect("a case").current()] += 1;
        }
        assert!((2900..3100).contains(&counts[0]) && counts[1] > 400 && counts[2] > 400, "{counts:?}");
        assert_eq!(counts[9], 0);
    }

    #[test]
    fn the_smallest_failing_case_is_returned_and_the_same_seed_draws_the_same_cases() {
        let cases = || one_of![(0..1000_u64, 5..9_u64), (Just(3), 0..7_u64)];
        let seen = RefCell::new(Vec::new());
        let test = |case: &(u64, u64)| {
            seen.borrow_mut().push(*case);
            if case.0 >= 100 { Err(format!("{} is too large", case.0)) } else { Ok(()) }
        };
        let Err(TestError::Fail(reason, case)) = run(runner(500, 1, 2), cases(), &test) else { panic!("no case failed") };
        assert_eq!((case, reason.message()), ((100, 5), "100 is too large"));
        let first = seen.take();
        assert!(run(runner(500, 1, 2), cases(), &test).is_err());
        assert_eq!(seen.take(), first);
        assert!(run(runner(500, 1, 3), cases(), &test).is_err());
        assert_ne!(seen.take(), first);
    }
}
