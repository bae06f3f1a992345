//! When the peaks were reset.
//!
//! A call of `reset_peak_memory_stats` leaves no entry, but it shows in the statistics at the end: every peak is then the largest
//! value since that moment. If recorded peaks differ from the whole run's, one single moment must explain all of them
//! together. For each statistic, the moments at which a reset gives the recorded peak are a range of operations: after the last time that
//! the value was above, and no later than the last time that it was reached. The ranges must have a moment in common.

use parkade::stats::{Family, Stats};

use super::replay_core::ReplayCore;

/// One statistic's recorded peak, and the operations between which a reset explains it.
#[derive(Clone, Copy, Debug)]
struct Target {
    peak: i64,
    /// The first operation before which a reset is late enough.
    earliest: usize,
    /// The last operation before which a reset is early enough; `None` if the peak was never reached.
    latest: Option<usize>,
}

/// Follows all peaks through a replay.
#[derive(Clone, Debug)]
pub(crate) struct PeakWatch {
    targets: Vec<Target>,
    operation: usize,
    /// The entry at which each operation began.
    entries: Vec<u32>,
}

/// All statistics that have a peak, in one order.
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

    /// An operation begins with the entry `at`.
    pub(crate) fn before(&mut self, at: usize) {
        self.entries.push(at as u32);
    }

    /// An operation is over: the peaks, reset before it, are the largest values from its beginning to its end.
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

    /// The entries before the first and the last of which a single reset explains all recorded peaks, if there are such.
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
