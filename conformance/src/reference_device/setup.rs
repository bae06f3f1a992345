//! The options of a device, as they are drawn and written.

use parkade::units::Bytes;
use parkade_sim::address::ASCENDING_START;
use parkade_sim::{EventTiming, SimDevice, SimOptions};
use serde::{Deserialize, Serialize};

use super::addresses::Rule;
use super::prices::Prices;

/// Passes the simulated device's model of a rule to a method that accepts any model.
macro_rules! with_model {
    ($rule:expr, $give:expr) => {
        match $rule.clone() {
            $crate::reference_device::addresses::Rule::Up(parkade_sim::address::ASCENDING_START, 0) => {
                $give(parkade_sim::address::Ascending::new())
            }
            $crate::reference_device::addresses::Rule::Up(start, gap) => {
                $give(parkade_sim::address::Ascending::starting_at(start, gap))
            }
            $crate::reference_device::addresses::Rule::Down(parkade_sim::address::DESCENDING_END, 0) => {
                $give(parkade_sim::address::Descending::new())
            }
            $crate::reference_device::addresses::Rule::Down(end, gap) => {
                $give(parkade_sim::address::Descending::ending_at(end, gap))
            }
            $crate::reference_device::addresses::Rule::Reuse(parkade_sim::address::ASCENDING_START) => {
                $give(parkade_sim::address::Reuse::new())
            }
            $crate::reference_device::addresses::Rule::Reuse(start) => $give(parkade_sim::address::Reuse::starting_at(start)),
            $crate::reference_device::addresses::Rule::Apart => $give(parkade_sim::address::AscendingReservations::new()),
            $crate::reference_device::addresses::Rule::Listed(list, false) => $give(parkade_sim::address::Scripted::new(list)),
            $crate::reference_device::addresses::Rule::Listed(list, true) => {
                $give(parkade_sim::address::Scripted::for_reservations(list))
            }
            $crate::reference_device::addresses::Rule::Observed => $give(parkade_sim::address::ObservedDriver::new()),
            $crate::reference_device::addresses::Rule::Answers(list) => {
                $give($crate::reference_device::addresses::Answers::new(list))
            }
        }
    };
}

pub(super) use with_model;

/// When events complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Timing {
    Clock,
    Eager,
    Lazy,
    Seeded(u64),
}

impl Timing {
    pub(super) fn of_device(self) -> EventTiming {
        match self {
            Timing::Clock => EventTiming::Clock,
            Timing::Eager => EventTiming::Eager,
            Timing::Lazy => EventTiming::Lazy,
            Timing::Seeded(seed) => EventTiming::Seeded(seed),
        }
    }
}

/// The options with which one of the two ready-made devices is created, or none of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Ready {
    /// No ready-made device.
    No,
    /// The H200.
    H200,
    /// The fake driver.
    Fake,
}

/// The options of a device. Those that are `None` are left out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) ready: Ready,
    pub(crate) capacity: u64,
    pub(crate) index: Option<u32>,
    pub(crate) total: Option<u64>,
    pub(crate) base: Option<u64>,
    pub(crate) withheld: Option<u64>,
    pub(crate) malloc: Option<Rule>,
    pub(crate) reserve: Option<Rule>,
    pub(crate) probes_fabric: Option<bool>,
    pub(crate) prices: Option<Prices>,
    pub(crate) timing: Option<Timing>,
    pub(crate) shares_pages: Option<bool>,
    pub(crate) free_waits: Option<bool>,
    pub(crate) reports_processes: Option<bool>,
    pub(crate) most_handles: Option<u64>,
}

/// Applies an option if it is given.
fn with<T>(options: SimOptions, given: Option<T>, set: impl FnOnce(SimOptions, T) -> SimOptions) -> SimOptions {
    match given {
        Some(value) => set(options, value),
        None => options,
    }
}

impl Setup {
    /// Creates the simulated device.
    pub(crate) fn device(&self) -> SimDevice {
        let options = match self.ready {
            Ready::No => SimOptions::new(Bytes(self.capacity)),
            Ready::H200 => SimOptions::h200(),
            Ready::Fake => SimOptions::fake_driver(Bytes(self.capacity)),
        };
        let options = with(options, self.index, SimOptions::index);
        let options = with(options, self.total.map(Bytes), SimOptions::total);
        let options = with(options, self.base.map(Bytes), SimOptions::base);
        let options = with(options, self.withheld.map(Bytes), SimOptions::withheld);
        let options =
            with(options, self.malloc.as_ref(), |options, rule| with_model!(rule, |model| options.address_model(model)));
        let options =
            with(options, self.reserve.as_ref(), |options, rule| with_model!(rule, |model| options.reservation_model(model)));
        let options = with(options, self.probes_fabric, SimOptions::probes_fabric);
        let options = with(options, self.prices, |options, prices| prices.given_to(options));
        let options = with(options, self.timing, |options, timing| options.event_timing(timing.of_device()));
        let options = with(options, self.shares_pages, SimOptions::shares_pages);
        let options = with(options, self.free_waits, SimOptions::free_waits);
        let options = with(options, self.reports_processes, SimOptions::reports_processes);
        SimDevice::new(with(options, self.most_handles, SimOptions::most_handles))
    }

    /// Returns the same options with what the ready-made devices and the defaults add.
    pub(super) fn complete(&self) -> Complete {
        let is_fake = self.ready == Ready::Fake;
        // facts: Memory of the device; facts: Holes.
        let [capacity, base, withheld] = match self.ready {
            Ready::H200 => [150_109_880_320, 150_109_880_320 - 149_557_477_376, 3_276_800],
            Ready::No | Ready::Fake => [self.capacity, 0, 0],
        };
        Complete {
            capacity,
            index: self.index.unwrap_or(0),
            total: self.total,
            base: self.base.unwrap_or(base),
            withheld: self.withheld.unwrap_or(withheld),
            malloc: self.malloc.clone().unwrap_or(Rule::Up(ASCENDING_START, 0)),
            reserve: self.reserve.clone().unwrap_or(Rule::Apart),
            probes_fabric: self.probes_fabric.unwrap_or(is_fake),
            prices: self.prices.unwrap_or(if is_fake { Prices::Free } else { Prices::Measured }),
            timing: self.timing.unwrap_or(if is_fake { Timing::Lazy } else { Timing::Clock }),
            shares_pages: self.shares_pages.unwrap_or(!is_fake),
            free_waits: self.free_waits.unwrap_or(!is_fake),
            reports_processes: self.reports_processes.unwrap_or(true),
            most_handles: self.most_handles.unwrap_or(u64::MAX),
        }
    }
}

/// All options of a device.
#[derive(Clone, Debug)]
pub(super) struct Complete {
    pub(super) capacity: u64,
    pub(super) index: u32,
    pub(super) total: Option<u64>,
    pub(super) base: u64,
    pub(super) withheld: u64,
    pub(super) malloc: Rule,
    pub(super) reserve: Rule,
    pub(super) probes_fabric: bool,
    pub(super) prices: Prices,
    pub(super) timing: Timing,
    pub(super) shares_pages: bool,
    pub(super) free_waits: bool,
    pub(super) reports_processes: bool,
    pub(super) most_handles: u64,
}
