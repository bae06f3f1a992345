//! Time, and what each kind of call has cost.

use std::collections::BTreeMap;

use parkade_sim::{CallName, CallTotals};

/// The clock of a device. It saturates.
#[derive(Clone, Default, Debug)]
pub(super) struct Clock {
    pub(super) now_ns: u64,
    /// The number of calls that wait for work on the device.
    pub(super) waits: u64,
    spent: BTreeMap<CallName, CallTotals>,
}

impl Clock {
    /// Lets time pass.
    pub(super) fn pass(&mut self, ns: u64) {
        self.now_ns = self.now_ns.saturating_add(ns);
    }

    /// Counts a call, which takes as long as it costs.
    pub(super) fn pay(&mut self, call: CallName, price_ns: u64) {
        let spent = self.spent.entry(call).or_default();
        spent.calls += 1;
        spent.cost_ns = spent.cost_ns.saturating_add(price_ns);
        self.pass(price_ns);
    }

    /// Counts a failure of a call.
    pub(super) fn fail(&mut self, call: CallName) {
        self.spent.entry(call).or_default().failures += 1;
    }

    /// Lets a call wait until a point in time.
    pub(super) fn wait(&mut self, call: CallName, until_ns: u64) {
        let ns = until_ns.max(self.now_ns) - self.now_ns;
        self.waits += 1;
        let spent = self.spent.entry(call).or_default();
        spent.wait_ns = spent.wait_ns.saturating_add(ns);
        self.pass(ns);
    }

    /// Returns what calls of one kind have cost.
    pub(super) fn totals(&self, call: CallName) -> CallTotals {
        self.spent.get(&call).copied().unwrap_or_default()
    }

    /// Returns what all calls have cost.
    pub(super) fn sum(&self) -> CallTotals {
        self.spent.values().fold(CallTotals::default(), |sum, spent| CallTotals {
            calls: sum.calls + spent.calls,
            failures: sum.failures + spent.failures,
            cost_ns: sum.cost_ns.saturating_add(spent.cost_ns),
            wait_ns: sum.wait_ns.saturating_add(spent.wait_ns),
        })
    }
}
