//! The summary of all rows of a sweep.
//!
//! The unit is the workload: its seeds are averaged first, since they say nothing about other workloads. Means are
//! geometric, since ratios are compared. A workload that does not fit even with plenty of memory (the policy gave
//! up for another reason) has no smallest memory. It counts in no mean, as the number of workloads beside each
//! mean shows; in a comparison it ranks as worse than any that fits.

use super::levels::{Level, of_logs, over_all, over_workloads};
use super::plan::{Capacity, Plan};
use super::row::Row;
use crate::study::statistics::{SignedRank, holm, mean, signed_rank};

/// One workload under one policy.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cell {
    /// The smallest memory over the load: the geometric mean over the seeds, with its range. `None` if the
    /// workload does not fit with some seed.
    pub ratio: Option<Level>,
    /// The cost of the driver calls at each capacity of the plan, in nanoseconds. `None` if it does not fit with
    /// some seed.
    pub driver_ns: Vec<Option<Level>>,
    /// The number of seeds with which it fits, for each capacity.
    pub fits: Vec<u64>,
    /// The number of seeds with which it fails at some capacity tried above the smallest.
    pub not_monotone: u64,
}

/// A policy against the baseline, workload by workload.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Comparison {
    /// Its smallest memory over the baseline's: the geometric mean over the workloads that fit under both, with a
    /// 95 % interval.
    pub ratio: Option<Level>,
    /// The number of workloads for which it needs less memory, as much, and more. Not fitting at all counts as more.
    pub counts: [usize; 3],
    /// Wilcoxon's signed-rank test of the logarithms; a negative effect means less memory.
    pub test: SignedRank,
    /// The test's p value with Holm's correction for all comparisons of the sweep.
    pub corrected_p: f64,
}

/// The results of a policy.
#[derive(Clone, PartialEq, Debug)]
pub struct PolicySummary {
    /// The policy's name.
    pub name: String,
    /// The smallest memory over the load: the geometric mean over the workloads that fit, with a 95 % interval.
    pub ratio: Option<Level>,
    /// The cost of the driver calls at each capacity of the plan, in nanoseconds, likewise.
    pub driver_ns: Vec<Option<Level>>,
    /// The fraction of each workload's seeds that fit at each capacity, averaged over the workloads.
    pub fits: Vec<f64>,
    /// The comparison with the baseline; `None` for the baseline itself.
    pub versus: Option<Comparison>,
}

/// The results of a sweep.
#[derive(Clone, PartialEq, Debug)]
pub struct Summary {
    /// The baseline: a place in the plan's policies.
    pub baseline: usize,
    /// All policies, in the plan's order.
    pub policies: Vec<PolicySummary>,
    /// All cells, by policy and then by workload.
    pub cells: Vec<Vec<Cell>>,
}

impl Summary {
    /// Summarizes the rows of a plan. Rows of jobs that the plan does not have are ignored. `baseline` is a place
    /// in the plan's policies.
    #[must_use]
    pub fn of(plan: &Plan, rows: &[Row], baseline: usize) -> Summary {
        let smallest = plan.capacities.iter().position(|capacity| *capacity == Capacity::Smallest);
        let cells = cells(plan, rows, smallest);
        let base: Vec<f64> = cells.get(baseline).map(|cells| cells.iter().map(log_ratio).collect()).unwrap_or_default();
        let mut policies: Vec<PolicySummary> = plan
            .policies
            .iter()
            .zip(&cells)
            .enumerate()
            .map(|(place, (name, cells))| PolicySummary {
                name: name.clone(),
                ratio: over_workloads(cells.iter().filter_map(|cell| cell.ratio)),
                driver_ns: (0..plan.capacities.len())
                    .map(|capacity| over_workloads(cells.iter().filter_map(|cell| cell.driver_ns[capacity])))
                    .collect(),
                fits: shares(plan, cells),
                versus: (place != baseline).then(|| compare(cells, &base)),
            })
            .collect();
        let p_values: Vec<f64> = policies.iter().filter_map(|policy| policy.versus.map(|versus| versus.test.p)).collect();
        let comparisons = policies.iter_mut().filter_map(|policy| policy.versus.as_mut());
        for (comparison, corrected) in comparisons.zip(holm(&p_values)) {
            comparison.corrected_p = corrected;
        }
        Summary { baseline, policies, cells }
    }

    /// The number of combinations of workload, seed and policy that were seen to fit in some memory and to fail
    /// with more.
    #[must_use]
    pub fn not_monotone(&self) -> u64 {
        self.cells.iter().flatten().map(|cell| cell.not_monotone).sum()
    }
}

/// The logarithm of the smallest memory over the load; infinite if the workload fits in none.
fn log_ratio(cell: &Cell) -> f64 {
    cell.ratio.map_or(f64::INFINITY, |ratio| ratio.mean.ln())
}

fn cells(plan: &Plan, rows: &[Row], smallest: Option<usize>) -> Vec<Vec<Cell>> {
    // By policy, workload and capacity: the rows of all seeds.
    let capacities = plan.capacities.len();
    let mut seen: Vec<Vec<Vec<Vec<&Row>>>> = vec![vec![vec![Vec::new(); capacities]; plan.workloads.len()]; plan.policies.len()];
    for row in rows {
        if let Some(job) = plan.job(row.job) {
            seen[job.policy][job.workload][job.capacity].push(row);
        }
    }
    let cell = |by_capacity: &Vec<Vec<&Row>>| Cell {
        ratio: smallest.and_then(|place| over_seeds(&by_capacity[place], ratio)),
        driver_ns: by_capacity.iter().map(|rows| over_seeds(rows, |row| row.fits.then_some(row.driver_ns as f64))).collect(),
        not_monotone: smallest.map_or(0, |place| not_monotone(&by_capacity[place], by_capacity)),
        fits: by_capacity.iter().map(|rows| rows.iter().filter(|row| row.fits).count() as u64).collect(),
    };
    seen.iter().map(|workloads| workloads.iter().map(cell).collect()).collect()
}

/// The number of seeds that fail with more than their smallest memory, at a capacity that was searched or given.
fn not_monotone(smallest: &[&Row], by_capacity: &[Vec<&Row>]) -> u64 {
    let fails_with_more = |least: &&&Row| {
        let fails = |row: &&Row| row.seed == least.seed && !row.fits && row.capacity_bytes > least.capacity_bytes;
        least.capacity_bytes.is_some() && (least.fails_above_bytes.is_some() || by_capacity.iter().flatten().any(fails))
    };
    smallest.iter().filter(fails_with_more).count() as u64
}

fn ratio(row: &Row) -> Option<f64> {
    row.capacity_bytes.map(|bytes| bytes as f64 / row.load_bytes.max(1) as f64)
}

/// The mean over seeds; `None` if one of them has no value.
fn over_seeds(rows: &[&Row], value: impl Fn(&Row) -> Option<f64>) -> Option<Level> {
    over_all(&rows.iter().map(|row| value(row)).collect::<Option<Vec<_>>>()?)
}

fn shares(plan: &Plan, cells: &[Cell]) -> Vec<f64> {
    let of_workload = |capacity: usize| {
        let seeds = plan.workloads.iter().map(|workload| workload.seeds.max(1));
        cells.iter().zip(seeds).map(move |(cell, seeds)| cell.fits[capacity] as f64 / seeds as f64)
    };
    (0..plan.capacities.len()).map(|capacity| mean(&of_workload(capacity).collect::<Vec<_>>()).unwrap_or(0.0)).collect()
}

fn compare(cells: &[Cell], base: &[f64]) -> Comparison {
    // If both are infinite, there is no difference.
    let differences: Vec<f64> = cells
        .iter()
        .zip(base)
        .map(|(cell, &base)| (log_ratio(cell), base))
        .map(|(own, base)| if own.is_infinite() && base.is_infinite() { 0.0 } else { own - base })
        .collect();
    let both: Vec<f64> = cells
        .iter()
        .zip(base)
        .map(|(cell, &base)| (log_ratio(cell), base))
        .filter(|(own, base)| own.is_finite() && base.is_finite())
        .map(|(own, base)| own - base)
        .collect();
    let count = |wanted: fn(f64) -> bool| differences.iter().filter(|difference| wanted(**difference)).count();
    let test = signed_rank(&differences);
    Comparison {
        ratio: of_logs(&both),
        counts: [count(|d| d < 0.0), count(|d| d == 0.0), count(|d| d > 0.0)],
        test,
        corrected_p: test.p,
    }
}
