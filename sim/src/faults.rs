//! Calls that fail on demand: the n-th call of a kind, or the n-th call of any kind.
//!
//! This is what lets a test fail every driver call of a program in turn and look whether its heap stays whole.

use crate::calls::{CallName, OUT_OF_MEMORY, UNKNOWN};

/// Which call fails. Counts begin at one, with the first call after the plan was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// The n-th call of this kind.
    NthOf(CallName, u64),
    /// The n-th call that can fail at all (destroying an event and synchronizing the device cannot, and do not count).
    Nth(u64),
}

/// How it fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultError {
    /// Driver code 2. From cudaMalloc and cuMemCreate this is the error that means "no room".
    OutOfMemory,
    /// Another driver code. Zero means success and is replaced by 999, "unknown".
    Code(u32),
}

impl FaultError {
    /// The driver's code.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            FaultError::OutOfMemory => OUT_OF_MEMORY,
            FaultError::Code(0) => UNKNOWN,
            FaultError::Code(code) => code,
        }
    }
}

/// One planned failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Which call.
    pub when: When,
    /// How.
    pub error: FaultError,
}

/// Planned failures, each of which happens at most once.
#[derive(Clone, Default, Debug)]
pub struct FaultPlan {
    waiting: Vec<Fault>,
    seen: [u64; CallName::COUNT],
    seen_in_all: u64,
    fired: u64,
}

impl FaultPlan {
    /// No failures.
    #[must_use]
    pub fn none() -> Self {
        FaultPlan::default()
    }

    /// The same plan with one more failure. Of two for the same call the one entered first happens.
    #[must_use]
    pub fn and(mut self, when: When, error: FaultError) -> Self {
        self.waiting.push(Fault { when, error });
        self
    }

    /// How many failures have happened. Zero after a run: the run made fewer calls than the plan waited for.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// Counts a call and says whether it is to fail.
    pub fn next(&mut self, call: CallName) -> Option<FaultError> {
        self.seen[call as usize] += 1;
        self.seen_in_all += 1;
        let (of_kind, in_all) = (self.seen[call as usize], self.seen_in_all);
        let due = self.waiting.iter().position(|fault| match fault.when {
            When::NthOf(name, n) => name == call && n == of_kind,
            When::Nth(n) => n == in_all,
        })?;
        self.fired += 1;
        Some(self.waiting.remove(due).error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_kind_and_in_all() {
        let mut plan =
            FaultPlan::none().and(When::NthOf(CallName::Free, 2), FaultError::Code(1)).and(When::Nth(2), FaultError::OutOfMemory);
        assert_eq!(plan.next(CallName::Free), None);
        assert_eq!(plan.next(CallName::Malloc), Some(FaultError::OutOfMemory));
        assert_eq!(plan.next(CallName::Malloc), None);
        assert_eq!(plan.fired(), 1);
        assert_eq!(plan.next(CallName::Free), Some(FaultError::Code(1)));
        assert_eq!(plan.next(CallName::Free), None);
        assert_eq!(plan.fired(), 2);
    }

    #[test]
    fn a_failure_never_has_the_code_of_success() {
        assert_eq!(FaultError::Code(0).code(), 999);
        assert_eq!(FaultError::OutOfMemory.code(), 2);
    }
}
