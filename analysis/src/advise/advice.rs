//! Advice on a recording: reads the programs, searches the settings, judges the run's own and recommends one.

use parkade_recording::DeviceRecording;
use parkade_replay::{TIMINGS, VerifyError, VerifyOptions};

use super::advised_option::AdvisedOption;
use super::choice::{Recommendation, choose, shortlist};
use super::options::{AdviseOptions, MemoryBudget, Progress};
use super::outcome::{Memory, Outcome, doubts, outcome};
use super::program::Program;
use super::replay::Replay;
use super::search::Search;
use super::verdict::{FirstFailure, Verdict, verdict};
use crate::capacity_hint::{CapacityHint, hint};
use crate::caution::InUse;
use crate::continuation::Doubt;

/// How an option fares when the other streams finish earlier or later than recorded ([`TIMINGS`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimingFits {
    /// The option's index in [`Advice::options`].
    pub option: usize,
    /// Timings under which it fits.
    pub fit: usize,
    /// Timings tried.
    pub of: usize,
    /// The lowest peak of reserved bytes.
    pub least_peak_reserved_bytes: i64,
    /// The highest peak.
    pub most_peak_reserved_bytes: i64,
}

/// The advice on one recording.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The programs, one for each device.
    pub programs: Vec<Program>,
    /// The memory that was assumed to be available.
    pub memory: MemoryBudget,
    /// If the memory was not given but inferred: the device whose recording shows it, and what it shows.
    pub hint: Option<(u32, CapacityHint)>,
    /// The limit of the recorded run, in bytes, if it was given or if one was found that explains every garbage collection.
    pub recorded_limit: Option<u64>,
    /// What is known of the memory.
    known: Memory,
    /// Before its first entry the recorded run had more reserved than there is memory: the part that the recording lost needed more.
    pub hides_more: bool,
    /// The verdict on the recorded run's own settings.
    pub verdict: Verdict,
    /// Where these settings fail first.
    pub first_failure: Option<FirstFailure>,
    /// All settings that were tried: first the recorded run's own, then the others by usefulness.
    pub options: Vec<AdvisedOption>,
    /// The option to use; `None` if nothing serves every recorded request.
    pub recommendation: Option<Recommendation>,
    /// Whether the program fits with it.
    pub outcome: Outcome,
    /// For each device whose program died and of which the rest is in doubt with the recommended option: why.
    pub doubts: Vec<(u32, Doubt)>,
    /// If frees wait for other streams: how much their timing matters, for the own settings and the best options.
    pub timings: Vec<TimingFits>,
}

impl Advice {
    /// The recorded run's own settings.
    #[must_use]
    pub fn own(&self) -> &AdvisedOption {
        &self.options[0]
    }

    /// Why the rest of each program that died is in doubt with an option (an index into [`options`](Self::options)), by device.
    #[must_use]
    pub fn doubts_with(&self, option: usize) -> Vec<(u32, Doubt)> {
        self.options.get(option).map_or_else(Vec::new, |option| doubts(&self.programs, option))
    }

    /// Whether the program fits with an option (an index into [`options`](Self::options)).
    #[must_use]
    pub fn outcome_with(&self, option: usize) -> Outcome {
        outcome(&self.programs, self.options.get(option), self.known)
    }

    /// The recommended option.
    #[must_use]
    pub fn recommended(&self) -> Option<&AdvisedOption> {
        self.recommendation.as_ref().map(|recommendation| &self.options[recommendation.option])
    }
}

/// How many options have other timings tried, beside the recorded run's own.
const TIMED: usize = 4;

/// Advises on a recorded program. `devices` are its traced devices; all of them get the same settings. `progress` may be called from
/// several threads.
///
/// # Errors
/// If a device's recording cannot be replayed: the device's number and why.
pub fn advise(
    devices: &[&DeviceRecording],
    options: &AdviseOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Advice, (u32, VerifyError)> {
    let (programs, recorded_limit) = read_programs(devices, &options.own, progress)?;
    let is_given = options.memory != MemoryBudget::default();
    // An error on one device says nothing about the memory of the others.
    let only = devices.first().filter(|_| !is_given && devices.len() == 1);
    let hint = only.and_then(|recording| Some((recording.device, hint(recording)?)));
    let memory = hint.map_or(options.memory, |(_, hint)| MemoryBudget {
        limit_bytes: Some(recorded_limit.unwrap_or(hint.assumed_bytes())),
        capacity_bytes: None,
    });
    // An option that needs a limit says so itself (`needs_limit`).
    let in_use = |(recording, program): (&&DeviceRecording, &Program)| {
        InUse::of(recording, Some(&program.requests)).on_devices(devices.len()).limited(true)
    };
    let in_use: Vec<InUse> = devices.iter().zip(&programs).map(in_use).collect();
    let found = by_usefulness(Search::new(&programs, &in_use, memory, options, progress).run());
    let useful = shortlist(&found);
    let replays = |place: usize| -> Vec<Replay<'_>> {
        let settings = &found[place].settings;
        programs.iter().map(|program| Replay { program, profile: options.profile, settings }).collect()
    };
    let (verdict, first_failure) = verdict(&programs, &found[0], &replays(0));
    let timings = timings(&programs, &found, &useful, &replays);
    let is_certain = |timing: &TimingFits| timing.fit == timing.of;
    let certain = |place| timings.is_empty() || timings.iter().any(|timing| timing.option == place && is_certain(timing));
    let hides_more =
        found[0].available_bytes.is_some_and(|available| programs.iter().any(|program| program.hides_more_than(available)));
    // An option may fit only because the last page of an expandable segment exceeds the limit; do not recommend that.
    let recommendation = choose(&found, &useful, hides_more, &certain).filter(|_| verdict != Verdict::Capacity);
    let recommended = recommendation.as_ref().map(|recommendation| &found[recommendation.option]);
    let known = match hint {
        _ if found[0].available_bytes.is_none() || hides_more => Memory::Unknown,
        Some((_, hint)) if recorded_limit.is_none() && !hint.is_sure() => Memory::AtLeast,
        _ => Memory::Known,
    };
    let outcome = outcome(&programs, recommended, known);
    Ok(Advice {
        known,
        outcome,
        doubts: doubts(&programs, recommended.unwrap_or(&found[0])),
        memory,
        hint,
        recorded_limit,
        hides_more,
        verdict,
        first_failure,
        recommendation,
        timings,
        options: found,
        programs,
    })
}

/// Sorts the options by usefulness: the shortlist, then the others by rank. The first one, the recorded run's own, stays first.
fn by_usefulness(found: Vec<AdvisedOption>) -> Vec<AdvisedOption> {
    let useful = shortlist(&found);
    let usefulness = |place: usize| useful.iter().position(|&useful| useful == place).unwrap_or(usize::MAX);
    let mut order: Vec<usize> = (1..found.len()).collect();
    order.sort_by_key(|&place| (usefulness(place), found[place].rank()));
    [0].into_iter().chain(order).map(|place| found[place].clone()).collect()
}

/// Reads all devices. Returns their programs and the limit of the recorded run, if it was given or found.
fn read_programs(
    devices: &[&DeviceRecording],
    own: &VerifyOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(Vec<Program>, Option<u64>), (u32, VerifyError)> {
    let mut programs = Vec::new();
    let mut recorded_limit = own.limit_bytes;
    for (device, recording) in devices.iter().enumerate() {
        let mut read = |entries| progress(Progress::Read { device, entries });
        let (program, limit) = read_program(recording, own, &mut read).map_err(|error| (recording.device, error))?;
        recorded_limit = recorded_limit.or(limit);
        programs.push(program);
    }
    Ok((programs, recorded_limit))
}

/// Reads a traced device. Garbage collection depends on the limit. If none is given and recorded decisions differ from the replay's, the
/// whole gibibytes that the out-of-memory errors allow are tried; the first one under which every decision agrees is the limit.
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

/// How the recorded run's own settings and the best others fare under other timings; empty if no free waits for another stream.
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
