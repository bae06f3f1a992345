//! The summary of all rows of a sweep.
//!
//! The unit is the workload: its seeds are averaged first, since they say nothing about other workloads. Means of
//! ratios are geometric. A workload that does not fit even with plenty of memory (the policy gave up for another
//! reason) has no smallest memory. It counts in no mean, as the number of workloads beside each mean shows.
//!
//! Workloads are chosen by hand. So their means have ranges and no intervals, and come a second time without the one
//! workload that makes the largest part of the excess; tests and intervals are those over the seeds of one workload.

use super::course::{Course, CourseOfAll};
use super::levels::{Level, over_all, over_workloads};
use super::outlier::{Without, outlier};
use super::plan::{Capacity, Plan};
use super::row::Row;
use super::seeds::{self, SeedComparison};
use crate::study::statistics::mean;

/// One workload under one policy.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cell {
    /// The smallest memory over the load: the geometric mean over the seeds, with its range. `None` if the
    /// workload does not fit with some seed.
    pub ratio: Option<Level>,
    /// The cost of the driver calls at each capacity of the plan, in nanoseconds. `None` if it does not fit with
    /// some seed.
    pub driver_ns: Vec<Option<Level>>,
    /// The driver's work over the course of the workload, at each capacity likewise.
    pub courses: Vec<Option<Course>>,
    /// The comparison with the baseline over the seeds; `None` with fewer than two, and for the baseline itself.
    pub versus: Option<SeedComparison>,
    /// The number of seeds with which it fits, for each capacity.
    pub fits: Vec<u64>,
    /// The number of seeds with which it fails at some capacity tried above the smallest.
    pub not_monotone: u64,
}

/// A policy against the baseline, workload by workload.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Comparison {
    /// Its smallest memory over the baseline's: the geometric mean over the workloads that fit under both.
    pub ratio: Option<Level>,
    /// The number of workloads for which it needs less memory, as much, and more. Not fitting at all counts as more.
    pub counts: [usize; 3],
}

/// The results of a policy.
#[derive(Clone, PartialEq, Debug)]
pub struct PolicySummary {
    /// The policy's name.
    pub name: String,
    /// The smallest memory over the load: the geometric mean over the workloads that fit.
    pub ratio: Option<Level>,
    /// The same without the sweep's outlier; `None` if the sweep has none.
    pub without_outlier: Option<Without>,
    /// The cost of the driver calls at each capacity of the plan, in nanoseconds, likewise.
    pub driver_ns: Vec<Option<Level>>,
    /// The driver's work over the course of the workloads, at each capacity.
    pub courses: Vec<CourseOfAll>,
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
    /// The load with pools over the load, by workload: nothing that leaves a pool its memory needs less. `None` for a
    /// workload without rows.
    pub load_with_pools: Vec<Option<Level>>,
    /// The workload that makes the largest part of the excess over the loads: a place in the plan's workloads.
    pub outlier: Option<usize>,
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
        let seen = by_job(plan, rows);
        let cells = cells(&seen, smallest, baseline);
        let ratios: Vec<Vec<Option<f64>>> = cells.iter().map(|cells| cells.iter().map(ratio_of).collect()).collect();
        let outlier = outlier(&ratios);
        let capacities = 0..plan.capacities.len();
        let policies =
            plan.policies.iter().zip(&cells).zip(&ratios).enumerate().map(|(place, ((name, cells), own))| PolicySummary {
                name: name.clone(),
                ratio: over_workloads(cells.iter().filter_map(|cell| cell.ratio)),
                without_outlier: outlier.map(|outlier| Without::of(own, outlier)),
                driver_ns: capacities
                    .clone()
                    .map(|capacity| over_workloads(cells.iter().filter_map(|cell| cell.driver_ns[capacity])))
                    .collect(),
                courses: capacities
                    .clone()
                    .map(|capacity| CourseOfAll::of(&cells.iter().filter_map(|cell| cell.courses[capacity]).collect::<Vec<_>>()))
                    .collect(),
                fits: shares(plan, cells),
                versus: (place != baseline).then(|| compare(own, ratios.get(baseline).map_or(&[], Vec::as_slice))),
            });
        let policies = policies.collect();
        Summary { baseline, load_with_pools: load_with_pools(plan, rows), outlier, policies, cells }
    }

    /// Whether a workload has several seeds, so that policies are compared over them.
    #[must_use]
    pub fn compares_seeds(&self) -> bool {
        self.cells.iter().flatten().any(|cell| cell.versus.is_some())
    }

    /// The number of combinations of workload, seed and policy that were seen to fit in some memory and to fail
    /// with more.
    #[must_use]
    pub fn not_monotone(&self) -> u64 {
        self.cells.iter().flatten().map(|cell| cell.not_monotone).sum()
    }
}

fn ratio_of(cell: &Cell) -> Option<f64> {
    cell.ratio.map(|ratio| ratio.mean)
}

/// Rows by policy, workload and capacity: those of all seeds.
type Seen<'a> = Vec<Vec<Vec<Vec<&'a Row>>>>;

fn by_job<'a>(plan: &Plan, rows: &'a [Row]) -> Seen<'a> {
    let of_policy = vec![vec![Vec::new(); plan.capacities.len()]; plan.workloads.len()];
    let mut seen: Seen<'a> = vec![of_policy; plan.policies.len()];
    for row in rows {
        if let Some(job) = plan.job(row.job) {
            seen[job.policy][job.workload][job.capacity].push(row);
        }
    }
    seen
}

fn cells(seen: &Seen<'_>, smallest: Option<usize>, baseline: usize) -> Vec<Vec<Cell>> {
    let cell = |policy: usize, workload: usize| {
        let by_capacity = &seen[policy][workload];
        let base = || Some(&seen.get(baseline)?[workload][smallest?]);
        Cell {
            ratio: smallest.and_then(|place| over_seeds(&by_capacity[place], ratio)),
            driver_ns: by_capacity.iter().map(|rows| over_seeds(rows, |row| row.fits.then_some(row.driver_ns as f64))).collect(),
            courses: by_capacity.iter().map(|rows| Course::of(rows)).collect(),
            versus: smallest.filter(|_| policy != baseline).and_then(|place| seeds::compare(&by_capacity[place], base()?)),
            not_monotone: smallest.map_or(0, |place| not_monotone(&by_capacity[place], by_capacity)),
            fits: by_capacity.iter().map(|rows| rows.iter().filter(|row| row.fits).count() as u64).collect(),
        }
    };
    let of_policy = |(policy, workloads): (usize, &Vec<_>)| (0..workloads.len()).map(|workload| cell(policy, workload)).collect();
    let mut cells: Vec<Vec<Cell>> = seen.iter().enumerate().map(of_policy).collect();
    seeds::correct(cells.iter_mut().flatten().filter_map(|cell| cell.versus.as_mut()));
    cells
}

/// By workload: a row of each seed says it.
fn load_with_pools(plan: &Plan, rows: &[Row]) -> Vec<Option<Level>> {
    let mut ratios = vec![std::collections::BTreeMap::new(); plan.workloads.len()];
    for row in rows {
        if let Some(job) = plan.job(row.job) {
            ratios[job.workload].insert(job.seed, row.load_with_pools_bytes as f64 / row.load_bytes.max(1) as f64);
        }
    }
    ratios.into_iter().map(|of_seeds| over_all(&of_seeds.into_values().collect::<Vec<_>>())).collect()
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

fn compare(own: &[Option<f64>], base: &[Option<f64>]) -> Comparison {
    let difference = |(own, base): (&Option<f64>, &Option<f64>)| match (own, base) {
        (Some(own), Some(base)) => own.ln() - base.ln(),
        (Some(_), None) => f64::NEG_INFINITY,
        (None, Some(_)) => f64::INFINITY,
        (None, None) => 0.0,
    };
    let both: Vec<f64> = own.iter().zip(base).filter_map(|(own, base)| Some((*own)? / (*base)?)).collect();
    let differences: Vec<f64> = own.iter().zip(base).map(difference).collect();
    Comparison { ratio: over_all(&both), counts: seeds::counts(&differences) }
}
