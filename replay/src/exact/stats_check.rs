//! Comparing the stats of a replay with those of PyTorch at the end of the recorded run; and when the peak stats were reset.
//!
//! A call of `reset_peak_memory_stats` leaves no entry, but shows in the stats at the end: every peak is
//! then the largest value since the call. If recorded peaks differ from those of the whole run, a single
//! reset must explain all of them. For each peak, a reset explains it within a range of operations: after
//! the last one where the value was higher, and no later than the last one where it was reached. These
//! ranges must have an operation in common.

use parkade::stats::{Family, Stats};

use super::recorded_core::ReplayCore;
use crate::inputs::{SINCE_2_12, StatsFile};

/// A stat that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatsDifference {
    /// Its key in `memory_stats()`.
    pub key: String,
    /// PyTorch's value.
    pub recorded: i64,
    /// The replay's value.
    pub replayed: i64,
}

/// The result of comparing stats.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StatsCheck {
    /// How many keys were compared.
    pub compared: usize,
    /// Differences that nothing explains.
    pub differences: Vec<StatsDifference>,
    /// How many keys cannot be known, because the trace lost its beginning.
    pub unknowable: usize,
    /// How many calls of empty_cache freed nothing; such a call leaves no entry.
    pub silent_empty_caches: i64,
    /// The entries between which a call of reset_peak_memory_stats explains all peaks; such a call leaves no entry.
    pub peaks_reset: Option<(usize, usize)>,
    /// Keys of the file that parkade does not know.
    pub unknown_keys: Vec<String>,
}

/// Compares stats. `reset` finds where a reset explains the recorded peaks; it is called only if they differ.
pub(crate) fn compare(
    file: &StatsFile,
    replayed: &Stats,
    lost_beginning: bool,
    reset: impl FnOnce() -> Option<(usize, usize)>,
) -> StatsCheck {
    let mut check = StatsCheck { unknown_keys: file.unknown.clone(), ..StatsCheck::default() };
    let mut peaks = Vec::new();
    let rejections = (SINCE_2_12.to_owned(), replayed.num_oom_rejections);
    for (key, value) in replayed.entries().into_iter().chain([rejections]) {
        let Some(&recorded) = file.known.get(&key) else { continue };
        // Sums, and possibly peaks, include what happened before the first entry; current values do not depend on it.
        if lost_beginning && !key.ends_with(".current") && key != "max_split_size" {
            check.unknowable += 1;
            continue;
        }
        check.compared += 1;
        if recorded == value {
            continue;
        }
        let difference = StatsDifference { key, recorded, replayed: value };
        if difference.key.ends_with(".peak") {
            peaks.push(difference);
        } else if difference.key == "num_sync_all_streams" && recorded > value {
            check.silent_empty_caches = recorded - value;
        } else {
            check.differences.push(difference);
        }
    }
    if !peaks.is_empty() {
        check.peaks_reset = reset();
        if check.peaks_reset.is_none() {
            check.differences.extend(peaks);
        }
    }
    check
}

/// A recorded peak, and the operations between which a reset explains it.
#[derive(Clone, Copy, Debug)]
struct Target {
    peak: i64,
    /// The first operation before which a reset explains it.
    earliest: usize,
    /// The last operation before which a reset explains it; `None` if the peak was never reached.
    latest: Option<usize>,
}

/// Watches all peaks during a replay.
#[derive(Clone, Debug)]
pub(crate) struct PeakWatch {
    targets: Vec<Target>,
    operation: usize,
    /// The entry at which each operation began.
    entries: Vec<u32>,
}

/// All peaks, in a fixed order.
fn peaks(stats: &Stats) -> impl Iterator<Item = i64> + '_ {
    let families = Family::ALL.into_iter().flat_map(|family| stats.family(family).levels().map(|(_, stat)| stat.peak));
    families.chain(stats.oversize().map(|(_, stat)| stat.peak))
}

fn currents(stats: &Stats) -> impl Iterator<Item = i64> + '_ {
    let families = Family::ALL.into_iter().flat_map(|family| stats.family(family).levels().map(|(_, stat)| stat.current));
    families.chain(stats.oversize().map(|(_, stat)| stat.current))
}

impl PeakWatch {
    /// Watches for the peaks of `recorded`.
    pub(crate) fn new(recorded: &Stats) -> PeakWatch {
        let targets = peaks(recorded).map(|peak| Target { peak, earliest: 0, latest: None }).collect();
        PeakWatch { targets, operation: 0, entries: Vec::new() }
    }

    /// An operation begins at the entry `at`.
    pub(crate) fn before(&mut self, at: usize) {
        self.entries.push(at as u32);
    }

    /// An operation is over. The peaks were reset before it, so they are its largest values.
    pub(crate) fn after(&mut self, core: &mut ReplayCore<'_>) {
        for (target, peak) in self.targets.iter_mut().zip(peaks(core.stats())) {
            if peak > target.peak {
                target.earliest = self.operation + 1;
            } else if peak == target.peak {
                target.latest = Some(self.operation);
            }
        }
        core.reset_peak_stats();
        self.operation += 1;
    }

    /// The first and the last entry before which a single reset explains all
    /// recorded peaks; `None` if there are none.
    pub(crate) fn finish(mut self, core: &ReplayCore<'_>) -> Option<(usize, usize)> {
        for (target, current) in self.targets.iter_mut().zip(currents(core.stats())) {
            if current == target.peak {
                target.latest = Some(self.operation);
            } else if current > target.peak {
                return None;
            }
        }
        let earliest = self.targets.iter().map(|target| target.earliest).max()?;
        let latest = self.targets.iter().map(|target| target.latest).min()??;
        let entry =
            |operation: usize| self.entries.get(operation).map_or(core.device().recorded_entries(), |&entry| entry as usize);
        (earliest <= latest).then(|| (entry(earliest), entry(latest)))
    }
}
