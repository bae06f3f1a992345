//! Runs scenarios on the simulated device and prints their evidence.
//!
//! ```text
//! cargo run -p parkade-conformance --example show_scenario -- A5              every entry of A5
//! cargo run -p parkade-conformance --example show_scenario -- D8/info PATH    PATH is the binary parkade, whose commands some entries run
//! ```
#![expect(clippy::print_stdout, reason = "a user runs this example")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use parkade_conformance::backend::AnyBackend;
use parkade_conformance::scenarios::{entries, id_of};
use parkade_conformance::suite::{Effort, Trouble};

/// The number of random sequences for a scenario that draws some.
const EFFORT: Effort = Effort::new(60, 0);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next().unwrap_or_default();
    let parkade = arguments.next().map(PathBuf::from);
    let mut chosen = entries(&AnyBackend::simulated(), parkade.as_deref());
    chosen.retain(|entry| entry.name == wanted || id_of(&entry.name) == wanted);
    if chosen.is_empty() {
        println!("there is no scenario {wanted:?}: `cargo run -p parkade-conformance --example scenarios_table` lists them");
        return ExitCode::FAILURE;
    }
    let mut is_good = true;
    for entry in chosen {
        let start = Instant::now();
        println!("=== {} === {}\n", entry.name, entry.says);
        match entry.check(&AnyBackend::simulated(), &EFFORT) {
            Ok(evidence) => println!("{}{}", evidence.text, evidence.measured),
            Err(Trouble::Skip(reason)) => println!("skipped: {reason}"),
            Err(Trouble::Fail { reason, script }) => {
                is_good = false;
                println!("FAILED: {reason}\n{}", script.unwrap_or_default());
            }
        }
        println!("({} ms)\n", start.elapsed().as_millis());
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
