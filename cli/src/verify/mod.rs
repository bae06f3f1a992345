//! `parkade verify`: are the decisions of a recorded run the core's own?

mod json;
mod table;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use parkade::profile::Profile as Rules;
use parkade_recording::{self, ReadError, Recording};
use parkade_replay::{DeviceVerdict, ReleaseEvidence, ReplaySettings, StatsFile, VerifyOptions, newer_release, verify_device};
use rayon::prelude::*;

use crate::{Outcome, output, size};

pub(crate) use json::origin;

/// Replay recordings under their own settings and compare every decision.
///
/// A recording is a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot), plain or packed with gzip, xz or Zstandard. Every
/// address, segment, release and out-of-memory point is compared, and the segments and blocks at the end.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade verify snapshot.pickle
  parkade verify snapshot.pickle --limit 16GiB --stats memory_stats.json
  parkade verify recordings/*.pickle.xz --json

Exit code: 0 nothing differs, 1 something differs, 2 a file could not be verified.")]
pub(crate) struct Args {
    /// The recordings.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The memory limit of the run (set_per_process_memory_fraction), which a recording does not contain.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// The version of PyTorch that made the recording; without it what the file shows, else 2.11.
    #[arg(long, value_enum)]
    profile: Option<Profile>,
    /// The output of torch.cuda.memory_stats() at the end of the run, as JSON, to compare too. For one recording.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// The settings of the run, where the recording does not state them or states them wrongly.
    #[arg(long)]
    settings: Option<String>,
    /// Print one JSON object a recording.
    #[arg(long)]
    json: bool,
}

/// A version of PyTorch whose decisions can be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Profile {
    /// PyTorch 2.11.
    #[default]
    #[value(name = "2.11")]
    V2_11,
    /// PyTorch 2.15.
    #[value(name = "2.15")]
    V2_15,
}

impl Profile {
    /// Its rules.
    pub(crate) const fn rules(self) -> &'static Rules {
        match self {
            Profile::V2_11 => &Rules::PYTORCH_2_11,
            Profile::V2_15 => &Rules::PYTORCH_2_15,
        }
    }
}

/// A verified recording.
struct Verified {
    file: PathBuf,
    recording: Recording,
    settings: ReplaySettings,
    limit: Option<u64>,
    profile: &'static Rules,
    /// What showed the version, if it was not given or assumed.
    evidence: Option<ReleaseEvidence>,
    devices: Vec<DeviceVerdict>,
    seconds: f64,
}

impl Verified {
    fn mismatches(&self) -> u64 {
        self.devices.iter().map(|device| device.mismatches).sum()
    }

    /// The settings limit the memory to a part of the device's, which is not in a recording, and no limit was given.
    fn has_unknown_fraction(&self) -> bool {
        self.limit.is_none() && self.settings.settings.per_process_memory_fraction < 1.0
    }
}

/// What is left of a recording once it is verified: a line of JSON or rows of the table. The recording itself is gone, or a hundred
/// of them would be in memory at once.
struct Report {
    differs: bool,
    shown: Shown,
}

enum Shown {
    Json(String),
    Rows(table::Part),
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if args.stats.is_some() && args.files.len() != 1 {
        bail!("--stats belongs to one recording, and {} are given", args.files.len());
    }
    let statistics = args.stats.as_deref().map(read_statistics).transpose()?;
    let bar = progress_bar(args.json);
    let done = AtomicU64::new(0);
    let results: Vec<Result<Report>> = args
        .files
        .par_iter()
        .map(|file| {
            let verified = verify(file, args, statistics.as_ref(), &bar, &done);
            verified.and_then(|verified| report(&verified, args)).with_context(|| file.display().to_string())
        })
        .collect();
    bar.finish_and_clear();
    let outcome = results.iter().map(outcome_of).max().unwrap_or(Outcome::Good);
    let printed = print(args, &results);
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        output::complain(error);
    }
    match printed {
        // Whoever reads only the first lines still gets the exit code of all.
        Err(error) if output::is_broken_pipe(&error) => Ok(outcome),
        printed => printed.map(|()| outcome),
    }
}

fn outcome_of(result: &Result<Report>) -> Outcome {
    match result {
        Ok(report) if report.differs => Outcome::CheckFailed,
        Ok(_) => Outcome::Good,
        Err(_) => Outcome::CouldNotRun,
    }
}

fn report(verified: &Verified, args: &Args) -> Result<Report> {
    let differs = verified.mismatches() > 0;
    let shown = if args.json {
        Shown::Json(json::verified(verified)?)
    } else {
        Shown::Rows(table::Part::of(verified, &short_name(&verified.file, &args.files)))
    };
    Ok(Report { differs, shown })
}

/// The file's own name, or its whole path where another file has the same name.
fn short_name(file: &Path, files: &[PathBuf]) -> String {
    let is_unique = files.iter().filter(|other| other.file_name() == file.file_name()).count() == 1;
    let name = file.file_name().filter(|_| is_unique).unwrap_or(file.as_os_str());
    output::one_line(&name.to_string_lossy())
}

fn print(args: &Args, results: &[Result<Report>]) -> Result<()> {
    let mut out = output::stdout();
    let mut table = table::Table::default();
    for (file, result) in args.files.iter().zip(results) {
        match result {
            Ok(Report { shown: Shown::Json(line), .. }) => writeln!(out, "{line}")?,
            Ok(Report { shown: Shown::Rows(part), .. }) => table.add(part),
            Err(error) if args.json => writeln!(out, "{}", json::failed(file, error)?)?,
            Err(_) => table.failed += 1,
        }
    }
    table.print(&mut out, output::Paint::for_stdout())?;
    Ok(out.flush()?)
}

fn verify(file: &Path, args: &Args, statistics: Option<&StatsFile>, bar: &ProgressBar, done: &AtomicU64) -> Result<Verified> {
    let start = Instant::now();
    let recording = read(file)?;
    let shown = newer_release(&recording, statistics).filter(|_| args.profile.is_none());
    let (profile, evidence) = match shown {
        Some((profile, evidence)) => (profile, Some(evidence)),
        None => (args.profile.unwrap_or_default().rules(), None),
    };
    let settings = match &args.settings {
        Some(text) => ReplaySettings::given_as(profile, text)?,
        None => ReplaySettings::of_recording_as(profile, recording.settings.as_ref())?,
    };
    let options = VerifyOptions { settings: settings.clone(), limit_bytes: args.limit, stats_file: statistics.cloned() };
    let traced: Vec<_> = recording.devices.iter().filter(|device| !device.trace.is_empty()).collect();
    if traced.is_empty() {
        bail!("the file has no trace entries to verify: record it with torch.cuda.memory._record_memory_history()");
    }
    if statistics.is_some() && traced.len() > 1 {
        bail!("--stats belongs to one device, and the recording has {}", traced.len());
    }
    bar.inc_length(traced.iter().map(|device| device.trace.len() as u64).sum());
    let mut devices = Vec::new();
    for device in &traced {
        let mut reported = 0;
        let mut progress = |entries: usize| {
            // Where a reading fails the replay begins again: the furthest that one came counts.
            done.fetch_add(entries.saturating_sub(reported) as u64, Ordering::Relaxed);
            reported = reported.max(entries);
            bar.set_position(done.load(Ordering::Relaxed));
        };
        let verdict = verify_device(device, &options, &mut progress);
        progress(device.trace.len());
        devices.push(match verdict {
            Err(error) if traced.len() > 1 => return Err(anyhow!("device {}: {error}", device.device)),
            verdict => verdict?,
        });
    }
    let seconds = start.elapsed().as_secs_f64();
    let (file, limit) = (file.to_owned(), args.limit);
    Ok(Verified { file, recording, settings, limit, profile, evidence, devices, seconds })
}

/// Reads a recording; the error does not name the file.
pub(crate) fn read(file: &Path) -> Result<Recording> {
    parkade_recording::read_file(file).map_err(|error| match error {
        // The path comes before every error of this file.
        ReadError::File { cause, .. } => anyhow!("cannot be read: {cause}"),
        error => error.into(),
    })
}

/// A bar of a recording's entries on standard error, which only a terminal shows.
pub(crate) fn progress_bar(is_hidden: bool) -> ProgressBar {
    progress_bar_of("entries", is_hidden)
}

/// A bar of something else.
pub(crate) fn progress_bar_of(what: &str, is_hidden: bool) -> ProgressBar {
    if is_hidden {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(&format!("{{bar:40}} {{human_pos}} of {{human_len}} {what}"))
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

fn read_statistics(file: &Path) -> Result<StatsFile> {
    let name = || format!("the statistics {}", file.display());
    let text = std::fs::read(file).with_context(name)?;
    let value: serde_json::Value = serde_json::from_slice(&text).with_context(name)?;
    let mut entries = BTreeMap::new();
    flatten("", &value, &mut entries).with_context(name)?;
    StatsFile::new(entries).with_context(name)
}

/// Both of PyTorch's forms: flat keys with dots, and nested dictionaries. JSON nests at most as deep as its parser allows.
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
        _ if prefix.is_empty() => bail!("it is no JSON object: is this the output of torch.cuda.memory_stats()?"),
        _ => bail!("{prefix:?} is no whole number of 64 bits: is this the output of torch.cuda.memory_stats()?"),
    }
}
