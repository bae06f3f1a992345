//! Planned failures: the list of faults, and the list of all calls since it was made.

use parkade_sim::{CallName, FaultError, FaultPlan, When};
use serde::{Deserialize, Serialize};

/// A planned failure: of the n-th call of a kind (by its place in [`CallName::ALL`]) or of any kind, with a driver code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) kind: Option<usize>,
    pub(crate) n: u64,
    pub(crate) code: u32,
}

/// Returns the plan of the simulated device.
pub(crate) fn plan_of(faults: &[Fault]) -> FaultPlan {
    faults.iter().fold(FaultPlan::none(), |plan, fault| {
        let when = fault.kind.map_or(When::Nth(fault.n), |kind| When::NthOf(CallName::ALL[kind % CallName::COUNT], fault.n));
        plan.and(when, if fault.code == 2 { FaultError::OutOfMemory } else { FaultError::Code(fault.code) })
    })
}

/// The planned failures that have not happened yet.
#[derive(Clone, Default, Debug)]
pub(super) struct Plan {
    waiting: Vec<Fault>,
    made: Vec<CallName>,
    pub(super) fired: u64,
}

impl Plan {
    pub(super) fn new(faults: &[Fault]) -> Plan {
        Plan { waiting: faults.to_vec(), ..Plan::default() }
    }

    /// Whether a fault can still happen, as far as the plan knows.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Counts a call. Returns the code with which it must fail, if it must.
    pub(super) fn next(&mut self, call: CallName) -> Result<(), u32> {
        self.made.push(call);
        match self.due() {
            Some(place) => Err(self.fire(place)),
            None => Ok(()),
        }
    }

    /// Returns the first of these calls, which are about to be made in this order, that must fail, and its code. The fault
    /// counts as having happened, the calls as not made.
    pub(super) fn foresee(&mut self, calls: &[CallName]) -> Option<(CallName, u32)> {
        let before = self.made.len();
        let found = calls.iter().find_map(|&call| {
            self.made.push(call);
            self.due().map(|place| (call, place))
        });
        self.made.truncate(before);
        found.map(|(call, place)| (call, self.fire(place)))
    }

    /// Returns the place of the fault that the latest call meets.
    fn due(&self) -> Option<usize> {
        let last = self.made.last()?;
        let (in_all, of_kind) = (self.made.len() as u64, self.made.iter().filter(|made| *made == last).count() as u64);
        self.waiting.iter().position(|fault| match fault.kind {
            None => fault.n == in_all,
            Some(kind) => CallName::ALL[kind % CallName::COUNT] == *last && fault.n == of_kind,
        })
    }

    fn fire(&mut self, place: usize) -> u32 {
        self.fired += 1;
        match self.waiting.remove(place).code {
            // Zero would be success.
            0 => 999,
            code => code,
        }
    }
}
