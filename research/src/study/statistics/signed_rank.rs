//! Wilcoxon's signed-rank test of paired differences, with the size of the effect.
//!
//! Wilcoxon, Individual comparisons by ranking methods, 1945. The effect size is the matched-pairs rank-biserial
//! correlation of Kerby, The simple difference formula, 2014.

use statrs::distribution::{ContinuousCDF, Normal};

/// Up to this many pairs the p value is exact.
const MOST_EXACT: usize = 60;

/// The result of a signed-rank test.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SignedRank {
    /// The number of differences that are not zero; zeros are left out, as in Wilcoxon's paper.
    pub pairs: usize,
    /// The sum of the ranks of positive differences.
    pub positive: f64,
    /// The sum of the ranks of negative differences.
    pub negative: f64,
    /// The two-sided p value: the probability of a sum at least as extreme if the signs are random. 1 without pairs.
    pub p: f64,
    /// The effect, from -1 (all differences negative) to 1 (all positive): the difference of the two rank sums
    /// over their sum. 0 without pairs.
    pub effect: f64,
    /// The p value counts all assignments of signs; otherwise it is the normal approximation.
    pub is_exact: bool,
}

/// Tests whether differences lean to one side. Infinite differences rank above all others; NaNs are left out.
/// Differences of equal size share their ranks, and the p value takes that into account.
#[must_use]
pub fn signed_rank(differences: &[f64]) -> SignedRank {
    let mut sorted: Vec<f64> = differences.iter().copied().filter(|difference| difference.abs() > 0.0).collect();
    sorted.sort_by(|one, other| one.abs().total_cmp(&other.abs()));
    let ranks = twice_ranks(&sorted);
    let total: u64 = ranks.iter().sum();
    let positive: u64 = ranks.iter().zip(&sorted).filter(|(_, difference)| **difference > 0.0).map(|(rank, _)| rank).sum();
    let negative = total - positive;
    let is_exact = sorted.len() <= MOST_EXACT;
    let p = match sorted.len() {
        0 => 1.0,
        _ if is_exact => exact(&ranks, positive.min(negative)),
        _ => approximate(&ranks, positive.min(negative)),
    };
    let effect = if total == 0 { 0.0 } else { (positive as f64 - negative as f64) / total as f64 };
    SignedRank { pairs: sorted.len(), positive: positive as f64 / 2.0, negative: negative as f64 / 2.0, p, effect, is_exact }
}

/// Twice the rank of each difference, so that shared ranks are integers too.
fn twice_ranks(sorted: &[f64]) -> Vec<u64> {
    let mut ranks = Vec::with_capacity(sorted.len());
    for same in sorted.chunk_by(|one, other| one.abs().total_cmp(&other.abs()).is_eq()) {
        let before = ranks.len() as u64;
        let rank = 2 * before + same.len() as u64 + 1;
        ranks.extend(same.iter().map(|_| rank));
    }
    ranks
}

/// The fraction of all assignments of signs whose smaller rank sum is at most this.
pub(super) fn exact(twice_ranks: &[u64], smaller: u64) -> f64 {
    let total = twice_ranks.iter().sum::<u64>() as usize;
    // The probability of each sum of positive ranks, rank by rank.
    let mut chances = vec![0.0; total + 1];
    chances[0] = 1.0;
    let mut most = 0;
    for &rank in twice_ranks {
        let rank = rank as usize;
        most += rank;
        for sum in (0..=most).rev() {
            let with = if sum >= rank { chances[sum - rank] } else { 0.0 };
            chances[sum] = f64::midpoint(chances[sum], with);
        }
    }
    let tail: f64 = chances[..=smaller as usize].iter().sum();
    (2.0 * tail).min(1.0)
}

/// The normal approximation, with a continuity correction.
pub(super) fn approximate(twice_ranks: &[u64], smaller: u64) -> f64 {
    let mean = twice_ranks.iter().sum::<u64>() as f64 / 4.0;
    // This holds for shared ranks too: each rank is added or not, with probability one half.
    let variance: f64 = twice_ranks.iter().map(|&rank| (rank as f64 / 2.0).powi(2) / 4.0).sum();
    let below = (smaller as f64 / 2.0 + 0.5 - mean) / variance.sqrt();
    (2.0 * Normal::standard().cdf(below)).min(1.0)
}
