//! Random draws for the checks: a runner that depends only on the seed, the event timings, whether the device supports
//! expandable segments, and integers.

use std::fmt::Debug;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestError, TestRng, TestRunner};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backend::{AnyBackend, EventTiming};
use crate::suite::{Effort, PROGRAM, Requirement};

/// The maximum number of shrinking steps for a failing sequence; more would take minutes on a real
/// device.
const SHRINKS: u32 = 4000;

/// Returns a runner whose draws depend only on the seed and the salt.
#[must_use]
pub fn runner(effort: &Effort, salt: impl Into<u64>) -> TestRunner {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&effort.seed.to_le_bytes());
    seed[8..16].copy_from_slice(&salt.into().to_le_bytes());
    let config = Config { cases: effort.cases, failure_persistence: None, max_shrink_iters: SHRINKS, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Runs `one` on drawn programs until one fails, and shrinks that one. If `effort` names a program, runs only that
/// program.
///
/// # Errors
/// The failure and the smallest program found that reproduces it; [`TestError::Abort`] if no program could be drawn, or
/// if the named program does not belong to this strategy.
pub fn hunt<S>(
    effort: &Effort,
    salt: impl Into<u64>,
    strategy: &S,
    one: impl Fn(S::Value) -> TestCaseResult,
) -> Result<(), TestError<S::Value>>
where
    S: Strategy,
    S::Value: Debug + DeserializeOwned,
{
    let Some(text) = effort.program else { return runner(effort, salt).run(strategy, one) };
    let program = || serde_json::from_str(text).map_err(|error| TestError::Abort(format!("not a program: {error}").into()));
    match one(program()?) {
        Ok(()) => Ok(()),
        Err(error) => Err(TestError::Fail(error.to_string().into(), program()?)),
    }
}

/// The script line that names a program for [`Effort::program`].
#[must_use]
pub fn program_line(program: &impl Serialize) -> String {
    let text = serde_json::to_string(program).unwrap_or_else(|error| format!("cannot be written: {error}"));
    format!("{PROGRAM}{text}\n")
}

/// The event timings to check: all of them on a simulated device; a real device has its own.
#[must_use]
pub fn timings(backend: &AnyBackend) -> Vec<(&'static str, EventTiming)> {
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
#[must_use]
pub fn may_expand(backend: &AnyBackend) -> bool {
    Requirement::ExpandableSegments.unmet(&backend.facts()).is_none()
}

/// A number sequence that is the same on every machine (SplitMix64, Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Draws(u64);

impl Draws {
    /// Creates the sequence for a seed.
    #[must_use]
    pub fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    /// Returns a number below `bound`, which must be at least 1 and small enough that the modulo bias does not matter.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
