use super::bootstrap::{acceleration, levels, quantile};
use super::signed_rank::{approximate, exact};
use super::*;

fn near(one: f64, other: f64, by: f64) {
    assert!((one - other).abs() <= by, "{one} is not {other}");
}

/// Heights of Darwin's fifteen pairs of maize plants, cross-fertilised minus self-fertilised, in eighths of an
/// inch (The Effects of Cross and Self Fertilisation, 1876; Fisher, The Design of Experiments, 1935, section 21).
const DARWIN: [f64; 15] = [49.0, -67.0, 8.0, 16.0, 6.0, 23.0, 28.0, 41.0, 14.0, 29.0, 56.0, 24.0, 75.0, 60.0, -48.0];

/// SciPy's documentation of `scipy.stats.wilcoxon` gives a sum of 24 and p = 0.04126 for these data.
#[test]
fn signed_ranks_of_darwins_maize() {
    let result = signed_rank(&DARWIN);
    assert_eq!((result.pairs, result.positive, result.negative), (15, 96.0, 24.0));
    assert!(result.is_exact);
    near(result.p, 0.041_259_765_625, 1e-12);
    near(result.effect, 0.6, 1e-12); // (96 - 24) / 120
}

/// All differences positive: one of 2^n assignments on each side.
#[test]
fn signed_ranks_of_one_sided_pairs() {
    for pairs in 1..=12 {
        let result = signed_rank(&vec![0.5; pairs]);
        near(result.p, (2.0 / 2_f64.powi(pairs as i32)).min(1.0), 1e-15);
        near(result.effect, 1.0, 0.0);
    }
}

/// By hand: the ranks of -1, 2, 2 are 1, 2.5, 2.5; the sums of the eight assignments are 0, 1, 2.5, 2.5, 3.5, 3.5,
/// 5, 6; two of these are at most 1.
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

/// Efron and Tibshirani, section 14.3: with an acceleration of 0.061 and a bias of 0.146, the 90 % interval lies
/// between the quantiles 0.110 and 0.985. From the rounded values the second comes out as 0.9845.
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

/// For many values drawn uniformly from 0 to 1 it is nearly the mean plus and minus 1.96 standard errors.
#[test]
fn of_many_values_the_interval_is_the_normal_one() {
    let mut random = crate::packing::random::Random::new(5);
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

/// The interval of skewed values is longer on the side of their tail, unlike the percentile interval.
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
