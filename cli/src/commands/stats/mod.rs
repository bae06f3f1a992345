//! `parkade stats`: a run's statistics, summary and fragmentation, at its end, at an entry, or step by step.

mod json;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Parser;
use parkade_analysis::annotations::steps;
use parkade_analysis::fragmentation::{Fragmentation, ReplayOptions, Sample, sample_recorded_run, sample_replayed_run};
use parkade_analysis::ranks::RankRun;
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::recognition::{Asked, Recognition};
use parkade_replay::{ReplaySettings, VerifyOptions};

use crate::each::OnEach;
use crate::terminal::args::{Files, Json, Profile};
use crate::terminal::runner::{Command, Form, Lines, Outcome, Subject};
use crate::terminal::{args, recording, release, size};

/// Show what torch.cuda.memory_stats() and memory_summary() would have reported, and how fragmented memory was.
///
/// The recorded run is replayed under its own settings, so its statistics are known after every entry; with --settings the same requests
/// under others. Counting starts at the first entry, as if the counters had been reset there.
#[derive(Parser, Clone)]
#[command(after_help = "Examples:
  parkade stats snapshot.pickle
  parkade stats snapshot.pickle --entry 5000 --keys
  parkade stats snapshot.pickle --steps
  parkade stats snapshot.pickle --every 1000 --settings expandable_segments:True --csv
  parkade stats snapshots/

Exit code: 0 shown, 1 shown, but decisions of the recorded run differ, so that the figures may not be its own \
(--limit gives the memory limit that it had), 2 could not run. Of several recordings the worst: 2, then 1.")]
pub(crate) struct Args {
    #[command(flatten)]
    files: Files,
    /// The one of them that is shown.
    #[arg(skip)]
    file: PathBuf,
    /// Whether rows must say which of several it is.
    #[arg(skip)]
    is_one_of_several: bool,
    /// The state after this entry of the trace, counted from 0 [default: the last].
    #[arg(long, value_name = "NUMBER", group = "when")]
    entry: Option<usize>,
    /// The state after every so many entries, and at the end.
    #[arg(long, value_name = "ENTRIES", group = "when", value_parser = clap::value_parser!(u64).range(1..))]
    every: Option<u64>,
    /// The state after each step of the program: where an annotation ends whose name begins with PREFIX. Without PREFIX, the profiler's or
    /// the optimizer's steps.
    #[arg(long, value_name = "PREFIX", group = "when", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "not given, given, given with a prefix")]
    steps: Option<Option<String>>,
    /// Replay under these settings, as in PYTORCH_CUDA_ALLOC_CONF; '' means PyTorch's defaults. Without this option, the run as recorded.
    #[arg(long, value_name = "SETTINGS")]
    settings: Option<String>,
    /// The device memory available to the allocator; with --settings.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true, requires = "settings")]
    capacity: Option<u64>,
    /// The memory limit (set_per_process_memory_fraction): with --settings the one to replay under, without it that of the recorded run.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// With --settings: the memory limit of the recorded run, which the recording does not contain.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true, requires = "settings")]
    recorded_limit: Option<u64>,
    /// The PyTorch release whose allocator decisions are made [default: the one that made the recording].
    #[arg(long, value_name = "RELEASE")]
    profile: Option<Profile>,
    /// Only this device [default: all].
    #[arg(long, value_name = "NUMBER")]
    device: Option<u32>,
    /// Show all 122 keys of memory_stats() instead of the summary.
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    keys: bool,
    /// Print the rows as comma-separated values.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    json: Json,
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
    /// The number of entries in its trace.
    entries: usize,
    /// The annotation that marks the steps.
    mark: Option<String>,
    /// Steps that ended before the first entry of the trace.
    lost_steps: usize,
    moments: Vec<Moment>,
    /// The state at the end of a file without a trace.
    end: Option<Fragmentation>,
    /// Recorded decisions that the replay does not reproduce, of all decisions.
    mismatches: u64,
    decisions: u64,
    /// The recorded run's limit, if it was inferred.
    assumed_limit_bytes: Option<u64>,
}

/// A device without the moments asked for, and why.
struct LeftOut {
    number: u32,
    reason: String,
}

/// The statistics to show.
pub(crate) struct Shown {
    recording: Recording,
    made_by: Recognition,
    /// The recorded run's settings and limit.
    own: VerifyOptions,
    settings: String,
    devices: Vec<Device>,
    left_out: Vec<LeftOut>,
}

impl Shown {
    fn mismatches(&self) -> u64 {
        self.devices.iter().map(|device| device.mismatches).sum()
    }

    /// What to know about the figures, a line each.
    fn remarks(&self, args: &Args) -> Vec<String> {
        let left_out = self.left_out.iter().map(|device| format!("left out: {}", device.reason));
        self.devices.iter().flat_map(|device| remarks(args, device)).chain(left_out).collect()
    }
}

fn remarks(args: &Args, device: &Device) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(bytes) = device.assumed_limit_bytes {
        remarks.push(format!(
            "device {}: {}",
            device.number,
            recording::assumed_limit(bytes, if args.settings.is_some() { "--recorded-limit" } else { "--limit" })
        ));
    }
    if device.mismatches > 0 {
        let consequence = if args.settings.is_some() {
            "the requests are less certain (--recorded-limit sets the limit of the recorded run)"
        } else {
            "the figures may not be the recorded run's (--limit sets its memory limit)"
        };
        remarks.push(format!(
            "careful, device {}: {} in the replay: {consequence}",
            device.number,
            recording::differing(device.mismatches, device.decisions)
        ));
    }
    remarks
}

/// The state at one moment.
struct Moment {
    step: Option<usize>,
    sample: Sample,
}

/// The run whose statistics are shown.
enum Run {
    Recorded(Box<VerifyOptions>),
    Replayed(Box<ReplayOptions>),
}

impl Command for Args {
    type Answer = Shown;

    fn compute(&self) -> Result<Shown> {
        read(self)
    }

    fn outcome(&self, shown: &Shown) -> Outcome {
        // Under other settings the figures are the replay's in any case.
        let differs = self.settings.is_none() && shown.mismatches() > 0;
        if differs { Outcome::CheckFailed } else { Outcome::Good }
    }

    fn form(&self) -> Form {
        if self.csv { Form::Data } else { self.json.form() }
    }

    fn subject(&self) -> Subject<'_> {
        Subject::File(&self.file)
    }

    fn text(&self, shown: &Shown, out: &mut dyn Write) -> Result<()> {
        if self.csv { table::csv(out, self, &shown.devices) } else { Ok(table::print(out, self, shown)?) }
    }

    fn json(&self, shown: &Shown, lines: &mut Lines) -> Result<()> {
        lines.add(&json::Object::of(self, shown))
    }

    fn remarks(&self, shown: &Shown) -> Vec<String> {
        // CSV has no place for them.
        if self.csv { shown.remarks(self) } else { Vec::new() }
    }
}

impl OnEach for Args {
    type Kept = ();

    fn inputs(&self) -> &[PathBuf] {
        &self.files.files
    }

    fn on(&self, file: &Path, is_one_of_several: bool) -> Args {
        Args { file: file.to_owned(), is_one_of_several, ..self.clone() }
    }

    fn keep(&self, _: &Shown) {}

    /// The recorded runs; under other settings only moments are known, not the whole run.
    fn rank_runs(&self, shown: &Shown) -> Result<Vec<RankRun>> {
        if self.settings.is_some() {
            return Ok(Vec::new());
        }
        let chosen = recording::chosen(&shown.recording.devices, self.device)?;
        chosen.into_iter().map(|device| Ok(RankRun::of_recording(device, &shown.own)?.made_by(&shown.made_by))).collect()
    }
}

fn read(args: &Args) -> Result<Shown> {
    // Before the file is read, so that mistyped settings fail at once.
    let named = args.profile.map(Profile::rules);
    let given = |rules| args.settings.as_deref().map(|text| ReplaySettings::given_as(rules, text)).transpose();
    given(named.unwrap_or_else(release::newest))?;
    let recording = recording::read(&args.file)?;
    let limit_bytes = if args.settings.is_some() { args.recorded_limit } else { args.limit };
    let made_by = release::of(&recording, &Asked { profile: named, limit_bytes, ..Asked::default() })?;
    let own = VerifyOptions { settings: made_by.settings.clone(), limit_bytes, stats_file: None };
    let given_profile = own.settings.profile;
    let given = given(given_profile)?;
    let (run, settings) = match given {
        None => {
            let text = own.settings.settings.text.clone();
            (Run::Recorded(Box::new(own.clone())), text)
        }
        Some(given) => {
            let fraction = given.settings.per_process_memory_fraction;
            let limit_bytes = args::limit(args.limit, args.capacity, fraction, given_profile)?;
            let (profile, settings, capacity_bytes) = (given_profile, given.settings, args.capacity);
            let text = settings.text.clone();
            (Run::Replayed(Box::new(ReplayOptions { own: own.clone(), profile, settings, limit_bytes, capacity_bytes })), text)
        }
    };
    let devices = recording::chosen(&recording.devices, args.device)?;
    if devices.is_empty() {
        bail!("the file has neither segments nor trace entries");
    }
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for device in devices {
        match lacks(args, device) {
            Some(reason) => left_out.push(LeftOut { number: device.device, reason }),
            None => found.push(sample(args, &run, &recording, device)?),
        }
    }
    if found.is_empty() {
        let reasons: Vec<_> = left_out.into_iter().map(|device| device.reason).collect();
        bail!("{}", reasons.join("; "));
    }
    Ok(Shown { recording, made_by, own, settings, devices: found, left_out })
}

/// Why the device does not have the moments asked for.
fn lacks(args: &Args, device: &DeviceRecording) -> Option<String> {
    let (number, entries) = (device.device, device.trace.len());
    if entries == 0 && (args.entry.is_some() || args.is_series() || args.settings.is_some()) {
        return Some(format!(
            "device {number} has no trace entries, only its segments at the end: they are shown without options"
        ));
    }
    let entry = args.entry.filter(|&entry| entries > 0 && entry >= entries)?;
    Some(format!("there is no entry {entry}: the trace of device {number} has {entries}, counted from 0"))
}

/// Samples a device that has the moments asked for.
fn sample(args: &Args, run: &Run, recording: &Recording, device: &DeviceRecording) -> Result<Device> {
    let entries = device.trace.len();
    let mut found = Device {
        number: device.device,
        entries,
        mark: None,
        lost_steps: 0,
        moments: Vec::new(),
        end: None,
        mismatches: 0,
        decisions: 0,
        assumed_limit_bytes: None,
    };
    if entries == 0 {
        found.end = Some(Fragmentation::of_recorded(&device.segments));
        return Ok(found);
    }
    let (at, numbers) = match (args.entry, args.every, &args.steps) {
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
    let sampled = match run {
        Run::Recorded(own) => sample_recorded_run(device, own, &at),
        Run::Replayed(options) => sample_replayed_run(device, options, &at),
    };
    let sampled = recording::of_device(sampled, device.device, usize::MAX)?;
    (found.mismatches, found.decisions) = (sampled.mismatches, sampled.decisions);
    found.assumed_limit_bytes = sampled.assumed_limit_bytes;
    let step = |place: usize| numbers.as_ref().and_then(|numbers| numbers.get(place).copied());
    found.moments = sampled.samples.into_iter().enumerate().map(|(place, sample)| Moment { step: step(place), sample }).collect();
    Ok(found)
}

/// Every so many entries, and the last one.
fn regularly(entries: usize, every: u64) -> Vec<usize> {
    let every = usize::try_from(every).unwrap_or(usize::MAX);
    let mut at: Vec<usize> = (1..).map_while(|count: usize| count.checked_mul(every).filter(|&end| end < entries)).collect();
    at.push(entries);
    at.into_iter().map(|end| end - 1).collect()
}
