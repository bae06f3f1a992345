//! The entry points: complete replays of a recording, for a verdict on it and for an inside view of the recorded run.
//!
//! An entire recording is replayed more than once if the file can be read in several ways. The heap and the stats after every
//! operation come from the replay that verifies the recording, so they are as exact as its verdict states.

use parkade::Allocator;
use parkade::policy::PyTorch;
use parkade::snapshot::SegmentInfo;
use parkade::stats::{Family, Stats};
use parkade::units::{Bytes, PoolId};
use parkade_recording::{Action, DeviceRecording};

use super::flushes::Capacity;
use super::recorded_core::{Comparer, Position, Recorded, RecordedDevice, ReplayCore, restore};
use super::runner::Runner;
use super::tally::{Mismatch, PeakWatch, Release, StatsCheck, Tally, compare_heap, compare_own_words, compare_stats};
use crate::error::VerifyError;
use crate::hidden_pools::{Guess, Guesses, MOST_GUESSES, Releases, Unused, named};
use crate::initial_state::{LostBeginning, SmallerGap, Start};
use crate::inputs::{StatsFile, VerifyOptions};

/// Facts that a snapshot does not contain and that were therefore inferred or remain unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NotInFile {
    /// The memory that existed before the first entry.
    pub lost_beginning: Option<LostBeginning>,
    /// Calls to `empty_cache`, which are visible only as released segments that no request needed.
    pub empty_caches: u64,
    /// Requests that the device refused for unknown reasons: a limit that the caller did not specify, or a full device.
    pub refusals: u64,
    /// Restored checkpoints of private pools (spec 5.8). They are visible only as blocks handed out in a way that no request
    /// explains.
    pub restores: u64,
    /// Whether block ages from before the first entry matter: garbage collection depends on them.
    pub unknown_ages: bool,
    /// Garbage collections whose victims were taken from the recording, because the ages are unknown.
    pub assumed_collections: u64,
    /// The guesses for private pools that no longer existed at the end.
    pub guess: Option<Guess>,
    /// Whether the search for these pools stopped early because there were too many possibilities; a difference may then be
    /// due to a pool that was not found.
    pub gave_up_on_pools: bool,
}

/// The result of verifying one device of a recording.
#[derive(Clone, Debug)]
pub struct DeviceVerdict {
    /// The device's number.
    pub device: u32,
    /// The number of entries in the trace.
    pub entries: usize,
    /// The number of decisions compared: entries, the segments and blocks at the end, and stats.
    pub decisions: u64,
    /// The number of decisions that differed.
    pub mismatches: u64,
    /// The first difference.
    pub first: Option<Mismatch>,
    /// The stats at the end of the replay.
    pub stats: Stats,
    /// The number of requests that ran out of memory.
    pub ooms: u64,
    /// The facts that the snapshot does not contain.
    pub not_in_file: NotInFile,
    /// The comparison of stats, if the options contained any.
    pub stats_check: Option<StatsCheck>,
}

impl DeviceVerdict {
    /// Returns the peak of allocated bytes.
    #[must_use]
    pub fn peak_allocated_bytes(&self) -> i64 {
        self.stats.family(Family::AllocatedBytes).all.peak
    }

    /// Returns the peak of bytes reserved from the device.
    #[must_use]
    pub fn peak_reserved_bytes(&self) -> i64 {
        self.stats.family(Family::ReservedBytes).all.peak
    }
}

/// Replays one device of a recording and compares every decision.
///
/// It calls `progress` periodically with the number of entries done so far. The number starts over at 0 if the trace has to
/// be replayed more than once.
///
/// # Errors
/// Returns [`VerifyError`] if there is no trace, or if it contradicts itself.
pub fn verify_device(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(usize),
) -> Result<DeviceVerdict, VerifyError> {
    let mut start = find_start(recording, options)?;
    let replayed = replay_to_end(recording, options, &mut start, progress)?;
    Ok(verdict(recording, options, &start, replayed))
}

/// The result of a replay that stops at the first difference.
#[derive(Clone, Debug)]
pub enum Trial {
    /// There is no difference; this is the verdict of [`verify_device`].
    Same(Box<DeviceVerdict>),
    /// There is a difference in the first reading of the file. [`verify_device`] also tries other readings.
    Differs {
        /// The entry of the first difference, or `None` if it is at the end.
        entry: Option<usize>,
    },
}

/// Replays one device of a recording in the first reading of the file, up to the first difference: a cheap check of whether
/// these options explain it.
///
/// It calls `progress` as [`verify_device`] does.
///
/// # Errors
/// Fails in the same cases as [`verify_device`].
pub fn try_device(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(usize),
) -> Result<Trial, VerifyError> {
    let mut start = find_start(recording, options)?;
    let replayed = replay_until_it_differs(recording, options, &mut start, progress)?;
    if let Some(first) = &replayed.tally.first {
        return Ok(Trial::Differs { entry: first.entry });
    }
    let verdict = verdict(recording, options, &start, replayed);
    Ok(match &verdict.first {
        Some(first) => Trial::Differs { entry: first.entry },
        None => Trial::Same(Box::new(verdict)),
    })
}

fn find_start(recording: &DeviceRecording, options: &VerifyOptions) -> Result<Start, VerifyError> {
    if recording.trace.is_empty() {
        return Err(VerifyError::NoTrace);
    }
    let policy = PyTorch::of(options.settings.profile, options.settings.settings.clone());
    Start::find(recording, &policy)
}

fn verdict(recording: &DeviceRecording, options: &VerifyOptions, start: &Start, replayed: Replayed) -> DeviceVerdict {
    let Replayed { stats, mut tally, assumed_collections, guess, gave_up, .. } = replayed;
    let stats_check = options.stats_file.as_ref().map(|file| {
        let reset = || find_reset(recording, options, start, file);
        compare_stats(file, &stats, start.lost.is_some(), reset)
    });
    add_stats_check(&mut tally, stats_check.as_ref());
    compare_own_words(recording, &mut tally);
    DeviceVerdict {
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
            restores: tally.restores,
            unknown_ages: start.lost.is_some() && options.settings.settings.garbage_collection_threshold > 0.0,
            assumed_collections,
            guess,
            gave_up_on_pools: gave_up,
        },
        stats_check,
    }
}

/// Replays once more and watches the peaks to find where they were reset.
fn find_reset(recording: &DeviceRecording, options: &VerifyOptions, start: &Start, file: &StatsFile) -> Option<(usize, usize)> {
    let position = Position::default();
    let mut runner = make_runner(recording, options, start, &position).ok()?;
    runner.watch = Some(PeakWatch::new(&file.stats()));
    while runner.step() {}
    let watch = runner.watch.take()?;
    watch.finish(&runner.core)
}

fn add_stats_check(tally: &mut Tally, check: Option<&StatsCheck>) {
    let Some(check) = check else { return };
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

/// A recorded run between two operations.
pub struct Moment<'a> {
    /// The number of entries done so far, which is also the number of the next entry.
    pub entries: usize,
    stats: &'a Stats,
    taken: &'a [(u64, PoolId)],
    segments: &'a dyn Fn() -> Vec<SegmentInfo>,
}

impl Moment<'_> {
    /// Returns the heap: the segments in address order, with their blocks.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        (self.segments)()
    }

    /// Returns the addresses at which the operation took memory from the device, in order, with the pools that the memory was
    /// for: the first bytes of segments and of mapped pages.
    #[must_use]
    pub fn taken(&self) -> &[(u64, PoolId)] {
        self.taken
    }

    /// Returns the stats so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.stats
    }
}

/// Replays one device of a recording and calls `visit` before its first entry and after every operation, which may
/// have several entries. `own` describes the recorded run.
///
/// # Errors
/// Fails in the same cases as [`verify_device`].
pub fn watch_device(
    recording: &DeviceRecording,
    own: &VerifyOptions,
    visit: &mut dyn FnMut(&Moment<'_>),
) -> Result<(), VerifyError> {
    if recording.trace.is_empty() {
        return Err(VerifyError::NoTrace);
    }
    let mut start = Start::find(recording, &PyTorch::of(own.settings.profile, own.settings.settings.clone()))?;
    replay_to_end(recording, own, &mut start, &mut |_| {})?;
    watch(recording, own, &start, &mut |entries, core| {
        let taken = core.observer().taken.as_deref().unwrap_or(&[]);
        visit(&Moment { entries, stats: core.stats(), taken, segments: &|| core.segments() });
    })
}

/// Replays from a start that an earlier, complete replay determined, and visits the state after every operation.
fn watch(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &Start,
    visit: &mut dyn FnMut(usize, &ReplayCore<'_>),
) -> Result<(), VerifyError> {
    let position = Position::default();
    let mut runner = make_runner(recording, options, start, &position)?;
    runner.core.observer_mut().taken = Some(Vec::new());
    visit(0, &runner.core);
    while runner.step() {
        visit(runner.at(), &runner.core);
        runner.core.observer_mut().taken.iter_mut().for_each(Vec::clear);
    }
    Ok(())
}

/// The number of entries between two progress reports.
const PROGRESS_STEP: usize = 1 << 14;

/// The maximum number of ambiguous requests to read differently, one after another, if the stats differ.
const MOST_REREAD: usize = 48;
/// The maximum number of retries beyond one for each assumed size; a block's size may be corrected more than once.
const SPARE_RETRIES: usize = 8;

/// The maximum number of entries to replay and blocks to copy while trying guesses for the pools that the file does not name.
const MOST_WORK: u64 = 1 << 23;

/// The number of pairs of segments that the search compares in the time it takes to copy one block.
const PAIRS_A_BLOCK: u64 = 16;

/// The result of a replay to the end.
pub(crate) struct Replayed {
    pub(crate) stats: Stats,
    pub(crate) tally: Tally,
    assumed_collections: u64,
    guess: Option<Guess>,
    /// Whether the search for private pools stopped early because it would have taken too long.
    gave_up: bool,
    /// The number of entries replayed and blocks copied.
    work: u64,
}

impl Replayed {
    /// Returns the cost of a replay. Of two replays that agree with the recording, the one with the lower cost is more likely
    /// to be right: its stats differ less, it needs fewer events that no entry shows, and its requests change pools less
    /// often.
    fn cost(&self, options: &VerifyOptions, start: &Start) -> (bool, u64, u64, u64) {
        let is_unsound = self.guess.as_ref().is_some_and(|guess| !guess.is_sound());
        (is_unsound, self.distance(options, start), self.tally.effort(), self.guess.as_ref().map_or(0, |guess| guess.windows))
    }

    /// Returns the amount by which the stats differ from the recorded stats, ignoring peaks.
    fn distance(&self, options: &VerifyOptions, start: &Start) -> u64 {
        let Some(file) = &options.stats_file else { return 0 };
        let is_reset = || Some((0, 0));
        let differences = compare_stats(file, &self.stats, start.lost.is_some(), is_reset).differences;
        differences.iter().fold(0, |sum, one| sum.saturating_add(one.recorded.abs_diff(one.replayed)))
    }
}

/// Replays the entire trace from its start.
///
/// If the entries agree but the stats do not, it reads ambiguous requests differently, one after another: no entry
/// distinguishes a refused request from a request preceded by a call to `empty_cache`, but the stats count refusals.
pub(crate) fn replay_to_end(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &mut Start,
    progress: &mut dyn FnMut(usize),
) -> Result<Replayed, VerifyError> {
    let mut best = replay_with_pools(recording, options, start, progress)?;
    let ambiguous = if best.tally.mismatches == 0 { best.tally.ambiguous.clone() } else { Vec::new() };
    for request in ambiguous.into_iter().take(MOST_REREAD) {
        let distance = best.distance(options, start);
        if distance == 0 {
            break;
        }
        let mut other = start.clone();
        other.read_differently.insert(request);
        let replayed =
            Replayed { guess: best.guess.clone(), ..replay_inferring(recording, options, &mut other, Extent::Whole, progress)? };
        if replayed.tally.mismatches == 0 && replayed.distance(options, &other) < distance {
            (*start, best) = (other, replayed);
        }
    }
    Ok(best)
}

/// Replays the entire trace from its start, with the pools that its entries name. If that replay differs, replays it as if
/// the entries named none, and then with guesses for the private pools that the file does not name.
fn replay_with_pools(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &mut Start,
    progress: &mut dyn FnMut(usize),
) -> Result<Replayed, VerifyError> {
    let policy = PyTorch::of(options.settings.profile, options.settings.settings.clone());
    for pools in named(recording, start, &policy).into_iter().flatten() {
        let mut told = start.clone();
        told.assume(&pools);
        let replayed = replay_with_restores(recording, options, &mut told, Extent::Whole, progress)?;
        if replayed.tally.mismatches == 0 {
            *start = told;
            return Ok(replayed);
        }
    }
    let mut before = start.clone();
    let mut plain = replay_with_restores(recording, options, start, Extent::Whole, progress)?;
    if plain.tally.mismatches == 0 {
        return Ok(plain);
    }
    before.restores_from = Some(0);
    for releases in [Releases::OfRequests, Releases::OfCalls] {
        let guesses = match Guesses::of(recording, &before, &policy, releases) {
            Ok(guesses) => guesses,
            Err(Unused::Contradictory) => break,
            Err(Unused::TooMuch) => {
                plain.gave_up = true;
                break;
            }
        };
        let Tried { best, gave_up } = try_guesses(recording, options, &before, guesses, progress)?;
        plain.gave_up |= gave_up;
        if let Some((assumed, replayed)) = best {
            *start = assumed;
            return Ok(replayed);
        }
        if gave_up {
            break;
        }
    }
    Ok(plain)
}

/// Replays the trace from its start in the likeliest reading, up to the first unexplained difference.
fn replay_until_it_differs(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &mut Start,
    progress: &mut dyn FnMut(usize),
) -> Result<Replayed, VerifyError> {
    if let Some([pools, _]) = named(recording, start, &PyTorch::of(options.settings.profile, options.settings.settings.clone())) {
        start.assume(&pools);
    }
    replay_with_restores(recording, options, start, Extent::UntilItDiffers { most_copied: u64::MAX }, progress)
}

/// Replays the trace from its start. If that replay differs, replays it again with restored checkpoints of private pools, if
/// they explain more.
fn replay_with_restores(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &mut Start,
    extent: Extent,
    progress: &mut dyn FnMut(usize),
) -> Result<Replayed, VerifyError> {
    let place = |replayed: &Replayed| replayed.tally.first.as_ref().map_or(usize::MAX, |first| first.entry.unwrap_or(usize::MAX));
    let mut restoring = start.clone();
    let plain = replay_inferring(recording, options, start, extent, progress)?;
    let differs = place(&plain);
    if differs == usize::MAX || start.pools.private().is_empty() {
        return Ok(plain);
    }
    restoring.restores_from = Some(differs);
    let restored = replay_inferring(recording, options, &mut restoring, extent, progress)?;
    if restored.tally.restores == 0 || place(&restored) <= differs {
        return Ok(plain);
    }
    *start = restoring;
    Ok(restored)
}

/// The result of trying guesses.
#[derive(Default)]
struct Tried {
    best: Option<(Start, Replayed)>,
    /// Whether it stopped before it had tried all guesses, because they took too long.
    gave_up: bool,
}

/// Replays the entire trace under one guess after another. Returns the best sound guess that agrees with the recording.
fn try_guesses(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    before: &Start,
    mut guesses: Guesses,
    progress: &mut dyn FnMut(usize),
) -> Result<Tried, VerifyError> {
    let (mut tried, mut work) = (Tried::default(), 0_u64);
    let best = &mut tried.best;
    for _ in 0..MOST_GUESSES {
        let Some((pools, guess)) = guesses.next() else { break };
        let mut assumed = before.clone();
        assumed.assume(&pools);
        let extent = Extent::UntilItDiffers { most_copied: MOST_WORK.saturating_sub(work) };
        let replayed = replay_inferring(recording, options, &mut assumed, extent, progress)?;
        work += replayed.work;
        if work + guesses.work / PAIRS_A_BLOCK > MOST_WORK {
            tried.gave_up = true;
            break;
        }
        if replayed.tally.mismatches > 0 {
            if best.is_none() {
                let released = replayed.tally.first_stray.filter(|(_, decision)| decision.action == Action::SegmentFree);
                let first = replayed.tally.first.as_ref();
                guesses.fail(
                    first.and_then(|first| first.entry),
                    released.map(|(at, decision)| (at, decision.address)),
                    first.map_or(&[], |first| &first.addresses),
                );
            }
            continue;
        }
        let replayed = Replayed { guess: Some(guess), ..replayed };
        if best.as_ref().is_none_or(|(start, best)| replayed.cost(options, &assumed) < best.cost(options, start)) {
            guesses.simplify(&replayed.tally.releases.iter().map(|&(entry, _)| entry).collect::<Vec<_>>());
            *best = Some((assumed, replayed));
        }
    }
    tried.best = tried.best.filter(|(_, replayed)| replayed.guess.as_ref().is_some_and(Guess::is_sound));
    Ok(tried)
}

/// Replays the entire trace from its start, and starts over each time a mismatch shows that an assumed size is wrong.
fn replay_inferring(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &mut Start,
    extent: Extent,
    progress: &mut dyn FnMut(usize),
) -> Result<Replayed, VerifyError> {
    let mut retries = start.extents.assumed.len() + SPARE_RETRIES;
    loop {
        match replay(recording, options, start, (retries > 0, extent), progress)? {
            Attempted::Done(replayed) => return Ok(*replayed),
            Attempted::Inferred(gap) => start.extents.shrink(gap),
        }
        retries -= 1;
    }
}

/// How far to replay.
#[derive(Clone, Copy, Debug)]
enum Extent {
    Whole,
    /// Until a mismatch shows that a guess is wrong, or until more than this many blocks have been copied.
    UntilItDiffers {
        most_copied: u64,
    },
}

impl Extent {
    fn ends(self, tally: &Tally, position: &Position) -> bool {
        match self {
            Extent::Whole => false,
            Extent::UntilItDiffers { most_copied } => {
                (tally.first.is_some() && tally.first_stray.is_some()) || position.copied.get() > most_copied
            }
        }
    }
}

enum Attempted {
    Done(Box<Replayed>),
    /// The replay stopped at its first mismatch, which shows that this gap is smaller than assumed.
    Inferred(SmallerGap),
}

/// Replays from the first entry to the end, or to a mismatch that proves that an assumed size is wrong.
fn replay(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &Start,
    (may_infer, extent): (bool, Extent),
    progress: &mut dyn FnMut(usize),
) -> Result<Attempted, VerifyError> {
    let position = Position::default();
    let mut runner = make_runner(recording, options, start, &position)?;
    let policy = PyTorch::of(options.settings.profile, options.settings.settings.clone());
    let mut reported = 0;
    while runner.step() {
        if let Some((entry, decision)) = runner.tally.stray.take().filter(|_| may_infer)
            && let Some(gap) = start.extents.explain(entry, &decision, &policy)
        {
            return Ok(Attempted::Inferred(gap));
        }
        if extent.ends(&runner.tally, &position) {
            break;
        }
        if runner.at() - reported >= PROGRESS_STEP {
            reported = runner.at();
            progress(reported);
        }
    }
    compare_heap(&recording.segments, &runner.core.segments(), &mut runner.tally);
    let assumed_collections = runner.core.policy().assumed;
    let stats = runner.core.stats().clone();
    let work = runner.at() as u64 + position.copied.get();
    let replayed = Replayed { stats, tally: runner.tally, assumed_collections, guess: None, gave_up: false, work };
    Ok(Attempted::Done(Box::new(replayed)))
}

/// Returns a replay positioned at the recording's first entry.
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
    let live = restore(start, &mut core)?;
    let capacity = Capacity::of(trace, start.reserved_bytes, &start.pools, &options.settings.settings);
    Ok(Runner::new(trace, position, core, live, start, capacity))
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Action, Entry};

    use super::*;
    use crate::ReplaySettings;

    #[test]
    fn the_heap_is_seen_after_every_operation() {
        let entry = |action, address, size| Entry::new(action, address, size, 7);
        const BASE: u64 = 1 << 40;
        const MIB: u64 = 1 << 20;
        let trace = vec![
            entry(Action::SegmentAlloc, BASE, 20 * MIB),
            entry(Action::Alloc, BASE, 5 * MIB),
            entry(Action::FreeRequested, BASE, 5 * MIB),
            entry(Action::FreeCompleted, BASE, 5 * MIB),
            entry(Action::SegmentFree, BASE, 20 * MIB),
        ];
        let recording = DeviceRecording { trace, ..DeviceRecording::default() };
        let own =
            VerifyOptions { settings: ReplaySettings::given("").expect("no settings"), limit_bytes: None, stats_file: None };
        let mut seen = Vec::new();
        watch_device(&recording, &own, &mut |moment| {
            let blocks: Vec<_> = moment.segments().iter().flat_map(|s| s.blocks.iter().map(|b| b.size.get() / MIB)).collect();
            seen.push((moment.entries, moment.stats().family(Family::ReservedBytes).all.current, blocks));
        })
        .expect("a whole trace");
        let reserved = 20 * MIB as i64;
        assert_eq!(seen, [(0, 0, vec![]), (2, reserved, vec![5, 15]), (4, reserved, vec![20]), (5, 0, vec![])]);
    }
}
