//! Runs the device contract on the simulated device and prints a table of what each call must do and what was measured.
//!
//! `cargo run --release -p parkade-conformance --example contract -- waiting`

use parkade_conformance::backend::{AnyBackend, Backend, Simulated};
use parkade_conformance::checks::contract;
use parkade_conformance::suite::{Effort, Silent, Summary, run};

#[expect(clippy::print_stdout, reason = "an example prints")]
fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let mut entries = contract::entries(&AnyBackend::simulated());
    entries.retain(|entry| entry.name.contains(&filter));
    let rows = run(&AnyBackend::simulated(), &entries, None, &Effort::new(1, 0), &Silent);
    println!("facts: {}\n", Simulated.facts().source);
    for row in &rows {
        println!("{:<36} {}  {}", row.name, row.status.name(), row.says);
        for line in row.evidence.measured.lines().chain(row.reason.lines()) {
            println!("{:<36}       {line}", "");
        }
    }
    let Summary { passed, failed, skipped, .. } = Summary::of(&rows);
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
}
