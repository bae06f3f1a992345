//! Adversaries: programs made to need much more memory than lives at once.
//!
//! [`robson`] reacts to where a policy puts things, so it plays against a live allocator and hands out the [`Workload`] that came of it,
//! which can be replayed against others. The rest are plain programs: [`best_fit_attack`], and three patterns that were reported
//! against PyTorch ([`fence`], [`comb`], [`stream_per_buffer`]). docs/bounds.md says what each forces and upon whom.

mod best_fit;
mod driver;
mod patterns;
mod robson;
#[cfg(test)]
mod tests;

use std::fmt;

use super::Workload;

pub use best_fit::best_fit_attack;
pub use patterns::{comb, fence, stream_per_buffer};
pub use robson::{Robson, robson};

/// What came of an attack on a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attack {
    /// The requests that were made.
    pub workload: Workload,
    /// The most bytes that lived at once, as asked for.
    pub load_bytes: u64,
    /// The most bytes that were reserved at once.
    pub reserved_bytes: u64,
    /// Addresses that ever had memory, in bytes.
    pub address_bytes: u64,
    /// Memory went back to the device in between.
    pub gave_back: bool,
}

impl Attack {
    /// The policy moved nothing: all memory that it ever took stayed where it was. Only then Robson's theorem speaks of what it reserved.
    #[must_use]
    pub fn never_moved(&self) -> bool {
        !self.gave_back && self.address_bytes == self.reserved_bytes
    }
}

/// Why an attack or a pattern cannot be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttackError {
    /// A number that it is made of is not what it must be.
    Shape(&'static str),
    /// The policy refused a request, though there was memory; in one line.
    Refused(String),
}

impl fmt::Display for AttackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttackError::Shape(problem) => write!(f, "no such adversary: {problem}"),
            AttackError::Refused(why) => write!(f, "the policy refused a request with memory left: {why}"),
        }
    }
}

impl std::error::Error for AttackError {}
