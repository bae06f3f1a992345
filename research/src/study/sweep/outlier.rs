//! The one workload that makes much of the excess over LOAD, and means without it.

/// A mean without one workload.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Without {
    /// The geometric mean over the other workloads; `None` without any.
    pub mean: Option<f64>,
    /// The workload's share of the excess, counted in logarithms: geometric means add those up. `None` if it has no
    /// value, or if there is no excess.
    pub share: Option<f64>,
}

impl Without {
    /// Of the values of all workloads over their loads, without the one at this place.
    #[must_use]
    pub fn of(ratios: &[Option<f64>], left_out: usize) -> Without {
        let excess = |ratio: f64| ratio.max(f64::MIN_POSITIVE).ln();
        let others: Vec<f64> = ratios
            .iter()
            .enumerate()
            .filter(|(place, _)| *place != left_out)
            .filter_map(|(_, ratio)| ratio.map(excess))
            .collect();
        let own = ratios.get(left_out).copied().flatten().map(excess);
        let sum = others.iter().sum::<f64>() + own.unwrap_or(0.0);
        Without {
            mean: (!others.is_empty()).then(|| (others.iter().sum::<f64>() / others.len() as f64).exp()),
            share: own.filter(|_| sum > 0.0).map(|own| own / sum),
        }
    }
}

/// The workload with the largest share of the excess, averaged over the policies; `None` if there is no excess, or only
/// one workload. Each policy has the smallest memory over the load of each workload.
pub(super) fn outlier(policies: &[Vec<Option<f64>>]) -> Option<usize> {
    let workloads = policies.first()?.len();
    let share = |workload: usize| policies.iter().filter_map(|ratios| Without::of(ratios, workload).share).sum::<f64>();
    let shares = (0..workloads).map(|workload| (share(workload), workload));
    let largest = shares.max_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)))?;
    (workloads > 1 && largest.0 > 0.0).then_some(largest.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_the_mean_is_of_the_others() {
        let ratios = [Some(1.0), Some(2.0), Some(4.0), None];
        let of = |place| Without::of(&ratios, place);
        let shares: Vec<f64> = (0..3).filter_map(|place| of(place).share).collect();
        assert!((shares[1] - 1.0 / 3.0).abs() < 1e-12 && (shares[2] - 2.0 / 3.0).abs() < 1e-12 && shares[0] == 0.0, "{shares:?}");
        assert!((of(2).mean.expect("a mean") - 2.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!((of(3).share, of(0).mean.map(|mean| (mean * 1000.0).round())), (None, Some(2828.0)));
        assert_eq!(Without::of(&[Some(1.0), Some(1.0)], 0), Without { mean: Some(1.0), share: None });
    }

    #[test]
    fn the_outlier_is_that_of_most_policies() {
        let one = vec![Some(1.1), Some(2.0), Some(1.0)];
        let other = vec![Some(1.4), Some(1.5), None];
        assert_eq!(outlier(&[one.clone(), other]), Some(1));
        assert_eq!(outlier(&[vec![Some(1.0); 3]]), None);
        assert_eq!(outlier(&[vec![Some(2.0)]]), None, "there is no other");
        assert_eq!(outlier(&[]), None);
    }
}
