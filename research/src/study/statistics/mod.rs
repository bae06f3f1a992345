//! Statistics of a study: means with intervals, comparisons of pairs, and what many comparisons cost.
//!
//! The unit is the workload. Seeds of one workload are averaged before, since they say nothing about other programs.

mod interval;
mod several;
mod signed_rank;
#[cfg(test)]
mod tests;

pub use interval::{Interval, RESAMPLES, interval_of_mean};
pub use several::holm;
pub use signed_rank::{SignedRank, signed_rank};

/// The arithmetic mean; `None` of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
