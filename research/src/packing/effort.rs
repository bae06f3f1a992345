//! How much the packer may do, and what it returns.

use super::instance::Packing;

/// How much work may be done, and with which random numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Steps: buffers looked at, about. Ten million or more take a second.
    pub steps: u64,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// Enough for the instances that were measured: below a minute.
pub const DEFAULT_STEPS: u64 = 1_000_000_000;

impl Default for Effort {
    fn default() -> Effort {
        Effort { steps: DEFAULT_STEPS, seed: 1 }
    }
}

/// The best packing that was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// It.
    pub packing: Packing,
    /// No packing is lower than this, in bytes: the load, or more where a search has shown it.
    pub bound: u64,
    /// Steps that were done; more than the budget by one order at most, which is about four for every two buffers that live together.
    pub steps: u64,
}
