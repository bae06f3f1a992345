//! Tests the lockstep entries on a known device: a simulated device with different habits replaces the real one. The
//! comparison must find it equal where it is equal, and must find each seeded difference.

use parkade::units::Bytes;
use parkade_conformance::backend::{AnyBackend, Backend, Needs, Unable};
use parkade_conformance::checks::lockstep::entries;
use parkade_conformance::suite::{Effort, Trouble, Verdict};
use parkade_sim::address::{Descending, Reuse};
use parkade_sim::{CallName, EventTiming, FaultError, FaultPlan, PAGE_BYTES, SimDevice, SimOptions, When};

const EFFORT: Effort = Effort::new(1, 0);

/// The places where the replacement puts segments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    Descending,
    Reuse,
}

/// A simulated device that claims to be real.
struct StandIn {
    habit: Habit,
    /// The number of pages that it has beyond the requested capacity.
    drift_pages: i64,
    /// A call that fails although memory is available.
    fault: Option<When>,
}

impl StandIn {
    fn new(habit: Habit) -> StandIn {
        StandIn { habit, drift_pages: 0, fault: None }
    }
}

impl Backend for StandIn {
    type Device = SimDevice;

    fn name(&self) -> &'static str {
        "stand-in"
    }

    fn open(&self, needs: &Needs) -> Result<SimDevice, Unable> {
        let drift = self.drift_pages * PAGE_BYTES.cast_signed();
        let capacity = |bytes: Bytes| Bytes(bytes.get().saturating_add_signed(drift));
        let options = needs.capacity.map_or_else(SimOptions::h200, |bytes| SimOptions::new(capacity(bytes)));
        let options = options.event_timing(EventTiming::Lazy).total(Bytes(150_109_880_320));
        let mut device = SimDevice::new(match self.habit {
            Habit::Descending => options.address_model(Descending::new()),
            Habit::Reuse => options.address_model(Reuse::new()),
        });
        if let Some(when) = self.fault {
            device.set_fault_plan(FaultPlan::none().and(when, FaultError::OutOfMemory));
        }
        Ok(device)
    }

    fn is_simulated(&self) -> bool {
        false
    }
}

fn verdict(backend: StandIn, name: &str) -> Verdict {
    let backend = AnyBackend::new(backend);
    let list = entries(&backend);
    let entry = list.iter().find(|entry| entry.name == name).unwrap_or_else(|| panic!("there is no entry {name}"));
    entry.check(&backend, &EFFORT)
}

fn reason(verdict: Verdict) -> String {
    match verdict {
        Err(Trouble::Fail { reason, .. }) => reason,
        other => panic!("no difference was found: {other:?}"),
    }
}

/// Checks that all entries whose names begin with `part` agree with the simulated device.
fn decides_the_same(habit: Habit, part: &str) {
    let entries = entries(&AnyBackend::new(StandIn::new(habit)));
    let names: Vec<_> = entries.iter().map(|entry| &entry.name).filter(|name| name.starts_with(part)).collect();
    assert!(!names.is_empty(), "no entry begins with {part}");
    std::thread::scope(|scope| {
        for first in 0..2 {
            let names = &names;
            scope.spawn(move || names.iter().skip(first).step_by(2).for_each(|name| agrees(habit, name)));
        }
    });
}

fn agrees(habit: Habit, name: &str) {
    let evidence = verdict(StandIn::new(habit), name).unwrap_or_else(|trouble| panic!("{name}: {trouble:?}"));
    assert!(evidence.operations >= 20_000, "{name}: {evidence:?}");
    assert!(!evidence.measured.contains("off by"), "{name}: {evidence:?}");
    if name.starts_with("device/") {
        assert!(!evidence.measured.contains(" 0 refused"), "{name}: the device refused nothing: {evidence:?}");
    }
}

#[test]
fn a_device_that_gives_addresses_downwards_decides_the_same() {
    decides_the_same(Habit::Descending, "");
}

#[test]
fn a_device_that_reuses_addresses_decides_the_same() {
    decides_the_same(Habit::Reuse, "device/expandable");
}

#[test]
fn one_page_of_drift_is_explained_and_told() {
    for drift_pages in [-1, 1] {
        let backend = StandIn { drift_pages, ..StandIn::new(Habit::Descending) };
        let evidence = verdict(backend, "device/default").unwrap_or_else(|trouble| panic!("{trouble:?}"));
        let told = format!("simulated capacity adjusted by {drift_pages} pages");
        assert!(evidence.measured.contains(&told), "{evidence:?}");
    }
}

#[test]
fn a_device_with_less_memory_than_said_is_found() {
    for name in ["device/default", "device/expandable"] {
        let backend = StandIn { drift_pages: -3, ..StandIn::new(Habit::Descending) };
        let reason = reason(verdict(backend, name));
        assert!(reason.starts_with("seed 20261: "), "{reason}");
    }
}

#[test]
fn a_single_refusal_without_need_is_found() {
    for (name, call) in [("limit/default", CallName::Malloc), ("device/expandable", CallName::MemCreate)] {
        let backend = StandIn { fault: Some(When::NthOf(call, 7)), ..StandIn::new(Habit::Descending) };
        let reason = reason(verdict(backend, name));
        assert!(reason.contains("on the device") && reason.contains("simulated"), "{reason}");
    }
}

#[test]
fn on_the_simulated_backend_there_is_nothing_to_compare() {
    assert!(entries(&AnyBackend::simulated()).is_empty());
}
