//! `parkade verify`: does a replay reproduce every decision of a recorded run?

mod json;
mod table;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use parkade_analysis::ranks::RankRun;
use parkade_recording::Recording;
use parkade_replay::recognition::{Asked, Recognition};
use parkade_replay::{DeviceVerdict, ReplaySettings, StatsFile};

use crate::ranks::Ranks;
use crate::recordings::{Inputs, each};
use crate::terminal::args::{Files, Json, Profile};
use crate::terminal::progress::{self, Bar};
use crate::terminal::runner::{self, Command, Form, Lines, Outcome, Subject};
use crate::terminal::{output, recording, release, size};

/// Replay recordings under their own settings and compare every decision.
///
/// A recording is a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot), plain or compressed with gzip, xz or Zstandard. Every
/// address, segment, release and out-of-memory point is compared, as are the segments and blocks at the end.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade verify snapshot.pickle
  parkade verify snapshot.pickle --limit 16GiB --stats memory_stats.json
  parkade verify recordings/*.pickle.xz --json
  parkade verify snapshots/

Exit code: 0 nothing differs, 1 something differs, 2 a file could not be verified.")]
pub(crate) struct Args {
    #[command(flatten)]
    files: Files,
    /// The memory limit of the run (set_per_process_memory_fraction), which the recording does not contain.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// The PyTorch release that made the recording [default: each that its contents allow is tried].
    #[arg(long, value_name = "RELEASE")]
    profile: Option<Profile>,
    /// The output of torch.cuda.memory_stats() at the end of the run, as JSON, to compare as well. For one recording.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// The settings of the run, where the recording does not state them or states them wrongly.
    #[arg(long)]
    settings: Option<String>,
    #[command(flatten)]
    json: Json,
}

/// A verified recording.
struct Verified {
    file: PathBuf,
    recording: Recording,
    settings: ReplaySettings,
    limit: Option<u64>,
    /// The limit that garbage collection shows, if none was given.
    assumed_limit: Option<u64>,
    /// Which release made it.
    made_by: Recognition,
    devices: Vec<DeviceVerdict>,
    seconds: f64,
}

impl Verified {
    fn mismatches(&self) -> u64 {
        self.devices.iter().map(|device| device.mismatches).sum()
    }

    /// What is compared between ranks.
    fn rank_runs(&self) -> Vec<RankRun> {
        let devices = recording::traced(&self.recording).into_iter().zip(&self.devices);
        devices.map(|(device, verdict)| RankRun::of_verdict(device, &self.settings, verdict).made_by(&self.made_by)).collect()
    }

    /// Whether the settings limit memory to a fraction of the device's, which a recording does not contain, and no limit was given.
    fn has_unknown_fraction(&self) -> bool {
        self.limit.is_none() && self.settings.settings.per_process_memory_fraction < 1.0
    }
}

/// The results of a verified recording. The recording itself is dropped, so that not all of them are in memory at once.
pub(crate) struct Report {
    differs: bool,
    json: serde_json::Value,
    part: table::Part,
    /// What is compared between ranks, if the files are ranks of one job.
    runs: Vec<RankRun>,
}

/// What was given, and the results in its order.
pub(crate) struct Reports {
    inputs: Inputs,
    all: Vec<Result<Report>>,
    ranks: Option<Ranks>,
}

impl Reports {
    /// Each with its file.
    fn with_files(&self) -> impl Iterator<Item = (&Path, &Result<Report>)> {
        self.inputs.paths().into_iter().zip(&self.all)
    }
}

impl Command for Args {
    type Answer = Reports;

    fn compute(&self) -> Result<Reports> {
        let inputs = Inputs::of(&self.files.files);
        if self.stats.is_some() && inputs.are_several() {
            bail!("--stats belongs to one recording, but {} are given", inputs.all.len());
        }
        let statistics = self.stats.as_deref().map(read_statistics).transpose()?;
        let bar = progress::entries(self.json.json);
        let done = AtomicU64::new(0);
        let paths = inputs.paths();
        let names = ShortNames::of(&paths);
        let numbers = inputs.ranks();
        let of_file = |file: &Path| {
            let verified = verify(file, self, statistics.as_ref(), &bar, &done)?;
            let part = table::Part::of(&verified, &names.of_file(file));
            let json = serde_json::to_value(json::Object::of(&verified))?;
            let runs = if numbers.is_some() { verified.rank_runs() } else { Vec::new() };
            Ok(Report { differs: verified.mismatches() > 0, json, part, runs })
        };
        let mut all = Vec::new();
        each(&inputs, true, of_file, |_, report| {
            all.push(report);
            Ok(())
        })?;
        bar.finish_and_clear();
        let ranks = numbers.and_then(|numbers| Ranks::of(&numbers, &paths, rank_runs(&mut all)));
        drop(paths);
        Ok(Reports { inputs, all, ranks })
    }

    fn outcome(&self, reports: &Reports) -> Outcome {
        let of_file = |report: &Result<Report>| match report {
            Ok(report) if report.differs => Outcome::CheckFailed,
            Ok(_) => Outcome::Good,
            Err(_) => Outcome::CouldNotRun,
        };
        reports.all.iter().map(of_file).fold(Outcome::Good, Outcome::worse)
    }

    fn form(&self) -> Form {
        self.json.form()
    }

    fn subject(&self) -> Subject<'_> {
        Subject::Command
    }

    fn text(&self, reports: &Reports, out: &mut dyn std::io::Write) -> Result<()> {
        let parts: Vec<_> = reports.all.iter().flatten().map(|report| &report.part).collect();
        Ok(table::print(out, &parts, reports.all.len() - parts.len(), reports.ranks.as_ref())?)
    }

    fn json(&self, reports: &Reports, lines: &mut Lines) -> Result<()> {
        reports.with_files().try_for_each(|(file, report)| match report {
            Ok(report) => lines.add(&report.json),
            Err(error) => lines.add(&runner::failure(Subject::File(file), &format!("{error:#}"))),
        })?;
        reports.ranks.iter().try_for_each(|ranks| ranks.add_to(lines, None))
    }

    fn remarks(&self, reports: &Reports) -> Vec<String> {
        let failed = reports.with_files().filter_map(|(file, report)| Some((file, report.as_ref().err()?)));
        let failed = failed.map(|(file, error)| format!("{}: {error:#}", file.display()));
        reports.inputs.remarks.iter().cloned().chain(failed).collect()
    }
}

/// Takes the runs out of the reports, each with the place of its file.
fn rank_runs(reports: &mut [Result<Report>]) -> Vec<(usize, RankRun)> {
    let of_file = |(place, report): (usize, &mut Result<Report>)| {
        let runs = report.as_mut().map_or_else(|_| Vec::new(), |report| std::mem::take(&mut report.runs));
        runs.into_iter().map(move |run| (place, run))
    };
    reports.iter_mut().enumerate().flat_map(of_file).collect()
}

/// The files' own names, or their whole paths where another file has the same name.
struct ShortNames<'f>(HashMap<Option<&'f OsStr>, usize>);

impl<'f> ShortNames<'f> {
    fn of(files: &[&'f Path]) -> ShortNames<'f> {
        let mut counts = HashMap::new();
        files.iter().for_each(|file| *counts.entry(file.file_name()).or_default() += 1);
        ShortNames(counts)
    }

    fn of_file(&self, file: &Path) -> String {
        let is_unique = self.0.get(&file.file_name()) == Some(&1);
        let name = file.file_name().filter(|_| is_unique).unwrap_or(file.as_os_str());
        output::one_line(&name.to_string_lossy())
    }
}

fn verify(file: &Path, args: &Args, statistics: Option<&StatsFile>, bar: &Bar, done: &AtomicU64) -> Result<Verified> {
    let start = Instant::now();
    let recording = recording::read(file)?;
    let traced = recording::traced(&recording);
    if traced.is_empty() {
        bail!("the file has no trace entries to verify: {}", recording::RECORD_IT);
    }
    if statistics.is_some() && traced.len() > 1 {
        bail!("--stats belongs to one device, but the recording has {}", traced.len());
    }
    bar.inc_length(recording::entries(&traced));
    let asked = Asked {
        profile: args.profile.map(Profile::rules),
        settings: args.settings.as_deref(),
        limit_bytes: args.limit,
        stats_file: statistics,
    };
    let mut reported = vec![0; traced.len()];
    let mut progress = |place: usize, entries: usize| {
        // A replay may start over with another reading of the file, or as another release: the furthest one counts.
        let reported = &mut reported[place];
        done.fetch_add(entries.saturating_sub(*reported) as u64, Ordering::Relaxed);
        *reported = entries.max(*reported);
        bar.set_position(done.load(Ordering::Relaxed));
    };
    let verified = parkade_replay::recognition::verify(&recording, &traced, &asked, &mut progress);
    traced.iter().enumerate().for_each(|(place, device)| progress(place, device.trace.len()));
    let (made_by, verified) = verified.map_err(|error| release::explain(error, &traced))?;
    let assumed_limit = verified.iter().find_map(|(_, limit)| *limit);
    let devices = verified.into_iter().map(|(verdict, _)| verdict).collect();
    let seconds = start.elapsed().as_secs_f64();
    let (file, limit, settings) = (file.to_owned(), args.limit, made_by.settings.clone());
    Ok(Verified { file, recording, settings, limit, assumed_limit, made_by, devices, seconds })
}

fn read_statistics(file: &Path) -> Result<StatsFile> {
    let name = || format!("the statistics {}", file.display());
    let text = std::fs::read(file).with_context(name)?;
    let value: serde_json::Value = serde_json::from_slice(&text).with_context(name)?;
    let mut entries = BTreeMap::new();
    flatten("", &value, &mut entries).with_context(name)?;
    StatsFile::new(entries).with_context(name)
}

/// Accepts both of PyTorch's forms: flat keys with dots, and nested dictionaries. The JSON parser limits the depth.
fn flatten(prefix: &str, value: &serde_json::Value, entries: &mut BTreeMap<String, i64>) -> Result<()> {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, value, entries)?;
            }
            Ok(())
        }
        serde_json::Value::Number(number) if number.is_i64() && !prefix.is_empty() => {
            entries.insert(prefix.to_owned(), number.as_i64().unwrap_or_default());
            Ok(())
        }
        _ if prefix.is_empty() => bail!("it is not a JSON object: is this the output of torch.cuda.memory_stats()?"),
        _ => bail!("{prefix:?} is not a 64-bit integer: is this the output of torch.cuda.memory_stats()?"),
    }
}
