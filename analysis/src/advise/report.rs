//! All of it in one call: read the programs, search, judge, recommend.

use parkade::profile::Profile;
use parkade::settings::Settings;

use super::choice::{Recommendation, choose, shortlist};
use super::evaluate::{Replay, Space};
use super::hint::{CapacityHint, hint};
use super::program::Program;
use super::search::{AdvisedOption, Search};
use super::verdict::{Cause, Verdict, verdict};
use crate::caution::InUse;
use parkade_recording::DeviceRecording;
use parkade_replay::{TIMINGS, VerifyError, VerifyOptions};

/// What to advise on.
pub struct AdviseOptions {
    /// Settings and limit of the recorded run.
    pub own: VerifyOptions,
    /// The version of PyTorch whose decisions are made.
    pub profile: &'static Profile,
    /// The memory that there is. If none is said, what an out-of-memory point of the recording shows is taken.
    pub space: Space,
    /// Settings that are to be among the options.
    pub given: Vec<Settings>,
    /// Try no others but the recorded run's own.
    pub only_given: bool,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// So many entries of the trace of the device at this place are read.
    Read {
        /// The device's place among those given.
        device: usize,
        /// Entries.
        entries: usize,
    },
    /// So many of the options known so far are tried.
    Tried {
        /// Options.
        options: usize,
        /// Of so many.
        of: usize,
    },
}

/// What an option comes to for each of the readings of when other streams are done with memory given back to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimingFits {
    /// The option's place in the report.
    pub option: usize,
    /// For so many of them it fits.
    pub fit: usize,
    /// How many there are.
    pub of: usize,
    /// The lowest peak of reserved bytes.
    pub least_peak_reserved_bytes: i64,
    /// The highest.
    pub most_peak_reserved_bytes: i64,
}

/// The advice.
#[derive(Clone, Debug)]
pub struct Report {
    /// The programs, one for each device.
    pub programs: Vec<Program>,
    /// The memory that was taken for available.
    pub space: Space,
    /// Where it was read off, if it was not given: the device, and what its recording shows.
    pub hint: Option<(u32, CapacityHint)>,
    /// The limit of the recorded run, if it was given or is the one that explains every garbage collection.
    pub recorded_limit: Option<u64>,
    /// Before its first entry the recording had reserved more than the memory: what it does not show needed more.
    pub hides_more: bool,
    /// The verdict on the recorded run's own settings.
    pub verdict: Verdict,
    /// Where these fail first.
    pub cause: Option<Cause>,
    /// All settings that were tried. The first are the recorded run's own; the others follow by usefulness.
    pub options: Vec<AdvisedOption>,
    /// The one to take.
    pub recommendation: Option<Recommendation>,
    /// Where other streams delay frees: what the timing does to the options that matter.
    pub timings: Vec<TimingFits>,
}

impl Report {
    /// The recorded run's own settings.
    #[must_use]
    pub fn own(&self) -> &AdvisedOption {
        &self.options[0]
    }

    /// The option that is recommended.
    #[must_use]
    pub fn recommended(&self) -> Option<&AdvisedOption> {
        self.recommendation.as_ref().map(|recommendation| &self.options[recommendation.option])
    }
}

/// How many options have their timings tried, beside the recorded run's own.
const TIMED: usize = 4;

/// Advises on a recorded program: on all of its traced devices, with one setting for all.
///
/// # Errors
/// As for verifying the recording: see [`VerifyError`], with the number of the device.
pub fn advise(
    devices: &[&DeviceRecording],
    options: &AdviseOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Report, (u32, VerifyError)> {
    let mut programs = Vec::new();
    let mut recorded_limit = options.own.limit_bytes;
    for (device, recording) in devices.iter().enumerate() {
        let mut read = |entries| progress(Progress::Read { device, entries });
        let (program, limit) = read_program(recording, &options.own, &mut read).map_err(|error| (recording.device, error))?;
        recorded_limit = recorded_limit.or(limit);
        programs.push(program);
    }
    let is_given = options.space != Space::default();
    // What one device had says nothing of the others.
    let only = devices.first().filter(|_| !is_given && devices.len() == 1);
    let hint = only.and_then(|recording| Some((recording.device, hint(recording)?)));
    let space = hint.map_or(options.space, |(_, hint)| Space {
        limit_bytes: Some(recorded_limit.unwrap_or(hint.assumed_bytes())),
        capacity_bytes: None,
    });
    // Whether there is a limit is said beside each option that needs one.
    let in_use = |(recording, program): (&&DeviceRecording, &Program)| {
        InUse::of(recording, Some(&program.requests)).on_devices(devices.len()).limited(true)
    };
    let in_use: Vec<InUse> = devices.iter().zip(&programs).map(in_use).collect();
    let mut found = Search::new(&programs, &in_use, space, options, progress).run();
    let is_short = hint.is_some() || programs.iter().any(Program::died);
    let useful = shortlist(&found, is_short);
    let usefulness = |place: usize| useful.iter().position(|&useful| useful == place).unwrap_or(usize::MAX);
    let mut order: Vec<usize> = (1..found.len()).collect();
    order.sort_by_key(|&place| (usefulness(place), found[place].rank()));
    found = [0].into_iter().chain(order).map(|place| found[place].clone()).collect();
    let useful = shortlist(&found, is_short);
    let replays = |place: usize| -> Vec<Replay<'_>> {
        let settings = &found[place].settings;
        programs.iter().map(|program| Replay { program, profile: options.profile, settings }).collect()
    };
    let (verdict, cause) = verdict(&programs, &found[0], &replays(0));
    let timings = timings(&programs, &found, &useful, &replays);
    let is_certain = |timing: &TimingFits| timing.fit == timing.of;
    let certain = |place| timings.is_empty() || timings.iter().any(|timing| timing.option == place && is_certain(timing));
    let hides_more =
        found[0].available_bytes.is_some_and(|available| programs.iter().any(|program| program.hides_more_than(available)));
    // What a limit lets reach beyond it is no memory to live in.
    let recommendation = choose(&found, &useful, hides_more, &certain).filter(|_| verdict != Verdict::Capacity);
    Ok(Report { space, hint, recorded_limit, hides_more, verdict, cause, recommendation, timings, options: found, programs })
}

/// Reads a traced device. Garbage collection depends on the limit: if none is given and decisions differ, a limit is looked for that
/// explains every one of them, among the whole gibibytes that the out-of-memory points leave.
fn read_program(
    recording: &DeviceRecording,
    own: &VerifyOptions,
    read: &mut dyn FnMut(usize),
) -> Result<(Program, Option<u64>), VerifyError> {
    let program = Program::of_recording(recording, own, read)?;
    let collects = own.settings.settings.garbage_collection_threshold > 0.0;
    if program.requests.mismatches > 0 && collects && own.limit_bytes.is_none() {
        for bytes in hint(recording).iter().flat_map(CapacityHint::whole_gibibytes) {
            let own = VerifyOptions { limit_bytes: Some(bytes), ..own.clone() };
            let program = Program::of_recording(recording, &own, read)?;
            if program.requests.mismatches == 0 {
                return Ok((program, Some(bytes)));
            }
        }
    }
    Ok((program, None))
}

/// What the timing does to the recorded run's own settings and to the best others, where frees wait for other streams.
fn timings<'a>(
    programs: &[Program],
    found: &[AdvisedOption],
    useful: &[usize],
    replays: &dyn Fn(usize) -> Vec<Replay<'a>>,
) -> Vec<TimingFits> {
    if !programs.iter().any(|program| program.is_timed) {
        return Vec::new();
    }
    let others = useful.iter().copied().filter(|&place| place != 0).take(TIMED);
    let places = [0].into_iter().chain(others);
    let timing = |place: usize| {
        let mut fit = [true; TIMINGS.len()];
        let (mut least, mut most) = (found[place].peak_reserved_bytes(), found[place].peak_reserved_bytes());
        for replay in replays(place) {
            for (fit, (served, peak)) in fit.iter_mut().zip(replay.timings(found[place].available_bytes)) {
                *fit &= served;
                (least, most) = (least.min(peak), most.max(peak));
            }
        }
        let (of, fit) = (fit.len(), fit.into_iter().filter(|fit| *fit).count());
        TimingFits { option: place, fit, of, least_peak_reserved_bytes: least, most_peak_reserved_bytes: most }
    };
    places.map(timing).collect()
}
