//! Comparing the statistics of a replay with those that PyTorch printed at the end of the recorded run.

use parkade::stats::Stats;

use crate::inputs::StatsFile;

/// One statistic that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatsDifference {
    /// The key.
    pub key: String,
    /// What PyTorch printed.
    pub recorded: i64,
    /// What the replay has.
    pub replayed: i64,
}

/// What comparing the statistics found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StatsCheck {
    /// Keys compared.
    pub compared: usize,
    /// Keys that nothing in the file explains.
    pub differences: Vec<StatsDifference>,
    /// Keys that cannot be known, because the file lost its beginning.
    pub unknowable: usize,
    /// Calls of empty_cache that freed nothing, which leave no entry.
    pub silent_empty_caches: i64,
    /// A call of reset_peak_memory_stats, which leaves no entry: between which two entries a single one explains all peaks.
    pub peaks_reset: Option<(usize, usize)>,
    /// Keys of the file that this version of PyTorch does not have.
    pub unknown_keys: Vec<String>,
}

/// Compares. `reset` finds the moment at which a reset explains the recorded peaks, and is asked only if they differ.
pub(crate) fn compare(
    file: &StatsFile,
    replayed: &Stats,
    lost_beginning: bool,
    reset: impl FnOnce() -> Option<(usize, usize)>,
) -> StatsCheck {
    let mut check = StatsCheck { unknown_keys: file.unknown.clone(), ..StatsCheck::default() };
    let mut peaks = Vec::new();
    for (key, value) in replayed.entries() {
        let recorded = file.known[&key];
        // What happened before the first entry is in every sum and may be in every peak, but not in what is there at the end.
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
