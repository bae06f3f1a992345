//! `parkade advise`: which settings would have let a recorded program fit, in how much memory, and at what price?

mod held;
mod json;
mod table;
pub(crate) mod words;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use parkade::profile::Profile as Rules;
use parkade::settings::Settings;
use parkade_analysis::advise::{Advice, AdviseOptions, MemoryBudget, Progress};
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::{ReplaySettings, VerifyOptions, newer_release};

use crate::verify::{self, Profile};
use crate::{Outcome, output, size};

/// From the snapshot of a run to the settings under which it fits, or to what is missing.
///
/// The recording is verified, then its requests are replayed under some eighty settings: PyTorch's defaults, expandable_segments, and
/// max_split_size_mb, garbage_collection_threshold and roundup_power2_divisions in many values and combinations, searched around the best.
/// Each shows whether every request is served, the peak of reserved memory, how often the cache had to be emptied, what the calls of
/// the driver cost, and the smallest memory that suffices. Without --capacity or --limit an out-of-memory error in the recording shows about how
/// much there was; without one, the settings that need the least memory are recommended.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade advise snapshot.pickle --capacity 16GiB
  parkade advise snapshot.pickle --limit 12GiB --settings max_split_size_mb:200
  parkade advise snapshot.pickle --capacity 24GiB --settings expandable_segments:True --only --json

Exit code: 0 some settings fit, 1 none do, 2 it could not be run.")]
pub(crate) struct Args {
    /// The recording.
    file: PathBuf,
    /// The memory that the device has for the allocator (without the driver's own, some 500 MiB), held as a limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    capacity: Option<u64>,
    /// The memory limit (set_per_process_memory_fraction). If both are given, the smaller counts.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// Settings to try too, as in PYTORCH_CUDA_ALLOC_CONF; may be given several times. '' is PyTorch's defaults.
    #[arg(long, value_name = "SETTINGS")]
    settings: Vec<String>,
    /// Try only the settings given and the recording's own.
    #[arg(long, requires = "settings")]
    only: bool,
    /// Only this device of the recording. Without this all of them, with one setting for all.
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// The memory limit of the recorded run, which a recording does not contain; it tells calls of empty_cache from memory given
    /// back because of the limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    recorded_limit: Option<u64>,
    /// The version of PyTorch whose decisions are made.
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Show every option, not only the most useful ones.
    #[arg(long)]
    all: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What was found out about a recording.
struct Advised {
    file: PathBuf,
    recording: Recording,
    own: ReplaySettings,
    profile: Profile,
    found: Found,
    seconds: f64,
}

enum Found {
    Report(Box<Advice>),
    /// The file has no trace: only what was held at its end.
    OnlySegments(MemoryBudget),
}

impl Advised {
    fn fits(&self) -> bool {
        match &self.found {
            Found::Report(report) => report.recommendation.is_some(),
            Found::OnlySegments(space) => held::fits(&self.recording, space),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let advised = match advise(args) {
        Ok(advised) => advised,
        Err(error) => {
            if args.json {
                let mut out = output::stdout();
                writeln!(out, "{}", json::failed(&args.file, &error)?)?;
                out.flush()?;
            }
            return Err(error.context(args.file.display().to_string()));
        }
    };
    let outcome = if advised.fits() { Outcome::Good } else { Outcome::CheckFailed };
    match print(args, &advised) {
        // Whoever reads only the first lines still gets the exit code.
        Err(error) if output::is_broken_pipe(&error) => Ok(outcome),
        printed => printed.map(|()| outcome),
    }
}

fn print(args: &Args, advised: &Advised) -> Result<()> {
    let mut out = output::stdout();
    let paint = output::Paint::for_stdout();
    match &advised.found {
        Found::Report(report) if args.json => writeln!(out, "{}", json::report(advised, report)?)?,
        Found::Report(report) => table::print(&mut out, advised, report, args.all, paint)?,
        Found::OnlySegments(space) if args.json => writeln!(out, "{}", held::json(advised, space)?)?,
        Found::OnlySegments(space) => held::print(&mut out, advised, space)?,
    }
    Ok(out.flush()?)
}

fn advise(args: &Args) -> Result<Advised> {
    let start = Instant::now();
    // Before the file is read: whoever mistyped the settings need not wait.
    let rules = args.profile.rules();
    let given = args.settings.iter().map(|text| Ok(ReplaySettings::given_as(rules, text)?.settings));
    let given = given.collect::<Result<Vec<Settings>>>()?;
    let mut recording = verify::read(&args.file)?;
    // What was asked for is read as the version that made the recording decided; what comes of it is the chosen one's business.
    let recorded_profile = newer_release(&recording, None).map_or(&Rules::PYTORCH_2_11, |(profile, _)| profile);
    let own = ReplaySettings::of_recording_as(recorded_profile, recording.settings.as_ref())?;
    choose_device(&mut recording, args.device)?;
    let memory = MemoryBudget { capacity_bytes: args.capacity, limit_bytes: args.limit };
    let traced: Vec<&DeviceRecording> = recording.devices.iter().filter(|device| !device.trace.is_empty()).collect();
    let found = if !traced.is_empty() {
        let options = AdviseOptions {
            own: VerifyOptions { settings: own.clone(), limit_bytes: args.recorded_limit, stats_file: None },
            profile: rules,
            memory,
            given,
            only_given: args.only,
        };
        Found::Report(Box::new(search(&traced, &options, args.json)?))
    } else if recording.devices.iter().any(|device| !device.segments.is_empty()) {
        Found::OnlySegments(memory)
    } else {
        bail!("the file has no trace entries and no segments: record it with torch.cuda.memory._record_memory_history()");
    };
    let (file, seconds) = (args.file.clone(), start.elapsed().as_secs_f64());
    Ok(Advised { file, own, profile: args.profile, found, seconds, recording })
}

fn choose_device(recording: &mut Recording, chosen: Option<u32>) -> Result<()> {
    let Some(chosen) = chosen else { return Ok(()) };
    let known: Vec<String> = recording.devices.iter().map(|device| device.device.to_string()).collect();
    recording.devices.retain(|device| device.device == chosen);
    if recording.devices.is_empty() {
        bail!(
            "the recording has no device {chosen}, only {}",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        );
    }
    Ok(())
}

fn search(traced: &[&DeviceRecording], options: &AdviseOptions, is_hidden: bool) -> Result<Advice> {
    let reading = verify::progress_bar(is_hidden);
    reading.set_length(traced.iter().map(|device| device.trace.len() as u64).sum());
    let trying = verify::progress_bar_of("settings", is_hidden);
    let report = parkade_analysis::advise::advise(traced, options, &|progress| match progress {
        Progress::Read { device, entries } => {
            let before: usize = traced[..device].iter().map(|device| device.trace.len()).sum();
            reading.set_position((before + entries) as u64);
        }
        Progress::Tried { options, of } => {
            reading.finish_and_clear();
            trying.set_length(of as u64);
            trying.set_position(options as u64);
        }
    });
    reading.finish_and_clear();
    trying.finish_and_clear();
    report.map_err(|(device, error)| if traced.len() > 1 { anyhow!("device {device}: {error}") } else { error.into() })
}

/// The file's own name.
fn short_name(file: &Path) -> String {
    output::one_line(&file.file_name().unwrap_or(file.as_os_str()).to_string_lossy())
}
