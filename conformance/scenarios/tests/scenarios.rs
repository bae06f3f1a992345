//! The scenarios' texts as snapshots: statistics, pictures of the heap, errors, on the simulated device.
//!
//! What is measured there follows from the simulated clock and the simulated H200, so it is held too: whole out-of-memory messages, races,
//! times. On a real device the runner compares the text alone.

use std::collections::BTreeSet;
use std::path::Path;

use parkade::units::Bytes;
use parkade_conformance::backend::{Backend, Needs, Places, Simulated, Simulation, Unable};
use parkade_conformance::suite::Effort;
use parkade_scenarios::entries;
use parkade_sim::SimDevice;

/// Random sequences a scenario that draws some.
const EFFORT: Effort = Effort { cases: 60, seed: 0 };

/// The rows of the list of scenarios that belong here.
fn rows() -> impl Iterator<Item = String> {
    [('A', 19), ('B', 4), ('C', 6)].into_iter().flat_map(|(section, last)| (1..=last).map(move |row| format!("{section}{row}")))
}

#[test]
fn every_scenario_tells_the_same_story() {
    for entry in entries(&Simulated) {
        let evidence = entry.check(&Simulated, &EFFORT).unwrap_or_else(|trouble| panic!("{}: {trouble:?}", entry.name));
        let mut text = format!("{}\n\n{}", entry.says, evidence.text);
        if !evidence.measured.is_empty() {
            text.push_str("\n== on the simulated device ==\n");
            text.push_str(&evidence.measured);
        }
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(entry.name.replace('/', "-"), text);
        });
    }
}

#[test]
fn every_row_has_an_entry_and_every_snapshot_too() {
    let names: Vec<String> = entries(&Simulated).into_iter().map(|entry| entry.name).collect();
    for row in rows() {
        assert!(names.iter().any(|name| name.split('/').next() == Some(&row)), "{row} has no entry");
    }
    let unique: BTreeSet<&String> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "two entries have one name");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    let files = std::fs::read_dir(folder).expect("the folder of snapshots");
    for file in files {
        let file = file.expect("a file").file_name().to_string_lossy().into_owned();
        let stem = file.strip_suffix(".snap").unwrap_or(&file);
        assert!(names.iter().any(|name| name.replace('/', "-") == stem), "{file} belongs to no scenario");
    }
}

/// Another GPU: with other addresses, and less memory where a scenario does not say how much it needs.
struct Other(Places);

impl Backend for Other {
    type Device = SimDevice;

    fn name(&self) -> &'static str {
        "other"
    }

    fn open(&self, needs: &Needs) -> Result<SimDevice, Unable> {
        let capacity = needs.capacity.or(Some(Bytes::mib(80 << 10)));
        Simulated.open(&Needs { capacity, simulation: Simulation { places: self.0, ..needs.simulation } })
    }

    fn is_simulated(&self) -> bool {
        true
    }
}

/// What the runner compares between backends must not depend on where a driver puts segments, nor on the size of the device.
#[test]
fn the_texts_are_the_same_on_another_device() {
    let check = |text: Result<_, _>, name: &str| text.unwrap_or_else(|trouble| panic!("{name}: {trouble:?}"));
    for places in [Places::Descending, Places::Reuse] {
        let pairs = entries(&Simulated).into_iter().zip(entries(&Other(places)));
        // No device of the backend takes part in that one, and it takes seconds.
        for (entry, other) in pairs.filter(|(entry, _)| entry.name != "A13/recordings") {
            let here = check(entry.check(&Simulated, &EFFORT), &entry.name);
            let there = check(other.check(&Other(places), &EFFORT), &entry.name);
            assert_eq!(there.text, here.text, "{} on a device with {places:?} addresses", entry.name);
        }
    }
}
