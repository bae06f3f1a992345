//! Predicts every run of a program from the recordings of its other runs, and prints the tables in `docs/predictions.md`.
//!
//! `cargo run --release -p parkade-benches --example cross_predictions -- [FOLDER [PROGRAM...]]`
//!
//! FOLDER contains recordings named `PROGRAM.VARIANT.pickle.xz`; the default is the recordings that ship with parkade. Each
//! pair of runs of one program under different settings or limits produces a row: the second run's peak as recorded, and as
//! predicted from the first run's requests with the second run's settings and limit. Nothing else from the second run is
//! used.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is for people to read")]

use std::collections::BTreeMap;
use std::path::Path;

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::Bytes;
use parkade_replay::{
    AfterFailure, PredictOptions, Prediction, ReplaySettings, Requests, TIMINGS, Timing, VerifyOptions, placed_steps, predict,
};
use parkade_sim::address::{AddressModel, Descending, LearnedAddressSpace, ObservedDriver};
use parkade_sim::{SimDevice, SimOptions};

type BoxError = Box<dyn std::error::Error>;

/// The recordings that ship with parkade.
const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings");
/// The memory limit is not stored in the files; it is part of their names, in GiB. In this name, `limit1` means 1.15
/// GiB.
const SHORTENED: (&str, u64) = ("cuda_graph.limit1", 1_234_803_097);

/// A recorded run.
struct Run {
    name: String,
    settings: Settings,
    limit_bytes: Option<u64>,
    requests: Requests,
    learned: LearnedAddressSpace,
}

fn limit_of(name: &str) -> Option<u64> {
    if name == SHORTENED.0 {
        return Some(SHORTENED.1);
    }
    let (_, after) = name.split_once("limit")?;
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    Some(after[..digits].parse::<u64>().ok()? << 30)
}

fn load(path: &Path, name: &str) -> Result<Run, BoxError> {
    let recording = parkade_recording::read_file(path)?;
    let settings = ReplaySettings::of_recording(recording.settings.as_ref())?;
    let limit_bytes = limit_of(name);
    let own = VerifyOptions { settings, limit_bytes, stats_file: None };
    let device = recording.devices.into_iter().max_by_key(|device| device.trace.len()).ok_or("no device")?;
    let requests = Requests::of_recording(&device, &own, &mut |_| ())?;
    let learned = LearnedAddressSpace::from_steps(&placed_steps(&device));
    Ok(Run { name: name.to_owned(), settings: own.settings.settings, limit_bytes, requests, learned })
}

fn run(source: &Run, target: &Run, model: impl AddressModel, timing: Timing) -> Prediction {
    // The recorded programs terminated when they ran out of memory.
    let after_failure = AfterFailure::Stop;
    let (settings, limit_bytes) = (target.settings.clone(), target.limit_bytes);
    let profile = &Profile::PYTORCH_2_11;
    let options = PredictOptions { profile, settings, limit_bytes, after_failure, timing };
    predict(&source.requests, SimDevice::new(SimOptions::new(Bytes(1 << 40)).address_model(model)), &options)
}

fn percent(predicted: i64, recorded: i64) -> f64 {
    (predicted as f64 / recorded as f64 - 1.0) * 100.0
}

fn cell(prediction: &Prediction, target: &Run) -> String {
    let (predicted, recorded) = (prediction.peak_reserved_bytes(), target.requests.recorded_peak_reserved_bytes);
    let oom = if prediction.first_failure.is_some() { " oom" } else { "" };
    if predicted == recorded { format!("={oom}") } else { format!("{:+.3} %{oom}", percent(predicted, recorded)) }
}

/// The accuracy of the predictions for one program.
#[derive(Default)]
struct Count {
    pairs: u32,
    exact: u32,
    within_percent: u32,
    outcome_wrong: u32,
    ranges: u32,
    within_range: u32,
    worst: f64,
    worst_pair: String,
}

impl Count {
    fn add(&mut self, source: &Run, target: &Run, prediction: &Prediction) {
        let off = percent(prediction.peak_reserved_bytes(), target.requests.recorded_peak_reserved_bytes);
        self.pairs += 1;
        self.exact += u32::from(off == 0.0);
        self.within_percent += u32::from(off.abs() <= 1.0);
        self.outcome_wrong += u32::from(prediction.first_failure.is_some() != (target.requests.ooms > 0));
        if off.abs() > self.worst.abs() {
            self.worst = off;
            self.worst_pair = format!("{} -> {}", source.name, target.name);
        }
    }
}

fn pair(source: &Run, target: &Run, count: &mut Count) {
    let best = run(source, target, ObservedDriver::learned(&source.learned), Timing::Recorded);
    count.add(source, target, &best);
    let mut cells = vec![
        cell(&best, target),
        cell(&run(source, target, ObservedDriver::new(), Timing::Recorded), target),
        cell(&run(source, target, Descending::new(), Timing::Recorded), target),
    ];
    let timed: Vec<Prediction> = if source.requests.has_deferred_frees() {
        TIMINGS.iter().map(|&timing| run(source, target, ObservedDriver::learned(&source.learned), timing)).collect()
    } else {
        Vec::new()
    };
    let all = || timed.iter().chain([&best]);
    let (least, most) = (all().min_by_key(|run| run.peak_reserved_bytes()), all().max_by_key(|run| run.peak_reserved_bytes()));
    cells.push(match (least, most) {
        (Some(least), Some(most)) if least.peak_reserved_bytes() != most.peak_reserved_bytes() => {
            let (least, most) = (least.peak_reserved_bytes(), most.peak_reserved_bytes());
            let recorded = target.requests.recorded_peak_reserved_bytes;
            count.ranges += 1;
            count.within_range += u32::from((least..=most).contains(&recorded));
            format!("{:+.3} % .. {:+.3} %", percent(least, recorded), percent(most, recorded))
        }
        _ => String::new(),
    });
    let recorded = target.requests.recorded_peak_reserved_bytes;
    let oom = if target.requests.ooms > 0 { " oom" } else { "" };
    println!("| {} | {} | {recorded}{oom} | {} |", source.name, target.name, cells.join(" | "));
}

fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| SHIPPED.to_owned());
    let wanted: Vec<String> = arguments.collect();
    let mut programs: BTreeMap<String, Vec<Run>> = BTreeMap::new();
    let mut files: Vec<_> = std::fs::read_dir(&folder)?.filter_map(Result::ok).map(|file| file.path()).collect();
    files.sort();
    for path in files {
        let file_name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = file_name.and_then(|name| name.strip_suffix(".pickle.xz")) else { continue };
        let program = name.split('.').next().unwrap_or_default();
        // A tail has the settings of a complete run, but only the end of its trace.
        if name.contains("tail") || !(wanted.is_empty() || wanted.iter().any(|wanted| wanted == program)) {
            continue;
        }
        match load(&path, name) {
            Ok(run) => {
                if run.requests.mismatches > 0 {
                    eprintln!("{name}: {} mismatches under its own settings", run.requests.mismatches);
                }
                programs.entry(program.to_owned()).or_default().push(run);
            }
            Err(error) => eprintln!("{name}: {error}"),
        }
    }
    println!(
        "| predicted from | run | recorded peak reserved, bytes | predicted | rules alone | descending | range of timings |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    for (program, runs) in &programs {
        for source in runs {
            // A run that ended because it ran out of memory has too few requests to predict a run that continued for
            // longer.
            let covers =
                |target: &&Run| source.requests.ooms == 0 || target.requests.operations.len() <= source.requests.operations.len();
            let is_another = |target: &&Run| (&target.settings, target.limit_bytes) != (&source.settings, source.limit_bytes);
            for target in runs.iter().filter(is_another).filter(covers) {
                pair(source, target, counts.entry(program.clone()).or_default());
            }
        }
    }
    println!("\n| program | pairs | exact | within 1 % | outcome wrong | in the range | worst |\n|---|---|---|---|---|---|---|");
    for (program, Count { pairs, exact, within_percent, outcome_wrong, ranges, within_range, worst, worst_pair }) in &counts {
        let range = if *ranges > 0 { format!("{within_range} of {ranges}") } else { String::new() };
        println!("| {program} | {pairs} | {exact} | {within_percent} | {outcome_wrong} | {range} | {worst:+.3} % {worst_pair} |");
    }
    Ok(())
}
