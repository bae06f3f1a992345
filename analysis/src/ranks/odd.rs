//! The odd one out: the rank that deviates most from the others' median.
//!
//! A rank's deviation is measured against the median of the *other* ranks, in units of their median absolute deviation, so that neither
//! it nor a second odd one hides it. The bound is that of Iglewicz and Hoaglin (1993) for their modified z-score. Ranks of one job are
//! often exactly alike, and then any difference would be infinitely many deviations: one below 1 % is none.

use super::measure::Measure;
use super::run::RankRun;

/// With fewer ranks it is not said which of them is the odd one.
pub const LEAST_RANKS: usize = 3;
/// A modified z-score above this is an outlier.
const BOUND: f64 = 3.5;
/// The standard deviation of a normal distribution over its median absolute deviation.
const NORMAL: f64 = 1.4826;
/// A smaller deviation is none: as a share of the median, for bytes of the median peak of reserved memory.
const LEAST_SHARE: f64 = 0.01;
/// If more than one of so many ranks stands out in a measure, none does.
const MOST_OF: usize = 3;

/// A rank that stands out, in the first measure in which it does: the peaks come first, as what is left at the end depends on when the
/// snapshot was taken.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Odd {
    /// Its place among the compared runs.
    pub run: usize,
    /// In what.
    pub measure: Measure,
    /// Its value.
    pub value: i64,
    /// The others' median.
    pub median: i64,
    /// The difference in units of the others' deviation; above 3.5.
    pub score: f64,
}

/// The runs that stand out among those at the places `alike`: by measure, and in each the most deviant first. Empty if there are fewer than [`LEAST_RANKS`].
pub(super) fn odd_ones(runs: &[RankRun], alike: &[usize]) -> Vec<Odd> {
    let mut found: Vec<Odd> = Vec::new();
    let reserved = values(runs, alike, Measure::PeakReserved);
    let scale = median(&mut reserved.iter().map(|&(_, value)| value).collect::<Vec<_>>());
    let died = alike.iter().filter(|&&run| runs[run].is_cut_short).count();
    for measure in Measure::ALL {
        let values = values(runs, alike, measure);
        if values.len() < LEAST_RANKS {
            continue;
        }
        for odd in deviating(measure, &values, if measure.is_bytes() { scale } else { None }) {
            if is_telling(&runs[odd.run], &odd, died) && found.iter().all(|other| other.run != odd.run) {
                found.push(odd);
            }
        }
    }
    found
}

/// Whether it means something that the run has so little of this: not if it is one of several that died, as how far each got is chance.
fn is_telling(run: &RankRun, odd: &Odd, died: usize) -> bool {
    let grows = matches!(odd.measure, Measure::PeakAllocated | Measure::PeakReserved | Measure::Entries);
    !(run.is_cut_short && died > 1 && grows && odd.value < odd.median)
}

fn values(runs: &[RankRun], alike: &[usize], measure: Measure) -> Vec<(usize, i64)> {
    alike.iter().filter_map(|&run| Some((run, measure.of(&runs[run])?))).collect()
}

fn deviating(measure: Measure, values: &[(usize, i64)], scale: Option<i64>) -> Vec<Odd> {
    let of_one = |&(run, value): &(usize, i64)| {
        let others = || values.iter().filter(|(other, _)| *other != run).map(|&(_, value)| value);
        let median_of_others = median(&mut others().collect::<Vec<_>>())?;
        let deviation = |value: i64| value.saturating_sub(median_of_others).saturating_abs();
        let spread = NORMAL * median(&mut others().map(deviation).collect::<Vec<_>>())? as f64;
        let least = LEAST_SHARE * scale.unwrap_or(median_of_others).max(median_of_others) as f64;
        let unit = spread.max(least / BOUND);
        let score = if unit > 0.0 { deviation(value) as f64 / unit } else { 0.0 };
        (score > BOUND).then_some(Odd { run, measure, value, median: median_of_others, score })
    };
    let mut found: Vec<Odd> = values.iter().filter_map(of_one).collect();
    found.sort_by(|one, other| other.score.total_cmp(&one.score).then(one.run.cmp(&other.run)));
    // So many are groups, such as the stages of a pipeline.
    if found.len() * MOST_OF > values.len() { Vec::new() } else { found }
}

/// The median, which reorders the values; of an even number of them the mean of the middle two, rounded down.
fn median(values: &mut [i64]) -> Option<i64> {
    let middle = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    if values.is_empty() {
        return None;
    }
    let (below, &mut upper, _) = values.select_nth_unstable(middle);
    let lower = below.iter().copied().max().filter(|_| is_even).unwrap_or(upper);
    Some(((i128::from(lower) + i128::from(upper)) / 2) as i64)
}
