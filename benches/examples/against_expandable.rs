//! Measures policies against PyTorch's expandable segments: memory, driver time, and the remaining driver work when a program
//! repeats.
//!
//! ```text
//! cargo run --release -p parkade-benches --example against_expandable -- compaction
//! cargo run --release -p parkade-benches --example against_expandable -- compaction gpt2-mixed prefetch --seeds 4-7
//! cargo run --release -p parkade-benches --example against_expandable -- compaction conformance/recordings/*.default.pickle.xz
//! ```
//!
//! Arguments are names of policies, workloads from the catalogue, descriptions of workloads, and recordings; without
//! workloads, the entire catalogue is used. A workload with a seed is run with each of `--seeds` (0-0 by default); for
//! a recording, each device gets its own row. In a row, memory is relative to the load with pools. Driver time is the
//! policy's time divided by that of `pytorch-expandable`, both in 1.02 times that load or in the smallest memory in
//! which `pytorch-expandable` fits, whichever is larger. The columns after driver time describe the same run of the
//! policy: driver time, driver calls and waiting calls in the second half, and retries. `short` is like `driver`, but
//! gives the policy 1.02 times the load even if `pytorch-expandable` needs more. The last two columns are for ample
//! memory: the peak of reserved memory, and the driver time. A policy that does not fit in these amounts is measured
//! in the smallest memory in which it fits. The last lines show medians and worst cases.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is for people to read")]

use std::error::Error;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::ExitCode;

use parkade::profile::Profile;
use parkade_policies::{Unknown, named};
use parkade_recording::{DeviceRecording, read_file};
use parkade_replay::{ReplaySettings, Requests, VerifyOptions};
use parkade_research::study::{LOAD_UNIT_BYTES, Outcome, RunOptions, make_for, run, smallest_capacity};
use parkade_research::workload::{self, CATALOGUE, Workload, parse, recorded::of_requests};
use rayon::prelude::*;

/// The policy to compare with.
const BASE: &str = "pytorch-expandable";
/// The memory at which driver time is compared, relative to the load with pools, in hundredths.
const HUNDREDTHS: u64 = 102;
/// The maximum number of seeds; nobody would wait for more.
const MOST_SEEDS: u64 = 10_000;
/// The size of a device page, in bytes.
const PAGE: u64 = 2 << 20;

/// One policy on one workload.
struct Row {
    workload: String,
    policy: String,
    memory: f64,
    base_memory: f64,
    driver: f64,
    at_hand: Outcome,
    short: f64,
    plenty: f64,
    plenty_ms: f64,
}

fn main() -> ExitCode {
    match compare(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("against_expandable: {error}");
            ExitCode::from(2)
        }
    }
}

fn compare(mut words: Vec<String>) -> Result<(), Box<dyn Error>> {
    let seeds = seeds(&mut words)?;
    let (policies, items): (Vec<String>, Vec<String>) = words.into_iter().partition(|word| named(word).is_ok());
    items.iter().try_for_each(|item| check(item))?;
    if policies.is_empty() {
        return Err("no policy is given: run `parkade sweep --list` for the names of all policies".into());
    }
    let items = if items.is_empty() { CATALOGUE.iter().map(|known| known.name.to_owned()).collect() } else { items };
    let mut jobs: Vec<(String, u64)> = Vec::new();
    for item in items {
        let is_seeded = workload::named(&item).is_some();
        jobs.extend(seeds.clone().take(if is_seeded { usize::MAX } else { 1 }).map(|seed| (item.clone(), seed)));
    }
    let made: Vec<Result<Vec<Row>, String>> = jobs.par_iter().map(|(item, seed)| rows(item, *seed, &policies)).collect();
    let (mut all, mut failed) = (Vec::new(), None);
    for rows in made {
        match rows {
            Ok(rows) => all.extend(rows),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    print(&all);
    // Medians over fewer rows than requested would mislead.
    failed.map_or(Ok(()), Err)?;
    for policy in &policies {
        let of_policy = |value: fn(&Row) -> f64| {
            let mut values: Vec<f64> = all.iter().filter(|row| row.policy == *policy).map(value).collect();
            values.sort_by(f64::total_cmp);
            let middle = values.get(values.len() / 2).copied().unwrap_or(f64::NAN);
            format!("{middle:.3} (worst {:.3})", values.last().copied().unwrap_or(f64::NAN))
        };
        println!(
            "{policy}: median memory {}, driver time {}, short {}, plenty {}",
            of_policy(|row| row.memory),
            of_policy(|row| row.driver),
            of_policy(|row| row.short),
            of_policy(|row| row.plenty)
        );
    }
    Ok(())
}

/// Returns the seeds that `--seeds` specifies, and removes the option from the words.
fn seeds(words: &mut Vec<String>) -> Result<RangeInclusive<u64>, Box<dyn Error>> {
    let Some(place) = words.iter().position(|word| word == "--seeds") else { return Ok(0..=0) };
    let given: Vec<String> = words.drain(place..words.len().min(place + 2)).collect();
    let text = given.get(1).map_or("", String::as_str);
    let range = text.split_once('-').and_then(|(first, last)| Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?)));
    match range {
        None => Err(format!("--seeds {text:?} is not a range: it must have the form FIRST-LAST, such as 0-3").into()),
        Some((first, last)) if first > last => {
            Err(format!("--seeds {text} contains no seed: the smaller number comes first").into())
        }
        Some((first, last)) if last - first >= MOST_SEEDS => {
            Err(format!("--seeds {text} contains more than {MOST_SEEDS} seeds").into())
        }
        Some((first, last)) => Ok(first..=last),
    }
}

/// Rejects an item that is not a policy, a workload or a file.
fn check(item: &str) -> Result<(), Box<dyn Error>> {
    let name = item.split(':').next().unwrap_or(item);
    if workload::keys(name).is_some() || Path::new(item).exists() {
        return Ok(());
    }
    let why = match named(item) {
        Err(why) if why != Unknown::Name => why.to_string(),
        _ => "run `parkade sweep --list` for the names of all policies and workloads".to_owned(),
    };
    Err(format!("there is no policy, workload or file {item:?}: {why}").into())
}

/// Prints the table. Columns are at least two spaces apart, regardless of how long the names are.
fn print(rows: &[Row]) {
    let longest = |name: fn(&Row) -> &String, least| rows.iter().map(|row| name(row).len()).max().unwrap_or(0).max(least);
    let (workloads, policies) = (longest(|row| &row.workload, 24), longest(|row| &row.policy, 18));
    println!(
        "{:<workloads$}  {:<policies$}  {:>6}  {:>6}  {:>6}  {:>7}  {:>5}  {:>5}  {:>7}  {:>5}  {:>6}  {:>7}",
        "workload", "policy", "memory", "base", "driver", "ms", "later", "waits", "retries", "short", "plenty", "ms"
    );
    for row in rows {
        let Row { at_hand, .. } = row;
        println!(
            "{:<workloads$}  {:<policies$}  {:>6.3}  {:>6.3}  {:>6.3}  {:>7.2}  {:>5}  {:>5}  {:>7}  {:>5.3}  {:>6.3}  {:>7.2}",
            row.workload,
            row.policy,
            row.memory,
            row.base_memory,
            row.driver,
            at_hand.driver_ns as f64 / 1e6,
            at_hand.later.calls,
            at_hand.later.waiting_calls,
            at_hand.retries,
            row.short,
            row.plenty,
            row.plenty_ms,
        );
    }
}

/// The rows of one item.
fn rows(item: &str, seed: u64, policies: &[String]) -> Result<Vec<Row>, String> {
    let workloads = load(item, seed).map_err(|error| format!("{item}: {error}"))?;
    let made: Result<Vec<_>, _> = workloads.iter().map(|workload| rows_of(workload, policies)).collect();
    Ok(made?.into_iter().flatten().collect())
}

fn rows_of(workload: &Workload, policies: &[String]) -> Result<Vec<Row>, String> {
    let load = workload.load_with_pools_bytes(LOAD_UNIT_BYTES);
    let usual = load * HUNDREDTHS / 100 / PAGE * PAGE;
    let (base_least, base) = measure(workload, BASE, usual)?;
    let mut rows = Vec::new();
    for policy in policies {
        let (least, at_hand) = measure(workload, policy, usual.max(base_least))?;
        let short = if base_least > usual { measure(workload, policy, usual)?.1 } else { at_hand.clone() };
        let make = make_for(&named(policy).map_err(|why| format!("{policy}: {why}"))?, workload);
        let plenty = run(workload, make(), &RunOptions::plenty());
        rows.push(Row {
            workload: workload.name.clone(),
            policy: policy.clone(),
            memory: least as f64 / load as f64,
            base_memory: base_least as f64 / load as f64,
            driver: at_hand.driver_ns as f64 / base.driver_ns as f64,
            at_hand,
            short: short.driver_ns as f64 / base.driver_ns as f64,
            plenty: plenty.peak_reserved_bytes as f64 / load as f64,
            plenty_ms: plenty.driver_ns as f64 / 1e6,
        });
    }
    Ok(rows)
}

/// The smallest memory in which the workload fits, and the run in `usual` bytes, or in that smallest memory if the workload
/// does not fit in `usual`.
fn measure(workload: &Workload, policy: &str, usual: u64) -> Result<(u64, Outcome), String> {
    let make = make_for(&named(policy).map_err(|why| format!("{policy}: {why}"))?, workload);
    let least = smallest_capacity(workload, &make, &RunOptions::plenty(), &[])
        .map_err(|outcome| format!("{policy} on {}: {:?}", workload.name, outcome.ending))?;
    let at_usual = run(workload, make(), &RunOptions::new(usual));
    let outcome = if at_usual.fits() { at_usual } else { least.outcome };
    Ok((least.capacity_bytes, outcome))
}

/// A workload from the catalogue with a seed, a described workload, or each device in a recording.
fn load(item: &str, seed: u64) -> Result<Vec<Workload>, Box<dyn Error>> {
    if let Some(known) = workload::named(item) {
        let made = known.make(seed);
        return Ok(vec![Workload { name: format!("{item}.{seed}"), ..made }]);
    }
    let path = Path::new(item);
    if !path.exists() {
        return Ok(vec![parse(item)?]);
    }
    let recording = read_file(path)?;
    let settings = ReplaySettings::of_recording_as(&Profile::PYTORCH_2_11, recording.settings.as_ref())?;
    let own = VerifyOptions { settings, limit_bytes: None, stats_file: None };
    let traced: Vec<_> = recording.devices.iter().filter(|device| !device.trace.is_empty()).collect();
    if traced.is_empty() {
        return Err("the recording has no trace entries".into());
    }
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = file.split(".pickle").next().unwrap_or(&file);
    let of_device = |device: &&DeviceRecording| {
        let requests = Requests::of_recording(device, &own, &mut |_| ())?;
        let name = if traced.len() > 1 { format!("{stem}.device{}", device.device) } else { stem.to_owned() };
        Ok(of_requests(&name, &requests).workload)
    };
    traced.iter().map(of_device).collect()
}
