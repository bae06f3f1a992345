//! Random draws of the checks: a runner determined by the seed, the event timings, what the device allows, and integers.

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::backend::{Backend, EventTiming};
use crate::suite::{Effort, Requirement};

/// The most shrinking steps for a failing sequence; more would take minutes on a real device.
const SHRINKS: u32 = 4000;

/// A runner whose draws depend only on the seed and the salt.
#[must_use]
pub fn runner(effort: &Effort, salt: impl Into<u64>) -> TestRunner {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&effort.seed.to_le_bytes());
    seed[8..16].copy_from_slice(&salt.into().to_le_bytes());
    let config = Config { cases: effort.cases, failure_persistence: None, max_shrink_iters: SHRINKS, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// The event timings to check under: all of them on a simulated device; a real one has its own.
#[must_use]
pub fn timings<B: Backend>(backend: &B) -> Vec<(&'static str, EventTiming)> {
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
pub fn may_expand<B: Backend>(backend: &B) -> bool {
    Requirement::ExpandableSegments.unmet(&backend.facts()).is_none()
}

/// A sequence of numbers that is the same on every machine (SplitMix64, Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Draws(u64);

impl Draws {
    /// The sequence for a seed.
    #[must_use]
    pub fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    /// A number below `bound`, which must be at least 1 and small enough that the modulo bias does not matter.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
