//! Geometric means, with their range over seeds or their confidence interval over workloads.

use crate::study::statistics::{Interval, interval_of_mean, mean};

/// The level of the confidence intervals.
const CONFIDENCE: f64 = 0.95;
/// The seed of the resamples.
const SEED: u64 = 1;

/// A geometric mean: over seeds, with its range, or over workloads, with its confidence interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Level {
    /// The geometric mean.
    pub mean: f64,
    /// The least value of the seeds, or the lower end of the interval.
    pub low: f64,
    /// The greatest value of the seeds, or the upper end of the interval.
    pub high: f64,
    /// The number of values.
    pub count: usize,
}

/// The geometric mean and the range; `None` without values.
pub(super) fn over_all(values: &[f64]) -> Option<Level> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    // The mean of equal values is that value, to the last bit.
    let mean = if least.to_bits() == most.to_bits() { least } else { geometric_mean(values)? };
    Some(Level { mean, low: least, high: most, count: values.len() })
}

fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: Vec<f64> = values.iter().map(|value| value.max(f64::MIN_POSITIVE).ln()).collect();
    mean(&logs).map(f64::exp)
}

/// The geometric mean over workloads, with its interval; `None` without values.
pub(super) fn over_workloads(levels: impl Iterator<Item = Level>) -> Option<Level> {
    let logs: Vec<f64> = levels.map(|level| level.mean.max(f64::MIN_POSITIVE).ln()).collect();
    of_logs(&logs)
}

/// The geometric mean and its interval, from the values' logarithms.
pub(super) fn of_logs(logs: &[f64]) -> Option<Level> {
    let mean = mean(logs)?;
    // A single value says nothing about others.
    let Interval { low, high } =
        interval_of_mean(logs, CONFIDENCE, SEED).unwrap_or(Interval { low: f64::NEG_INFINITY, high: f64::INFINITY });
    Some(Level { mean: mean.exp(), low: low.exp(), high: high.exp(), count: logs.len() })
}
