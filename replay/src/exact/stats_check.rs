//! Comparing the stats of a replay with those of PyTorch at the end of the recorded run.

use parkade::stats::Stats;

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
