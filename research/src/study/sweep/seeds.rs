//! Two policies compared over the seeds of one workload.
//!
//! Seeds are drawn at random from what a generator can make, so a test over them says something about the programs that
//! it makes. Workloads are chosen by hand: there is no such test over them.

use super::levels::{Level, with_interval};
use super::row::Row;
use crate::study::statistics::{SignedRank, holm, signed_rank};

/// A policy against the baseline over the seeds of one workload.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SeedComparison {
    /// Its smallest memory over the baseline's: the geometric mean over the seeds that fit under both, with a 95 %
    /// interval.
    pub ratio: Option<Level>,
    /// The number of seeds for which it needs less memory, as much, and more. Not fitting at all counts as more.
    pub counts: [usize; 3],
    /// Wilcoxon's signed-rank test of the logarithms; a negative effect means less memory.
    pub test: SignedRank,
    /// The test's p value with Holm's correction for all comparisons of the sweep.
    pub corrected_p: f64,
}

/// Compares the smallest memories of one workload, a row for each seed; `None` with fewer than two seeds.
pub(super) fn compare(own: &[&Row], base: &[&Row]) -> Option<SeedComparison> {
    let of_seed = |seed| base.iter().find(|row| row.seed == seed);
    let pairs: Vec<(f64, f64)> = own.iter().filter_map(|row| Some((log_bytes(row), log_bytes(of_seed(row.seed)?)))).collect();
    if pairs.len() < 2 {
        return None;
    }
    let difference = |&(own, base): &(f64, f64)| if own.is_infinite() && base.is_infinite() { 0.0 } else { own - base };
    let differences: Vec<f64> = pairs.iter().map(difference).collect();
    let finite: Vec<f64> = pairs.iter().filter(|(own, base)| own.is_finite() && base.is_finite()).map(difference).collect();
    let test = signed_rank(&differences);
    Some(SeedComparison { ratio: with_interval(&finite), counts: counts(&differences), test, corrected_p: test.p })
}

/// How many are less than, equal to and greater than 0.
pub(super) fn counts(differences: &[f64]) -> [usize; 3] {
    let count = |wanted: fn(f64) -> bool| differences.iter().filter(|difference| wanted(**difference)).count();
    [count(|d| d < 0.0), count(|d| d == 0.0), count(|d| d > 0.0)]
}

/// Corrects the p values of all comparisons together.
pub(super) fn correct<'a>(comparisons: impl Iterator<Item = &'a mut SeedComparison>) {
    let mut comparisons: Vec<&mut SeedComparison> = comparisons.collect();
    let p_values: Vec<f64> = comparisons.iter().map(|comparison| comparison.test.p).collect();
    for (comparison, corrected) in comparisons.iter_mut().zip(holm(&p_values)) {
        comparison.corrected_p = corrected;
    }
}

/// The logarithm of the smallest memory; infinite if the workload fits in none.
fn log_bytes(row: &Row) -> f64 {
    row.capacity_bytes.map_or(f64::INFINITY, |bytes| (bytes.max(1) as f64).ln())
}
