//! Replays an entire recording, more than once if the file can be read in several ways.

use parkade::Allocator;
use parkade::policy::PyTorch;
use parkade::stats::Stats;
use parkade::units::Bytes;
use parkade_recording::{Action, DeviceRecording};

use super::recorded_capacity::Capacity;
use super::recorded_core::{Comparer, Position, Recorded, RecordedDevice, restore};
use super::runner::Runner;
use super::tally::{Tally, compare_heap, compare_stats};
use crate::error::VerifyError;
use crate::hidden_pools::{Guess, Guesses, MOST_GUESSES, Releases, Unused, named};
use crate::initial_state::{SmallerGap, Start};
use crate::inputs::VerifyOptions;

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
    pub(crate) assumed_collections: u64,
    pub(crate) guess: Option<Guess>,
    /// Whether the search for private pools stopped early because it would have taken too long.
    pub(crate) gave_up: bool,
    /// The number of entries replayed and blocks copied.
    work: u64,
}

impl Replayed {
    /// The cost of a replay. Of two replays that agree with the recording, the one with the lower cost is more likely to be
    /// right: its stats differ less, it needs fewer events that no entry shows, and its requests change pools less often.
    fn cost(&self, options: &VerifyOptions, start: &Start) -> (bool, u64, u64, u64) {
        let is_unsound = self.guess.as_ref().is_some_and(|guess| !guess.is_sound());
        (is_unsound, self.distance(options, start), self.tally.effort(), self.guess.as_ref().map_or(0, |guess| guess.windows))
    }

    /// The amount by which the stats differ from the recorded stats, ignoring peaks.
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
pub(crate) fn replay_until_it_differs(
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

/// A replay positioned at the recording's first entry.
pub(crate) fn make_runner<'a>(
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
