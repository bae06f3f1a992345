//! Verifying a recording: every decision of the recorded allocator, made again.

use parkade::Allocator;
use parkade::policy::PyTorch;
use parkade::stats::{Family, Stats};
use parkade::units::Bytes;

use super::capacity::Capacity;
use super::collections::Recorded;
use super::compare::{Comparer, Mismatch};
use super::consistency;
use super::device::{Position, RecordedDevice};
use super::error::VerifyError;
use super::final_state;
use super::hidden::{Guess, MOST_READINGS, Readings};
use super::inference::SmallerGap;
use super::peaks::PeakWatch;
use super::run::{Release, Runner, Tally};
use super::settings::ReplaySettings;
use super::start::{LostBeginning, ReplayCore, Start};
use super::statistics::{self, StatisticsCheck, StatisticsFile};
use parkade_recording::{Action, DeviceRecording};

/// How to verify.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// The settings to replay under.
    pub settings: ReplaySettings,
    /// The memory limit of the run, which a recording does not contain.
    pub limit_bytes: Option<u64>,
    /// The statistics at the end of the run, to compare with.
    pub statistics: Option<StatisticsFile>,
}

/// What the trace cannot show, and was therefore read from it or is stated as unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NotInFile {
    /// What was before the first entry.
    pub lost_beginning: Option<LostBeginning>,
    /// Calls of empty_cache, seen only as segments given back with no request in need of them.
    pub empty_caches: u64,
    /// Requests that the device refused for a reason of its own: a limit that was not given, or a full device.
    pub refusals: u64,
    /// Free blocks age from before the first entry; garbage collection looks at their ages.
    pub unknown_ages: bool,
    /// Garbage collections whose victims were taken from the recording, because of those ages.
    pub assumed_collections: u64,
    /// Private pools that were gone before the end, worked out from the trace.
    pub guess: Option<Guess>,
}

/// What verifying one device of a recording found.
#[derive(Clone, Debug)]
pub struct DeviceVerdict {
    /// The device's number.
    pub device: u32,
    /// Entries of the trace.
    pub entries: usize,
    /// What was compared: entries, and the segments and blocks at the end.
    pub decisions: u64,
    /// What differed, statistics included.
    pub mismatches: u64,
    /// The first difference.
    pub first: Option<Mismatch>,
    /// The statistics at the end of the replay.
    pub stats: Stats,
    /// Requests that were out of memory.
    pub ooms: u64,
    /// What the file cannot contain.
    pub not_in_file: NotInFile,
    /// The comparison of statistics, if there were any to compare with.
    pub statistics: Option<StatisticsCheck>,
}

impl DeviceVerdict {
    /// The most bytes of blocks that were handed out at once.
    #[must_use]
    pub fn peak_allocated_bytes(&self) -> i64 {
        self.stats.family(Family::AllocatedBytes).all.peak
    }

    /// The most bytes that were taken from the device at once.
    #[must_use]
    pub fn peak_reserved_bytes(&self) -> i64 {
        self.stats.family(Family::ReservedBytes).all.peak
    }
}

/// How many operations pass between two reports of progress.
const PROGRESS_STEP: usize = 1 << 14;

/// Replays one device of a recording and compares every decision. `progress` is told now and then how many entries are done.
///
/// # Errors
/// See [`VerifyError`]: a trace that contradicts itself, or that uses what is not simulated.
pub fn verify_device(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(usize),
) -> Result<DeviceVerdict, VerifyError> {
    if recording.trace.is_empty() {
        return Err(VerifyError::NoTrace);
    }
    let policy = PyTorch::of(options.settings.profile, options.settings.settings.clone());
    let mut start = Start::find(recording, &policy)?;
    consistency::check(&recording.trace, &start.extents.segments)?;
    let Replayed { stats, mut tally, assumed_collections, guess } = replay_to_end(recording, options, &mut start, progress)?;
    let statistics = options.statistics.as_ref().map(|file| {
        let reset = || find_reset(recording, options, &start, file);
        statistics::compare(file, &stats, start.lost.is_some(), reset)
    });
    add_statistics(&mut tally, statistics.as_ref());
    Ok(DeviceVerdict {
        device: recording.device,
        entries: recording.trace.len(),
        decisions: tally.decisions,
        mismatches: tally.mismatches,
        first: tally.first,
        stats,
        ooms: tally.ooms,
        not_in_file: NotInFile {
            lost_beginning: start.lost_beginning(),
            empty_caches: tally.releases.iter().filter(|(_, release)| *release == Release::All).count() as u64,
            refusals: tally.refusals,
            unknown_ages: start.lost.is_some() && options.settings.settings.garbage_collection_threshold > 0.0,
            assumed_collections,
            guess,
        },
        statistics,
    })
}

/// Retries beyond one for each assumed size: of one block more than once something can show.
const SPARE_RETRIES: usize = 8;

/// What a replay to the end found.
pub(super) struct Replayed {
    pub(super) stats: Stats,
    pub(super) tally: Tally,
    assumed_collections: u64,
    guess: Option<Guess>,
}

impl Replayed {
    /// Of two replays that agree with the recording the one for which this is less is likelier: statistics that differ less, less that
    /// no entry says, and fewer changes between pools.
    fn cost(&self, options: &VerifyOptions, start: &Start) -> (u64, u64, u64) {
        (self.distance(options, start), self.tally.effort(), self.guess.as_ref().map_or(0, |guess| guess.windows))
    }

    /// By how much the statistics differ from the recorded ones, peaks apart.
    fn distance(&self, options: &VerifyOptions, start: &Start) -> u64 {
        let Some(file) = &options.statistics else { return 0 };
        let is_reset = || Some((0, 0));
        let differences = statistics::compare(file, &self.stats, start.lost.is_some(), is_reset).differences;
        differences.iter().fold(0, |sum, one| sum.saturating_add(one.recorded.abs_diff(one.replayed)))
    }
}

/// Replays the whole trace from its start. Where that gives the recording and not its statistics, again with one request after the other
/// read otherwise: no entry tells a refusal from a call of empty_cache before the request, and the statistics count refusals.
pub(super) fn replay_to_end(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &mut Start,
    progress: &mut dyn FnMut(usize),
) -> Result<Replayed, VerifyError> {
    let mut best = replay_with_pools(recording, options, start, progress)?;
    let ambiguous = if best.tally.mismatches == 0 { best.tally.ambiguous.clone() } else { Vec::new() };
    for request in ambiguous.into_iter().take(MOST_READINGS) {
        let distance = best.distance(options, start);
        if distance == 0 {
            break;
        }
        let mut other = start.clone();
        other.otherwise.insert(request);
        let replayed = Replayed { guess: best.guess.clone(), ..replay_inferring(recording, options, &mut other, progress)? };
        if replayed.tally.mismatches == 0 && replayed.distance(options, &other) < distance {
            (*start, best) = (other, replayed);
        }
    }
    Ok(best)
}

/// Replays the whole trace from its start. If that differs, again with the private pools that the trace shows and the file does not name.
fn replay_with_pools(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &mut Start,
    progress: &mut dyn FnMut(usize),
) -> Result<Replayed, VerifyError> {
    let policy = PyTorch::of(options.settings.profile, options.settings.settings.clone());
    let before = start.clone();
    let plain = replay_inferring(recording, options, start, progress)?;
    if plain.tally.mismatches == 0 {
        return Ok(plain);
    }
    let Some(mut readings) = Readings::of(recording, &before, &policy) else { return Ok(plain) };
    let mut best: Option<(Start, Replayed)> = None;
    for _ in 0..MOST_READINGS {
        let Some(assumption) = readings.next() else { break };
        let mut assumed = before.clone();
        assumed.assume(&assumption);
        let replayed = replay_inferring(recording, options, &mut assumed, progress)?;
        if replayed.tally.mismatches > 0 {
            if best.is_none() {
                let released = replayed.tally.first_stray.filter(|(_, doing)| doing.action == Action::SegmentFree);
                readings
                    .fail(replayed.tally.first.and_then(|first| first.entry), released.map(|(at, doing)| (at, doing.address)));
            }
            continue;
        }
        let replayed = Replayed { guess: Some(assumption.guess), ..replayed };
        if best.as_ref().is_none_or(|(start, best)| replayed.cost(options, &assumed) < best.cost(options, start)) {
            readings.simplify(&replayed.tally.releases.iter().map(|&(entry, _)| entry).collect::<Vec<_>>());
            best = Some((assumed, replayed));
        }
    }
    let Some((assumed, replayed)) = best.filter(|(_, replayed)| replayed.guess.as_ref().is_some_and(Guess::is_sound)) else {
        return Ok(plain);
    };
    *start = assumed;
    Ok(replayed)
}

/// Replays the whole trace from its start, again where a mismatch shows an assumed size to be wrong.
fn replay_inferring(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &mut Start,
    progress: &mut dyn FnMut(usize),
) -> Result<Replayed, VerifyError> {
    let mut retries = start.extents.assumed.len() + SPARE_RETRIES;
    loop {
        match replay(recording, options, start, retries > 0, progress)? {
            Attempted::Done(replayed) => return Ok(*replayed),
            Attempted::Inferred(gap) => start.extents.shrink(gap),
        }
        retries -= 1;
    }
}

enum Attempted {
    Done(Box<Replayed>),
    /// The replay was given up at its first mismatch: this gap is smaller than assumed.
    Inferred(SmallerGap),
}

/// Replays from the first entry on: to the end, or to a mismatch that shows an assumed size to be wrong.
fn replay(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &Start,
    may_infer: bool,
    progress: &mut dyn FnMut(usize),
) -> Result<Attempted, VerifyError> {
    let position = Position::default();
    let mut runner = make_runner(recording, options, start, &position)?;
    let policy = PyTorch::of(options.settings.profile, options.settings.settings.clone());
    let mut reported = 0;
    while runner.step() {
        if let Some((entry, doing)) = runner.tally.stray.take().filter(|_| may_infer)
            && let Some(gap) = start.extents.explain(entry, &doing, &policy)
        {
            return Ok(Attempted::Inferred(gap));
        }
        if runner.at() - reported >= PROGRESS_STEP {
            reported = runner.at();
            progress(reported);
        }
    }
    final_state::compare(&recording.segments, &runner.core.segments(), &mut runner.tally);
    let assumed_collections = runner.core.policy().assumed;
    let stats = runner.core.stats().clone();
    let replayed = Replayed { stats, tally: runner.tally, assumed_collections, guess: None };
    Ok(Attempted::Done(Box::new(replayed)))
}

fn make_runner<'a>(
    recording: &'a DeviceRecording,
    options: &VerifyOptions,
    start: &'a Start,
    position: &'a Position,
) -> Result<Runner<'a>, VerifyError> {
    let trace = &recording.trace;
    let device = RecordedDevice::new(recording.device, trace, position);
    let policy = PyTorch::of(options.settings.profile, options.settings.settings.clone());
    let policy = Recorded::new(policy, trace, position, start.lost.is_some());
    let mut core = Allocator::new(device, policy, Comparer::new(trace, position));
    core.set_limit(options.limit_bytes.map(Bytes));
    let live = start.restore(&mut core)?;
    let capacity = Capacity::of(trace, start.reserved_bytes, &start.pools, &options.settings.settings);
    Ok(Runner::new(trace, position, core, live, start, capacity))
}

/// Replays again from the start that a replay to the end has found, and shows the state after every operation.
pub(super) fn watch(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &Start,
    visit: &mut dyn FnMut(usize, &ReplayCore<'_>),
) -> Result<(), VerifyError> {
    let position = Position::default();
    let mut runner = make_runner(recording, options, start, &position)?;
    visit(0, &runner.core);
    while runner.step() {
        visit(runner.at(), &runner.core);
    }
    Ok(())
}

/// Replays again, watching the peaks, to find when they were reset.
fn find_reset(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &Start,
    file: &StatisticsFile,
) -> Option<(usize, usize)> {
    let position = Position::default();
    let mut runner = make_runner(recording, options, start, &position).ok()?;
    runner.watch = Some(PeakWatch::new(&file.stats()));
    while runner.step() {}
    let watch = runner.watch.take()?;
    watch.finish(&runner.core)
}

fn add_statistics(tally: &mut Tally, statistics: Option<&StatisticsCheck>) {
    let Some(check) = statistics else { return };
    tally.decisions += check.compared as u64;
    tally.mismatches += check.differences.len() as u64;
    if let (None, Some(first)) = (&tally.first, check.differences.first()) {
        tally.first = Some(Mismatch {
            entry: None,
            recorded: format!("{} = {}", first.key, first.recorded),
            replayed: format!("{} = {}", first.key, first.replayed),
            addresses: Vec::new(),
        });
    }
}
