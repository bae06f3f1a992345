//! How much the packer may do, and what it returns.

use super::instance::Packing;

/// The budget of the packer, and the seed of its random numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Steps: roughly, buffers looked at. Ten million or more take a second.
    pub steps: u64,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// Enough for all instances that were measured: less than a minute.
pub const DEFAULT_STEPS: u64 = 1_000_000_000;

impl Default for Effort {
    fn default() -> Effort {
        Effort { steps: DEFAULT_STEPS, seed: 1 }
    }
}

/// The best packing found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// The packing.
    pub packing: Packing,
    /// A proven lower bound of all packings, in bytes: the load, or more if a search has shown it.
    pub bound: u64,
    /// The steps done. They may exceed the budget by one order, which is about four steps for every two buffers live at the same
    /// time. Where more than 500 buffers are packed and the budget is not enough for one order, there is none: each buffer is
    /// placed as it begins, and counts as one step.
    pub steps: u64,
}
