//! What all rows of a sweep say together.
//!
//! The unit is the workload: its seeds are averaged first, for they say nothing about other programs. Means are geometric, since what is
//! compared are ratios. A program that does not fit even with plenty of memory (the policy gave up for another reason) has no
//! smallest memory: it counts in no mean, the number of workloads beside a mean says so, and in a comparison it ranks as worse than
//! everything that fits.

use super::plan::{Capacity, Plan};
use super::row::Row;
use crate::study::statistics::{Interval, SignedRank, holm, interval_of_mean, mean, signed_rank};

/// Of the intervals.
const LEVEL: f64 = 0.95;
/// Of the resamples.
const SEED: u64 = 1;

/// One workload under one policy.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cell {
    /// The smallest memory over the load: the geometric mean over the seeds, and the least and the most of them. `None` if it does not
    /// fit with some seed.
    pub ratio: Option<Level>,
    /// What the driver's calls cost in each capacity of the plan, in nanoseconds. `None` where it does not fit with some seed.
    pub driver_ns: Vec<Option<Level>>,
    /// With how many of the seeds it fits in each capacity.
    pub fits: Vec<u64>,
    /// With how many of the seeds it does not fit in some memory that was tried above the smallest.
    pub not_monotone: u64,
}

/// A mean over seeds and how far they lie apart, or a mean over workloads and its interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Level {
    /// The geometric mean.
    pub mean: f64,
    /// The least of the seeds, or the interval's lower end.
    pub low: f64,
    /// The most of them, or its upper end.
    pub high: f64,
    /// Of how many.
    pub count: usize,
}

/// A policy against the baseline, workload by workload.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Comparison {
    /// Its smallest memory over the baseline's: the geometric mean over workloads in which both fit, with an interval of 95 %.
    pub ratio: Option<Level>,
    /// Workloads in which it needs less, as much, and more. Not fitting at all is more.
    pub counts: [usize; 3],
    /// Wilcoxon's signed-rank test of the logarithms; a negative effect is less memory.
    pub test: SignedRank,
    /// Its p value corrected for all comparisons of the sweep, by Holm.
    pub corrected_p: f64,
}

/// What is known of a policy.
#[derive(Clone, PartialEq, Debug)]
pub struct PolicySummary {
    /// The policy.
    pub name: String,
    /// The smallest memory over the load: the geometric mean over the workloads in which it fits, with an interval of 95 %.
    pub ratio: Option<Level>,
    /// What the driver's calls cost in each capacity of the plan, in nanoseconds, in the same way.
    pub driver_ns: Vec<Option<Level>>,
    /// The share of programs that fit in each capacity: of each workload's seeds, averaged over workloads.
    pub fits: Vec<f64>,
    /// Against the baseline; `None` for itself.
    pub versus: Option<Comparison>,
}

/// What a sweep says.
#[derive(Clone, PartialEq, Debug)]
pub struct Summary {
    /// What the policies are compared with, as a place in the plan's policies.
    pub baseline: usize,
    /// In the plan's order.
    pub policies: Vec<PolicySummary>,
    /// By policy, then workload.
    pub cells: Vec<Vec<Cell>>,
}

impl Summary {
    /// Sums rows up, all of the plan's, in order. Rows of jobs that the plan does not have do not count. `baseline` is a place in the
    /// plan's policies.
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

    /// Of how many programs under a policy (workload, seed, policy) it was seen that they fit in a memory and not in more.
    #[must_use]
    pub fn not_monotone(&self) -> u64 {
        self.cells.iter().flatten().map(|cell| cell.not_monotone).sum()
    }
}

/// The logarithm of the smallest memory over the load; infinite if it fits in none.
fn log_ratio(cell: &Cell) -> f64 {
    cell.ratio.map_or(f64::INFINITY, |ratio| ratio.mean.ln())
}

fn cells(plan: &Plan, rows: &[Row], smallest: Option<usize>) -> Vec<Vec<Cell>> {
    // By policy, workload and capacity: what each seed gave.
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

/// How many of the smallest memories have more, searched or given to the same program, in which it does not fit.
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

/// `None` if one of them has no value.
fn over_seeds(rows: &[&Row], value: impl Fn(&Row) -> Option<f64>) -> Option<Level> {
    over_all(&rows.iter().map(|row| value(row)).collect::<Option<Vec<_>>>()?)
}

/// The geometric mean and the range.
pub(super) fn over_all(values: &[f64]) -> Option<Level> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    // Equal values are their own mean, to the last bit.
    let mean = if least.to_bits() == most.to_bits() { least } else { geometric_mean(values)? };
    Some(Level { mean, low: least, high: most, count: values.len() })
}

fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: Vec<f64> = values.iter().map(|value| value.max(f64::MIN_POSITIVE).ln()).collect();
    mean(&logs).map(f64::exp)
}

pub(super) fn over_workloads(levels: impl Iterator<Item = Level>) -> Option<Level> {
    let logs: Vec<f64> = levels.map(|level| level.mean.max(f64::MIN_POSITIVE).ln()).collect();
    of_logs(&logs)
}

fn of_logs(logs: &[f64]) -> Option<Level> {
    let mean = mean(logs)?;
    // One value says nothing about others.
    let Interval { low, high } =
        interval_of_mean(logs, LEVEL, SEED).unwrap_or(Interval { low: f64::NEG_INFINITY, high: f64::INFINITY });
    Some(Level { mean: mean.exp(), low: low.exp(), high: high.exp(), count: logs.len() })
}

fn shares(plan: &Plan, cells: &[Cell]) -> Vec<f64> {
    let of_workload = |capacity: usize| {
        let seeds = plan.workloads.iter().map(|workload| workload.seeds.max(1));
        cells.iter().zip(seeds).map(move |(cell, seeds)| cell.fits[capacity] as f64 / seeds as f64)
    };
    (0..plan.capacities.len()).map(|capacity| mean(&of_workload(capacity).collect::<Vec<_>>()).unwrap_or(0.0)).collect()
}

fn compare(cells: &[Cell], base: &[f64]) -> Comparison {
    // Both infinite is no difference.
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
