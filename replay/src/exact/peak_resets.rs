//! When the peak stats were reset.
//!
//! A call of `reset_peak_memory_stats` leaves no entry, but shows in the stats at the end: every peak is
//! then the largest value since the call. If recorded peaks differ from those of the whole run, a single
//! reset must explain all of them. For each peak, a reset explains it within a range of operations: after
//! the last one where the value was higher, and no later than the last one where it was reached. These
//! ranges must have an operation in common.

use parkade::stats::{Family, Stats};

use super::replay_core::ReplayCore;

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
pub(crate) fn peaks(stats: &Stats) -> impl Iterator<Item = i64> + '_ {
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
