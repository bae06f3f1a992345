//! Measures the accuracy of predictions for programs on several streams, over several runs of each program, and prints
//! the table in `docs/predictions.md`.
//!
//! `cargo run --release -p parkade-benches --example timing -- simulated [PROGRAM...]`
//! `cargo run --release -p parkade-benches --example timing -- FOLDER [PROGRAM...]`
//!
//! Each run is used to predict the same program's runs under every other setting or limit. `simulated` runs eight
//! programs five times under five settings on the simulated GPU. FOLDER contains recordings named
//! `PROGRAM.SETTING.RUN.pickle.xz`, or without RUN if there is only one; its `limits.txt` has lines with
//! `PROGRAM.SETTING` and the limit in bytes.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its output is for people to read")]

mod programs;

use std::collections::BTreeMap;
use std::path::Path;

use parkade::profile::Profile;
use parkade_recording::DeviceRecording;
use parkade_replay::{OutlookOptions, ReplaySettings, VerifyOptions, replay_device};

type BoxError = Box<dyn std::error::Error>;

/// The settings of the simulated runs, and whether they have a limit a quarter above the peak of allocated bytes.
const SETTINGS: [(&str, &str, bool); 5] = [
    ("default", "", false),
    ("expandable", "expandable_segments:True", false),
    ("split32", "max_split_size_mb:32", false),
    ("limit", "", true),
    ("limit_expandable", "expandable_segments:True", true),
];
const RUNS: u64 = 5;

/// The runs of one program under one setting.
struct Group {
    own: VerifyOptions,
    runs: Vec<DeviceRecording>,
    /// The runs' peaks of reserved bytes, ascending.
    peaks: Vec<i64>,
}

impl Group {
    fn median(&self) -> i64 {
        self.peaks[self.peaks.len() / 2]
    }
}

/// Groups by program and setting.
type Groups = BTreeMap<String, BTreeMap<String, Group>>;

fn options(own: &VerifyOptions, target: &VerifyOptions) -> OutlookOptions {
    OutlookOptions {
        own: own.clone(),
        profile: &Profile::PYTORCH_2_11,
        settings: target.settings.settings.clone(),
        limit_bytes: target.limit_bytes,
        capacity_bytes: None,
    }
}

fn add(
    groups: &mut Groups,
    program: &str,
    setting: &str,
    own: VerifyOptions,
    recording: DeviceRecording,
) -> Result<i64, BoxError> {
    let outlook = replay_device(&recording, &options(&own, &own), &mut |_| ())?;
    if outlook.requests.mismatches > 0 {
        eprintln!("{program}.{setting}: {} mismatches under its own settings", outlook.requests.mismatches);
    }
    let settings = groups.entry(program.to_owned()).or_default();
    let group = settings.entry(setting.to_owned()).or_insert_with(|| Group { own, runs: Vec::new(), peaks: Vec::new() });
    group.runs.push(recording);
    group.peaks.push(outlook.requests.recorded_peak_reserved_bytes);
    group.peaks.sort_unstable();
    Ok(outlook.prediction.peak_allocated_bytes())
}

fn simulate(wanted: &dyn Fn(&str) -> bool) -> Result<Groups, BoxError> {
    let mut groups = Groups::new();
    for (program, body) in programs::PROGRAMS.into_iter().filter(|(program, _)| wanted(program)) {
        let mut allocated = 0;
        for (number, (setting, text, is_limited)) in (0_u64..).zip(SETTINGS) {
            let limit_bytes = is_limited.then_some(allocated * 5 / 4);
            let own = VerifyOptions { settings: ReplaySettings::given(text)?, limit_bytes, stats_file: None };
            for run in 1..=RUNS {
                let (recording, ooms) = programs::run(body, &own.settings.settings, limit_bytes, number * RUNS + run);
                if ooms > 0 {
                    eprintln!("{program}.{setting}: {ooms} requests failed in run {run}, and it continued");
                }
                let live = add(&mut groups, program, setting, own.clone(), recording)?;
                if number == 0 && run == 1 {
                    allocated = live.unsigned_abs();
                }
            }
        }
    }
    Ok(groups)
}

fn load(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Groups, BoxError> {
    let limits = std::fs::read_to_string(folder.join("limits.txt")).unwrap_or_default();
    let limit_of = |name: &str| {
        let mut lines = limits.lines().filter_map(|line| line.split_once(char::is_whitespace));
        lines.find(|(of, _)| *of == name).map(|(_, bytes)| bytes.trim().parse::<u64>()).transpose()
    };
    let mut files: Vec<_> = std::fs::read_dir(folder)?.filter_map(Result::ok).map(|file| file.path()).collect();
    files.sort();
    let mut groups = Groups::new();
    for path in files {
        let file_name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = file_name.and_then(|name| name.strip_suffix(".pickle.xz")) else { continue };
        let mut words = name.split('.');
        let (Some(program), Some(setting)) = (words.next(), words.next()) else { continue };
        if !wanted(program) {
            continue;
        }
        let recording = parkade_recording::read_file(&path)?;
        let settings = ReplaySettings::of_recording(recording.settings.as_ref())?;
        let own = VerifyOptions { settings, limit_bytes: limit_of(&format!("{program}.{setting}"))?, stats_file: None };
        let device = recording.devices.into_iter().max_by_key(|device| device.trace.len()).ok_or("no device")?;
        add(&mut groups, program, setting, own, device)?;
    }
    Ok(groups)
}

/// The lowest likely peak, the point estimate and the highest likely peak, predicted from a run.
fn predict(source: &Group, run: &DeviceRecording, target: &Group) -> Result<(i64, i64, i64), BoxError> {
    let outlook = replay_device(run, &options(&source.own, &target.own), &mut |_| ())?;
    let point = outlook.prediction.peak_reserved_bytes();
    let ends = outlook.timing.map(|range| (range.least_peak_reserved_bytes, range.most_peak_reserved_bytes));
    let (least, most) = ends.unwrap_or((point, point));
    Ok((least, point, most))
}

/// The accuracy of the predictions.
#[derive(Default)]
struct Count {
    /// The number of real peaks, and the number of those within the range of a prediction.
    real: usize,
    inside: usize,
    /// The widths of the ranges, in percent of the point estimate.
    widths: Vec<f64>,
    /// The distances of the point estimates from the medians, in percent.
    errors: Vec<f64>,
    /// The number of point estimates within 5 % of the median or between the lowest and the highest real peak.
    good: usize,
}

impl Count {
    fn add(&mut self, (least, point, most): (i64, i64, i64), target: &Group) {
        let error = (point as f64 / target.median() as f64 - 1.0).abs() * 100.0;
        let is_among = target.peaks.first() <= Some(&point) && Some(&point) <= target.peaks.last();
        self.real += target.peaks.len();
        self.inside += target.peaks.iter().filter(|&&peak| least <= peak && peak <= most).count();
        self.widths.push((most - least) as f64 / point as f64 * 100.0);
        self.errors.push(error);
        self.good += usize::from(error <= 5.0 || is_among);
    }

    fn print(mut self, name: &str) {
        self.widths.sort_by(f64::total_cmp);
        self.errors.sort_by(f64::total_cmp);
        let narrow = self.widths.iter().filter(|width| **width <= 20.0).count();
        let count = self.widths.len();
        let share = self.inside as f64 / self.real as f64 * 100.0;
        let of = |values: &[f64]| format!("{:.1} ({:.1})", values[count / 2], values[count - 1]);
        println!(
            "| {name} | {count} | {} | {} of {count} | {} of {} ({share:.1} %) | {} | {narrow} of {count} |",
            of(&self.errors),
            self.good,
            self.inside,
            self.real,
            of(&self.widths)
        );
    }
}

/// For pairs of runs under one setting without a limit: the number of times the second peak is within 10 % of the first, and
/// the number of pairs. This shows how well one run predicts the next without any model.
fn alike(groups: &Groups) -> (usize, usize) {
    let unlimited = groups.values().flat_map(BTreeMap::values).filter(|group| group.own.limit_bytes.is_none());
    let pairs = unlimited.flat_map(|group| {
        let peaks = group.peaks.iter().enumerate();
        peaks.flat_map(|(first, one)| {
            group.peaks.iter().enumerate().filter(move |&(second, _)| second != first).map(move |(_, other)| (one, other))
        })
    });
    pairs.fold((0, 0), |(near, all), (one, other)| (near + usize::from((one - other).abs() * 10 <= *one), all + 1))
}

fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1);
    let source = arguments.next().ok_or("specify `simulated` or a folder of recordings")?;
    let names: Vec<String> = arguments.collect();
    let wanted = |program: &str| names.is_empty() || names.iter().any(|name| name == program);
    let groups = if source == "simulated" { simulate(&wanted)? } else { load(Path::new(&source), &wanted)? };
    println!("| run | peaks of reserved MiB |\n|---|---|");
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    for (program, settings) in &groups {
        for (setting, target) in settings {
            println!("| {program}.{setting} | {:?} |", target.peaks.iter().map(|peak| peak >> 20).collect::<Vec<_>>());
            for (other, source) in settings {
                for run in source.runs.iter().filter(|_| other != setting) {
                    let from = if source.own.limit_bytes.is_some() { "a limit" } else { "no limit" };
                    let to = if target.own.limit_bytes.is_some() { "a limit" } else { "no limit" };
                    let found = predict(source, run, target)?;
                    for row in [format!("{program} from {from}"), format!("all from {from} to {to}"), "all".to_owned()] {
                        counts.entry(row).or_default().add(found, target);
                    }
                }
            }
        }
    }
    let (near, all) = alike(&groups);
    println!("\nA run is within 10 % of another run under the same setting without a limit in {near} of {all} pairs.");
    println!(
        "\n| predictions | number | point off by, % (most) | within 5 % or among the real | real peaks inside | width, % (most) | at most 20 % |\n\
         |---|---|---|---|---|---|---|"
    );
    counts.into_iter().for_each(|(name, count)| count.print(&name));
    Ok(())
}
