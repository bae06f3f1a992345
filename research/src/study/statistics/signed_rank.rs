//! Are pairs higher on one side? Wilcoxon's signed-rank test, and how large the effect is.
//!
//! Wilcoxon, Individual comparisons by ranking methods, 1945; the effect size is the matched-pairs rank-biserial correlation of Kerby,
//! The simple difference formula, 2014.

use statrs::distribution::{ContinuousCDF, Normal};

/// Up to so many pairs the p value is exact.
const MOST_EXACT: usize = 60;

/// What the signs and ranks of differences say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SignedRank {
    /// Differences that are not zero; the others are left out, as Wilcoxon does.
    pub pairs: usize,
    /// The sum of the ranks of positive differences.
    pub positive: f64,
    /// The sum of the ranks of negative differences.
    pub negative: f64,
    /// How probable a sum at least as extreme on either side is if the signs are chance. 1 without pairs.
    pub p: f64,
    /// From -1 (all differences are negative) to 1 (all positive): the difference of the two sums over their sum. 0 without pairs.
    pub effect: f64,
    /// The p value counts all assignments of signs; else it is the normal approximation's.
    pub is_exact: bool,
}

/// Tests whether differences lean to one side. They may be infinite, which is larger than all others; those that are no numbers do not
/// count. Equal ones share their ranks, and the p value is that of these shared ranks.
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

/// Twice the rank of each, so that shared ranks are whole numbers too.
fn twice_ranks(sorted: &[f64]) -> Vec<u64> {
    let mut ranks = Vec::with_capacity(sorted.len());
    for same in sorted.chunk_by(|one, other| one.abs().total_cmp(&other.abs()).is_eq()) {
        let before = ranks.len() as u64;
        let rank = 2 * before + same.len() as u64 + 1;
        ranks.extend(same.iter().map(|_| rank));
    }
    ranks
}

/// The share of all assignments of signs whose smaller sum is at most this.
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

/// By the normal distribution, with a correction for continuity.
pub(super) fn approximate(twice_ranks: &[u64], smaller: u64) -> f64 {
    let mean = twice_ranks.iter().sum::<u64>() as f64 / 4.0;
    // Of shared ranks too: each adds or does not add its rank with a probability of one half.
    let variance: f64 = twice_ranks.iter().map(|&rank| (rank as f64 / 2.0).powi(2) / 4.0).sum();
    let below = (smaller as f64 / 2.0 + 0.5 - mean) / variance.sqrt();
    (2.0 * Normal::standard().cdf(below)).min(1.0)
}
