//! Statistics: means with confidence intervals, tests of paired values, and a correction for multiple comparisons.
//!
//! They apply to values that are drawn at random, such as those for the seeds of a generated workload. Workloads that are
//! chosen by hand are not a sample of anything.
//!
//! Functions that statrs provides are taken from statrs: the normal distribution and geometric means. It has no
//! signed-rank test, no Holm correction and no bootstrap. Its mean is updated value by value and its quantiles are of a
//! different kind (Hyndman and Fan's type 8), so figures would differ in their last digits. It also ranks infinite
//! values separately, whereas here they share a rank, because they represent programs that did not fit.
//!
//! The confidence interval of a mean is the bias-corrected and accelerated bootstrap (BCa): Efron and Tibshirani, An
//! Introduction to the Bootstrap, 1993, section 14.3. It is seeded: the same values and the same seed produce the same
//! interval. The test of paired differences is Wilcoxon's signed-rank test, with an effect size: Wilcoxon, Individual
//! comparisons by ranking methods, 1945. The effect size is the matched-pairs rank-biserial correlation of Kerby, The simple
//! difference formula, 2014.

use statrs::distribution::{ContinuousCDF, Normal};

use crate::packing::random::Random;

/// Returns the arithmetic mean, or `None` if there are no values.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

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

/// Returns the confidence interval of the mean of the distribution that the values are drawn from, at this level (such as
/// 0.95). Returns `None` for fewer than two values, which show no variation. If all values are equal, both ends are that
/// value.
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
    // Resamples equal to the mean count as half; with few values, they are common.
    let below = resampled.iter().map(|&value| if value < center { 1.0 } else { f64::from(u8::from(value <= center)) / 2.0 });
    let share = below.sum::<f64>() / resampled.len() as f64;
    let bias = Normal::standard().inverse_cdf(share.clamp(1e-9, 1.0 - 1e-9));
    let (low, high) = levels(bias, acceleration(values, center), level);
    Some(Interval { low: quantile(&resampled, low), high: quantile(&resampled, high) })
}

/// Returns the means of the resamples, in ascending order.
fn resampled_means(values: &[f64], seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| (0..values.len()).map(|_| values[random.below(values.len())]).sum::<f64>() / values.len() as f64)
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    means
}

/// Returns the acceleration: how fast the standard error changes with the mean. The jackknife's estimate is the skewness over
/// `6 sqrt(n)`.
fn acceleration(values: &[f64], center: f64) -> f64 {
    let power = |exponent| values.iter().map(|value| (value - center).powi(exponent)).sum::<f64>();
    power(3) / (6.0 * power(2).powf(1.5))
}

/// Returns the quantiles of the resamples at the interval's ends.
fn levels(bias: f64, acceleration: f64, level: f64) -> (f64, f64) {
    let normal = Normal::standard();
    let adjusted = |share: f64| {
        let shifted = bias + normal.inverse_cdf(share);
        normal.cdf(bias + shifted / (1.0 - acceleration * shifted))
    };
    (adjusted((1.0 - level) / 2.0), adjusted(f64::midpoint(1.0, level)))
}

/// Returns a quantile, interpolated between the two nearest values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (below, part) = (place.floor(), place.fract());
    let at = |place: f64| sorted[place as usize];
    at(below) + (at(place.ceil()) - at(below)) * part
}

/// Up to this many pairs, the p value is exact.
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
    /// The two-sided p value: the probability of a sum at least as extreme if the signs are random. 1 if there are no pairs.
    pub p: f64,
    /// The effect, from -1 (all differences negative) to 1 (all positive): the difference of the two rank sums over their
    /// sum. 0 if there are no pairs.
    pub effect: f64,
    /// Whether the p value counts all assignments of signs; if false, it is the normal approximation.
    pub is_exact: bool,
}

/// Tests whether differences tend to one side. Infinite differences rank above all others; NaNs are left out. Differences of
/// equal size share their ranks, and the p value takes that into account.
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

/// Returns twice the rank of each difference, so that shared ranks are integers too.
fn twice_ranks(sorted: &[f64]) -> Vec<u64> {
    let mut ranks = Vec::with_capacity(sorted.len());
    for same in sorted.chunk_by(|one, other| one.abs().total_cmp(&other.abs()).is_eq()) {
        let before = ranks.len() as u64;
        let rank = 2 * before + same.len() as u64 + 1;
        ranks.extend(same.iter().map(|_| rank));
    }
    ranks
}

/// Returns the fraction of all assignments of signs whose smaller rank sum is at most this.
fn exact(twice_ranks: &[u64], smaller: u64) -> f64 {
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

/// Returns the normal approximation, with a continuity correction.
fn approximate(twice_ranks: &[u64], smaller: u64) -> f64 {
    let mean = twice_ranks.iter().sum::<u64>() as f64 / 4.0;
    // This is also true for shared ranks: each rank is added or not, with a probability of one half.
    let variance: f64 = twice_ranks.iter().map(|&rank| (rank as f64 / 2.0).powi(2) / 4.0).sum();
    let below = (smaller as f64 / 2.0 + 0.5 - mean) / variance.sqrt();
    (2.0 * Normal::standard().cdf(below)).min(1.0)
}

/// Corrects the p values of several comparisons: Holm, A simple sequentially rejective multiple test procedure,
/// 1979. Returns them in the order given.
#[must_use]
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&one, &other| p_values[one].total_cmp(&p_values[other]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut least = 0.0_f64;
    for (smaller, &place) in order.iter().enumerate() {
        least = least.max(p_values[place] * (p_values.len() - smaller) as f64).min(1.0);
        adjusted[place] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn near(one: f64, other: f64, by: f64) {
        assert!((one - other).abs() <= by, "{one} is not {other}");
    }

    /// Heights of Darwin's fifteen pairs of maize plants, cross-fertilised minus self-fertilised, in eighths of an
    /// inch (The Effects of Cross and Self Fertilisation, 1876; Fisher, The Design of Experiments, 1935, section 21).
    const DARWIN: [f64; 15] = [49.0, -67.0, 8.0, 16.0, 6.0, 23.0, 28.0, 41.0, 14.0, 29.0, 56.0, 24.0, 75.0, 60.0, -48.0];

    /// SciPy's documentation of `scipy.stats.wilcoxon` states a sum of 24 and p = 0.04126 for these data.
    #[test]
    fn signed_ranks_of_darwins_maize() {
        let result = signed_rank(&DARWIN);
        assert_eq!((result.pairs, result.positive, result.negative), (15, 96.0, 24.0));
        assert!(result.is_exact);
        near(result.p, 0.041_259_765_625, 1e-12);
        near(result.effect, 0.6, 1e-12); // (96 - 24) / 120
    }

    /// All differences are positive: one of 2^n assignments on each side.
    #[test]
    fn signed_ranks_of_one_sided_pairs() {
        for pairs in 1..=12 {
            let result = signed_rank(&vec![0.5; pairs]);
            near(result.p, (2.0 / 2_f64.powi(pairs as i32)).min(1.0), 1e-15);
            near(result.effect, 1.0, 0.0);
        }
    }

    /// By hand: the ranks of -1, 2, 2 are 1, 2.5, 2.5; the sums for the eight assignments are 0, 1, 2.5, 2.5, 3.5, 3.5, 5, 6;
    /// two of these are at most 1.
    #[test]
    fn equal_differences_share_ranks_and_zeros_are_left_out() {
        let result = signed_rank(&[-1.0, 2.0, 0.0, 2.0]);
        assert_eq!((result.pairs, result.positive, result.negative), (3, 5.0, 1.0));
        near(result.p, 0.5, 1e-15);
        let without = signed_rank(&[0.0, -0.0, f64::NAN]);
        assert_eq!((without.pairs, without.p, without.effect), (0, 1.0, 0.0));
    }

    #[test]
    fn what_did_not_fit_ranks_above_all() {
        let finite = signed_rank(&[0.1, -0.2, 0.3, 9.0]);
        let infinite = signed_rank(&[0.1, -0.2, 0.3, f64::INFINITY]);
        assert_eq!((finite.positive, finite.p), (infinite.positive, infinite.p));
    }

    /// Both methods agree where both are accurate: 50 pairs, smaller sums from 400 to 600 of 1275.
    #[test]
    fn many_pairs_are_approximated() {
        let ranks: Vec<u64> = (1..=50).map(|rank| 2 * rank).collect();
        for sum in [400, 500, 600] {
            let (counted, approximated) = (exact(&ranks, 2 * sum), approximate(&ranks, 2 * sum));
            assert!((counted / approximated - 1.0).abs() < 0.08, "{sum}: {counted} and {approximated}");
        }
        assert!(!signed_rank(&[1.0; 61]).is_exact && signed_rank(&[1.0; 60]).is_exact);
    }

    /// By hand: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 0.04 is not less than the previous one.
    #[test]
    fn holm_steps_down() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (one, other) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            near(*one, other, 1e-15);
        }
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }

    /// Efron and Tibshirani, section 14.3: with an acceleration of 0.061 and a bias of 0.146, the 90 % interval lies between the
    /// quantiles 0.110 and 0.985. With the rounded values the second quantile is 0.9845.
    #[test]
    fn the_shares_are_the_textbooks() {
        let (low, high) = levels(0.146, 0.061, 0.90);
        near(low, 0.110, 0.0005);
        near(high, 0.985, 0.001);
        let (low, high) = levels(0.0, 0.0, 0.95);
        near(low, 0.025, 1e-9);
        near(high, 0.975, 1e-9);
    }

    /// By hand: the mean of 0, 0, 3 is 1; the cubes of the differences are -1, -1, 8 and the squares 1, 1, 4.
    #[test]
    fn the_acceleration_is_that_of_the_skewness() {
        near(acceleration(&[0.0, 0.0, 3.0], 1.0), 6.0 / (6.0 * 6_f64.powf(1.5)), 1e-12);
        near(quantile(&[1.0, 2.0, 4.0], 0.75), 3.0, 1e-12);
    }

    /// For many values drawn uniformly from 0 to 1, the interval is approximately the mean plus or minus 1.96 standard
    /// errors.
    #[test]
    fn of_many_values_the_interval_is_the_normal_one() {
        let mut random = Random::new(5);
        let values: Vec<f64> = (0..200).map(|_| random.unit()).collect();
        let center = mean(&values).expect("values");
        let deviation = (values.iter().map(|value| (value - center).powi(2)).sum::<f64>() / 200.0).sqrt();
        let half = 1.96 * deviation / 200_f64.sqrt();
        let interval = interval_of_mean(&values, 0.95, 1).expect("an interval");
        near(interval.low, center - half, half * 0.06);
        near(interval.high, center + half, half * 0.06);
        assert_eq!(interval_of_mean(&values, 0.95, 1), Some(interval), "the same seed");
        assert_ne!(interval_of_mean(&values, 0.95, 2), Some(interval), "another seed");
    }

    /// The interval for skewed values is longer on the side of their tail, unlike the percentile interval.
    #[test]
    fn of_skewed_values_the_interval_leans() {
        let values = [0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.2, 0.4, 3.0];
        let center = mean(&values).expect("values");
        let interval = interval_of_mean(&values, 0.95, 1).expect("an interval");
        assert!(interval.high - center > 2.0 * (center - interval.low), "{interval:?}");
    }

    #[test]
    fn nothing_and_one_value_have_no_interval() {
        assert_eq!((interval_of_mean(&[], 0.95, 1), interval_of_mean(&[1.0], 0.95, 1), mean(&[])), (None, None, None));
        assert_eq!(interval_of_mean(&[2.0, 2.0], 0.95, 1), Some(Interval { low: 2.0, high: 2.0 }));
    }

    /// Near the mean, the normal approximation is within a quarter of a step of the exact value. Without the continuity
    /// correction, or with its sign reversed, it is off by half a step or more.
    #[test]
    fn the_approximation_is_corrected_for_continuity() {
        for pairs in [61_u64, 62, 63] {
            let ranks: Vec<u64> = (1..=pairs).map(|rank| 2 * rank).collect();
            let deviation = (ranks.iter().map(|&rank| (rank * rank) as f64).sum::<f64>() / 16.0).sqrt();
            let step = 2.0 / (deviation * std::f64::consts::TAU.sqrt());
            let mean = pairs * (pairs + 1) / 4;
            for smaller in mean - 8..=mean {
                near(approximate(&ranks, 2 * smaller), exact(&ranks, 2 * smaller), step / 4.0);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]
        /// Compares with trying all assignments of signs, with each rank counted as the mean of the places that it shares.
        #[test]
        fn a_signed_rank_test_counts_all_assignments_of_signs(sizes in vec(-3..4_i32, 0..9)) {
            let differences: Vec<f64> = sizes
                .iter()
                .map(|&size| if size.abs() == 3 { f64::INFINITY.copysign(size.into()) } else { size.into() })
                .collect();
            let kept: Vec<f64> = differences.iter().copied().filter(|difference| *difference != 0.0).collect();
            let rank = |of: &f64| {
                let smaller = kept.iter().filter(|other| other.abs() < of.abs()).count();
                let same = kept.iter().filter(|other| other.abs() == of.abs()).count();
                (1..=same).map(|place| (smaller + place) as f64).sum::<f64>() / same as f64
            };
            let ranks: Vec<f64> = kept.iter().map(rank).collect();
            let sum = |is_in: &dyn Fn(usize) -> bool| (0..ranks.len()).filter(|&at| is_in(at)).map(|at| ranks[at]).sum::<f64>();
            let (positive, negative) = (sum(&|at| kept[at] > 0.0), sum(&|at| kept[at] < 0.0));
            let all = 1_usize << ranks.len();
            let as_extreme = (0..all).filter(|signs| {
                let one = sum(&|at| signs >> at & 1 == 1);
                one.min(positive + negative - one) <= positive.min(negative)
            });
            let p = as_extreme.count() as f64 / all as f64;
            let found = signed_rank(&differences);
            prop_assert_eq!((found.pairs, found.positive, found.negative), (ranks.len(), positive, negative));
            let effect = if ranks.is_empty() { 0.0 } else { (positive - negative) / (positive + negative) };
            prop_assert!((found.p - p).abs() < 1e-12 && (found.effect - effect).abs() < 1e-12, "{:?} {}", found, p);
        }

        /// Compares with the definition: the largest of the corrected values up to a comparison's place among all.
        #[test]
        fn each_corrected_value_is_the_largest_up_to_its_place(values in vec(0..9_u32, 0..7)) {
            let values: Vec<f64> = values.into_iter().map(|value| f64::from(value) / 16.0).collect();
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let corrected = |value: &f64| {
                let up_to = sorted.iter().enumerate().filter(|(_, other)| *other <= value);
                up_to.map(|(place, other)| other * (values.len() - place) as f64).fold(0.0, f64::max).min(1.0)
            };
            prop_assert_eq!(holm(&values), values.iter().map(corrected).collect::<Vec<_>>());
        }

        /// Compares with the share of values below a quantile.
        #[test]
        fn quantiles_lie_between_the_nearest_values(values in vec(0..20_u32, 1..9), share in -1..12_i32) {
            let mut values: Vec<f64> = values.into_iter().map(f64::from).collect();
            values.sort_by(f64::total_cmp);
            let share = f64::from(share) / 10.0;
            let last = (values.len() - 1) as f64;
            let found = quantile(&values, share);
            let place = (share * last).clamp(0.0, last);
            let line = |at: usize| values[at] + (values[(at + 1).min(values.len() - 1)] - values[at]) * (place - at as f64);
            let expected = (0..values.len()).rev().find(|&at| at as f64 <= place).map(line).expect("the first place is 0");
            prop_assert!((found - expected).abs() < 1e-9, "{} {}", found, expected);
        }
    }
}
