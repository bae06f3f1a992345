//! `parkade verify`: does a replay reproduce every decision of a recorded run?

mod json;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use indicatif::ProgressBar;
use parkade::profile::Profile as Rules;
use parkade_recording::Recording;
use parkade_replay::{DeviceVerdict, ReleaseEvidence, ReplaySettings, StatsFile, VerifyOptions, newer_release, verify_device};
use rayon::prelude::*;

use crate::args::{Json, Profile};
use crate::runner::{self, Command, Form, Lines, Outcome, Subject};
use crate::{output, progress, recording, size};

/// Replay recordings under their own settings and compare every decision.
///
/// A recording is a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot), plain or compressed with gzip, xz or Zstandard. Every
/// address, segment, release and out-of-memory point is compared, as are the segments and blocks at the end.
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
    /// The memory limit of the run (set_per_process_memory_fraction), which the recording does not contain.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// The PyTorch version that made the recording [default: what the file shows, else 2.11].
    #[arg(long, value_enum)]
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
    profile: &'static Rules,
    /// What shows the version, if it was neither given nor assumed.
    evidence: Option<ReleaseEvidence>,
    devices: Vec<DeviceVerdict>,
    seconds: f64,
}

impl Verified {
    fn mismatches(&self) -> u64 {
        self.devices.iter().map(|device| device.mismatches).sum()
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
}

impl Command for Args {
    type Answer = Vec<Result<Report>>;

    fn compute(&self) -> Result<Vec<Result<Report>>> {
        if self.stats.is_some() && self.files.len() != 1 {
            bail!("--stats belongs to one recording, but {} are given", self.files.len());
        }
        let statistics = self.stats.as_deref().map(read_statistics).transpose()?;
        let bar = progress::entries(self.json.json);
        let done = AtomicU64::new(0);
        let of_file = |file: &PathBuf| {
            let verified = verify(file, self, statistics.as_ref(), &bar, &done)?;
            let part = table::Part::of(&verified, &short_name(file, &self.files));
            Ok(Report { differs: verified.mismatches() > 0, json: serde_json::to_value(json::Object::of(&verified))?, part })
        };
        let reports = self.files.par_iter().map(of_file).collect();
        bar.finish_and_clear();
        Ok(reports)
    }

    fn outcome(&self, reports: &Vec<Result<Report>>) -> Outcome {
        let of_file = |report: &Result<Report>| match report {
            Ok(report) if report.differs => Outcome::CheckFailed,
            Ok(_) => Outcome::Good,
            Err(_) => Outcome::CouldNotRun,
        };
        reports.iter().map(of_file).max().unwrap_or(Outcome::Good)
    }

    fn form(&self) -> Form {
        self.json.form()
    }

    fn subject(&self) -> Subject<'_> {
        Subject::Command
    }

    fn text(&self, reports: &Vec<Result<Report>>, out: &mut dyn std::io::Write) -> Result<()> {
        let parts: Vec<_> = reports.iter().flatten().map(|report| &report.part).collect();
        Ok(table::print(out, &parts, reports.len() - parts.len())?)
    }

    fn json(&self, reports: &Vec<Result<Report>>, lines: &mut Lines) -> Result<()> {
        self.files.iter().zip(reports).try_for_each(|(file, report)| match report {
            Ok(report) => lines.add(&report.json),
            Err(error) => lines.add(&runner::failure(Subject::File(file), &format!("{error:#}"))),
        })
    }

    fn remarks(&self, reports: &Vec<Result<Report>>) -> Vec<String> {
        let failed = self.files.iter().zip(reports).filter_map(|(file, report)| Some((file, report.as_ref().err()?)));
        failed.map(|(file, error)| format!("{}: {error:#}", file.display())).collect()
    }
}

/// The file's own name, or its whole path where another file has the same name.
fn short_name(file: &Path, files: &[PathBuf]) -> String {
    let is_unique = files.iter().filter(|other| other.file_name() == file.file_name()).count() == 1;
    let name = file.file_name().filter(|_| is_unique).unwrap_or(file.as_os_str());
    output::one_line(&name.to_string_lossy())
}

fn verify(file: &Path, args: &Args, statistics: Option<&StatsFile>, bar: &ProgressBar, done: &AtomicU64) -> Result<Verified> {
    let start = Instant::now();
    let recording = recording::read(file)?;
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
    let traced = recording::traced(&recording);
    if traced.is_empty() {
        bail!("the file has no trace entries to verify: {}", recording::RECORD_IT);
    }
    if statistics.is_some() && traced.len() > 1 {
        bail!("--stats belongs to one device, but the recording has {}", traced.len());
    }
    bar.inc_length(recording::entries(&traced));
    let mut devices = Vec::new();
    for device in &traced {
        let mut reported = 0;
        let mut progress = |entries: usize| {
            // A replay may start over with another reading of the file: the furthest one counts.
            done.fetch_add(entries.saturating_sub(reported) as u64, Ordering::Relaxed);
            reported = reported.max(entries);
            bar.set_position(done.load(Ordering::Relaxed));
        };
        let verdict = verify_device(device, &options, &mut progress);
        progress(device.trace.len());
        devices.push(recording::of_device(verdict, device.device, traced.len())?);
    }
    let seconds = start.elapsed().as_secs_f64();
    let (file, limit) = (file.to_owned(), args.limit);
    Ok(Verified { file, recording, settings, limit, profile, evidence, devices, seconds })
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
