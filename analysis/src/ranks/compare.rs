//! The comparison of ranks.

use super::differences::{Difference, differences};
use super::odd::{Odd, odd_ones};
use super::run::RankRun;

/// The rank that ran out of memory first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailsFirst {
    /// Its place among the compared runs.
    pub run: usize,
    /// The next one that failed, and how many microseconds later; `None` if no other did, or if the files do not all have times.
    pub next: Option<(usize, u64)>,
    /// Whether times decided. Without them the smaller number of entries does, which is a guess.
    pub is_by_time: bool,
    /// How many ranks ran out of memory.
    pub failed: usize,
}

/// What a comparison of ranks found. Runs are named by their place in the slice that was compared.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// Who ran out of memory first; `None` if nobody did.
    pub fails_first: Option<FailsFirst>,
    /// The runs unlike the others: by measure, and in each the most deviant first. The first is the odd one out.
    pub odd: Vec<Odd>,
    /// What makes the files unlikely to be ranks of one job.
    pub differences: Vec<Difference>,
    /// The places of the runs among which odd ones were looked for: of the program that most files are of, each recording once.
    pub compared: Vec<usize>,
}

/// Compares the runs of several ranks.
///
/// The times of failures are those in the files: where hosts' clocks differ, so may the order.
#[must_use]
pub fn compare(runs: &[RankRun]) -> Comparison {
    let (differences, compared) = differences(runs);
    Comparison { fails_first: fails_first(runs), odd: odd_ones(runs, &compared), differences, compared }
}

fn fails_first(runs: &[RankRun]) -> Option<FailsFirst> {
    let failures: Vec<_> = runs.iter().enumerate().filter_map(|(place, run)| Some((place, run.failure?))).collect();
    let times: Option<Vec<(u64, usize)>> = failures.iter().map(|&(place, failure)| Some((failure.time_us?, place))).collect();
    let (run, next, is_by_time) = if let Some(mut times) = times {
        times.sort_unstable();
        let &(first_us, run) = times.first()?;
        (run, times.get(1).map(|&(time_us, next)| (next, time_us - first_us)), true)
    } else {
        let (run, _) = failures.iter().min_by_key(|(place, failure)| (failure.entry, *place))?;
        (*run, None, false)
    };
    Some(FailsFirst { run, next, is_by_time, failed: failures.len() })
}
