//! Tests that the tables in docs/numbers.md are up to date; if they are not, run `python3 benches/numbers_page.py` to rewrite
//! them.

use std::collections::BTreeSet;
use std::path::Path;

use parkade_research::workload::CATALOGUE;

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn the_page_has_every_policy_and_every_workload() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/numbers.md")).expect("the page");
    let table = page.split("### Smallest memory over LOAD").nth(1).and_then(|rest| rest.split("\n### ").next()).unwrap_or("");
    let rows: Vec<Vec<&str>> = table.lines().filter(|line| line.starts_with('|')).map(cells).collect();
    let says = "docs/numbers.md is stale: run python3 benches/numbers_page.py";
    let header: BTreeSet<&str> = rows.first().map(|row| row.iter().copied().collect()).unwrap_or_default();
    let known: BTreeSet<&str> = parkade_policies::CATALOGUE.iter().map(|policy| &*policy.name).collect();
    let others = ["workload", "LOAD with pools", "ideal remapper", "offline packer"];
    assert_eq!(header, known.into_iter().chain(others).collect(), "{says}");
    let first: BTreeSet<&str> = rows.iter().skip(2).filter_map(|row| row.first().copied()).collect();
    for workload in &CATALOGUE {
        assert!(first.contains(workload.name), "{says}: {} is not in it", workload.name);
    }
    assert!(first.len() >= CATALOGUE.len() + 8, "{says}: recordings of each kind are in it");
}
