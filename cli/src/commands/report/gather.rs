//! Defines the arguments of a report, and computes everything that it shows.
//!
//! Everything uses the same limit of the recorded run, which a recording does not contain: the given one, or the one that
//! `parkade advise` infers for each device. This applies to the statements about the run, the graphs, the settings that are
//! tried and the advice. Settings are tried on the requests in the file and, if the run died, on the estimated rest too, as in
//! `parkade advise`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Parser;
use parkade::profile::Profile as Rules;
use parkade::settings::Settings;
use parkade_analysis::StackNames;
use parkade_analysis::advise::{
    Advice as Found, AdviseOptions, CapacityHint, DeviceMemory, MemoryBudget, Outcome, Program, capacity_hint, fit_as_recorded,
};
use parkade_analysis::annotations::{Scope, scopes};
use parkade_analysis::ending::Ending;
use parkade_analysis::holders::Holders;
use parkade_analysis::ranks::RankRun;
use parkade_analysis::timeline::{
    Curve, Holder, Levels, Span, TimeSamples, Timeline, WhatIf, WhatIfRun, holders, in_use, what_if,
};
use parkade_recording::{Action, DeviceRecording, Recording, StackTable};
use parkade_replay::recognition::{Asked, Recognition, find_limit};
use parkade_replay::{
    DeviceVerdict, Prediction, ReplaySettings, Requests, SelfCheck, VerifyError, VerifyOptions, learned_addresses, verify_device,
};
use parkade_research::study;
use rayon::prelude::*;

use super::labels::Labels;
use crate::commands::advise;
use crate::commands::simulated::packing::AgainstPacking;
use crate::commands::simulated::program::Kind;
use crate::commands::simulated::{PackingSteps, UnderPolicy};
use crate::terminal::args::{self, Files, Force, Json, Profile};
use crate::terminal::outputs::{Outputs, Target, Wanted};
use crate::terminal::{progress, recording, size};

/// Draw a run as a page or a picture, from a snapshot or a folder.
///
/// With --output, one page that any browser opens, without network access. With --svg, a picture; with --flamegraph, a picture
/// of who holds the memory. With none of these options, text for the terminal.
///
/// For several recordings the page has a table, the one setting for all ranks that parkade advise recommends, and the ranks
/// side by side: the most informative ones in full, at most eight.
///
/// With --policy everything shows a simulation: the policy serves the requests of the recording, of a request trace or of a workload.
/// The report then also says where the policy first needs more memory than the best packing found offline, and which live blocks are
/// in the way there.
#[derive(Parser, Clone)]
#[cfg_attr(
    feature = "native",
    command(mut_arg("files", |files| files.required(false).required_unless_present("workload")))
)]
#[command(after_help = "Examples:
  parkade report snapshot.pickle -o report.html
  parkade report snapshot.pickle -o report.html --limit 16GiB --settings max_split_size_mb:256
  parkade report snapshot.pickle --svg timeline.svg
  parkade report snapshot.pickle --svg heap.svg --entry 8652
  parkade report snapshot.pickle --flamegraph peak.svg --folded peak.txt
  parkade report snapshot.pickle
  parkade report snapshots/ -o ranks.html
  parkade report snapshot.pickle --policy compaction -o compaction.html
  parkade report -w gpt2 --policy bfc -o bfc.html

Exit code: 0 shown, 2 could not run.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) files: Files,
    #[command(flatten)]
    pub(super) under: UnderPolicy,
    #[command(flatten)]
    pub(super) packing: PackingSteps,
    /// The recording to show.
    #[arg(skip)]
    pub(super) file: PathBuf,
    #[arg(skip)]
    pub(super) part: Part,
    /// Write a page here; `-` is standard output. An existing file is not overwritten without --force.
    #[arg(long, short, value_name = "FILE")]
    pub(super) output: Option<Target>,
    /// Write a picture here: the timeline, or with --entry the heap; `-` is standard output. Pictures and folded stacks show one
    /// recording. An existing file is not overwritten without --force.
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<Target>,
    /// Show the heap after this many entries in the picture.
    #[arg(long, value_name = "N", requires = "svg")]
    pub(super) entry: Option<usize>,
    /// Write a flamegraph here: the live memory at the peak, by stack. If the file has no stacks, the flamegraph groups blocks by
    /// kind and size. `-` is standard output. An existing file is not overwritten without --force.
    #[arg(long, value_name = "FILE")]
    pub(super) flamegraph: Option<Target>,
    /// Write the same as folded stacks here, one line for each: the calls separated by semicolons, a blank, the bytes. `-` is
    /// standard output. An existing file is not overwritten without --force.
    #[arg(long, value_name = "FILE")]
    pub(super) folded: Option<Target>,
    /// Only this device.
    #[arg(long, value_name = "N")]
    pub(super) device: Option<u32>,
    /// The memory limit of the recorded run (set_per_process_memory_fraction), which the recording does not contain [default: the
    /// limit that an out-of-memory error in the recording shows]. With --policy, the limit of the simulated run.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    pub(super) limit: Option<u64>,
    /// The memory in which other settings are tried [default: --limit, or what an out-of-memory error in the recording shows, or as
    /// much as is needed].
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    pub(super) capacity: Option<u64>,
    /// Also try these settings, as in PYTORCH_CUDA_ALLOC_CONF; may be repeated.
    #[arg(long, value_name = "SETTINGS")]
    pub(super) settings: Vec<String>,
    /// The PyTorch release whose rules apply under other settings [default: the one that made the recording].
    #[arg(long, value_name = "RELEASE")]
    pub(super) profile: Option<Profile>,
    /// If the log of all blocks would make the page larger than this, the page shows the heap only at selected points. The rest
    /// of a page takes about 140 KiB in any case.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes, default_value = "10MiB")]
    pub(super) page_size: u64,
    #[command(flatten)]
    pub(super) json: Json,
    #[command(flatten)]
    pub(super) force: Force,
}

/// What to compute for a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Part {
    /// Everything, for the only file.
    #[default]
    Whole,
    /// Everything, for one of several files.
    OneOfSeveral,
    /// Only the compared numbers; the page of all files has the rest.
    RunsOnly,
}

impl Args {
    /// The files to write, each with its kind of content.
    pub(super) fn targets(&self) -> Vec<(&'static str, &Target)> {
        let all =
            [(PAGE, &self.output), ("picture", &self.svg), ("flamegraph", &self.flamegraph), ("folded stacks", &self.folded)];
        all.into_iter().filter_map(|(what, target)| Some((what, target.as_ref()?))).collect()
    }

    /// Claims the files for writing, if they may be written.
    pub(super) fn outputs<P: AsRef<Path>>(&self, recordings: &[P]) -> Result<Outputs> {
        if let Some(file) = self.output.as_ref().and_then(Target::file) {
            let ending = file.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            let instead = match ending.as_str() {
                "svg" => "--svg FILE writes a picture",
                "json" => "--json prints the figures",
                "pdf" | "png" | "jpg" | "jpeg" => "--svg FILE writes a picture, and a browser prints a page as PDF",
                _ => "",
            };
            ensure!(instead.is_empty(), "--output writes an HTML page, not a .{ending} file: {instead}");
        }
        let wanted = Wanted::new(self.force.force, self.json.form())
            .reads(recordings)
            .writes("--output", self.output.as_ref())
            .writes("--svg", self.svg.as_ref())
            .writes("--flamegraph", self.flamegraph.as_ref());
        wanted.writes("--folded", self.folded.as_ref()).check()
    }
}

/// The only target that several recordings can have.
pub(super) const PAGE: &str = "page";

/// That a file was written; `None` of standard output.
pub(super) fn wrote(target: &Target) -> Option<String> {
    let bytes = fs::metadata(target.file()?).map_or(0, |data| data.len());
    Some(format!("wrote {target} ({})", size::show_bytes(bytes)))
}

/// Buckets of the curves that a page always has.
pub(super) const OVERVIEW_BUCKETS: usize = 4096;
/// The maximum number of entry times in a page.
pub(super) const MOST_TIMES: usize = 65_536;
/// The maximum number of phases shown; more than there are pixels would be useless.
const MOST_PHASES: usize = 4000;

/// A report.
pub(crate) struct Report {
    pub(super) file: PathBuf,
    /// The run that is shown.
    pub(super) origin: Origin,
    /// The maximum size of a page.
    pub(super) page_bytes: u64,
    pub(super) stacks: StackTable,
    pub(super) names: StackNames,
    /// The names of all stacks of blocks.
    pub(super) labels: Labels,
    pub(super) devices: Vec<Device>,
    /// The numbers for the comparison with other ranks, if the file is one of several.
    pub(super) runs: Vec<RankRun>,
    /// The findings of `advise`, if it ran. All devices share one process, so they share the settings.
    pub(super) found: Option<Found>,
}

/// The run that a report shows.
pub(super) enum Origin {
    /// The recorded run.
    Recorded {
        /// Its settings.
        settings: Box<ReplaySettings>,
        /// The release that made the recording.
        made_by: Recognition,
    },
    /// A simulation.
    Simulated {
        /// The policy that decided.
        policy: String,
        /// The program that ran.
        kind: Kind,
        /// The release that made the recording, if the program is from one.
        made_by: Option<Recognition>,
    },
}

impl Origin {
    /// The settings of the recorded run.
    pub(super) fn settings(&self) -> Option<&ReplaySettings> {
        match self {
            Origin::Recorded { settings, .. } => Some(settings),
            Origin::Simulated { .. } => None,
        }
    }

    /// The release that made the recording.
    pub(super) const fn made_by(&self) -> Option<&Recognition> {
        match self {
            Origin::Recorded { made_by, .. } => Some(made_by),
            Origin::Simulated { made_by, .. } => made_by.as_ref(),
        }
    }
}

/// The content of the report for one device.
pub(super) struct Device {
    pub(super) number: u32,
    pub(super) limit: Limit,
    /// How exact the replay is; `None` without a trace.
    pub(super) verdict: Option<DeviceVerdict>,
    /// Whether the trace covers more than the state at its end.
    pub(super) has_history: bool,
    /// What the trace leaves out, in words.
    pub(super) left_out: Option<String>,
    /// Whether a replay under the run's own settings needs as much as the run did.
    pub(super) self_check: Option<SelfCheck>,
    pub(super) timeline: Timeline,
    pub(super) curves: Curves,
    pub(super) times: Option<TimeSamples>,
    pub(super) phases: Vec<Scope>,
    /// Whether the run died of an out-of-memory error.
    pub(super) ending: Ending,
    /// The first moment with the most allocated bytes; a moment is a number of completed entries.
    pub(super) peak_allocated_moment: u32,
    /// Among the moments with the most reserved bytes, the first with the most allocated bytes; `diagnose` uses it too.
    pub(super) peak_reserved_moment: u32,
    /// The most reserved bytes according to the recording's own entries, whatever the replay did.
    pub(super) recorded_peak_bytes: u64,
    /// What held the memory at the peak of allocated bytes.
    pub(super) holders: Vec<Holder>,
    /// The classification of each block.
    pub(super) told: Holders,
    pub(super) tried: Vec<(Tried, Curve)>,
    /// The estimate of the rest, if the run died and its steps allow one.
    pub(super) rest: Option<Rest>,
    /// What a report shows about a run under a policy.
    pub(super) simulated: Option<Simulated>,
}

/// What a report shows about a device's run under a policy.
pub(super) struct Simulated {
    pub(super) policy: String,
    pub(super) outcome: study::Outcome,
    /// The place of the request that was refused.
    pub(super) fails_at: Option<usize>,
    pub(super) against: Option<AgainstPacking>,
    /// The words on it.
    pub(super) words: Vec<String>,
    pub(super) notes: Vec<String>,
}

/// The three levels.
pub(super) struct Curves {
    pub(super) allocated: Curve,
    pub(super) active: Curve,
    pub(super) reserved: Curve,
}

/// Curves with this many buckets.
pub(super) fn curves(levels: &Levels, buckets: usize) -> Curves {
    Curves {
        allocated: Curve::of(&levels.allocated, buckets),
        active: Curve::of(&levels.active, buckets),
        reserved: Curve::of(&levels.reserved, buckets),
    }
}

pub(super) fn gather(args: &Args) -> Result<Report> {
    // Parsed before the file is read, so that mistyped settings fail immediately.
    let named = args.profile.map(Profile::rules);
    given_settings(args, named.unwrap_or_else(recording::newest_release))?;
    let mut recording = recording::read_run(&args.file)?;
    recording::remove_lone_entries(&mut recording);
    let found = recording::made_by(&recording, &Asked { limit_bytes: args.limit, ..Asked::default() })?;
    let made_by = Recognition { decides_as: named, ..found };
    let settings = made_by.settings.clone();
    let profile = named.unwrap_or(settings.profile);
    let given = given_settings(args, profile)?;
    let chosen = chosen_devices(&recording, args.device)?;
    let own = VerifyOptions { settings: settings.clone(), limit_bytes: args.limit, stats_file: None };
    let limits = Limit::of_each(args, &chosen, &own)?;
    let seen = recording.devices.len();
    let any_failed = chosen.iter().any(|device| Ending::of(device) != Ending::NoError);
    // Only a page gives advice, because the search takes longer than everything else. Whether a run that failed would fit is
    // judged in any case: it may have died, and the limit is known only roughly.
    let found = match args.output {
        Some(_) => search_advice((&chosen, seen), &own, profile, (given.clone(), true), args)?,
        None if any_failed => {
            let tried = settings_to_try(profile, &settings, None, given.clone())?;
            let tried = tried.into_iter().map(|attempt| attempt.settings).collect();
            search_advice((&chosen, seen), &own, profile, (tried, false), args)?
        }
        None => None,
    };
    let best = found.as_ref().filter(|_| args.output.is_some()).and_then(Found::recommended);
    let tried = settings_to_try(profile, &settings, best.map(|option| option.settings.clone()), given)?;
    // Settings that the search left out are judged in the same way.
    let is_left_out = |attempt: &&Attempt| found.as_ref().is_some_and(|found| place_among(found, &attempt.settings).is_none());
    let left_out: Vec<_> = tried.iter().filter(is_left_out).map(|attempt| attempt.settings.clone()).collect();
    let also = if any_failed && !left_out.is_empty() {
        search_advice((&chosen, seen), &own, profile, (left_out, false), args)?
    } else {
        None
    };
    let judged: Vec<&Found> = found.iter().chain(&also).collect();
    let bar = progress::entries(args.json.json);
    bar.set_length(recording::entries(&chosen));
    let mut devices = Vec::new();
    for (device, &limit) in chosen.iter().zip(&limits) {
        let own = VerifyOptions { limit_bytes: limit.run_bytes, ..own.clone() };
        let (limit_bytes, capacity_bytes) = (limit.tried_bytes, args.capacity);
        let what = Tries { settings: &tried, judged: &judged, profile, own: &own, limit_bytes, capacity_bytes };
        let gathered = gather_device(device, &recording, limit, &what);
        devices.push(recording::of_device(gathered, device.device, chosen.len())?);
        bar.inc(device.trace.len() as u64);
    }
    bar.finish_and_clear();
    let run = |(device, gathered): (&&DeviceRecording, &Device)| match &gathered.verdict {
        Some(verdict) => Ok(RankRun::of_verdict(device, &own.settings, verdict)),
        None => RankRun::of_recording(device, &VerifyOptions { limit_bytes: gathered.limit.run_bytes, ..own.clone() }),
    };
    let run = |each| run(each).map(|run| run.made_by(&made_by));
    let is_compared = args.part != Part::Whole;
    let runs = chosen.iter().zip(&devices).filter(|_| is_compared).map(run).collect::<Result<_, _>>()?;
    let used = devices.iter().flat_map(|device| device.timeline.log.blocks.iter().map(|block| block.stack));
    let names = StackNames::of(&recording.stacks);
    let labels = Labels::of((&names, &recording.stacks), used);
    Ok(Report {
        file: args.file.clone(),
        origin: Origin::Recorded { settings: Box::new(settings), made_by },
        page_bytes: args.page_size,
        stacks: recording.stacks,
        names,
        labels,
        devices,
        runs,
        found,
    })
}

pub(super) fn chosen_devices(recording: &Recording, device: Option<u32>) -> Result<Vec<&DeviceRecording>> {
    let has_something = |of: &&DeviceRecording| !of.trace.is_empty() || !of.segments.is_empty();
    let devices = recording::chosen(recording::telling(&recording.devices).into_iter().filter(has_something), device)?;
    if devices.is_empty() {
        bail!("the file has no trace entries and no segments: {}", recording::RECORD_IT);
    }
    Ok(devices)
}

fn gather_device(device: &DeviceRecording, recording: &Recording, limit: Limit, tries: &Tries<'_>) -> Result<Device> {
    let own = tries.own;
    let is_traced = !device.trace.is_empty();
    let verify = || is_traced.then(|| verify_device(device, own, &mut |_| ())).transpose();
    let replay = || {
        let requests = if is_traced { Requests::of_recording(device, own, &mut |_| ())? } else { Requests::default() };
        let timeline = Timeline::of_device(device, own, &requests)?;
        Ok::<_, anyhow::Error>((requests, timeline))
    };
    let (verdict, replayed) = rayon::join(verify, replay);
    let (verdict, (requests, timeline)) = (verdict?, replayed?);
    let (tried, self_check) = rayon::join(
        || if is_traced { tries.run(device, &requests) } else { Vec::new() },
        || if is_traced { SelfCheck::of(device, own, &requests) } else { None },
    );
    let peak_allocated_moment = Levels::peak_moment(&timeline.levels.allocated) as u32;
    Ok(Device {
        number: device.device,
        limit,
        verdict,
        has_history: recording::has_history(device),
        left_out: device.left_out.as_ref().map(recording::left_out_words),
        self_check,
        curves: curves(&timeline.levels, OVERVIEW_BUCKETS),
        times: TimeSamples::of(device, MOST_TIMES),
        phases: longest_phases(scopes(&recording.annotations, device)),
        ending: Ending::of(device),
        peak_allocated_moment,
        peak_reserved_moment: peak_reserved_moment(&timeline.levels) as u32,
        recorded_peak_bytes: recorded_peak_bytes(device),
        holders: holders(&timeline.log, peak_allocated_moment),
        told: Holders::of(&timeline.log, device, &recording.annotations, &recording.stacks),
        tried,
        rest: tries.rest(device.device),
        timeline,
        simulated: None,
    })
}

/// The longest phases, in order, if there are too many to show.
pub(super) fn longest_phases(mut phases: Vec<Scope>) -> Vec<Scope> {
    if phases.len() > MOST_PHASES {
        phases.sort_by_key(|phase| std::cmp::Reverse(phase.to - phase.from));
        phases.truncate(MOST_PHASES);
        phases.sort_by_key(|phase| phase.from);
    }
    phases
}

/// The moment at which reserved memory is at its peak and most of it is in use; the last bytes of a peak are often one small
/// segment.
pub(super) fn peak_reserved_moment(levels: &Levels) -> usize {
    let peak = levels.reserved.iter().max();
    let allocated = levels.reserved.iter().zip(&levels.allocated);
    let in_use: Vec<u64> =
        allocated.map(|(reserved, &allocated)| if Some(reserved) == peak { allocated.saturating_add(1) } else { 0 }).collect();
    Levels::peak_moment(&in_use)
}

/// The peak of reserved bytes, walking back from the segments at the end through the entries.
fn recorded_peak_bytes(device: &DeviceRecording) -> u64 {
    let mut bytes: u64 = device.segments.iter().map(|segment| segment.total_bytes).sum();
    let mut peak = bytes;
    for entry in device.trace.iter().rev() {
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => bytes = bytes.saturating_sub(entry.size),
            Action::SegmentFree | Action::SegmentUnmap => bytes = bytes.saturating_add(entry.size),
            _ => {}
        }
        peak = peak.max(bytes);
    }
    peak
}

/// The limit of the recorded run on a device, and the memory in which settings are tried there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Limit {
    /// The limit under which the run is shown.
    pub(super) run_bytes: Option<u64>,
    /// The most that may be reserved under other settings; unlimited if `None`.
    pub(super) tried_bytes: Option<u64>,
    /// Why the limit is assumed, if it was not given.
    pub(super) assumed: Option<DeviceMemory>,
}

impl Limit {
    /// The limit of each device's run. `own` are the recorded run's settings.
    ///
    /// # Errors
    /// If a recording cannot be replayed.
    pub(super) fn of_each(args: &Args, devices: &[&DeviceRecording], own: &VerifyOptions) -> Result<Vec<Limit>> {
        if args.limit.is_some() || args.capacity.is_some() {
            let given = Limit { run_bytes: args.limit, tried_bytes: args.capacity.or(args.limit), assumed: None };
            return Ok(vec![given; devices.len()]);
        }
        let traced: Vec<&DeviceRecording> = devices.iter().copied().filter(|device| !device.trace.is_empty()).collect();
        let named = |device: &DeviceRecording, result| recording::of_device(result, device.device, devices.len());
        let found = traced.iter().map(|device| named(device, found_limit(device, own))).collect::<Result<Vec<_>>>()?;
        let memories = DeviceMemory::of(&traced, &own.settings, MemoryBudget::default(), &found);
        let limit = |device: &&DeviceRecording| {
            let place = traced.iter().position(|traced| traced.device == device.device);
            let Some((memory, found)) = place.map(|place| (memories[place], found[place])) else { return Ok(Limit::default()) };
            let Some(bytes) = memory.budget.limit_bytes else { return Ok(Limit::default()) };
            // A wrong limit would show a run that never happened.
            let shown = if found.is_some() { found } else { named(device, possible_limit(device, own, bytes))? };
            Ok(Limit { run_bytes: shown, tried_bytes: Some(bytes), assumed: Some(memory) })
        };
        devices.iter().map(limit).collect()
    }

    pub(super) const fn is_assumed(&self) -> bool {
        self.assumed.is_some()
    }

    /// What an error on the device shows about the limit, if the limit was not given.
    pub(super) fn hint(&self) -> Option<CapacityHint> {
        self.assumed?.shown
    }
}

/// The limit that garbage collection reveals, if an error bounds it.
fn found_limit(device: &DeviceRecording, own: &VerifyOptions) -> Result<Option<u64>, VerifyError> {
    if capacity_hint(device, &own.settings).is_some() { find_limit(device, own) } else { Ok(None) }
}

/// The limit, if the recorded run differs no more from its replay with the limit than without.
fn possible_limit(device: &DeviceRecording, own: &VerifyOptions, bytes: u64) -> Result<Option<u64>, VerifyError> {
    let differing =
        |limit_bytes| Ok(verify_device(device, &VerifyOptions { limit_bytes, ..own.clone() }, &mut |_| ())?.mismatches);
    let is_possible = differing(Some(bytes))? <= differing(None)?;
    Ok(is_possible.then_some(bytes))
}

/// Buckets of the curves of settings that were tried.
const TRIED_BUCKETS: usize = 1024;
/// The same if a part of the curve is estimated.
const BUCKETS_WITH_REST: usize = 2048;
/// Settings that are tried besides the recorded run's own.
const TRIED: [&str; 5] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:128,garbage_collection_threshold:0.7",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:4",
];

/// One setting that was tried.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    /// The settings as in `PYTORCH_CUDA_ALLOC_CONF`, or [`DEFAULT`].
    pub(super) label: String,
    /// Whether these are the recorded run's own.
    pub(super) is_own: bool,
    /// Whether the page recommends them.
    pub(super) is_recommended: bool,
    /// Whether the program fits: the requests in the file and, if the run died, the estimated rest.
    pub(super) outcome: Outcome,
    /// The outcome for the requests in the file.
    pub(super) in_file: Fared,
    /// The outcome for the requests up to the error of which the run died, followed by the estimated rest; with its reserved bytes
    /// over the entries of [`Rest::span`].
    pub(super) with_rest: Option<(Fared, Curve)>,
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub(super) struct Fared {
    /// The peak of reserved memory.
    pub(super) peak_reserved_bytes: i64,
    /// The entry whose request failed first; for a run with the rest, the moment before it.
    pub(super) fails_at_entry: Option<usize>,
    /// Retries after releasing all cached memory.
    pub(super) retries: i64,
    /// Driver calls.
    pub(super) driver_calls: u64,
    /// The time of the driver calls on the measured device, in nanoseconds.
    pub(super) driver_ns: u64,
}

/// The estimated rest of a run that died.
pub(super) struct Rest {
    /// The entries that curves with the rest cover.
    pub(super) span: Span,
    /// The entry at which the run died.
    pub(super) died_at: usize,
    /// The bytes in use.
    pub(super) in_use: Curve,
}

impl Tried {
    /// Whether the requests in the file fit in this many bytes; `None` if the memory is unknown.
    pub(super) fn fits(&self, limit_bytes: Option<u64>) -> Option<bool> {
        if self.in_file.fails_at_entry.is_some() { Some(false) } else { limit_bytes.map(|_| true) }
    }

    /// Whether the program fits although it reserves more than this many bytes.
    pub(super) fn reaches_beyond(&self, limit_bytes: Option<u64>) -> bool {
        let reserved = u64::try_from(self.run().peak_reserved_bytes).unwrap_or(0);
        self.outcome == Outcome::Fits && limit_bytes.is_some_and(|limit| reserved > limit)
    }

    /// The run that tables show, which `parkade advise` shows too.
    pub(super) fn run(&self) -> &Fared {
        self.with_rest.as_ref().map_or(&self.in_file, |(fared, _)| fared)
    }
}

impl Fared {
    fn of(prediction: &Prediction) -> Fared {
        Fared {
            peak_reserved_bytes: prediction.peak_reserved_bytes(),
            fails_at_entry: prediction.first_failure,
            retries: prediction.stats.num_alloc_retries,
            driver_calls: prediction.driver_calls,
            driver_ns: prediction.driver_ns,
        }
    }
}

/// The settings that the user asked for.
pub(super) fn given_settings(args: &Args, profile: &'static Rules) -> Result<Vec<Settings>> {
    let given = args.settings.iter().map(|text| Ok(args::given_settings(profile, text)?.settings));
    given.collect()
}

/// Settings to try.
struct Attempt {
    settings: Settings,
    is_own: bool,
    is_recommended: bool,
}

/// The settings to try, each once: the recorded run's own, the recommended ones, those that are always tried, those given.
fn settings_to_try(
    profile: &'static Rules,
    own: &ReplaySettings,
    recommended: Option<Settings>,
    given: Vec<Settings>,
) -> Result<Vec<Attempt>> {
    let always = TRIED.into_iter().map(|text| Ok(ReplaySettings::given_as(profile, text)?.settings));
    let always = always.collect::<Result<Vec<Settings>>>()?;
    let is_best = |settings: &Settings| recommended.as_ref().is_some_and(|best| is_same_setting(best, settings));
    let mut tried: Vec<Attempt> = Vec::new();
    for settings in [own.settings.clone()].into_iter().chain(recommended.clone()).chain(always).chain(given) {
        if !tried.iter().any(|other| is_same_setting(&other.settings, &settings)) {
            tried.push(Attempt { is_own: tried.is_empty(), is_recommended: is_best(&settings), settings });
        }
    }
    Ok(tried)
}

/// What to try on each device, and in how much memory.
struct Tries<'a> {
    settings: &'a [Attempt],
    /// The findings of `advise`: whether each option fits, and the estimated rest of runs that died.
    judged: &'a [&'a Found],
    profile: &'static Rules,
    /// How the run was recorded.
    own: &'a VerifyOptions,
    limit_bytes: Option<u64>,
    capacity_bytes: Option<u64>,
}

impl Tries<'_> {
    /// The program of a device that died, with the entry at which it died, if its rest is estimated.
    fn continued(&self, device: u32) -> Option<(&Program, usize, Span)> {
        let programs = self.judged.iter().take(1).flat_map(|found| &found.programs);
        let program = programs.filter(|program| program.device == device).find(|program| program.continuation.is_some())?;
        let died_at = program.ending.death()?.entry;
        let first = program.entries.max(died_at + 1);
        Some((program, died_at, Span::continued(&program.requests, died_at, first)))
    }

    /// The estimated rest of a device.
    fn rest(&self, device: u32) -> Option<Rest> {
        let (program, died_at, span) = self.continued(device)?;
        Some(Rest { span, died_at, in_use: in_use(&program.requests, span, BUCKETS_WITH_REST) })
    }

    /// All settings on a device, each with its reserved bytes over the entries of the file.
    fn run(&self, device: &DeviceRecording, requests: &Requests) -> Vec<(Tried, Curve)> {
        let &Tries { profile, limit_bytes, capacity_bytes, .. } = self;
        let learned = learned_addresses(device, requests);
        let span = Span::recorded(device.trace.len());
        let what = WhatIf { requests, learned: &learned, device: device.device, span, profile, limit_bytes, capacity_bytes };
        self.settings.par_iter().map(|attempt| self.run_one(device, &what, attempt)).collect()
    }

    fn run_one(&self, device: &DeviceRecording, what: &WhatIf<'_>, attempt: &Attempt) -> (Tried, Curve) {
        let WhatIf { requests, limit_bytes, .. } = *what;
        let WhatIfRun { reserved, mut prediction } = what_if(what, &attempt.settings, TRIED_BUCKETS);
        if let Some(bytes) = limit_bytes {
            fit_as_recorded(&mut prediction, device, self.own, (self.profile, &attempt.settings), bytes);
        }
        let with_rest = self.continued(device.device).map(|(program, _, span)| {
            // As in `advise`, only the limit decides.
            let available =
                self.judged.iter().find_map(|found| available_bytes(found, &attempt.settings, device.device)).or(limit_bytes);
            let what = WhatIf { requests: &program.requests, span, limit_bytes: available, capacity_bytes: None, ..what.clone() };
            let WhatIfRun { reserved, prediction } = what_if(&what, &attempt.settings, BUCKETS_WITH_REST);
            let fared = Fared::of(&prediction);
            // The moment before an entry equals the number of entries before it.
            let fails_at_entry = fared.fails_at_entry.map(|entry| span.moment(entry).saturating_sub(1));
            (Fared { fails_at_entry, ..fared }, reserved)
        });
        let hides_more = |limit| requests.lost_beginning.is_some_and(|lost| lost.reserved_bytes > limit);
        let plain = match limit_bytes {
            _ if prediction.first_failure.is_some() => Outcome::DoesNotFit,
            Some(limit) if !hides_more(limit) => Outcome::Fits,
            _ => Outcome::Unknown,
        };
        let tried = Tried {
            outcome: self.judged.iter().find_map(|found| outcome_with(found, &attempt.settings, device.device)).unwrap_or(plain),
            label: settings_name(&attempt.settings),
            is_own: attempt.is_own,
            is_recommended: attempt.is_recommended,
            in_file: Fared::of(&prediction),
            with_rest,
        };
        (tried, reserved)
    }
}

/// The name of empty settings.
pub(super) const DEFAULT: &str = "default";

/// The name of settings.
fn settings_name(settings: &Settings) -> String {
    if settings.text.is_empty() { DEFAULT.to_owned() } else { settings.text.clone() }
}

/// Whether settings have the same meaning, however they are written.
fn is_same_setting(one: &Settings, other: &Settings) -> bool {
    Settings { text: String::new(), ..one.clone() } == Settings { text: String::new(), ..other.clone() }
}

/// The findings of `parkade advise` for these devices, of the number that the process saw; `None` if none has a trace.
/// `is_full` means that it searches; if not, it judges only `given`.
///
/// # Errors
/// The same errors as for verifying the recording.
fn search_advice(
    (devices, devices_seen): (&[&DeviceRecording], usize),
    own: &VerifyOptions,
    profile: &'static Rules,
    (given, is_full): (Vec<Settings>, bool),
    args: &Args,
) -> Result<Option<Found>> {
    let traced: Vec<&DeviceRecording> = devices.iter().copied().filter(|device| !device.trace.is_empty()).collect();
    if traced.is_empty() {
        return Ok(None);
    }
    let memory = MemoryBudget { capacity_bytes: args.capacity.or(args.limit), limit_bytes: None };
    let options = AdviseOptions { own: own.clone(), profile, memory, given, only_given: !is_full, devices_seen };
    Ok(Some(advise::search(&traced, &options, args.json.json)?))
}

/// The index of settings among those that `advise` tried.
fn place_among(found: &Found, settings: &Settings) -> Option<usize> {
    found.options.iter().position(|option| is_same_setting(&option.settings, settings))
}

/// The bytes that could be reserved on a device under settings that `advise` tried.
fn available_bytes(found: &Found, settings: &Settings, device: u32) -> Option<u64> {
    let option = &found.options[place_among(found, settings)?];
    option.devices.iter().find(|outcome| outcome.device == device)?.available_bytes
}

/// Whether the program of a device fits with settings, as `advise` judges it.
fn outcome_with(found: &Found, settings: &Settings, device: u32) -> Option<Outcome> {
    found.outcome_on_device(place_among(found, settings)?, device)
}
