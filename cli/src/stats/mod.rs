//! `parkade stats`: a run's statistics, summary and fragmentation, at its end, at an entry, or step by step.

mod json;
mod table;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use parkade::profile::Profile as Rules;
use parkade_sim::measures::{Measures, ReplayedRun, Sample, recorded_run, replayed_run, steps};
use parkade_sim::recording::{DeviceRecording, Recording};
use parkade_sim::replay::{ReplaySettings, VerifyOptions, newer_profile};

use crate::verify::{self, Profile};
use crate::{Outcome, output, replay, size};

/// Show what torch.cuda.memory_stats() and memory_summary() would have said, and how fragmented the memory was.
///
/// The recorded run is replayed under its own settings, so its statistics are known after every entry; with --settings the same requests
/// under others. They count from the first entry on, as if the counters had been reset there.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade stats snapshot.pickle
  parkade stats snapshot.pickle --entry 5000 --keys
  parkade stats snapshot.pickle --steps
  parkade stats snapshot.pickle --every 1000 --settings expandable_segments:True --csv

Exit code: 0 shown, 2 it could not be run.")]
pub(crate) struct Args {
    /// The recording.
    file: PathBuf,
    /// The state after this entry of the trace, counted from 0. Without this, at the end.
    #[arg(long, value_name = "NUMBER", group = "when")]
    entry: Option<usize>,
    /// The state after every so many entries, and at the end.
    #[arg(long, value_name = "ENTRIES", group = "when", value_parser = clap::value_parser!(u64).range(1..))]
    every: Option<u64>,
    /// The state after each step of the program: where an annotation ends whose name begins with PREFIX. Without PREFIX the profiler's steps,
    /// or the optimizer's.
    #[arg(long, value_name = "PREFIX", group = "when", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "not given, given, given with a prefix")]
    steps: Option<Option<String>>,
    /// Replay under these settings, as in PYTORCH_CUDA_ALLOC_CONF; '' is PyTorch's defaults. Without this, the run as recorded.
    #[arg(long, value_name = "SETTINGS")]
    settings: Option<String>,
    /// The memory that the device has for the allocator; with --settings.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true, requires = "settings")]
    capacity: Option<u64>,
    /// The memory limit (set_per_process_memory_fraction): with --settings the one to replay under, without it that of the recorded run.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// With --settings: the memory limit of the recorded run, which a recording does not contain.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true, requires = "settings")]
    recorded_limit: Option<u64>,
    /// The version of PyTorch whose decisions are made; without it what the file shows, else 2.11.
    #[arg(long, value_enum)]
    profile: Option<Profile>,
    /// Only this device. Without this, all of them.
    #[arg(long, value_name = "NUMBER")]
    device: Option<u32>,
    /// Show all 122 keys of memory_stats() instead of the summary.
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    keys: bool,
    /// Print the rows as comma-separated values.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether several moments are asked for.
    fn is_series(&self) -> bool {
        self.every.is_some() || self.steps.is_some()
    }
}

/// One device's moments.
struct Device {
    number: u32,
    /// How many entries its trace has.
    entries: usize,
    /// What marks the steps.
    mark: Option<String>,
    /// How many steps ended before the trace's first entry.
    lost_steps: usize,
    moments: Vec<Moment>,
    /// What the file's end shows, where there is no trace.
    end: Option<Measures>,
}

/// The state at one moment.
struct Moment {
    step: Option<usize>,
    sample: Sample,
}

/// Whose statistics they are.
enum Run {
    Recorded(Box<VerifyOptions>),
    Replayed(Box<ReplayedRun>),
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let (settings, devices) = match read(args) {
        Ok(read) => read,
        Err(error) => {
            if args.json {
                let mut out = output::stdout();
                writeln!(out, "{}", json::failed(&args.file, &error))?;
                out.flush()?;
            }
            return Err(error.context(args.file.display().to_string()));
        }
    };
    let mut out = output::stdout();
    if args.json {
        writeln!(out, "{}", json::object(args, &settings, &devices))?;
    } else if args.csv {
        table::csv(&mut out, &devices)?;
    } else {
        table::print(&mut out, args, &devices)?;
    }
    out.flush()?;
    Ok(Outcome::Good)
}

fn read(args: &Args) -> Result<(String, Vec<Device>)> {
    // Before the file is read: whoever mistyped the settings need not wait.
    let given_profile = args.profile.unwrap_or_default().rules();
    let given = args.settings.as_deref().map(|text| ReplaySettings::given_as(given_profile, text)).transpose()?;
    let recording = verify::read(&args.file)?;
    let shown_profile = newer_profile(&recording, None).map(|(profile, _)| profile);
    let recorded_profile = args.profile.map_or(shown_profile.unwrap_or(&Rules::PYTORCH_2_11), Profile::rules);
    let own = ReplaySettings::of_recording_as(recorded_profile, recording.settings.as_ref())?;
    let own = |limit_bytes| VerifyOptions { settings: own, limit_bytes, statistics: None };
    let (run, settings) = match given {
        None => {
            let own = own(args.limit);
            let text = own.settings.settings.text.clone();
            (Run::Recorded(Box::new(own)), text)
        }
        Some(given) => {
            let fraction = given.settings.per_process_memory_fraction;
            let limit_bytes = replay::limit(args.limit, args.capacity, fraction, given_profile)?;
            let (profile, settings, capacity_bytes) = (given_profile, given.settings, args.capacity);
            let text = settings.text.clone();
            (
                Run::Replayed(Box::new(ReplayedRun {
                    own: own(args.recorded_limit),
                    profile,
                    settings,
                    limit_bytes,
                    capacity_bytes,
                })),
                text,
            )
        }
    };
    let devices = chosen(args, &recording)?;
    let devices = devices.into_iter().map(|device| sample(args, &run, &recording, device)).collect::<Result<_>>()?;
    Ok((settings, devices))
}

fn chosen<'r>(args: &Args, recording: &'r Recording) -> Result<Vec<&'r DeviceRecording>> {
    let is_wanted = |device: &&DeviceRecording| args.device.is_none_or(|number| number == device.device);
    let devices: Vec<_> = recording.devices.iter().filter(is_wanted).collect();
    match (args.device, devices.is_empty()) {
        (Some(number), true) => bail!("the file has nothing of device {number}"),
        (None, true) => bail!("the file has neither segments nor trace entries"),
        _ => Ok(devices),
    }
}

fn sample(args: &Args, run: &Run, recording: &Recording, device: &DeviceRecording) -> Result<Device> {
    let entries = device.trace.len();
    let mut found = Device { number: device.device, entries, mark: None, lost_steps: 0, moments: Vec::new(), end: None };
    if entries == 0 {
        if args.entry.is_some() || args.is_series() || args.settings.is_some() {
            bail!("device {} has no trace entries, only its segments at the end: they are shown without options", device.device);
        }
        found.end = Some(Measures::of_recorded(&device.segments));
        return Ok(found);
    }
    let (at, numbers) = match (args.entry, args.every, &args.steps) {
        (Some(entry), _, _) if entry >= entries => {
            bail!("there is no entry {entry}: the trace of device {} has {entries}, counted from 0", device.device)
        }
        (Some(entry), _, _) => (vec![entry], None),
        (_, Some(every), _) => (regularly(entries, every), None),
        (_, _, Some(prefix)) => {
            let found_steps = steps(&recording.annotations, device, prefix.as_deref())?;
            (found.mark, found.lost_steps) = (Some(found_steps.mark), found_steps.lost);
            let steps = found_steps.steps;
            (steps.iter().map(|step| step.last_entry).collect(), Some(steps.iter().map(|step| step.number).collect::<Vec<_>>()))
        }
        _ => (vec![entries - 1], None),
    };
    let samples = match run {
        Run::Recorded(own) => recorded_run(device, own, &at),
        Run::Replayed(options) => replayed_run(device, options, &at),
    };
    let samples = samples.map_err(|error| anyhow!("device {}: {error}", device.device))?;
    let step = |place: usize| numbers.as_ref().and_then(|numbers| numbers.get(place).copied());
    found.moments = samples.into_iter().enumerate().map(|(place, sample)| Moment { step: step(place), sample }).collect();
    Ok(found)
}

/// The last of every so many entries, and the last of all.
fn regularly(entries: usize, every: u64) -> Vec<usize> {
    let every = usize::try_from(every).unwrap_or(usize::MAX);
    let mut at: Vec<usize> = (1..).map_while(|count: usize| count.checked_mul(every).filter(|&end| end < entries)).collect();
    at.push(entries);
    at.into_iter().map(|end| end - 1).collect()
}
