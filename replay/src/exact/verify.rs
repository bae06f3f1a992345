//! The entry points: the verdict on a recording, and an inside view of the recorded run.
//!
//! The heap and the stats after every operation come from the replay that verifies the recording, so they are as exact as its
//! verdict states.

use parkade::policy::PyTorch;
use parkade::snapshot::SegmentInfo;
use parkade::stats::{Family, Stats};
use parkade::units::PoolId;
use parkade_recording::DeviceRecording;

use super::attempts::{Replayed, make_runner, replay_to_end, replay_until_it_differs};
use super::recorded_core::{Position, ReplayCore};
use super::tally::{Mismatch, PeakWatch, Release, StatsCheck, Tally, compare_own_words, compare_stats};
use crate::error::VerifyError;
use crate::hidden_pools::Guess;
use crate::initial_state::{LostBeginning, Start};
use crate::inputs::{StatsFile, VerifyOptions};

/// What a snapshot does not contain, and was therefore inferred or remains unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NotInFile {
    /// What existed before the first entry.
    pub lost_beginning: Option<LostBeginning>,
    /// Calls to `empty_cache`, which show only as released segments that no request needed.
    pub empty_caches: u64,
    /// Requests that the device refused for unknown reasons: a limit that the caller did not specify, or a full device.
    pub refusals: u64,
    /// Restored checkpoints of private pools (spec 5.8). They show only as blocks handed out in a way that no request
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
    /// What the snapshot does not contain.
    pub not_in_file: NotInFile,
    /// The comparison of stats, if the options contained any.
    pub stats_check: Option<StatsCheck>,
}

impl DeviceVerdict {
    /// The peak of allocated bytes.
    #[must_use]
    pub fn peak_allocated_bytes(&self) -> i64 {
        self.stats.family(Family::AllocatedBytes).all.peak
    }

    /// The peak of bytes reserved from the device.
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
/// [`VerifyError`] if there is no trace, or if it contradicts itself.
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
/// As [`verify_device`].
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
    /// The heap: the segments in address order, with their blocks.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        (self.segments)()
    }

    /// The addresses at which the operation took memory from the device, in order, with the pools that the memory was for:
    /// the first bytes of segments and of mapped pages.
    #[must_use]
    pub fn taken(&self) -> &[(u64, PoolId)] {
        self.taken
    }

    /// The stats so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.stats
    }
}

/// Replays one device of a recording and calls `visit` before its first entry and after every operation, which may
/// have several entries. `own` describes the recorded run.
///
/// # Errors
/// As [`verify_device`].
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

#[cfg(test)]
mod tests {
    use super::*;
    use parkade_recording::{Action, Entry};

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
