//! Compares the values of each parameter of a policy, if a sweep contains a grid of them.
//!
//! A grid is found by the names of the policies alone, so rows that are read from a file show the same as the sweep that
//! made them. Policies with the same declaration that differ only in one parameter are compared in pairs. A case is one
//! workload under one combination of the other parameters. Only combinations that occur with every value of the parameter
//! count, so all values are compared on the same cases.
//!
//! As in the summary, tests and intervals are over seeds. Each seed provides one difference: the mean, over the cases, of
//! the difference between the logarithms of the smallest memory. Workloads with fewer seeds than the others are left out,
//! because they would add the same amount to each difference.

use std::collections::BTreeMap;

use parkade_policies::{Named, Parameter};

use super::row::Row;
use super::summary::{
    Comparison, Level, SeedComparison, Summary, compare, compare_differences, correct, least_p, log_bytes, over_all,
};
use super::{Capacity, Plan};
use crate::policies::policies;

/// A parameter of a policy, with the needs of its values.
#[derive(Clone, PartialEq, Debug)]
pub struct Ablation {
    /// The policy's name without parameters.
    pub policy: String,
    /// The parameter's key.
    pub key: &'static str,
    /// The value that the others are compared with, as an index: the default, or the first value if the default is not in
    /// the sweep.
    pub reference: usize,
    /// Whether that value is the default.
    pub is_default: bool,
    /// The number of cases in which the workload fits with every value that fits in any case.
    pub cases: usize,
    /// The values, in the order of the sweep's policies.
    pub values: Vec<AblatedValue>,
}

/// The needs of one value of a parameter.
#[derive(Clone, PartialEq, Debug)]
pub struct AblatedValue {
    /// The value, as in a name.
    pub value: String,
    /// The smallest memory relative to the load: the geometric mean over the cases in which the workload fits with every
    /// value that fits in any case.
    pub ratio: Option<Level>,
    /// The cost of the driver calls with plenty of memory, in nanoseconds: the geometric mean over the same cases.
    pub driver_ns: Option<Level>,
    /// The comparison with the reference, case by case; `None` for the reference itself, and if either has a fault.
    pub versus: Option<Comparison>,
    /// The same comparison over the seeds; `None` with fewer than two seeds.
    pub over_seeds: Option<SeedComparison>,
    /// The number of runs with this value that ended with a fault. If there are any, the value has no other figures.
    pub faults: u64,
}

/// The ablations of a sweep.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Ablations {
    /// One for each parameter of each grid.
    pub all: Vec<Ablation>,
    /// The least p value, after the correction, that a comparison over the seeds can reach; `None` without comparisons.
    pub least_p: Option<f64>,
}

impl Ablations {
    /// Compares the values of each parameter that a sweep's policies vary.
    #[must_use]
    pub fn of(plan: &Plan, rows: &[Row], summary: &Summary) -> Ablations {
        let known: Vec<Option<Named>> = plan.policies.iter().map(|name| policies().named(name).ok()).collect();
        let seen = Seen::of(plan, rows, summary);
        let mut all: Vec<Ablation> = Vec::new();
        for (place, first) in known.iter().enumerate().filter_map(|(place, named)| Some((place, named.as_ref()?))) {
            let is_same = |other: &Option<Named>| other.as_ref().is_some_and(|other| other.entry.name == first.entry.name);
            if known[..place].iter().any(is_same) {
                continue;
            }
            let family: Vec<(usize, &Named)> = known
                .iter()
                .enumerate()
                .filter(|(_, other)| is_same(other))
                .filter_map(|(place, other)| Some((place, other.as_ref()?)))
                .collect();
            all.extend(
                first.entry.parameters.iter().filter_map(|parameter| Axis::of(parameter, &family)?.ablation(first, &seen)),
            );
        }
        correct(all.iter_mut().flat_map(|ablation| &mut ablation.values).filter_map(|value| value.over_seeds.as_mut()));
        let comparisons = all.iter().flat_map(|ablation| &ablation.values).filter(|value| value.over_seeds.is_some()).count();
        Ablations { all, least_p: least_p(comparisons, seen.seeds) }
    }
}

/// A parameter whose values a sweep's policies vary.
struct Axis {
    parameter: &'static Parameter,
    /// The values, in the order of the plan.
    values: Vec<String>,
    /// For each combination of the other parameters that occurs with every value: the policies, in the order of the values.
    lines: Vec<Vec<usize>>,
}

impl Axis {
    /// Finds the values of a parameter among policies with the same declaration, and `None` if fewer than two can be compared.
    fn of(parameter: &'static Parameter, family: &[(usize, &Named)]) -> Option<Axis> {
        let mut values: Vec<String> = Vec::new();
        let mut combinations: Vec<(Vec<&str>, BTreeMap<usize, usize>)> = Vec::new();
        for &(policy, named) in family {
            let value = named.values.text(parameter.key);
            let place = values.iter().position(|known| known == value).unwrap_or_else(|| {
                values.push(value.to_owned());
                values.len() - 1
            });
            let others = named.entry.parameters.iter().filter(|other| other.key != parameter.key);
            let others: Vec<&str> = others.map(|other| named.values.text(other.key)).collect();
            match combinations.iter_mut().find(|(known, _)| *known == others) {
                Some((_, by_value)) => drop(by_value.insert(place, policy)),
                None => combinations.push((others, BTreeMap::from([(place, policy)]))),
            }
        }
        let complete = combinations.into_iter().map(|(_, by_value)| by_value).filter(|by_value| by_value.len() == values.len());
        let lines: Vec<Vec<usize>> = complete.map(|by_value| by_value.into_values().collect()).collect();
        (values.len() > 1 && !lines.is_empty()).then_some(Axis { parameter, values, lines })
    }

    fn ablation(&self, named: &Named, seen: &Seen<'_>) -> Option<Ablation> {
        let usual = self.values.iter().position(|value| value == self.parameter.usual);
        let reference = usual.unwrap_or(0);
        let cells: Vec<Vec<Case>> = (0..self.values.len()).map(|value| self.cases(value, seen)).collect();
        let faults: Vec<u64> = cells.iter().map(|cases| cases.iter().map(|case| case.faults).sum()).collect();
        let fits_anywhere: Vec<bool> = cells.iter().map(|cases| cases.iter().any(|case| case.ratio.is_some())).collect();
        let is_complete = |case: &usize| {
            let counts = |value: &usize| faults[*value] == 0 && fits_anywhere[*value];
            (0..cells.len()).filter(counts).all(|value| cells[value][*case].ratio.is_some())
        };
        let complete: Vec<usize> = (0..cells.first()?.len()).filter(is_complete).collect();
        let over = |of: &dyn Fn(&Case) -> Option<f64>, value: usize| -> Option<Level> {
            over_all(&complete.iter().map(|&case| of(&cells[value][case])).collect::<Option<Vec<f64>>>()?)
        };
        let ratios = |value: usize| cells[value].iter().map(|case| case.ratio).collect::<Vec<_>>();
        let value = |place: usize| {
            let written = self.parameter.written(&self.values[place]);
            if faults[place] > 0 {
                return AblatedValue::with_faults(written, faults[place]);
            }
            let is_compared = place != reference && faults[reference] == 0;
            AblatedValue {
                value: written,
                ratio: over(&|case| case.ratio, place),
                driver_ns: over(&|case| case.driver_ns, place),
                versus: is_compared.then(|| compare(&ratios(place), &ratios(reference))),
                over_seeds: if is_compared { self.over_seeds(place, reference, seen) } else { None },
                faults: 0,
            }
        };
        Some(Ablation {
            policy: named.entry.name.to_owned(),
            key: self.parameter.key,
            reference,
            is_default: usual.is_some(),
            cases: complete.len(),
            values: (0..self.values.len()).map(value).collect(),
        })
    }

    /// Returns the cases of a value: every combination of the other parameters with every workload.
    fn cases(&self, value: usize, seen: &Seen<'_>) -> Vec<Case> {
        self.lines.iter().flat_map(|line| seen.cells(line[value])).collect()
    }

    /// Compares two values seed by seed.
    fn over_seeds(&self, value: usize, reference: usize, seen: &Seen<'_>) -> Option<SeedComparison> {
        let difference = |seed: u64| {
            let cases = self.lines.iter().flat_map(|line| seen.seeded.iter().map(move |&workload| (line, workload)));
            let of_case = |(line, workload): (&Vec<usize>, usize)| {
                let [own, base] = [line[value], line[reference]].map(|policy| seen.log_bytes(policy, workload, seed));
                let (own, base) = (own?, base?);
                Some(if own.is_infinite() && base.is_infinite() { 0.0 } else { own - base })
            };
            let all: Vec<f64> = cases.map(of_case).collect::<Option<_>>()?;
            crate::study::statistics::mean(&all)
        };
        compare_differences(&(1..=seen.seeds).map(difference).collect::<Option<Vec<f64>>>()?)
    }
}

impl AblatedValue {
    fn with_faults(value: String, faults: u64) -> AblatedValue {
        AblatedValue { value, ratio: None, driver_ns: None, versus: None, over_seeds: None, faults }
    }
}

/// One workload under one policy.
struct Case {
    ratio: Option<f64>,
    driver_ns: Option<f64>,
    faults: u64,
}

/// The rows and the summary, as this file uses them.
struct Seen<'a> {
    summary: &'a Summary,
    plenty: Option<usize>,
    /// The smallest memory, by policy, workload and seed.
    smallest: BTreeMap<(usize, usize, u64), f64>,
    /// The most seeds of a workload, and the workloads with as many; none if that is one.
    seeds: u64,
    seeded: Vec<usize>,
}

impl Seen<'_> {
    fn of<'a>(plan: &Plan, rows: &[Row], summary: &'a Summary) -> Seen<'a> {
        let smallest = rows.iter().filter(|row| row.capacity == Capacity::Smallest).filter_map(|row| {
            let job = plan.job(row.job)?;
            Some(((job.policy, job.workload, job.seed), log_bytes(row)))
        });
        let seeds = plan.workloads.iter().map(|workload| workload.seeds).max().unwrap_or(0);
        let has_most = |(_, workload): &(usize, &super::PlannedWorkload)| seeds > 1 && workload.seeds == seeds;
        Seen {
            summary,
            plenty: plan.capacities.iter().position(|capacity| *capacity == Capacity::Plenty),
            smallest: smallest.collect(),
            seeds,
            seeded: plan.workloads.iter().enumerate().filter(has_most).map(|(place, _)| place).collect(),
        }
    }

    fn cells(&self, policy: usize) -> impl Iterator<Item = Case> {
        self.summary.cells[policy].iter().map(|cell| Case {
            ratio: cell.ratio.map(|level| level.mean),
            driver_ns: self.plenty.and_then(|place| cell.driver_ns[place]).map(|level| level.mean),
            faults: cell.faults,
        })
    }

    fn log_bytes(&self, policy: usize, workload: usize, seed: u64) -> Option<f64> {
        self.smallest.get(&(policy, workload, seed)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::sweep::{PlannedWorkload, Precision};

    /// Returns a plan for these policies, which searches for the smallest memory of two workloads.
    fn plan(policies: &[&str], seeds: u64) -> Plan {
        Plan {
            workloads: ["one", "two"].map(|name| PlannedWorkload { name: name.into(), seeds, hash: None }).into(),
            policies: policies.iter().map(|&name| name.to_owned()).collect(),
            capacities: vec![Capacity::Smallest],
            addresses: "driver".into(),
            preallocate: None,
            precision: Precision::default(),
        }
    }

    /// Returns the ablations if the smallest memory is this, with a load of 100.
    fn ablations(plan: &Plan, bytes: impl Fn(usize, usize, u64) -> Option<u64>) -> Ablations {
        let row = |number| {
            let job = plan.job(number).expect("a job");
            let bytes = bytes(job.policy, job.workload, job.seed);
            Row { load_bytes: 100, capacity_bytes: bytes, fits: bytes.is_some(), ..Row::empty(plan, number).expect("a row") }
        };
        let rows: Vec<Row> = (0..plan.jobs()).map(row).collect();
        Ablations::of(plan, &rows, &Summary::of(plan, &rows, 0))
    }

    const GRID: [&str; 4] =
        ["best-fit-remap", "best-fit-remap:handle=20MiB", "best-fit-remap:fit=first", "best-fit-remap:fit=first;handle=20MiB"];

    #[test]
    fn values_are_compared_over_the_other_parameters_and_the_workloads() {
        let need = [[100, 120], [110, 150], [100, 100], [130, 100]];
        let found = ablations(&plan(&GRID, 1), |policy, workload, _| Some(need[policy][workload]));
        let [fit, handle] = &found.all[..] else { panic!("{found:?}") };
        assert_eq!((fit.key, handle.key, &*fit.policy), ("fit", "handle", "best-fit-remap"));
        assert_eq!((fit.reference, fit.is_default, fit.cases), (0, true, 4));
        let means =
            |ablation: &Ablation| ablation.values.iter().map(|value| value.ratio.expect("a mean").mean).collect::<Vec<_>>();
        // By hand: (1.0 x 1.2 x 1.1 x 1.5)^(1/4) and (1.0 x 1.0 x 1.3 x 1.0)^(1/4); then by handle.
        let expected = [[1.98_f64, 1.3], [1.2, 1.1 * 1.5 * 1.3]].map(|of| of.map(|product| product.powf(0.25)));
        for (ablation, expected) in [fit, handle].into_iter().zip(expected) {
            assert!(means(ablation).iter().zip(expected).all(|(mean, by_hand)| (mean - by_hand).abs() < 1e-12), "{ablation:?}");
        }
        let versus = fit.values[1].versus.expect("a comparison");
        assert_eq!((versus.counts, fit.values[0].versus), ([2, 1, 1], None));
        assert!((versus.ratio.expect("a ratio").mean - (1.3_f64 / 1.98).powf(0.25)).abs() < 1e-12);
        assert_eq!(found.least_p, None, "nothing is tested with one seed");
    }

    #[test]
    fn only_complete_combinations_are_compared() {
        let keys = |policies: &[&str]| -> Vec<&str> {
            ablations(&plan(policies, 1), |_, _, _| Some(100)).all.iter().map(|ablation| ablation.key).collect()
        };
        assert_eq!(keys(&["pytorch", "bfc", "rmm-pool"]), [""; 0], "no parameter varies");
        assert_eq!(keys(&["best-fit-remap:handle=20MiB", "best-fit-remap:fit=first"]), [""; 0], "both vary at once");
        assert_eq!(keys(&GRID[..3]), ["fit", "handle"]);
        assert_eq!(keys(&["pytorch", "pytorch-expandable", "pytorch:release=2.15"]), ["release", "settings"]);
        let found = ablations(&plan(&["bfc:kind=xla", "bfc:kind=one-region"], 1), |_, _, _| Some(100));
        assert_eq!((found.all[0].is_default, found.all[0].reference), (false, 0), "the default is not in the sweep");
        let settings = ablations(&plan(&["pytorch", "pytorch-expandable"], 1), |_, _, _| Some(100));
        let values: Vec<&str> = settings.all[0].values.iter().map(|value| &*value.value).collect();
        assert_eq!(values, ["[]", "[expandable_segments:True]"]);
    }

    #[test]
    fn a_case_that_does_not_fit_is_in_no_mean_and_counts_as_more() {
        let need = [[Some(100), Some(120)], [Some(110), None], [None, None]];
        let names = ["bfc", "bfc:kind=xla", "bfc:kind=one-region"];
        let found = ablations(&plan(&names, 1), |policy, workload, _| need[policy][workload]);
        let [growth, xla, one] = &found.all[0].values[..] else { panic!("three values") };
        let mean = |value: &AblatedValue| value.ratio.map(|level| (level.mean, level.count));
        assert_eq!((found.all[0].cases, mean(growth), mean(xla), mean(one)), (1, Some((1.0, 1)), Some((1.1, 1)), None));
        assert_eq!([xla, one].map(|value| value.versus.expect("a comparison").counts), [[0, 0, 2], [0, 0, 2]]);
    }

    #[test]
    fn differences_are_tested_over_the_seeds() {
        // The first policy needs a tenth less in one workload with every seed.
        let need = |policy: usize, workload: usize, seed: u64| match (policy, workload) {
            (1, 0) => 90 + seed * 9,
            (_, 0) => 100 + seed * 10,
            _ => 100,
        };
        let mut plan = plan(&["bfc", "bfc:waste=1MiB"], 6);
        let found = ablations(&plan, |policy, workload, seed| Some(need(policy, workload, seed)));
        let over = found.all[0].values[1].over_seeds.expect("a comparison");
        // Each seed's difference is half of ln 0.9, because the other workload has none.
        assert!((over.ratio.expect("a ratio").mean - 0.9_f64.sqrt()).abs() < 1e-12, "{over:?}");
        assert_eq!((over.counts, found.least_p.map(f64::to_bits)), ([6, 0, 0], Some((2.0_f64 / 64.0).to_bits())));
        assert!((over.corrected_p - 2.0 / 64.0).abs() < 1e-12);
        plan.workloads[1].seeds = 1;
        let found = ablations(&plan, |policy, workload, seed| Some(need(policy, workload, seed)));
        let over = found.all[0].values[1].over_seeds.expect("a comparison");
        assert!((over.ratio.expect("a ratio").mean - 0.9).abs() < 1e-12, "a workload with one seed is left out: {over:?}");
    }

    #[test]
    fn a_value_that_broke_has_no_figures_and_nothing_is_compared_with_it() {
        let plan = plan(&["bfc", "bfc:waste=1MiB", "bfc:waste=2MiB"], 1);
        let broken = |policy: usize| {
            let row = |number| {
                let row =
                    Row { load_bytes: 100, capacity_bytes: Some(100), fits: true, ..Row::empty(&plan, number).expect("a row") };
                Row { is_fault: plan.job(number).is_some_and(|job| job.policy == policy), ..row }
            };
            let rows: Vec<Row> = (0..plan.jobs()).map(row).collect();
            Ablations::of(&plan, &rows, &Summary::of(&plan, &rows, 0)).all.remove(0).values
        };
        let values = broken(1);
        assert_eq!((values[1].faults, values[1].ratio, values[1].versus), (2, None, None));
        assert!(values[0].ratio.is_some() && values[2].versus.is_some(), "{values:?}");
        let values = broken(0);
        assert!(values[1].versus.is_none() && values[2].versus.is_none() && values[1].ratio.is_some(), "{values:?}");
    }
}
