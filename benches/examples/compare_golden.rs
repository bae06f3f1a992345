//! Runs recorded scripts on the core and compares the answers with those of the real PyTorch allocator.
//!
//! ```text
//! cargo run --release -p parkade-benches --example compare_golden            # the flavour oom
//! cargo run --release -p parkade-benches --example compare_golden -- streams gc
//! ```
//!
//! The flavours are the names in `conformance/oracle/golden`. The example prints a line for each run: the configuration, the
//! number of operations, how many of them ran out of memory, and whether the answers agree. It exits with status 1 if any run
//! differs.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is for people to read")]

use std::process::ExitCode;

use parkade_conformance::golden::{Agreement, GoldenError, read};

fn main() -> ExitCode {
    compare().unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn compare() -> Result<ExitCode, GoldenError> {
    let mut flavours: Vec<String> = std::env::args().skip(1).collect();
    if flavours.is_empty() {
        flavours.push("oom".to_owned());
    }
    let mut exit = ExitCode::SUCCESS;
    for flavour in &flavours {
        println!("{:<40} {:>10} {:>7} {:>14}  agreement", flavour, "operations", "release", "out of memory");
        for run in read(flavour)? {
            let agreement = match run.check() {
                Ok(Agreement::Exact) => "exact".to_owned(),
                Ok(Agreement::UpToHashOrder(operations)) => format!("up to hash order, in {operations} of them"),
                Err(error) => {
                    exit = ExitCode::FAILURE;
                    error.to_string()
                }
            };
            let failed = run.answers.iter().filter(|answer| answer.contains("\"err\":\"oom\"")).count();
            let (config, release) = (&run.config, run.options.profile.name);
            println!("  {config:<38} {:>10} {release:>7} {failed:>14}  {agreement}", run.answers.len());
        }
    }
    Ok(exit)
}
