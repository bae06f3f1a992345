//! Planned failures: the n-th call of one kind, or the n-th call of any kind, returns an error.
//!
//! A test can use this to fail each driver call of a program in turn and check that the allocator's heap stays
//! consistent. A failed call has no effect on the device. The plan is set with
//! [`SimDevice::set_fault_plan`](crate::SimDevice::set_fault_plan).

use crate::calls::{CallName, OUT_OF_MEMORY, UNKNOWN};

/// The call that fails. Counts start at one with the first call after the plan is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// The n-th call of this kind.
    NthOf(CallName, u64),
    /// The n-th call of any kind that can fail. Destroying an event and synchronizing the device cannot fail, so they
    /// do not count.
    Nth(u64),
}

/// The way in which a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultError {
    /// Driver code 2. The core sees it as out of memory in cudaMalloc and cuMemCreate.
    OutOfMemory,
    /// Any other driver code. Zero would mean success, so it is replaced by 999, "unknown".
    Code(u32),
}

impl FaultError {
    /// Returns the driver code.
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
    /// The call that fails.
    pub when: When,
    /// The way in which it fails.
    pub error: FaultError,
}

/// Planned failures. Each one happens at most once.
///
/// ```
/// use parkade_sim::{CallName, FaultError, FaultPlan, When};
///
/// // The second cudaMalloc finds no room, and the tenth call of any kind fails with code 719.
/// let plan = FaultPlan::none()
///     .and(When::NthOf(CallName::Malloc, 2), FaultError::OutOfMemory)
///     .and(When::Nth(10), FaultError::Code(719));
/// assert_eq!(plan.fired(), 0);
/// ```
#[derive(Clone, Default, Debug)]
pub struct FaultPlan {
    waiting: Vec<Fault>,
    seen: [u64; CallName::COUNT],
    seen_in_all: u64,
    fired: u64,
}

impl FaultPlan {
    /// Creates a plan without failures.
    #[must_use]
    pub fn none() -> Self {
        FaultPlan::default()
    }

    /// Adds a failure to the plan. If two failures name the same call, only the one added first happens.
    #[must_use]
    pub fn and(mut self, when: When, error: FaultError) -> Self {
        self.waiting.push(Fault { when, error });
        self
    }

    /// Adds the failure of the n-th call of any kind from now on, where the plan's other failures count from its beginning.
    #[must_use]
    pub fn and_from_now(self, n: u64, error: FaultError) -> Self {
        let when = When::Nth(self.seen_in_all.saturating_add(n));
        self.and(when, error)
    }

    /// Returns how many failures have happened. If the number is zero after a run, the run made fewer calls than the
    /// plan requires.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// Returns whether there is a failure that has not happened yet.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the calls that are about to be made, in order. Returns the first one that would fail, and how. That failure
    /// counts as having happened; the calls do not count as made.
    pub(crate) fn foresee(&mut self, calls: &[CallName]) -> Option<(CallName, FaultError)> {
        let (mut seen, mut seen_in_all) = (self.seen, self.seen_in_all);
        calls.iter().find_map(|&call| {
            seen[call as usize] += 1;
            seen_in_all += 1;
            self.fire(call, seen[call as usize], seen_in_all).map(|error| (call, error))
        })
    }

    /// Counts a call. If the call must fail, returns how.
    pub fn next(&mut self, call: CallName) -> Option<FaultError> {
        self.seen[call as usize] += 1;
        self.seen_in_all += 1;
        self.fire(call, self.seen[call as usize], self.seen_in_all)
    }

    /// Takes the failure that names the call with these numbers from the plan.
    fn fire(&mut self, call: CallName, of_kind: u64, in_all: u64) -> Option<FaultError> {
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
    fn a_failure_from_now_on_leaves_the_others_as_they_are() {
        let mut plan = FaultPlan::none().and(When::Nth(2), FaultError::Code(5));
        assert_eq!(plan.next(CallName::Malloc), None);
        plan = plan.and_from_now(2, FaultError::Code(6));
        assert_eq!(plan.next(CallName::Malloc), Some(FaultError::Code(5)));
        assert_eq!(plan.next(CallName::Free), Some(FaultError::Code(6)));
    }

    #[test]
    fn calls_that_come_together_are_foreseen() {
        let calls = [CallName::MemUnmap, CallName::MemCreate, CallName::MemMap, CallName::MemCreate];
        let mut plan = FaultPlan::none()
            .and(When::NthOf(CallName::MemCreate, 3), FaultError::Code(5))
            .and(When::Nth(4), FaultError::Code(6));
        assert_eq!(plan.foresee(&calls[..3]), None);
        assert_eq!(plan.next(CallName::MemCreate), None);
        assert_eq!(plan.foresee(&calls), Some((CallName::MemMap, FaultError::Code(6))));
        assert_eq!(plan.foresee(&calls), Some((CallName::MemCreate, FaultError::Code(5))));
        assert_eq!((plan.foresee(&calls), plan.fired()), (None, 2));
    }

    #[test]
    fn a_failure_never_has_the_success_code() {
        assert_eq!(FaultError::Code(0).code(), 999);
        assert_eq!(FaultError::OutOfMemory.code(), 2);
    }
}
