//! Means with their range. Only over seeds, which are drawn at random, is there a confidence interval: workloads are
//! chosen by hand, and an interval over them would say nothing about others.

use statrs::statistics::Statistics;

use crate::study::statistics::{Interval, interval_of_mean, mean};

/// The level of the confidence intervals.
const CONFIDENCE: f64 = 0.95;
/// The seed of the resamples.
const SEED: u64 = 1;

/// A mean with its range, or with its confidence interval where that is said.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Level {
    /// The mean: geometric, unless it is said otherwise.
    pub mean: f64,
    /// The least value, or the lower end of the interval.
    pub low: f64,
    /// The greatest value, or the upper end of the interval.
    pub high: f64,
    /// The number of values.
    pub count: usize,
}

/// The geometric mean and the range; `None` without values.
pub(super) fn over_all(values: &[f64]) -> Option<Level> {
    with_range(values, || geometric_mean(values))
}

/// The arithmetic mean and the range, of values that may be 0; `None` without values.
pub(super) fn plain_over_all(values: &[f64]) -> Option<Level> {
    with_range(values, || mean(values))
}

fn with_range(values: &[f64], mean: impl FnOnce() -> Option<f64>) -> Option<Level> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    // The mean of equal values is that value, to the last bit.
    let mean = if least.to_bits() == most.to_bits() { least } else { mean()? };
    Some(Level { mean, low: least, high: most, count: values.len() })
}

fn geometric_mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().map(|value| value.max(f64::MIN_POSITIVE)).geometric_mean())
}

/// The geometric mean over workloads, with its range; `None` without values.
pub(super) fn over_workloads(levels: impl Iterator<Item = Level>) -> Option<Level> {
    over_all(&levels.map(|level| level.mean).collect::<Vec<_>>())
}

/// The geometric mean over seeds and its interval, from the values' logarithms.
pub(super) fn with_interval(logs: &[f64]) -> Option<Level> {
    let mean = mean(logs)?;
    // A single value says nothing about others.
    let Interval { low, high } =
        interval_of_mean(logs, CONFIDENCE, SEED).unwrap_or(Interval { low: f64::NEG_INFINITY, high: f64::INFINITY });
    Some(Level { mean: mean.exp(), low: low.exp(), high: high.exp(), count: logs.len() })
}

impl Level {
    /// The geometric mean over workloads and the range, of those that have a value; `None` without any.
    #[must_use]
    pub fn over_workloads(values: &[Option<f64>]) -> Option<Level> {
        over_all(&values.iter().copied().flatten().collect::<Vec<_>>())
    }
}
