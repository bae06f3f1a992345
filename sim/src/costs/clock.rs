//! The device's clock, and the totals of what calls cost. It advances by calls, by waiting and by
//! [`Clock::advance`]; it never reads real time.

use crate::calls::CallName;

/// What the calls of one kind have cost so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CallTotals {
    /// How many calls were made, failed ones included.
    pub calls: u64,
    /// How many of them failed. A query that answers "not ready" did not fail.
    pub failures: u64,
    /// Their price in nanoseconds, without waiting.
    pub cost_ns: u64,
    /// How long they waited for work on the device, in nanoseconds.
    pub wait_ns: u64,
}

impl CallTotals {
    fn add(&mut self, other: &CallTotals) {
        self.calls += other.calls;
        self.failures += other.failures;
        self.cost_ns = self.cost_ns.saturating_add(other.cost_ns);
        self.wait_ns = self.wait_ns.saturating_add(other.wait_ns);
    }
}

/// Simulated time and the totals of every kind of call.
#[derive(Clone, Default, Debug)]
pub(crate) struct Clock {
    now_ns: u64,
    totals: [CallTotals; CallName::COUNT],
    waits: u64,
}

impl Clock {
    /// Nanoseconds since the device was created.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Advances the clock without a call.
    pub(crate) fn advance(&mut self, duration_ns: u64) {
        self.now_ns = self.now_ns.saturating_add(duration_ns);
    }

    /// Counts a call and advances the clock by its price.
    pub(crate) fn charge(&mut self, call: CallName, cost_ns: u64) {
        self.charge_each(call, cost_ns, 1);
    }

    /// Counts as many calls of one price.
    pub(crate) fn charge_each(&mut self, call: CallName, cost_ns: u64, calls: u64) {
        let totals = &mut self.totals[call as usize];
        let cost_ns = cost_ns.saturating_mul(calls);
        totals.calls += calls;
        totals.cost_ns = totals.cost_ns.saturating_add(cost_ns);
        self.advance(cost_ns);
    }

    /// Counts a failure.
    pub(crate) fn note_failure(&mut self, call: CallName) {
        self.totals[call as usize].failures += 1;
    }

    /// Makes a call wait until `until_ns`, or not at all if that time has passed.
    pub(crate) fn wait_until(&mut self, call: CallName, until_ns: u64) {
        let wait_ns = until_ns.saturating_sub(self.now_ns);
        self.waits += 1;
        let totals = &mut self.totals[call as usize];
        totals.wait_ns = totals.wait_ns.saturating_add(wait_ns);
        self.advance(wait_ns);
    }

    /// How many calls returned only when work was done, whether there was work to wait for or not.
    pub(crate) fn waits(&self) -> u64 {
        self.waits
    }

    /// What the calls of one kind have cost.
    pub(crate) fn totals(&self, call: CallName) -> CallTotals {
        self.totals[call as usize]
    }

    /// What all calls have cost.
    pub(crate) fn sum(&self) -> CallTotals {
        let mut sum = CallTotals::default();
        self.totals.iter().for_each(|totals| sum.add(totals));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_waits_move_the_clock_and_are_accounted_apart() {
        let mut clock = Clock::default();
        clock.charge(CallName::Free, 10);
        clock.wait_until(CallName::Free, 100);
        clock.wait_until(CallName::Free, 50);
        clock.charge(CallName::EventQuery, 1);
        clock.advance(9);
        assert_eq!(clock.now_ns(), 110);
        assert_eq!(clock.totals(CallName::Free), CallTotals { calls: 1, failures: 0, cost_ns: 10, wait_ns: 90 });
        assert_eq!(clock.sum(), CallTotals { calls: 2, failures: 0, cost_ns: 11, wait_ns: 90 });
        assert_eq!(clock.waits(), 2, "one of them found nothing to wait for");
        clock.advance(u64::MAX);
        assert_eq!(clock.now_ns(), u64::MAX, "saturates");
    }
}
