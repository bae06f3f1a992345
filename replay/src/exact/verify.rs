//! Verifying a recording: every decision of the recorded allocator, made again.

use parkade::policy::PyTorch;
use parkade::stats::{Family, Stats};
use parkade_recording::DeviceRecording;

use super::attempts::{Replayed, make_runner, replay_to_end};
use super::peak_resets::PeakWatch;
use super::position::Position;
use super::stats_check::{self, StatsCheck};
use super::tally::{Mismatch, Release, Tally};
use crate::error::VerifyError;
use crate::hidden_pools::Guess;
use crate::inputs::{StatsFile, VerifyOptions};
use crate::start::{LostBeginning, Start, check_consistency};

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
    pub stats_check: Option<StatsCheck>,
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
    check_consistency(&recording.trace, &start.extents.segments)?;
    let Replayed { stats, mut tally, assumed_collections, guess } = replay_to_end(recording, options, &mut start, progress)?;
    let stats_check = options.stats_file.as_ref().map(|file| {
        let reset = || find_reset(recording, options, &start, file);
        stats_check::compare(file, &stats, start.lost.is_some(), reset)
    });
    add_stats_check(&mut tally, stats_check.as_ref());
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
        stats_check,
    })
}

/// Replays again, watching the peaks, to find when they were reset.
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
