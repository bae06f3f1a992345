//! Finds the settings that would have let a recorded program fit, how much memory they need, and what they cost.
//!
//! [`advise`] reads the requests of each traced device (`program`) and carries them out under many settings: `search` lists
//! them, orders them, and finds those that lead to the same decisions; `advised_option` tries one and finds
//! the smallest memory in which it fits, in trials that share their common beginning. Then `verdict` explains why the program's
//! own settings fail, `choice` picks one option, and `completion` estimates how likely each option is to let a program that
//! died finish. If the caller does not know how much memory was available, `memory` infers it from an out-of-memory error in
//! the recording.
//!
//! If the recorded run itself fitted, [`fit_as_recorded`] makes the prediction agree: what the run did within this much
//! memory takes precedence over the replay. Even under the run's own settings, a replay may differ from the run: other
//! streams may finish at different times, and if the oldest entries are missing from a file, the replay requests the blocks
//! from before the first entry anew.
//!
//! Memory here means what the allocator may reserve: the limit, or the device's memory without what the driver itself takes.
//! The replay enforces it as PyTorch enforces a limit (`set_per_process_memory_fraction`). The last page of an expandable
//! segment may exceed a limit by up to one page; an option within a page of the limit counts as close.

mod advised_option;
mod choice;
mod completion;
mod memory;
mod program;
mod search;
mod verdict;

pub use advised_option::{AdvisedOption, DeviceOutcome, LikelyRuns};
pub use choice::{Reason, Recommendation, paste_line};
pub(crate) use choice::{is_costly, tolerance_bytes};
pub use completion::{CompletedRuns, KnownSteps, Means, Rest, RunLike};
pub use memory::{AdviseOptions, DeviceMemory, MemoryBudget, MemoryContradiction, MemoryRange, Progress};
pub use parkade_replay::recognition::{CapacityHint, capacity_hint};
pub use program::{LivePeak, Program};
pub use verdict::{Enough, FirstFailure, Held, Outcome, Verdict};

use std::cmp::Reverse;
use std::ops::Range;

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_recording::DeviceRecording;
use parkade_replay::recognition::finding_limit;
use parkade_replay::{AfterFailure, Extreme, Prediction, ReplaySettings, TIMINGS, VerifyError, VerifyOptions, verify_device};
use rayon::prelude::*;

use crate::caution::InUse;
use crate::continuation::Doubt;
use crate::ending::Ending;
use advised_option::enough_bytes;
use choice::{choose, shortlist};
use program::Replay;
use search::{Search, are_same};
use verdict::{Judge, OwnRun, doubts, verdict};

/// The outcome of an option when the other streams finish earlier or later than recorded ([`TIMINGS`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimingFits {
    /// The option's index in [`Advice::options`].
    pub option: usize,
    /// The number of timings under which it fits.
    pub fit: usize,
    /// The number of timings tried.
    pub of: usize,
    /// The device with the highest possible peak of reserved bytes.
    pub device: u32,
    /// The lowest peak on that device.
    pub least_peak_reserved_bytes: i64,
    /// The highest peak on that device.
    pub most_peak_reserved_bytes: i64,
}

/// The advice on one recording.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The programs, one for each device.
    pub programs: Vec<Program>,
    /// The PyTorch release whose rules were applied.
    pub profile: &'static Profile,
    /// The memory that the caller specified.
    pub given: MemoryBudget,
    /// The memory of each device: specified, shown or assumed.
    pub memories: Vec<DeviceMemory>,
    /// Evidence in the recording that contradicts the specified memory.
    pub contradiction: Option<MemoryContradiction>,
    /// The limit of the recorded run, in bytes, if it was specified or if some limit explains every garbage collection.
    pub recorded_limit: Option<u64>,
    /// Whether the recorded run had reserved more than the available memory before its first entry, so that the part missing
    /// from the recording needed more.
    pub hides_more: bool,
    /// The verdict on the recorded run's own settings.
    pub verdict: Verdict,
    /// The first failure under these settings.
    pub first_failure: Option<FirstFailure>,
    /// All settings that were tried: first the recorded run's own, then the others by usefulness.
    pub options: Vec<AdvisedOption>,
    /// The recommended option; `None` if no option serves every recorded request.
    pub recommendation: Option<Recommendation>,
    /// Whether the program fits with it.
    pub outcome: Outcome,
    /// If the outcome depends on where in a range the limit was: the amount that is enough on each device where this matters,
    /// with one option for all of them. The device that may lack the most comes first.
    pub enough: Vec<Enough>,
    /// The devices whose program died and whose rest is in doubt under the recommended option, with the reasons.
    pub doubts: Vec<(u32, Doubt)>,
    /// For each device whose recording can be read in two ways that lead to different answers: the outcome, in the available
    /// memory, of the recommended option (or, if there is none, of the run's own settings) under the other reading.
    pub otherwise: Vec<(u32, Extreme)>,
    /// If frees wait for other streams: how much stream timing matters, for the run's own settings and the best options.
    pub timings: Vec<TimingFits>,
}

impl Advice {
    /// Returns the recorded run's own settings.
    #[must_use]
    pub fn own(&self) -> &AdvisedOption {
        &self.options[0]
    }

    /// Returns the devices whose program died and whose rest is in doubt under an option (an index into
    /// [`options`](Self::options)), with the reasons.
    #[must_use]
    pub fn doubts_with(&self, option: usize) -> Vec<(u32, Doubt)> {
        self.options.get(option).map_or_else(Vec::new, |option| doubts(&self.programs, option))
    }

    /// Returns whether the program fits with an option (an index into [`options`](Self::options)), judged like the
    /// recommended option: if only a range for the memory is known, the lower end must be enough.
    #[must_use]
    pub fn outcome_with(&self, option: usize) -> Outcome {
        if self.recommendation.as_ref().is_some_and(|recommendation| recommendation.option == option) {
            return self.outcome;
        }
        self.options.get(option).map_or(Outcome::Unknown, |judged| self.outcome_on(judged, 0..self.programs.len()))
    }

    /// Returns the same for a single device.
    #[must_use]
    pub fn outcome_on_device(&self, option: usize, device: u32) -> Option<Outcome> {
        let place = self.programs.iter().position(|program| program.device == device)?;
        let option = self.options.get(option)?;
        let alone = AdvisedOption { devices: vec![option.devices.get(place)?.clone()], ..option.clone() };
        Some(self.outcome_on(&alone, place..place + 1))
    }

    /// Returns the outcome on some of the option's devices.
    fn outcome_on(&self, option: &AdvisedOption, places: Range<usize>) -> Outcome {
        let (programs, memories) = (&self.programs[places.clone()], &self.memories[places.clone()]);
        let hides_more = hides_more(programs, &self.own().devices[places]);
        let (tried, settings) = (std::slice::from_ref(option), &option.settings);
        let judge = Judge { programs, memories, hides_more, tried };
        let Some(judged) = Some(option).filter(|option| option.gets_past()) else { return judge.outcome(None, &[]) };
        let replays = |_| programs.iter().map(|program| Replay { program, profile: self.profile, settings }).collect::<Vec<_>>();
        judge.outcome(Some(judged), &enough(Some(0), &judge, &replays))
    }

    /// Returns the device whose error shows the least memory, and what it shows; only if the memory was inferred rather than
    /// specified.
    #[must_use]
    pub fn hint(&self) -> Option<(u32, CapacityHint)> {
        let is_given = self.given != MemoryBudget::default();
        let shown = self.memories.iter().filter(|_| !is_given).filter_map(|memory| Some((memory.device, memory.shown?)));
        shown.min_by_key(|(_, hint)| hint.assumed_bytes())
    }

    /// Returns the recommended option.
    #[must_use]
    pub fn recommended(&self) -> Option<&AdvisedOption> {
        self.recommendation.as_ref().map(|recommendation| &self.options[recommendation.option])
    }
}

/// The number of options, besides the recorded run's own settings, that are tried with different timings.
const TIMED: usize = 4;
/// The number of options for which the memory needed by the recorded requests is measured.
const MEASURED: usize = 3;

/// Advises on a recorded program. `devices` are its traced devices, all of which get the same settings. `progress` may be
/// called from several threads.
///
/// # Errors
/// Fails if a device's recording cannot be replayed: the device's number and the reason.
pub fn advise(
    devices: &[&DeviceRecording],
    options: &AdviseOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Advice, (u32, VerifyError)> {
    let (mut programs, recorded_limits) = read_programs(devices, &options.own, progress)?;
    let memories = DeviceMemory::of(devices, &options.own.settings, options.memory, &recorded_limits);
    // An option that needs a limit reports this itself (`needs_limit`).
    let in_use = |(recording, program): (&&DeviceRecording, &Program)| {
        InUse::of(recording, Some(&program.requests)).on_devices(devices.len()).seeing(options.devices_seen).limited(true)
    };
    let in_use: Vec<InUse> = devices.iter().zip(&programs).map(in_use).collect();
    // Only a run that died can die again.
    let repeats = programs.iter().any(Program::died) && would_do_the_same(options.profile, devices, &options.own);
    let mut found = Search::new(&programs, &in_use, &memories, (options, repeats), progress).run();
    check_programs(&mut programs, &found[0], devices, (&recorded_limits, options));
    own_as_recorded(&mut found[0], devices, options);
    let mut found = by_usefulness(found);
    let useful = shortlist(&found);
    let likely = |&place: &usize| {
        let option = &found[place];
        let replay = |program| Replay { program, profile: options.profile, settings: &option.settings };
        let replays: Vec<Replay<'_>> = programs.iter().map(replay).collect();
        (place, LikelyRuns::of(devices, &recorded_limits, &replays, option, options))
    };
    let likely: Vec<_> = timed(&useful).par_iter().map(likely).collect();
    likely.into_iter().for_each(|(place, likely)| found[place].likely = likely);
    let replays = |place: usize| -> Vec<Replay<'_>> {
        let settings = &found[place].settings;
        programs.iter().map(|program| Replay { program, profile: options.profile, settings }).collect()
    };
    let own_replays = replays(0);
    let run = OwnRun { recordings: devices, memories: &memories, replays: &own_replays, recorded: &options.own };
    let (verdict, first_failure) = verdict(&run, &found[0]);
    let timings = timings(&programs, &found, &useful, &replays);
    let is_certain = |timing: &TimingFits| timing.fit == timing.of;
    let certain = |place| timings.is_empty() || timings.iter().any(|timing| timing.option == place && is_certain(timing));
    let devices_of = |option: &AdvisedOption| option.devices.iter().map(|device| device.available_bytes).collect::<Vec<_>>();
    let available = devices_of(&found[0]);
    let exceeds = |is_more: &dyn Fn(&Program, u64) -> bool| {
        programs.iter().zip(&available).any(|(program, bytes)| bytes.is_some_and(|bytes| is_more(program, bytes)))
    };
    let hides_more = hides_more(&programs, &found[0].devices);
    let contradiction = memories.iter().zip(&available).find_map(|(memory, bytes)| memory.contradiction((*bytes)?));
    // An option may fit only because the last page of an expandable segment exceeds the limit; do not recommend that.
    let is_short = exceeds(&|program, bytes| program.live.bytes > bytes);
    let recommendation = choose(&found, &useful, hides_more || contradiction.is_some(), &certain).filter(|_| !is_short);
    let recommended = recommendation.as_ref().map(|recommendation| recommendation.option);
    let judge = Judge { programs: &programs, memories: &memories, hides_more, tried: &found };
    let enough = enough(recommended, &judge, &replays);
    let outcome = judge.outcome(recommended.map(|option| &found[option]), &enough);
    let otherwise = read_otherwise(&programs, devices, &found[recommended.unwrap_or(0)], options.profile);
    Ok(Advice {
        outcome,
        enough: if outcome == Outcome::Unknown { that_decide(enough) } else { Vec::new() },
        doubts: doubts(&programs, &found[recommended.unwrap_or(0)]),
        profile: options.profile,
        given: options.memory,
        contradiction,
        recorded_limit: recorded_limits.into_iter().flatten().next(),
        hides_more,
        verdict,
        first_failure,
        recommendation,
        otherwise,
        timings,
        options: found,
        programs,
        memories,
    })
}

/// Checks each program against its recording. The runs under the program's own settings already exist; a check uses those in
/// which memory was never short.
fn check_programs(
    programs: &mut [Program],
    own: &AdvisedOption,
    devices: &[&DeviceRecording],
    (limits, options): (&[Option<u64>], &AdviseOptions),
) {
    let is_own = own.is_own && options.profile == options.own.settings.profile;
    for (((program, outcome), recording), &limit_bytes) in programs.iter_mut().zip(&own.devices).zip(devices).zip(limits) {
        let (prediction, settings) = (&outcome.prediction, &own.settings);
        let is_short = prediction.first_failure.is_some() || prediction.stats.num_alloc_retries > 0;
        let is_plenty = outcome.available_bytes.is_none() || (!is_short && settings.garbage_collection_threshold <= 0.0);
        let recorded = VerifyOptions { limit_bytes, ..options.own.clone() };
        program.check(recording, &recorded, Some(prediction).filter(|_| is_own && is_plenty));
    }
}

/// Returns the outcome of an option under a recording's other possible reading, if the answer differs.
fn read_otherwise(
    programs: &[Program],
    devices: &[&DeviceRecording],
    option: &AdvisedOption,
    profile: &'static Profile,
) -> Vec<(u32, Extreme)> {
    let of_device = |((program, recording), outcome): ((&Program, &&DeviceRecording), &DeviceOutcome)| {
        let other = program.read_otherwise(recording)?;
        let replay = Replay { program: &other, profile, settings: &option.settings };
        let mut run = replay.run(outcome.available_bytes, AfterFailure::GoOn);
        while run.step() {}
        let otherwise = Extreme::of(&run.prediction());
        otherwise.is_another_answer_than(Extreme::of(&outcome.prediction)).then_some((program.device, otherwise))
    };
    programs.iter().zip(devices).zip(&option.devices).filter_map(of_device).collect()
}

/// Returns whether some device had reserved more before the first entry than its available memory.
fn hides_more(programs: &[Program], devices: &[DeviceOutcome]) -> bool {
    let hides = |(program, device): (&Program, &DeviceOutcome)| {
        device.available_bytes.is_some_and(|bytes| program.hides_more_than(bytes))
    };
    programs.iter().zip(devices).any(hides)
}

/// Returns what the recommended option needs for the recorded requests, for each device whose memory is known only as a
/// range, unless that is already clear. Without a recommended option, the best of the options that need the least memory is
/// used.
fn enough<'a>(recommended: Option<usize>, judge: &Judge<'_>, replays: &dyn Fn(usize) -> Vec<Replay<'a>>) -> Vec<Enough> {
    if judge.memories.iter().all(|memory| memory.range.is_none()) {
        return Vec::new();
    }
    let found = judge.tried;
    let on_devices = |option: usize| {
        let on = |(replay, memory): (Replay<'a>, &DeviceMemory)| {
            let range = memory.range?;
            Some(Enough { option, device: memory.device, bytes: enough_bytes(&replay), range })
        };
        let mut each: Vec<Enough> = replays(option).into_iter().zip(judge.memories).filter_map(on).collect();
        each.sort_by_key(|enough| Reverse(enough.lacking_bytes()));
        each
    };
    let candidates: Vec<usize> = match recommended {
        Some(option) => {
            let needs_more = found[option].devices.iter().any(|device| device.sure_bytes < Some(device.smallest_bytes));
            Some(option).filter(|_| needs_more).into_iter().collect()
        }
        None => {
            let lacking = |option: &AdvisedOption| {
                let ranged =
                    option.devices.iter().zip(judge.memories).filter_map(|(device, memory)| Some((device, memory.range?)));
                let of = |(device, range): (&DeviceOutcome, MemoryRange)| {
                    i128::from(option.smallest_capacity_bytes_of(device)) - i128::from(range.least_bytes)
                };
                ranged.map(of).max()
            };
            let mut all: Vec<usize> = (0..found.len()).filter(|&option| judge.serves_where_known(&found[option])).collect();
            all.sort_by_key(|&option| (found[option].has_warnings(), lacking(&found[option])));
            all.truncate(MEASURED);
            all
        }
    };
    let found = candidates.into_iter().map(on_devices);
    found.min_by_key(|each| each.first().map(Enough::lacking_bytes)).unwrap_or_default()
}

/// Selects the devices where the amount matters: the first one, which may lack the most, and every other one that may lack
/// memory.
fn that_decide(enough: Vec<Enough>) -> Vec<Enough> {
    let decides = |(place, enough): &(usize, Enough)| *place == 0 || enough.lacking_bytes() > 0;
    enough.into_iter().enumerate().filter(decides).map(|(_, enough)| enough).collect()
}

/// Marks the recorded run's own settings as fitting on each device where the recorded run fitted.
fn own_as_recorded(own: &mut AdvisedOption, devices: &[&DeviceRecording], options: &AdviseOptions) {
    for (outcome, recording) in own.devices.iter_mut().zip(devices) {
        let Some(available) = outcome.available_bytes else { continue };
        let asked = (options.profile, &own.settings);
        if fit_as_recorded(&mut outcome.prediction, recording, &options.own, asked, available) {
            outcome.fits_as_recorded(available);
        }
    }
}

/// Sorts the options by usefulness: first the shortlist, then the others by rank. The first one, the recorded run's own, stays
/// first.
fn by_usefulness(found: Vec<AdvisedOption>) -> Vec<AdvisedOption> {
    let useful = shortlist(&found);
    let usefulness = |place: usize| useful.iter().position(|&useful| useful == place).unwrap_or(usize::MAX);
    let mut order: Vec<usize> = (1..found.len()).collect();
    order.sort_by_key(|&place| (usefulness(place), found[place].rank()));
    [0].into_iter().chain(order).map(|place| found[place].clone()).collect()
}

/// Each device's program, and its limit in the recorded run if one was specified or found.
type ProgramsAndLimits = (Vec<Program>, Vec<Option<u64>>);

/// Reads all devices.
fn read_programs(
    devices: &[&DeviceRecording],
    own: &VerifyOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<ProgramsAndLimits, (u32, VerifyError)> {
    let (mut programs, mut recorded_limits) = (Vec::new(), Vec::new());
    for (device, recording) in devices.iter().enumerate() {
        let mut read = |entries| progress(Progress::Read { device, entries });
        let mismatches = |program: &Program| program.requests.mismatches;
        let (program, limit) = finding_limit(recording, own, mismatches, |own| Program::of_recording(recording, own, &mut read))
            .map_err(|error| (recording.device, error))?;
        recorded_limits.push(own.limit_bytes.or(limit));
        programs.push(program);
    }
    Ok((programs, recorded_limits))
}

/// Returns the outcomes of the recorded run's own settings and of the best other options with different timings; empty if
/// no free waits for another stream.
fn timings<'a>(
    programs: &[Program],
    found: &[AdvisedOption],
    useful: &[usize],
    replays: &dyn Fn(usize) -> Vec<Replay<'a>>,
) -> Vec<TimingFits> {
    if !programs.iter().any(|program| program.is_timed) {
        return Vec::new();
    }
    let timing = |place: usize| {
        let (mut fit, mut found_of) = ([true; TIMINGS.len()], None::<(u32, i64, i64)>);
        for (replay, outcome) in replays(place).into_iter().zip(&found[place].devices) {
            let (mut least, mut most) = (outcome.prediction.peak_reserved_bytes(), outcome.prediction.peak_reserved_bytes());
            for (fit, (served, peak)) in fit.iter_mut().zip(replay.timings(outcome.available_bytes)) {
                *fit &= served;
                (least, most) = (least.min(peak), most.max(peak));
            }
            found_of = found_of.filter(|&(_, _, before)| before >= most).or(Some((outcome.device, least, most)));
        }
        let (device, least_peak_reserved_bytes, most_peak_reserved_bytes) = found_of.unwrap_or_default();
        let (of, fit) = (fit.len(), fit.into_iter().filter(|fit| *fit).count());
        TimingFits { option: place, fit, of, device, least_peak_reserved_bytes, most_peak_reserved_bytes }
    };
    timed(useful).into_iter().map(timing).collect()
}

/// Returns the options that are tried with different timings.
fn timed(useful: &[usize]) -> Vec<usize> {
    [0].into_iter().chain(useful.iter().copied().filter(|&place| place != 0).take(TIMED)).collect()
}

/// Returns the options with which the run was recorded, read under the rules of `profile`, which may differ from those of the
/// release that made the recording.
fn under(profile: &'static Profile, recorded: &VerifyOptions) -> VerifyOptions {
    VerifyOptions { settings: ReplaySettings { profile, ..recorded.settings.clone() }, ..recorded.clone() }
}

/// Returns whether a release would have done the same as the recorded run on every device. If not, that run is no evidence
/// about the release.
fn would_do_the_same(profile: &'static Profile, devices: &[&DeviceRecording], recorded: &VerifyOptions) -> bool {
    let explains = |device: &&DeviceRecording| {
        verify_device(device, &under(profile, recorded), &mut |_| ()).is_ok_and(|verdict| verdict.mismatches == 0)
    };
    profile == recorded.settings.profile || devices.iter().all(explains)
}

/// Replaces a failed prediction for a release under `settings` in `available_bytes` if the settings are the recorded run's
/// own, the release would have done the same, and the run stayed within as much memory and served every request. Returns
/// whether the prediction was replaced. The predicted cost of the driver calls is kept. `recorded` describes how the run was
/// recorded.
pub fn fit_as_recorded(
    prediction: &mut Prediction,
    recording: &DeviceRecording,
    recorded: &VerifyOptions,
    (profile, settings): (&'static Profile, &Settings),
    available_bytes: u64,
) -> bool {
    let is_own = are_same(settings, &recorded.settings.settings);
    if prediction.first_failure.is_none() || !is_own || Ending::of(recording) != Ending::NoError {
        return false;
    }
    let within = VerifyOptions { limit_bytes: Some(available_bytes), ..under(profile, recorded) };
    let Ok(verdict) = verify_device(recording, &within, &mut |_| ()) else { return false };
    let hid_more = verdict.not_in_file.lost_beginning.is_some_and(|lost| lost.reserved_bytes > available_bytes);
    let is_proof = verdict.mismatches == 0 && verdict.ooms == 0 && !hid_more;
    if is_proof {
        // This is the only statistic that depends on how the settings are written.
        let max_split_size = prediction.stats.max_split_size;
        prediction.stats = verdict.stats;
        prediction.stats.max_split_size = max_split_size;
        prediction.first_failure = None;
    }
    is_proof
}
