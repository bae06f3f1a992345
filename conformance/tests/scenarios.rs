//! Tests the scenarios' texts as snapshots: statistics, pictures of the heap and errors on the simulated device.
//!
//! The measured values follow from the simulated clock and the simulated H200, so the snapshots include them: complete
//! out-of-memory messages, races and times. On a real device, the runner compares only the text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use parkade::units::Bytes;
use parkade_conformance::backend::{AnyBackend, Backend, Cuda, Needs, Places, Simulated, Simulation, Unable};
use parkade_conformance::scenarios::{docs_page, entries, id_of, rows};
use parkade_conformance::suite::{Effort, Entry, Evidence, Trouble};
use parkade_sim::SimDevice;

/// The number of random sequences for a scenario that draws some.
const EFFORT: Effort = Effort::new(60, 0);
/// Entries that run commands of the binary. The binary is not built for these tests; the tests in parkade-cli run the
/// entries.
const OF_THE_BINARY: [&str; 3] = ["D5/enable", "D5/kill", "D8/info"];

/// Returns the evidence of an entry; `None` if the entry needs the binary and reports that.
fn evidence(entry: &Entry, backend: &AnyBackend) -> Option<Evidence> {
    match entry.check(backend, &EFFORT) {
        Ok(evidence) => Some(evidence),
        Err(Trouble::Skip(reason)) if OF_THE_BINARY.contains(&entry.name.as_str()) => {
            assert_eq!(reason, "this entry runs commands of the binary, so only `parkade conform` runs it");
            None
        }
        Err(trouble) => panic!("{}: {trouble:?}", entry.name),
    }
}

#[test]
fn every_scenario_tells_the_same_story() {
    for entry in entries(&AnyBackend::simulated(), None) {
        let Some(evidence) = evidence(&entry, &AnyBackend::simulated()) else { continue };
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
fn every_row_has_an_entry_and_every_entry_a_row() {
    let ids: Vec<String> = [('A', 19), ('B', 4), ('C', 6), ('D', 9), ('E', 9)]
        .into_iter()
        .flat_map(|(section, last)| (1..=last).map(move |row| format!("{section}{row}")))
        .collect();
    assert_eq!(rows().map(|row| row.id).collect::<Vec<_>>(), ids, "the documents' rows are in order");
    let names: Vec<String> = entries(&AnyBackend::simulated(), None).into_iter().map(|entry| entry.name).collect();
    for id in &ids {
        assert!(names.iter().any(|name| id_of(name) == id), "{id} has no entry");
    }
    for name in &names {
        assert!(ids.iter().any(|id| id_of(name) == id), "{name} has no row");
    }
    let unique: BTreeSet<&String> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "two entries have the same name");
}

#[test]
fn every_snapshot_belongs_to_an_entry() {
    let names: Vec<String> = entries(&AnyBackend::simulated(), None).into_iter().map(|entry| entry.name).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    for file in std::fs::read_dir(folder).expect("the folder of snapshots") {
        let file = file.expect("a file").file_name().to_string_lossy().into_owned();
        let stem = file.strip_suffix(".snap").unwrap_or(&file);
        assert!(names.iter().any(|name| name.replace('/', "-") == stem), "{file} belongs to no scenario");
    }
}

/// Returns the numbers in a text, without commas between digits. A number that is part of a name (H200, GPT-2, A5) does
/// not count.
fn numbers(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut before = ' ';
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let glued = rest[..start].chars().next_back().unwrap_or(before);
        let is_hyphen = glued == '-' && rest[..start].chars().rev().nth(1).is_some_and(char::is_alphabetic);
        let digits = &rest[start..];
        let length = digits.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(digits.len());
        let number = digits[..length].trim_end_matches(['.', ',']).replace(',', "");
        if !glued.is_alphabetic() && !is_hyphen {
            found.insert(number);
        }
        before = digits[..length].chars().next_back().unwrap_or(' ');
        rest = &digits[length..];
    }
    found
}

/// Checks that the figures in the table are those of the entries, so that a figure cannot change without a change in
/// the table.
#[test]
fn every_number_that_was_found_is_in_the_evidence() {
    let mut shown: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in entries(&AnyBackend::simulated(), None) {
        let evidence = evidence(&entry, &AnyBackend::simulated()).unwrap_or_default();
        let text = format!("{}\n{}\n{}\n{}", entry.name, entry.says, evidence.text, evidence.measured);
        shown.entry(id_of(&entry.name).to_owned()).or_default().extend(numbers(&text));
    }
    let mut missing = Vec::new();
    for row in rows() {
        // The table may repeat what the documents claim.
        let claimed = numbers(row.claim);
        let unknown =
            numbers(row.found).into_iter().filter(|number| !shown[row.id].contains(number) && !claimed.contains(number));
        missing.extend(unknown.map(|number| format!("{}: {number}", row.id)));
    }
    assert!(missing.is_empty(), "no entry of the row shows {missing:#?}");
}

#[test]
fn the_table_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/scenarios.md");
    let there = std::fs::read_to_string(file).expect("docs/scenarios.md");
    assert!(there == docs_page(), "run: cargo run -p parkade-conformance --example scenarios_table > docs/scenarios.md");
}

/// A different GPU: with different addresses, and with less memory if a scenario does not say how much it needs.
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

/// The text that the runner compares between backends must depend neither on where a driver places segments nor on the
/// size of the device.
#[test]
fn the_texts_are_the_same_on_another_device() {
    // The other scenarios use no device.
    let on_real_devices: BTreeSet<String> =
        entries(&AnyBackend::new(Cuda::new(0)), None).into_iter().map(|entry| entry.name).collect();
    for places in [Places::Descending, Places::Reuse] {
        let elsewhere = AnyBackend::new(Other(places));
        let pairs = entries(&AnyBackend::simulated(), None).into_iter().zip(entries(&elsewhere, None));
        for (entry, other) in pairs.filter(|(entry, _)| on_real_devices.contains(&entry.name)) {
            let here = evidence(&entry, &AnyBackend::simulated()).map(|evidence| evidence.text);
            let there = evidence(&other, &elsewhere).map(|evidence| evidence.text);
            assert_eq!(there, here, "{} on a device with {places:?} addresses", entry.name);
        }
    }
}
