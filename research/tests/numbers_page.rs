//! Tests that the tables in docs/numbers.md are up to date; if they are not, run `python3 benches/numbers_page.py` to rewrite
//! them.

use std::collections::BTreeSet;
use std::path::Path;

use parkade_policies::named;
use parkade_research::study::sweep::Capacity;
use parkade_research::study::{LOAD_UNIT_BYTES, RunOptions, make_for, smallest_capacity};
use parkade_research::workload::{CATALOGUE, parse};

const STALE: &str = "docs/numbers.md is stale: run python3 benches/numbers_page.py";

/// The rows of the page's table whose header begins with this cell; the header is the first.
fn table(first: &str) -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/numbers.md")).expect("the page");
    let lines =
        page.lines().skip_while(|line| !line.starts_with(&format!("| {first} |"))).take_while(|line| line.starts_with('|'));
    lines.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()).collect()
}

#[test]
fn the_page_has_every_policy_and_every_workload() {
    let first = |rows: Vec<Vec<String>>| rows.into_iter().skip(2).map(|row| row[0].clone()).collect::<BTreeSet<_>>();
    let known: BTreeSet<String> = parkade_policies::CATALOGUE.iter().map(|policy| policy.name.to_string()).collect();
    assert_eq!(first(table("policy")), known, "{STALE}");
    assert_eq!(first(table("speed")), known, "{STALE}; the events per second are measured by hand");
    let workloads = first(table("workload"));
    for workload in &CATALOGUE {
        assert!(workloads.contains(workload.name), "{STALE}: {} is not in it", workload.name);
    }
    assert!(workloads.len() >= CATALOGUE.len() + 8, "{STALE}: recordings of each kind are in it");
}

/// `numbers_page.py --check` compares all rows in minutes; this row takes a second. The sweep also tries the capacities that
/// it is given by default, which are not on the grid.
#[test]
fn a_row_of_the_page_is_what_the_sources_find() {
    let workload = parse("mlp-momentum").expect("a workload");
    let load_bytes = workload.load_bytes(LOAD_UNIT_BYTES);
    let bytes_of = |text: &str| text.parse::<Capacity>().ok().and_then(|capacity| capacity.bytes(load_bytes));
    let given: Vec<u64> = ["1.0", "1.02", "1.05", "1.1", "1.25"].into_iter().filter_map(bytes_of).collect();
    let rows = table("workload");
    let row = rows.iter().find(|row| row[0] == "mlp-momentum").expect(STALE);
    for (name, cell) in rows[0].iter().zip(row).skip(1).filter(|(name, _)| !name.contains("LOAD") && *name != "packed") {
        let policy = named(name).expect("a policy");
        let found = smallest_capacity(&workload, &make_for(&policy, &workload), &RunOptions::plenty(), &given).expect("it fits");
        assert_eq!(*cell, format!("{:.3}", found.capacity_bytes as f64 / load_bytes as f64), "{STALE}: {name}");
    }
}
