//! Cuts off the beginning of recordings, as a full ring buffer does, and verifies the rest.
//!
//! ```text
//! cargo run --release -p parkade-benches --example cut_recordings
//! cargo run --release -p parkade-benches --example cut_recordings -- FOLDER CUTS [NAME...]
//! ```
//!
//! FOLDER contains `NAME.pickle.xz` and `NAME.stats.json`; the default is `conformance/recordings`. Each recording is cut at
//! CUTS entries, 20 by default, spread evenly. A cut that does not verify without mismatches is a failure. The example lists
//! the failing entries, describes the first one, and exits with status 1.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is for people to read")]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use parkade_conformance::shipped::{Shipped, folder, names_in, read_from};

/// The maximum number of failing entries listed for each recording.
const LISTED: usize = 12;

fn main() -> ExitCode {
    cut_all().unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn cut_all() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map_or_else(folder, PathBuf::from);
    let cuts = arguments.next().map_or(Ok(20), |cuts| cuts.parse())?;
    let chosen: Vec<String> = arguments.collect();
    let mut all_verify = true;
    for name in names_in(&folder)?.iter().filter(|name| chosen.is_empty() || chosen.contains(name)) {
        all_verify &= cut(&read_from(&folder, name)?, cuts);
    }
    Ok(if all_verify { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Cuts one recording at `cuts` entries. Returns whether the remaining parts all verify.
fn cut(shipped: &Shipped, cuts: usize) -> bool {
    let entries = shipped.device().trace.len();
    let step = (entries / cuts.max(1)).max(1);
    let start = Instant::now();
    let (mut tried, mut failed, mut first) = (0, Vec::new(), None);
    for lost in (0..entries).step_by(step) {
        tried += 1;
        let found = match shipped.verify(&shipped.without_beginning(lost)) {
            Ok(verdict) if verdict.mismatches == 0 => continue,
            Ok(verdict) => format!("{} mismatches, first {:?}", verdict.mismatches, verdict.first),
            Err(error) => error.to_string(),
        };
        failed.push(lost);
        first.get_or_insert_with(|| format!("    from entry {lost}: {found}"));
    }
    let (name, seconds) = (&shipped.name, start.elapsed().as_secs_f64());
    println!("{name}: {tried} cuts, {} fail, {seconds:.1} s {:?}", failed.len(), &failed[..failed.len().min(LISTED)]);
    if let Some(first) = first {
        println!("{first}");
    }
    failed.is_empty()
}
