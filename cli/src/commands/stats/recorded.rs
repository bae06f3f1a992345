//! The arguments of `stats`; the statistics of the recorded run, or of its replay under settings, as text, rows and JSON; and how any
//! run's states are shown.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;
use parkade_analysis::annotations::steps;
use parkade_analysis::fragmentation::{Fragmentation, ReplayOptions, Sample, sample_recorded_run, sample_replayed_run};
use parkade_recording::{Action, DeviceRecording, Recording, memory_summary};
use parkade_replay::VerifyOptions;
use parkade_replay::recognition::{Asked, Recognition};

use crate::commands::simulated::{PackingSteps, UnderPolicy};
use crate::terminal::answer::Answer;
use crate::terminal::args::{self, Files, Print, Profile};
use crate::terminal::json_struct::{all, view};
use crate::terminal::output::{self, Tone};
use crate::terminal::recording::{self, MadeBy};
use crate::terminal::size::{self, show_bytes};
use crate::terminal::table::Table;

/// Show memory_stats() at any entry, from a snapshot or a folder.
///
/// The recorded run is replayed under its own settings, so its statistics are known after every entry; with --settings the same requests
/// under others. Counting starts at the first entry, as if the counters had been reset there.
///
/// With --policy the run is simulated: the policy serves the requests of the recording, of a request trace or of a workload. The
/// answer then also says where the policy first needs more memory than the best packing found offline, and which live blocks are in
/// the way there.
#[derive(Parser, Clone)]
#[command(mut_arg("files", |files| files.required(false).required_unless_present("workload")))]
#[command(group(clap::ArgGroup::new("other_run").multiple(true)))]
#[command(after_help = "Examples:
  parkade stats snapshot.pickle
  parkade stats snapshot.pickle --entry 5000 --keys
  parkade stats snapshot.pickle --steps
  parkade stats snapshot.pickle --every 1000 --settings expandable_segments:True --csv
  parkade stats snapshots/
  parkade stats snapshot.pickle --policy bfc
  parkade stats -w gpt2 --policy pytorch --every 1000 --csv
  parkade stats snapshot.pickle --lifetimes
  parkade stats -w gpt2 --lifetimes

Exit code: 0 shown, 1 shown, but decisions differ from those of the recorded run, so the figures may be wrong (--limit sets \
the memory limit that the run had), 2 could not run. For several recordings, the worst code: 2, then 1.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) files: Files,
    /// The recording to show.
    #[arg(skip)]
    pub(super) file: PathBuf,
    /// Whether rows must name the recording, because there are several.
    #[arg(skip)]
    pub(super) is_one_of_several: bool,
    /// The state after this entry of the trace, counted from 0 [default: the last].
    #[arg(long, value_name = "NUMBER", group = "when")]
    pub(super) entry: Option<usize>,
    /// Show the state after each group of this many entries, and at the end.
    #[arg(long, value_name = "ENTRIES", group = "when", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) every: Option<u64>,
    /// The state after each step of the program: at the end of each annotation whose name begins with PREFIX. Without
    /// PREFIX, the profiler's or the optimizer's steps.
    #[arg(long, value_name = "PREFIX", group = "when", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "not given, given, given with a prefix")]
    pub(super) steps: Option<Option<String>>,
    /// Replay under these settings, as in PYTORCH_CUDA_ALLOC_CONF; '' means the default settings. Without this option, the run as recorded.
    #[arg(long, value_name = "SETTINGS", group = "other_run")]
    pub(super) settings: Option<String>,
    #[command(flatten)]
    pub(super) under: UnderPolicy,
    #[command(flatten)]
    pub(super) packing: PackingSteps,
    /// Show how long the program's buffers live: sizes, lifetimes, and whether they are requested before, in or after its steps.
    #[arg(long, conflicts_with_all = ["policy", "settings", "entry", "every", "steps", "keys"])]
    pub(super) lifetimes: bool,
    /// The device memory available to the allocator; with --settings or --policy.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true, requires = "other_run")]
    pub(super) capacity: Option<u64>,
    /// The memory limit (set_per_process_memory_fraction): with --settings or --policy the one to run under, without them that of
    /// the recorded run.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    pub(super) limit: Option<u64>,
    /// With --settings or --policy: the memory limit of the recorded run, which the recording does not contain.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true, requires = "other_run")]
    pub(super) recorded_limit: Option<u64>,
    /// The PyTorch release whose allocator decides [default: the one that made the recording].
    #[arg(long, value_name = "RELEASE")]
    pub(super) profile: Option<Profile>,
    /// Only this device [default: all].
    #[arg(long, value_name = "NUMBER")]
    pub(super) device: Option<u32>,
    /// Show all 122 keys of memory_stats() instead of the summary.
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    pub(super) keys: bool,
    /// Print the rows as comma-separated values.
    #[arg(long, conflicts_with = "json")]
    pub(super) csv: bool,
    #[command(flatten)]
    pub(super) print: Print,
}

impl Args {
    /// Returns whether several states are requested.
    pub(super) fn is_series(&self) -> bool {
        self.every.is_some() || self.steps.is_some()
    }
}

/// The states of one device.
pub(super) struct Device {
    pub(super) number: u32,
    /// The number of entries in its trace.
    pub(super) entries: usize,
    /// What is counted: entries of a recording, or events of another program.
    pub(super) places: &'static str,
    /// The annotation that marks the steps.
    pub(super) mark: Option<String>,
    /// Steps that ended before the first entry of the trace.
    pub(super) lost_steps: usize,
    pub(super) moments: Vec<Moment>,
    /// The state at the peak, unless a different state was requested.
    pub(super) peak: Option<Sample>,
    /// The state at the end of a file without a trace.
    pub(super) end: Option<Fragmentation>,
    /// Recorded decisions that the replay does not reproduce, of all decisions.
    pub(super) mismatches: u64,
    pub(super) decisions: u64,
    /// The recorded run's limit, if it was inferred.
    pub(super) assumed_limit_bytes: Option<u64>,
}

impl Device {
    pub(super) fn new(number: u32, entries: usize, places: &'static str) -> Device {
        Device {
            number,
            entries,
            places,
            mark: None,
            lost_steps: 0,
            moments: Vec::new(),
            peak: None,
            end: None,
            mismatches: 0,
            decisions: 0,
            assumed_limit_bytes: None,
        }
    }
}

/// A device without the requested states, with the reason.
struct LeftOut {
    number: u32,
    reason: String,
}

/// The statistics to show.
pub(crate) struct Shown {
    pub(super) recording: Recording,
    pub(super) made_by: Recognition,
    /// The recorded run's settings and limit.
    pub(super) own: VerifyOptions,
    pub(super) settings: String,
    pub(super) devices: Vec<Device>,
    left_out: Vec<LeftOut>,
}

impl Shown {
    pub(super) fn mismatches(&self) -> u64 {
        self.devices.iter().map(|device| device.mismatches).sum()
    }

    /// Returns notes on the figures, one line each.
    pub(super) fn remarks(&self, args: &Args) -> Vec<String> {
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
            "warning, device {}: {} in the replay: {consequence}",
            device.number,
            recording::differing(device.mismatches, device.decisions)
        ));
    }
    remarks
}

/// The state after one entry.
pub(super) struct Moment {
    pub(super) step: Option<usize>,
    pub(super) sample: Sample,
}

/// The run whose statistics are shown.
enum Run {
    Recorded(Box<VerifyOptions>),
    Replayed(Box<ReplayOptions>),
}

pub(super) fn read(args: &Args) -> Result<Shown> {
    // Before the file is read, so that mistyped settings fail at once.
    let named = args.profile.map(Profile::rules);
    let given = |rules| args.settings.as_deref().map(|text| args::given_settings(rules, text)).transpose();
    given(named.unwrap_or_else(recording::newest_release))?;
    // Settings replace the allocator in any case.
    let read = if args.settings.is_some() { recording::read } else { recording::read_run };
    let recording = read(&args.file)?;
    let limit_bytes = if args.settings.is_some() { args.recorded_limit } else { args.limit };
    let made_by = recording::made_by(&recording, &Asked { profile: named, limit_bytes, ..Asked::default() })?;
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

/// Says why the device does not have the requested states.
fn lacks(args: &Args, device: &DeviceRecording) -> Option<String> {
    let (number, entries) = (device.device, device.trace.len());
    if entries == 0 && (args.entry.is_some() || args.is_series() || args.settings.is_some()) {
        return Some(format!(
            "device {number} has no trace entries, only its segments at the end: run parkade stats without options to see them"
        ));
    }
    let entry = args.entry.filter(|&entry| entries > 0 && entry >= entries)?;
    Some(format!("there is no entry {entry}: the trace of device {number} has {entries}, counted from 0"))
}

/// Samples a device that has the requested states.
fn sample(args: &Args, run: &Run, recording: &Recording, device: &DeviceRecording) -> Result<Device> {
    let entries = device.trace.len();
    let mut found = Device::new(device.device, entries, "entry");
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
        // The state at the end says little about a program that has ended.
        _ if device.left_out.is_none() && fullest(device) < entries - 1 => (vec![fullest(device), entries - 1], None),
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
    let (samples, peak) = with_peaks(sampled.samples, args.is_series());
    found.peak = peak;
    found.moments = samples.into_iter().enumerate().map(|(place, sample)| Moment { step: step(place), sample }).collect();
    Ok(found)
}

/// Separates the sample at the peak from the one that was requested.
pub(super) fn with_peaks(mut samples: Vec<Sample>, is_series: bool) -> (Vec<Sample>, Option<Sample>) {
    if is_series || samples.len() < 2 {
        return (samples, None);
    }
    let peak = samples.remove(0);
    // The peaks of the requested state are those of the entire run.
    let last = &mut samples[0];
    last.peak_allocated_bytes = last.peak_allocated_bytes.max(peak.peak_allocated_bytes);
    last.peak_reserved_bytes = last.peak_reserved_bytes.max(peak.peak_reserved_bytes);
    (samples, Some(peak))
}

/// Returns the entry at the peak of reserved memory of the recorded run; of several, the one with the most allocated memory.
fn fullest(device: &DeviceRecording) -> usize {
    let (mut reserved, mut allocated, mut most, mut at) = (0_i128, 0_i128, None, 0);
    for (place, entry) in device.trace.iter().enumerate() {
        let bytes = i128::from(entry.size);
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => reserved += bytes,
            Action::SegmentFree | Action::SegmentUnmap => reserved -= bytes,
            Action::Alloc => allocated += bytes,
            Action::FreeRequested => allocated -= bytes,
            Action::FreeCompleted | Action::Oom | Action::Snapshot => {}
        }
        if most.is_none_or(|most| (reserved, allocated) > most) {
            (most, at) = (Some((reserved, allocated)), place);
        }
    }
    at
}

/// Every so many entries, and the last one.
pub(super) fn regularly(entries: usize, every: u64) -> Vec<usize> {
    let every = usize::try_from(every).unwrap_or(usize::MAX);
    let mut at: Vec<usize> = (1..).map_while(|count: usize| count.checked_mul(every).filter(|&end| end < entries)).collect();
    at.push(entries);
    at.into_iter().map(|end| end - 1).collect()
}

/// The documents call fragmentation above this a risk.
const RISK: f64 = 0.3;

pub(super) fn answer(args: &Args, shown: &Shown) -> Answer {
    let mut answer = Answer::new();
    for (place, device) in shown.devices.iter().enumerate() {
        if place > 0 {
            answer.gap();
        }
        if let Some(end) = &device.end {
            let (number, held) = (device.number, held(end));
            answer.headline(Tone::Plain, format!("Device {number} at the end, because the file has no trace: {held}"));
            answer.table(measures(end));
        } else if args.is_series() {
            series(&mut answer, device);
        } else if let Some(Moment { sample, .. }) = device.moments.first() {
            single(&mut answer, args, device, sample);
        }
    }
    answer.paragraph(recording::made_by_words(&shown.made_by));
    answer.paragraphs(shown.remarks(args));
    answer
}

pub(super) fn single(answer: &mut Answer, args: &Args, device: &Device, sample: &Sample) {
    if args.keys {
        return answer
            .drawing(sample.stats.entries().into_iter().map(|(key, value)| format!("{key} {value}\n")).collect::<String>());
    }
    let (number, entries, places) = (device.number, device.entries, device.places);
    let Some(peak) = &device.peak else {
        let held = held(&sample.fragmentation);
        answer.headline(Tone::Plain, format!("Device {number} after {places} {} of {entries}: {held}", sample.entry));
        answer.table(measures(&sample.fragmentation));
        return answer.drawing(memory_summary(number, &sample.stats, false));
    };
    let held_at_peak = held(&peak.fragmentation);
    answer.headline(Tone::Plain, format!("Device {number} at its peak, {places} {} of {entries}: {held_at_peak}", peak.entry));
    answer.table(measures(&peak.fragmentation));
    answer.paragraph(format!("at the end: {}", held(&sample.fragmentation)));
    if args.files.all {
        answer.drawing(memory_summary(number, &sample.stats, false));
    }
}

fn held(of: &Fragmentation) -> String {
    format!("{} reserved, {} allocated", show_bytes(of.reserved_bytes), show_bytes(of.allocated_bytes))
}

fn measures(measures: &Fragmentation) -> Table {
    let size = show_bytes;
    let fragmentation = measures.ratio().map_or("-".to_owned(), |share| {
        // Wholly free segments are released when memory runs short, so what they hold is not fragmented.
        let is_risk = measures.partial_segments_bytes as f64 > RISK * measures.reserved_bytes as f64;
        format!("{}{}", percent(share), if is_risk { ", a risk by the 30 % rule" } else { "" })
    });
    let rows = [
        ("fragmentation", format!("{fragmentation} (1 - allocated / reserved)")),
        ("largest hole", size(measures.largest_hole_bytes)),
        ("partial segments", format!("{} free in segments that are partly in use", size(measures.partial_segments_bytes))),
        ("free segments", format!("{} in wholly free segments", size(measures.free_segments_bytes))),
        ("pending", format!("{} freed, but still in use by other streams", size(measures.pending_bytes))),
        ("rounding", format!("{} beyond what was requested", size(measures.rounding_bytes()))),
        ("holes", measures.holes.to_string()),
    ];
    let mut table = Table::bare(2).with_left([0, 1]);
    for (name, value) in rows {
        table.row([name.to_owned(), value]);
    }
    table
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

const HEADS: [&str; 11] = [
    "step",
    "entry",
    "allocated",
    "reserved",
    "peak allocated",
    "peak reserved",
    "fragmentation",
    "largest hole",
    "partial segments",
    "pending",
    "oom",
];

pub(super) fn series(answer: &mut Answer, device: &Device) {
    let most = |peak: fn(&Sample) -> i64| {
        let peaks = device.moments.iter().map(|moment| peak(&moment.sample));
        size::show(peaks.max().unwrap_or(0))
    };
    let (reserved, allocated) = (most(|sample| sample.peak_reserved_bytes), most(|sample| sample.peak_allocated_bytes));
    let number = device.number;
    answer
        .headline(Tone::Plain, format!("Device {number}: reserved memory peaks at {reserved}, allocated memory at {allocated}"));
    if let Some(mark) = &device.mark {
        let lost = match device.lost_steps {
            0 => String::new(),
            lost => format!("; {} ended before the first entry", output::count(lost, "step")),
        };
        answer.title(format!("steps end with {}{lost}", output::shorten(mark, 80)));
    }
    // Without steps the first column is left out.
    let first = usize::from(device.mark.is_none());
    let mut table = Table::plain(0, HEADS.map(|head| if head == "entry" { device.places } else { head }).into_iter().skip(first))
        .with_left([]);
    for moment in &device.moments {
        table.row(cells(moment).into_iter().skip(first));
    }
    answer.table(table);
    let each = format!("after each {}", device.places);
    let at = if device.mark.is_some() { "at the end of each step" } else { &each };
    answer.toned(Tone::Dim, format!("fragmentation is 1 - allocated / reserved {at}; parkade diff --all shows it at the peaks"));
}

fn cells(moment: &Moment) -> [String; HEADS.len()] {
    let (sample, measures) = (&moment.sample, &moment.sample.fragmentation);
    [
        moment.step.map_or_else(String::new, |step| step.to_string()),
        sample.entry.to_string(),
        show_bytes(measures.allocated_bytes),
        show_bytes(measures.reserved_bytes),
        size::show(sample.peak_allocated_bytes),
        size::show(sample.peak_reserved_bytes),
        measures.ratio().map_or_else(|| "-".to_owned(), percent),
        show_bytes(measures.largest_hole_bytes),
        show_bytes(measures.partial_segments_bytes),
        show_bytes(measures.pending_bytes),
        sample.stats.num_ooms.to_string(),
    ]
}

/// The columns before all keys of memory_stats().
const COLUMNS: [&str; 12] = [
    "device",
    "step",
    "entry",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "fragmentation",
    "largest_hole_bytes",
    "stranded_bytes",
    "free_segments_bytes",
    "pending_bytes",
    "rounding_bytes",
    "holes",
];

/// All numbers of the rows, exact: the file if there are several, the measures, then all keys of memory_stats().
pub(super) fn csv(out: &mut dyn Write, args: &Args, devices: &[Device]) -> Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    let moments = devices.iter().flat_map(|device| device.moments.iter().map(move |moment| (device, moment)));
    for (place, (device, Moment { step, sample })) in moments.enumerate() {
        let (measures, (keys, values)): (_, (Vec<_>, Vec<_>)) =
            (&sample.fragmentation, sample.stats.entries().into_iter().unzip());
        if place == 0 {
            let columns = COLUMNS.map(str::to_owned).into_iter().chain(keys);
            writer.write_record(args.is_one_of_several.then(|| "file".to_owned()).into_iter().chain(columns))?;
        }
        let own: [String; COLUMNS.len()] = [
            device.number.to_string(),
            step.map_or_else(String::new, |step| step.to_string()),
            sample.entry.to_string(),
            sample.peak_allocated_bytes.to_string(),
            sample.peak_reserved_bytes.to_string(),
            measures.ratio().map_or_else(String::new, |share| share.to_string()),
            measures.largest_hole_bytes.to_string(),
            measures.partial_segments_bytes.to_string(),
            measures.free_segments_bytes.to_string(),
            measures.pending_bytes.to_string(),
            measures.rounding_bytes().to_string(),
            measures.holes.to_string(),
        ];
        let file = args.is_one_of_several.then(|| args.file.display().to_string());
        writer.write_record(file.into_iter().chain(own).chain(values.iter().map(i64::to_string)))?;
    }
    Ok(writer.flush()?)
}

view! {
    pub(super) struct Object<'a>(args: &Args, shown: &'a Shown) {
        /// The recording.
        file: String = args.file.display().to_string(),
        /// The settings it was replayed under.
        settings: &'a str = &shown.settings,
        /// The release that made the recording.
        made_by: MadeBy = MadeBy::of(&shown.made_by),
        /// Whether `--settings` gave them.
        replayed: bool = args.settings.is_some(),
        /// `--limit`.
        limit_bytes: Option<u64> = args.limit,
        /// The number of recorded decisions that differ, over all devices.
        mismatches: u64 = shown.mismatches(),
        /// Each device.
        devices: Vec<OfDevice<'a>> = all(&shown.devices, OfDevice::of),
        /// Devices that have none of the requested states.
        left_out: Vec<Missing<'a>> = all(&shown.left_out, Missing::of),
    }
}

view! {
    struct Missing<'a>(device: &'a LeftOut) {
        /// The device.
        device: u32 = device.number,
        /// Why.
        reason: &'a str = &device.reason,
    }
}

view! {
    pub(super) struct OfDevice<'a>(device: &'a Device) {
        /// The device.
        device: u32 = device.number,
        /// The number of entries in its trace.
        entries: usize = device.entries,
        /// With `--steps`: the annotation that ends a step.
        steps_marked_by: Option<&'a str> = device.mark.as_deref(),
        /// The number of steps that ended before the first entry.
        lost_steps: usize = device.lost_steps,
        /// The number of recorded decisions that differ.
        mismatches: u64 = device.mismatches,
        /// The number of decisions compared.
        decisions: u64 = device.decisions,
        /// A limit that was found by trying.
        assumed_limit_bytes: Option<u64> = device.assumed_limit_bytes,
        /// The moments asked for.
        moments: Vec<At> = all(&device.moments, At::of),
        /// The end of a device without a trace.
        end_without_trace: Option<Figures> = device.end.as_ref().map(Figures::of),
    }
}

view! {
    struct At(moment: &Moment) {
        /// The moment is after this entry.
        entry: usize = moment.sample.entry,
        /// The step that ends there.
        step: Option<usize> = moment.step,
        /// The 122 keys of `torch.cuda.memory_stats()`.
        memory_stats: BTreeMap<String, i64> = moment.sample.stats.entries().into_iter().collect(),
        /// How fragmented the memory is.
        measures: Figures = Figures::of(&moment.sample.fragmentation),
        /// The peak of allocated memory since the moment before.
        peak_allocated_bytes_since_last: i64 = moment.sample.peak_allocated_bytes,
        /// The peak of reserved memory since the moment before.
        peak_reserved_bytes_since_last: i64 = moment.sample.peak_reserved_bytes,
    }
}

view! {
    struct Figures(measures: &Fragmentation) {
        /// Reserved.
        reserved_bytes: u64 = measures.reserved_bytes,
        /// Allocated.
        allocated_bytes: u64 = measures.allocated_bytes,
        /// Freed, but another stream may still be using it.
        pending_bytes: u64 = measures.pending_bytes,
        /// Allocated, as requested.
        requested_bytes: u64 = measures.requested_bytes,
        /// Allocated beyond what was requested.
        rounding_bytes: u64 = measures.rounding_bytes(),
        /// Free in the cache.
        free_bytes: u64 = measures.free_bytes,
        /// Free in segments that are wholly free.
        free_segments_bytes: u64 = measures.free_segments_bytes,
        /// Free in segments that are partly in use. `diagnose` calls all unallocated memory stranded.
        stranded_bytes: u64 = measures.partial_segments_bytes,
        /// The largest hole.
        largest_hole_bytes: u64 = measures.largest_hole_bytes,
        /// The number of holes.
        holes: u64 = measures.holes,
        /// 1 - allocated / reserved.
        fragmentation: Option<f64> = measures.ratio(),
    }
}
