//! The outcome of an attack on a policy, and why there may be none.

use std::fmt;

use crate::workload::Workload;

/// The outcome of an attack on a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attack {
    /// The requests that were made.
    pub workload: Workload,
    /// The load: the most bytes that were live at once, as requested.
    pub load_bytes: u64,
    /// The most bytes reserved at once.
    pub reserved_bytes: u64,
    /// The bytes of all addresses that ever had memory.
    pub address_bytes: u64,
    /// Memory was released to the device before the end.
    pub gave_back: bool,
}

impl Attack {
    /// All memory that the policy ever took stayed where it was. Robson's theorem speaks of the reserved bytes
    /// only then.
    #[must_use]
    pub fn never_moved(&self) -> bool {
        !self.gave_back && self.address_bytes == self.reserved_bytes
    }
}

/// Why an attack or a pattern cannot be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttackError {
    /// One of the numbers that describe it is not allowed.
    Shape(&'static str),
    /// The policy refused a request although there was memory; in one line.
    Refused(String),
}

impl fmt::Display for AttackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttackError::Shape(problem) => write!(f, "there is no such adversary: {problem}"),
            AttackError::Refused(why) => write!(f, "the policy refused a request although there was memory: {why}"),
        }
    }
}

impl std::error::Error for AttackError {}
