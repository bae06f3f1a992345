//! The prices of calls: the measured ones, computed from the tables in `docs/driver-facts.md`, and others that show what a
//! device asks the price of; and the clock, with what each kind of call has cost.

use std::collections::BTreeMap;

use parkade::units::MIB;
use parkade_sim::{CallName, CallTotals, CostModel, MeasuredH200, NoCost, SimOptions};
use serde::{Deserialize, Serialize};

/// The prices of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Prices {
    /// Every call is free.
    Free,
    /// The measured prices.
    Measured,
    /// Prices that reveal the call and the bytes.
    Telling,
    /// Prices so high that five calls exhaust the clock.
    Exhausting,
}

/// Points of a price: MiB, and tenths of a microsecond.
type Points = &'static [(u64, u64)];

// facts: Time of one call.
const MALLOC: Points = &[(2, 280), (20, 291), (256, 563), (1024, 766), (10_240, 5018)];
const FREE: Points = &[(2, 246), (20, 299), (256, 965), (1024, 2637), (10_240, 29_622)];
const CREATE: Points = &[(2, 121), (20, 115), (128, 84), (1024, 380)];
const MAP: Points = &[(2, 8), (20, 8), (128, 5), (1024, 6)];
const SET_ACCESS: Points = &[(2, 269), (20, 272), (128, 325), (1024, 549)];
const UNMAP: Points = &[(2, 178), (20, 177), (128, 200), (1024, 282)];
const RELEASE: Points = &[(2, 133), (20, 237), (128, 412), (1024, 2539)];

/// Handles in a range of 1 GiB: the MiB of each, how many there are, and the microseconds of one call for all of them.
const SET_ACCESS_OF_ALL: [(u64, i128, i128); 2] = [(2, 512, 10_462), (20, 51, 933)];
const UNMAP_OF_ALL: [(u64, i128, i128); 2] = [(2, 512, 7_014), (20, 51, 640)];

impl Prices {
    /// Returns options with these prices.
    pub(crate) fn given_to(self, options: SimOptions) -> SimOptions {
        match self {
            Prices::Free => options.cost_model(NoCost),
            Prices::Measured => options.cost_model(MeasuredH200),
            Prices::Telling | Prices::Exhausting => options.cost_model(Asked(self)),
        }
    }

    /// Returns the price of one call.
    pub(super) fn of(self, call: CallName, bytes: u64) -> u64 {
        match self {
            Prices::Free => 0,
            Prices::Telling => (call as u64 + 1) * 1_000_000 + bytes / 4096,
            Prices::Exhausting => u64::MAX / 5,
            Prices::Measured => measured(call, bytes),
        }
    }

    /// Returns the price of one call for memory in pieces of these sizes.
    pub(super) fn of_pieces(self, call: CallName, pieces: &[u64]) -> u64 {
        let Some(&first) = pieces.first() else { return self.of(call, 0) };
        let saved = |bytes| if self == Prices::Measured { saved(call, bytes) } else { 0 };
        let further = pieces.iter().map(|&bytes| self.of(call, bytes).saturating_sub(saved(bytes)));
        further.fold(saved(first).min(self.of(call, first)), u64::saturating_add)
    }
}

/// A cost model with prices that no GPU has. It uses the trait's default for calls for several pieces.
#[derive(Clone, Copy, Debug)]
struct Asked(Prices);

impl CostModel for Asked {
    fn cost_ns(&self, call: CallName, bytes: u64) -> u64 {
        self.0.of(call, bytes)
    }
}

/// Returns the measured price of a call; those that were not measured are free.
fn measured(call: CallName, bytes: u64) -> u64 {
    let points = match call {
        CallName::Malloc => MALLOC,
        CallName::Free => FREE,
        CallName::MemCreate => CREATE,
        CallName::MemMap => MAP,
        CallName::MemSetAccess => SET_ACCESS,
        CallName::MemUnmap => UNMAP,
        CallName::MemRelease => RELEASE,
        CallName::EventRecord => return 165,
        CallName::EventQuery => return 145,
        // The middle of the measured range, 3 to 24 microseconds.
        CallName::AddressReserve => return 13_500,
        _ => return 0,
    };
    let points: Vec<(u64, i128)> = points.iter().map(|&(mib, price)| (mib * MIB, i128::from(price) * 100)).collect();
    at(&points, bytes)
}

/// Returns the value at `bytes` on the lines between the points: that of the first point below it, and on the last line above
/// the last point.
fn at(points: &[(u64, i128)], bytes: u64) -> u64 {
    let above = points.iter().position(|&(end, _)| bytes <= end).unwrap_or(points.len() - 1);
    let value = if above == 0 {
        points[0].1
    } else {
        let ((x0, y0), (x1, y1)) = (points[above - 1], points[above]);
        y0 + (y1 - y0) * i128::from(bytes - x0) / i128::from(x1 - x0)
    };
    u64::try_from(value).unwrap_or(if value < 0 { 0 } else { u64::MAX })
}

/// Returns the amount by which each additional piece of this size is cheaper in a call for several pieces than in a separate call.
fn saved(call: CallName, bytes: u64) -> u64 {
    let rows = match call {
        CallName::MemSetAccess => SET_ACCESS_OF_ALL,
        CallName::MemUnmap => UNMAP_OF_ALL,
        _ => return 0,
    };
    let of_row = |(mib, count, all): (u64, i128, i128)| {
        let single = i128::from(measured(call, mib * MIB));
        let total = single * count - all * 1000;
        // To the nearest nanosecond.
        (mib * MIB, (total + (count - 1) / 2) / (count - 1))
    };
    let [small, large] = rows.map(of_row);
    at(&[small, large, (1024 * MIB, large.1)], bytes)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_prices_lie_on_the_lines_between_the_measurements() {
        let of = |call, mib: u64| Prices::Measured.of(call, mib * MIB);
        assert_eq!([0, 2, 11, 20, 20_480].map(|mib| of(CallName::Malloc, mib)), [28_000, 28_000, 28_550, 29_100, 974_244]);
        assert_eq!(Prices::Measured.of_pieces(CallName::MemSetAccess, &[2 * MIB; 512]), 26_900 * 512 - 6_479 * 511);
        assert_eq!(Prices::Measured.of_pieces(CallName::MemUnmap, &[20 * MIB; 51]), 640_000);
    }
}
