//! A confidence interval of a mean: the bias-corrected and accelerated bootstrap (BCa).
//!
//! Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 14.3. It is seeded: the same values and
//! seed give the same interval.

use statrs::distribution::{ContinuousCDF, Normal};

use super::mean::mean;
use crate::packing::random::Random;

/// The number of resamples.
pub const RESAMPLES: usize = 10_000;

/// A confidence interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// The confidence interval of the mean of the distribution that the values are drawn from, at this level (such as
/// 0.95). `None` for fewer than two values, which say nothing about variation. If all values are equal, both ends
/// are that value.
#[must_use]
pub fn interval_of_mean(values: &[f64], level: f64, seed: u64) -> Option<Interval> {
    if values.len() < 2 {
        return None;
    }
    let center = mean(values)?;
    if values.iter().all(|value| value.to_bits() == values[0].to_bits()) {
        return Some(Interval { low: values[0], high: values[0] });
    }
    let resampled = resampled_means(values, seed);
    // Resamples equal to the mean count half: with few values there are many.
    let below = resampled.iter().map(|&value| if value < center { 1.0 } else { f64::from(u8::from(value <= center)) / 2.0 });
    let share = below.sum::<f64>() / resampled.len() as f64;
    let bias = Normal::standard().inverse_cdf(share.clamp(1e-9, 1.0 - 1e-9));
    let (low, high) = levels(bias, acceleration(values, center), level);
    Some(Interval { low: quantile(&resampled, low), high: quantile(&resampled, high) })
}

/// The means of the resamples, in ascending order.
fn resampled_means(values: &[f64], seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| (0..values.len()).map(|_| values[random.below(values.len())]).sum::<f64>() / values.len() as f64)
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    means
}

/// The acceleration: how fast the standard error changes with the mean. The jackknife's estimate is the skewness
/// over `6 sqrt(n)`.
pub(super) fn acceleration(values: &[f64], center: f64) -> f64 {
    let power = |exponent| values.iter().map(|value| (value - center).powi(exponent)).sum::<f64>();
    power(3) / (6.0 * power(2).powf(1.5))
}

/// The quantiles of the resamples that are the interval's ends.
pub(super) fn levels(bias: f64, acceleration: f64, level: f64) -> (f64, f64) {
    let normal = Normal::standard();
    let adjusted = |share: f64| {
        let shifted = bias + normal.inverse_cdf(share);
        normal.cdf(bias + shifted / (1.0 - acceleration * shifted))
    };
    (adjusted((1.0 - level) / 2.0), adjusted(f64::midpoint(1.0, level)))
}

/// A quantile, interpolated between the two nearest values.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (below, part) = (place.floor(), place.fract());
    let at = |place: f64| sorted[place as usize];
    at(below) + (at(place.ceil()) - at(below)) * part
}
