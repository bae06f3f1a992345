//! Everything that a report shows, computed.

use std::path::PathBuf;

use anyhow::{Result, bail};
use parkade_analysis::advise::Advice as Found;
use parkade_analysis::annotations::{Scope, scopes};
use parkade_analysis::ending::Ending;
use parkade_analysis::holders::Holders;
use parkade_analysis::ranks::RankRun;
use parkade_analysis::timeline::{Curve, Holder, Levels, TimeSamples, Timeline, holders};
use parkade_recording::{Action, DeviceRecording, Recording, StackTable};
use parkade_replay::recognition::{Asked, Recognition};
use parkade_replay::{DeviceVerdict, ReplaySettings, Requests, VerifyOptions, verify_device};

use super::labels::Labels;
use super::limit::Limit;
use super::tries::{Rest, Tried, Tries};
use super::{Args, Part, advice, tries};
use crate::terminal::args::Profile;
use crate::terminal::{progress, recording, release};

/// Buckets of the curves that a page always has.
const OVERVIEW_BUCKETS: usize = 4096;
/// The most times of entries that a page has.
const MOST_TIMES: usize = 65_536;
/// The most phases shown: more than there are pixels would be no use.
const MOST_PHASES: usize = 4000;
/// A report.
pub(crate) struct Report {
    pub(super) file: PathBuf,
    pub(super) settings: ReplaySettings,
    /// Which release made it.
    pub(super) made_by: Recognition,
    /// The most that a page may take.
    pub(super) page_bytes: u64,
    pub(super) stacks: StackTable,
    /// The names of all stacks that blocks have.
    pub(super) labels: Labels,
    pub(super) devices: Vec<Device>,
    /// What is compared with other ranks' runs, if the file is one of several.
    pub(super) runs: Vec<RankRun>,
    /// What `advise` finds, if it was asked. All devices share one process, so they share the settings.
    pub(super) found: Option<Found>,
}

/// What to show about one device.
pub(super) struct Device {
    pub(super) number: u32,
    pub(super) limit: Limit,
    /// How exact the replay is; `None` where there is no trace.
    pub(super) verdict: Option<DeviceVerdict>,
    pub(super) timeline: Timeline,
    pub(super) curves: Curves,
    pub(super) times: Option<TimeSamples>,
    pub(super) phases: Vec<Scope>,
    /// Whether the run died of an out-of-memory error.
    pub(super) ending: Ending,
    /// The first moment with the most allocated bytes; a moment is so many entries done.
    pub(super) peak_allocated_moment: u32,
    /// The first moment with the most allocated bytes of those with the most reserved bytes, at which `diagnose` looks too.
    pub(super) peak_reserved_moment: u32,
    /// The most reserved bytes by the recording's own entries, whatever the replay did.
    pub(super) recorded_peak_bytes: u64,
    /// What held the memory at the peak of allocated bytes.
    pub(super) holders: Vec<Holder>,
    /// What was told of each block.
    pub(super) told: Holders,
    pub(super) tried: Vec<(Tried, Curve)>,
    /// What is estimated of the rest, if it died and its steps tell.
    pub(super) rest: Option<Rest>,
}

/// The three levels.
pub(super) struct Curves {
    pub(super) allocated: Curve,
    pub(super) active: Curve,
    pub(super) reserved: Curve,
}

/// Curves of so many buckets.
pub(super) fn curves(levels: &Levels, buckets: usize) -> Curves {
    Curves {
        allocated: Curve::of(&levels.allocated, buckets),
        active: Curve::of(&levels.active, buckets),
        reserved: Curve::of(&levels.reserved, buckets),
    }
}

pub(super) fn gather(args: &Args) -> Result<Report> {
    // Before the file is read, so that mistyped settings fail at once.
    let named = args.profile.map(Profile::rules);
    tries::given_settings(args, named.unwrap_or_else(release::newest))?;
    let recording = recording::read(&args.file)?;
    let found = release::of(&recording, &Asked { limit_bytes: args.limit, ..Asked::default() })?;
    let made_by = Recognition { decides_as: named, ..found };
    let settings = made_by.settings.clone();
    let profile = named.unwrap_or(settings.profile);
    let given = tries::given_settings(args, profile)?;
    let chosen = chosen_devices(&recording, args.device)?;
    let own = VerifyOptions { settings: settings.clone(), limit_bytes: args.limit, stats_file: None };
    let limits = Limit::of_each(args, &chosen, &own)?;
    let any_failed = chosen.iter().any(|device| Ending::of(device) != Ending::NoError);
    // Only a page gives advice: the search takes longer than everything else. But whether a run that failed would fit is judged in any
    // case: it may have died, and the limit is known only roughly.
    let found = match args.output {
        Some(_) => advice::search(&chosen, &own, profile, (given.clone(), true), args)?,
        None if any_failed => {
            let tried = tries::settings(profile, &settings, None, given.clone())?;
            let tried = tried.into_iter().map(|attempt| attempt.settings).collect();
            advice::search(&chosen, &own, profile, (tried, false), args)?
        }
        None => None,
    };
    let best = found.as_ref().filter(|_| args.output.is_some()).and_then(Found::recommended);
    let tried = tries::settings(profile, &settings, best.map(|option| option.settings.clone()), given)?;
    // What the search left out is judged in the same way.
    let is_left_out =
        |attempt: &&tries::Attempt| found.as_ref().is_some_and(|found| advice::place(found, &attempt.settings).is_none());
    let left_out: Vec<_> = tried.iter().filter(is_left_out).map(|attempt| attempt.settings.clone()).collect();
    let also =
        if any_failed && !left_out.is_empty() { advice::search(&chosen, &own, profile, (left_out, false), args)? } else { None };
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
    let labels = Labels::of(&recording.stacks, used);
    Ok(Report {
        file: args.file.clone(),
        settings,
        made_by,
        page_bytes: args.page_size,
        stacks: recording.stacks,
        labels,
        devices,
        runs,
        found,
    })
}

pub(super) fn chosen_devices(recording: &Recording, device: Option<u32>) -> Result<Vec<&DeviceRecording>> {
    let has_something = |of: &&DeviceRecording| !of.trace.is_empty() || !of.segments.is_empty();
    let devices = recording::chosen(recording.devices.iter().filter(has_something), device)?;
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
    let tried = if is_traced { tries.run(device, &requests) } else { Vec::new() };
    let peak_allocated_moment = Levels::peak_moment(&timeline.levels.allocated) as u32;
    let mut phases = scopes(&recording.annotations, device);
    if phases.len() > MOST_PHASES {
        phases.sort_by_key(|phase| std::cmp::Reverse(phase.to - phase.from));
        phases.truncate(MOST_PHASES);
        phases.sort_by_key(|phase| phase.from);
    }
    Ok(Device {
        number: device.device,
        limit,
        verdict,
        curves: curves(&timeline.levels, OVERVIEW_BUCKETS),
        times: TimeSamples::of(device, MOST_TIMES),
        phases,
        ending: Ending::of(device),
        peak_allocated_moment,
        peak_reserved_moment: peak_reserved_moment(&timeline.levels) as u32,
        recorded_peak_bytes: recorded_peak_bytes(device),
        holders: holders(&timeline.log, peak_allocated_moment),
        told: Holders::of(&timeline.log, device, &recording.annotations, &recording.stacks),
        tried,
        rest: tries.rest(device.device),
        timeline,
    })
}

/// Where reserved memory is at its peak and the most of it is in use: the last bytes of a peak are often one small segment.
fn peak_reserved_moment(levels: &Levels) -> usize {
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
