//! Summarizes all rows of a sweep.
//!
//! The unit is the workload: its seeds are averaged first, because they say nothing about other workloads. Means of ratios
//! are geometric. A workload that does not fit even with plenty of memory (the policy gave up for a different reason) has no
//! smallest memory. It is not included in any mean, as the number of workloads next to each mean shows.
//!
//! Workloads are chosen by hand. Their means therefore have ranges rather than intervals, which would say nothing about other
//! workloads, and are also stated without the workload that makes up the largest part of the excess over LOAD. Tests and
//! intervals are over the seeds of one workload: seeds are a random sample of what a generator can produce, so these tests
//! say something about the programs that it produces.
//!
//! The summary also shows what two ideal allocators need for a sweep's workloads, relative to their loads. Neither result is
//! a lower bound for an allocator that sees requests one by one: both waste memory that an allocator of that kind need not
//! waste, and the packer does not always find the best packing.

use rayon::prelude::*;
use statrs::statistics::Statistics;

use super::row::{Row, Source};
use super::{Capacity, Plan};
use crate::bounds::{Bounds, BoundsError};
use crate::packing::Effort;
use crate::study::statistics::{Interval, SignedRank, holm, interval_of_mean, mean, signed_rank};

/// One workload under one policy.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cell {
    /// The smallest memory relative to the load: the geometric mean over the seeds, with its range. `None` if the workload does not
    /// fit with some seed.
    pub ratio: Option<Level>,
    /// The cost of the driver calls at each capacity of the plan, in nanoseconds. `None` if the workload does not fit with some
    /// seed.
    pub driver_ns: Vec<Option<Level>>,
    /// The driver's work over the course of the workload, at each capacity of the plan.
    pub courses: Vec<Option<Course>>,
    /// The comparison with the baseline over the seeds; `None` with fewer than two seeds, and for the baseline itself.
    pub versus: Option<SeedComparison>,
    /// The number of seeds with which the workload fits, for each capacity.
    pub fits: Vec<u64>,
    /// The number of seeds with which the workload fails at some capacity tried above the smallest.
    pub not_monotone: u64,
    /// The number of runs that ended with a fault. If there are any, the cell has no other values.
    pub faults: u64,
}

/// A policy compared with the baseline, workload by workload.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Comparison {
    /// The policy's smallest memory relative to the baseline's: the geometric mean over the workloads that fit under both.
    pub ratio: Option<Level>,
    /// The number of workloads for which the policy needs less memory, the same, and more. A case that does not fit
    /// counts as more.
    pub counts: [usize; 3],
}

/// The results of a policy.
#[derive(Clone, PartialEq, Debug)]
pub struct PolicySummary {
    /// The policy's name.
    pub name: String,
    /// The smallest memory relative to the load: the geometric mean over the workloads that fit.
    pub ratio: Option<Level>,
    /// The same, without the sweep's outlier; `None` if the sweep has no outlier.
    pub without_outlier: Option<Without>,
    /// The cost of the driver calls at each capacity of the plan, in nanoseconds: the geometric mean over the workloads that fit.
    pub driver_ns: Vec<Option<Level>>,
    /// The driver's work over the course of the workloads, at each capacity.
    pub courses: Vec<CourseOfAll>,
    /// The fraction of each workload's seeds that fit at each capacity, averaged over the workloads; empty if there is a fault.
    pub fits: Vec<f64>,
    /// The comparison with the baseline; `None` for the baseline itself, and if either has a fault.
    pub versus: Option<Comparison>,
    /// The number of runs that ended with a fault. If there are any, the policy has no other values.
    pub faults: u64,
}

/// The results of a sweep.
#[derive(Clone, PartialEq, Debug)]
pub struct Summary {
    /// The baseline, as an index into the plan's policies.
    pub baseline: usize,
    /// The load with pools relative to the load, by workload: no allocator that leaves a pool its memory can need less.
    /// `None` for a workload without rows.
    pub load_with_pools: Vec<Option<Level>>,
    /// The workload that makes up the largest part of the excess over the loads, as an index into the plan's workloads.
    pub outlier: Option<usize>,
    /// All policies, in the plan's order.
    pub policies: Vec<PolicySummary>,
    /// All cells, by policy and then by workload.
    pub cells: Vec<Vec<Cell>>,
}

impl Summary {
    /// Summarizes the rows of a plan. Rows for jobs that are not in the plan are ignored. `baseline` is an index into the
    /// plan's policies.
    #[must_use]
    pub fn of(plan: &Plan, rows: &[Row], baseline: usize) -> Summary {
        let smallest = plan.capacities.iter().position(|capacity| *capacity == Capacity::Smallest);
        let seen = by_job(plan, rows);
        let cells = cells(&seen, smallest, baseline);
        let ratios: Vec<Vec<Option<f64>>> = cells.iter().map(|cells| cells.iter().map(ratio_of).collect()).collect();
        let outlier = outlier(&ratios);
        let capacities = 0..plan.capacities.len();
        let faults: Vec<u64> = cells.iter().map(|cells| cells.iter().map(|cell| cell.faults).sum()).collect();
        let base_has_faults = faults.get(baseline).is_some_and(|&faults| faults > 0);
        let policies = plan.policies.iter().zip(&cells).zip(&ratios).enumerate().map(|(place, ((name, cells), own))| {
            if faults[place] > 0 {
                return PolicySummary::with_faults(name, plan, faults[place]);
            }
            PolicySummary {
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
                versus: (place != baseline && !base_has_faults)
                    .then(|| compare(own, ratios.get(baseline).map_or(&[], Vec::as_slice))),
                faults: 0,
            }
        });
        let policies = policies.collect();
        Summary { baseline, load_with_pools: load_with_pools(plan, rows), outlier, policies, cells }
    }

    /// Returns whether a workload has several seeds, so that policies are compared over them.
    #[must_use]
    pub fn compares_seeds(&self) -> bool {
        self.cells.iter().flatten().any(|cell| cell.versus.is_some())
    }

    /// Returns the least p value that any comparison over seeds can reach: that of the workload with the most seeds, if the policy
    /// needs less memory with each of them, corrected for all comparisons. `None` without comparisons.
    #[must_use]
    pub fn least_p(&self, plan: &Plan) -> Option<f64> {
        let comparisons = self.cells.iter().flatten().filter(|cell| cell.versus.is_some()).count();
        least_p(comparisons, plan.workloads.iter().map(|workload| workload.seeds).max().unwrap_or(0))
    }

    /// Returns the number of combinations of workload, seed and policy that fit in some amount of memory but fail with more.
    #[must_use]
    pub fn not_monotone(&self) -> u64 {
        self.cells.iter().flatten().map(|cell| cell.not_monotone).sum()
    }
}

impl PolicySummary {
    /// A policy that broke has no numbers: those of its other runs would not be comparable.
    fn with_faults(name: &str, plan: &Plan, faults: u64) -> PolicySummary {
        let capacities = plan.capacities.len();
        PolicySummary {
            name: name.to_owned(),
            ratio: None,
            without_outlier: None,
            driver_ns: vec![None; capacities],
            courses: vec![CourseOfAll::default(); capacities],
            fits: Vec::new(),
            versus: None,
            faults,
        }
    }
}

fn ratio_of(cell: &Cell) -> Option<f64> {
    cell.ratio.map(|ratio| ratio.mean)
}

/// The rows of all seeds, by policy, workload and capacity.
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
        let base = || Some(&seen.get(baseline)?[workload][smallest?]).filter(|rows| rows.iter().all(|row| !row.is_fault));
        let faults = by_capacity.iter().flatten().filter(|row| row.is_fault).count() as u64;
        if faults > 0 {
            let (driver_ns, courses) = (vec![None; by_capacity.len()], vec![None; by_capacity.len()]);
            return Cell { driver_ns, courses, fits: vec![0; by_capacity.len()], faults, ..Cell::default() };
        }
        Cell {
            faults,
            ratio: smallest.and_then(|place| over_seeds(&by_capacity[place], ratio)),
            driver_ns: by_capacity.iter().map(|rows| over_seeds(rows, |row| row.fits.then_some(row.driver_ns as f64))).collect(),
            courses: by_capacity.iter().map(|rows| Course::of(rows)).collect(),
            versus: smallest.filter(|_| policy != baseline).and_then(|place| compare_seeds(&by_capacity[place], base()?)),
            not_monotone: smallest.map_or(0, |place| not_monotone(&by_capacity[place], by_capacity)),
            fits: by_capacity.iter().map(|rows| rows.iter().filter(|row| row.fits).count() as u64).collect(),
        }
    };
    let of_policy = |(policy, workloads): (usize, &Vec<_>)| (0..workloads.len()).map(|workload| cell(policy, workload)).collect();
    let mut cells: Vec<Vec<Cell>> = seen.iter().enumerate().map(of_policy).collect();
    correct(cells.iter_mut().flatten().filter_map(|cell| cell.versus.as_mut()));
    cells
}

/// Returns the load with pools by workload; one row for each seed contains it.
fn load_with_pools(plan: &Plan, rows: &[Row]) -> Vec<Option<Level>> {
    let mut ratios = vec![std::collections::BTreeMap::new(); plan.workloads.len()];
    for row in rows {
        if let Some(job) = plan.job(row.job) {
            ratios[job.workload].insert(job.seed, row.load_with_pools_bytes as f64 / row.load_bytes.max(1) as f64);
        }
    }
    ratios.into_iter().map(|of_seeds| over_all(&of_seeds.into_values().collect::<Vec<_>>())).collect()
}

/// Returns the number of seeds that fail with more than their smallest memory, at a capacity that was searched or specified.
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

/// Returns the mean over seeds, or `None` if one of them has no value.
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

/// Returns the least p value that one of several comparisons over these seeds can reach; `None` without comparisons.
pub(super) fn least_p(comparisons: usize, seeds: u64) -> Option<f64> {
    // Of the 2^n assignments of signs, the two extreme ones.
    let least = 2.0 * 0.5_f64.powi(i32::try_from(seeds).unwrap_or(i32::MAX));
    (comparisons > 0).then(|| (least * comparisons as f64).min(1.0))
}

pub(super) fn compare(own: &[Option<f64>], base: &[Option<f64>]) -> Comparison {
    let difference = |(own, base): (&Option<f64>, &Option<f64>)| match (own, base) {
        (Some(own), Some(base)) => own.ln() - base.ln(),
        (Some(_), None) => f64::NEG_INFINITY,
        (None, Some(_)) => f64::INFINITY,
        (None, None) => 0.0,
    };
    let both: Vec<f64> = own.iter().zip(base).filter_map(|(own, base)| Some((*own)? / (*base)?)).collect();
    let differences: Vec<f64> = own.iter().zip(base).map(difference).collect();
    Comparison { ratio: over_all(&both), counts: counts(&differences) }
}

/// The level of the confidence intervals.
const CONFIDENCE: f64 = 0.95;
/// The seed of the resamples.
const SEED: u64 = 1;

/// A mean with its range or, where documented, with its confidence interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Level {
    /// The mean, which is geometric unless documented otherwise.
    pub mean: f64,
    /// The smallest value, or the lower end of the interval.
    pub low: f64,
    /// The largest value, or the upper end of the interval.
    pub high: f64,
    /// The number of values.
    pub count: usize,
}

/// Returns the geometric mean and the range, or `None` if there are no values.
pub(super) fn over_all(values: &[f64]) -> Option<Level> {
    with_range(values, || geometric_mean(values))
}

/// Returns the arithmetic mean and the range, of values that may be 0, or `None` if there are no values.
fn plain_over_all(values: &[f64]) -> Option<Level> {
    with_range(values, || mean(values))
}

fn with_range(values: &[f64], mean: impl FnOnce() -> Option<f64>) -> Option<Level> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    // The mean of equal values is exactly that value, to the last bit.
    let mean = if least.to_bits() == most.to_bits() { least } else { mean()? };
    Some(Level { mean, low: least, high: most, count: values.len() })
}

fn geometric_mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().map(|value| value.max(f64::MIN_POSITIVE)).geometric_mean())
}

/// Returns the geometric mean over workloads, with its range, or `None` if there are no values.
fn over_workloads(levels: impl Iterator<Item = Level>) -> Option<Level> {
    over_all(&levels.map(|level| level.mean).collect::<Vec<_>>())
}

/// Returns the geometric mean over seeds and its interval, from the values' logarithms.
fn with_interval(logs: &[f64]) -> Option<Level> {
    let mean = mean(logs)?;
    // A single value does not show how other values vary.
    let Interval { low, high } =
        interval_of_mean(logs, CONFIDENCE, SEED).unwrap_or(Interval { low: f64::NEG_INFINITY, high: f64::INFINITY });
    Some(Level { mean: mean.exp(), low: low.exp(), high: high.exp(), count: logs.len() })
}

impl Level {
    /// Returns the geometric mean and the range over those workloads that have a value, or `None` if there are none.
    #[must_use]
    pub fn over_workloads(values: &[Option<f64>]) -> Option<Level> {
        over_all(&values.iter().copied().flatten().collect::<Vec<_>>())
    }
}

/// A mean without one workload.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Without {
    /// The geometric mean over the other workloads; `None` if there are none.
    pub mean: Option<f64>,
    /// The workload's share of the excess, in logarithms, because these add up in a geometric mean. `None` if it has no
    /// value, or if there is no excess.
    pub share: Option<f64>,
}

impl Without {
    /// Computes this from the values of all workloads relative to their loads, leaving out the one at this index.
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

/// Returns the workload with the largest share of the excess, averaged over the policies, or `None` if there is no excess, or
/// only one workload. `policies` holds, for each policy, the smallest memory relative to the load of each workload.
fn outlier(policies: &[Vec<Option<f64>>]) -> Option<usize> {
    let workloads = policies.first()?.len();
    let share = |workload: usize| policies.iter().filter_map(|ratios| Without::of(ratios, workload).share).sum::<f64>();
    let shares = (0..workloads).map(|workload| (share(workload), workload));
    let largest = shares.max_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)))?;
    (workloads > 1 && largest.0 > 0.0).then_some(largest.1)
}

/// The driver's work over the course of one workload, with a given amount of memory. The values are arithmetic means over the
/// seeds, because a value may be 0.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Course {
    /// Driver calls per step; `None` if the workload's steps are not known.
    pub calls_per_step: Option<Level>,
    /// The cost of these calls per step, in nanoseconds.
    pub ns_per_step: Option<Level>,
    /// Driver calls per step in the later half; `None` if the workload has fewer than two steps.
    pub later_calls_per_step: Option<Level>,
    /// The cost of these calls per step in the later half, in nanoseconds.
    pub later_ns_per_step: Option<Level>,
    /// The share of the calls' cost that falls in the later half: 0 for a policy that is slow only at the beginning, and
    /// about one half for a policy that is always slow. `None` if the calls cost nothing.
    pub later_share: Option<Level>,
    /// The time that driver calls waited for work on the device, in nanoseconds; `None` if the workload does not state how
    /// long its work takes.
    pub waited_ns: Option<Level>,
    /// The driver calls that return only when work on the device is done.
    pub waiting_calls: Level,
}

/// The driver's work over the course of the workloads that fit, with a given amount of memory.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CourseOfAll {
    /// Driver calls per step: the geometric mean over the workloads whose steps are known.
    pub calls_per_step: Option<Level>,
    /// The cost of these calls per step, in nanoseconds: the geometric mean over the same workloads.
    pub ns_per_step: Option<Level>,
    /// The share of the calls' cost that falls in the later half: the arithmetic mean.
    pub later_share: Option<Level>,
    /// The time that driver calls waited, in nanoseconds: the arithmetic mean over the workloads that state how long their
    /// work takes.
    pub waited_ns: Option<Level>,
    /// The driver calls that return only when work on the device is done: the arithmetic mean.
    pub waiting_calls: Option<Level>,
}

impl Course {
    /// Computes the course from the rows of all seeds; `None` if there are no rows or the workload does not fit with some seed.
    fn of(rows: &[&Row]) -> Option<Course> {
        let over = |value: fn(&Row) -> Option<f64>| -> Option<Level> {
            plain_over_all(&rows.iter().map(|row| value(row)).collect::<Option<Vec<_>>>()?)
        };
        if rows.iter().any(|row| !row.fits) {
            return None;
        }
        Some(Course {
            calls_per_step: over(|row| quotient(row.driver_calls, row.steps)),
            ns_per_step: over(|row| quotient(row.driver_ns, row.steps)),
            later_calls_per_step: over(|row| quotient(row.later_driver_calls, row.later_steps)),
            later_ns_per_step: over(|row| quotient(row.later_driver_ns, row.later_steps)),
            later_share: over(|row| quotient(row.later_driver_ns, row.driver_ns)),
            waited_ns: over(|row| (row.work_ns > 0).then_some(row.waited_ns as f64)),
            waiting_calls: over(|row| Some(row.waiting_calls as f64))?,
        })
    }
}

impl CourseOfAll {
    /// Combines the courses of several workloads.
    fn of(courses: &[Course]) -> CourseOfAll {
        let means = |value: fn(&Course) -> Option<Level>| -> Vec<f64> {
            courses.iter().filter_map(value).map(|level| level.mean).collect()
        };
        CourseOfAll {
            calls_per_step: over_all(&means(|course| course.calls_per_step)),
            ns_per_step: over_all(&means(|course| course.ns_per_step)),
            later_share: plain_over_all(&means(|course| course.later_share)),
            waited_ns: plain_over_all(&means(|course| course.waited_ns)),
            waiting_calls: plain_over_all(&means(|course| Some(course.waiting_calls))),
        }
    }
}

fn quotient(amount: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| amount as f64 / of as f64)
}

/// A policy compared with the baseline, over the seeds of one workload.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SeedComparison {
    /// The policy's smallest memory relative to the baseline's: the geometric mean over the seeds that fit under both, with a 95 %
    /// interval.
    pub ratio: Option<Level>,
    /// The number of seeds for which the policy needs less memory, the same, and more. A case that does not fit counts
    /// as more.
    pub counts: [usize; 3],
    /// Wilcoxon's signed-rank test of the logarithms; a negative effect means less memory.
    pub test: SignedRank,
    /// The test's p value with Holm's correction for all comparisons in the sweep.
    pub corrected_p: f64,
}

/// Compares the smallest memories of one workload, with one row for each seed; `None` with fewer than two seeds.
fn compare_seeds(own: &[&Row], base: &[&Row]) -> Option<SeedComparison> {
    let of_seed = |seed| base.iter().find(|row| row.seed == seed);
    let pairs: Vec<(f64, f64)> = own.iter().filter_map(|row| Some((log_bytes(row), log_bytes(of_seed(row.seed)?)))).collect();
    let difference = |&(own, base): &(f64, f64)| if own.is_infinite() && base.is_infinite() { 0.0 } else { own - base };
    let differences: Vec<f64> = pairs.iter().map(difference).collect();
    let finite: Vec<f64> = pairs.iter().filter(|(own, base)| own.is_finite() && base.is_finite()).map(difference).collect();
    of_differences(&differences, &finite)
}

/// Compares by one difference for each seed; an infinite one is that of a case that does not fit.
pub(super) fn compare_differences(differences: &[f64]) -> Option<SeedComparison> {
    let finite: Vec<f64> = differences.iter().copied().filter(|difference| difference.is_finite()).collect();
    of_differences(differences, &finite)
}

/// `finite` are the differences between cases that fit.
fn of_differences(differences: &[f64], finite: &[f64]) -> Option<SeedComparison> {
    if differences.len() < 2 {
        return None;
    }
    let test = signed_rank(differences);
    Some(SeedComparison { ratio: with_interval(finite), counts: counts(differences), test, corrected_p: test.p })
}

/// Returns the number of differences less than, equal to and greater than 0.
fn counts(differences: &[f64]) -> [usize; 3] {
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

/// Returns the logarithm of the smallest memory; infinite if the workload does not fit in any amount.
pub(super) fn log_bytes(row: &Row) -> f64 {
    row.capacity_bytes.map_or(f64::INFINITY, |bytes| (bytes.max(1) as f64).ln())
}

/// The memory that ideal allocators need for one workload, relative to its load. Each value is a mean over the workload's
/// seeds, as in a policy's cell.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BoundRatios {
    /// The memory that is enough for an ideal allocator that remaps pages of 2 MiB at will, assigns each buffer of at least a
    /// page its own pages, and has the smaller buffers packed offline ([`crate::bounds::PageIdeal`]).
    pub page_ideal: Level,
    /// The best packing that the offline packer found, with every lifetime known in advance and nothing moved.
    pub packing: Level,
    /// The memory of the packing with the first seed, in bytes.
    pub packing_bytes: u64,
    /// Whether it is proven, for every seed, that this kind of ideal allocator needs no less.
    pub is_page_ideal_converged: bool,
    /// Whether it is proven, for every seed, that no packing needs less. If not, the packer ran out of steps.
    pub is_packing_converged: bool,
}

/// Computes these results for all workloads of a plan, in its order. `sources` are the plan's sources; the packer may take
/// `steps` steps for each packing.
///
/// # Errors
/// Returns [`BoundsError`] for a workload that has no bounds.
pub fn bound_ratios(
    plan: &Plan,
    sources: &[Source],
    steps: u64,
    pool: &rayon::ThreadPool,
) -> Result<Vec<Option<BoundRatios>>, BoundsError> {
    let seeded: Vec<(usize, u64)> = plan
        .workloads
        .iter()
        .enumerate()
        .flat_map(|(place, workload)| (1..=workload.seeds).map(move |seed| (place, seed)))
        .filter(|&(place, _)| place < sources.len())
        .collect();
    let ratios: Vec<(usize, [f64; 2], [bool; 2], u64)> = pool.install(|| {
        seeded
            .into_par_iter()
            .map(|(place, seed)| {
                let bounds = Bounds::of(&(sources[place].make)(seed), &Effort { steps, ..Effort::default() })?;
                let load = bounds.load_512_bytes.max(1) as f64;
                let over = |bytes: u64| bytes as f64 / load;
                let (pages, found) = (bounds.pages, &bounds.packing);
                let are_converged = [pages.reached_bytes <= pages.own_pages_bytes, found.packing.height <= found.bound];
                let height = found.packing.height;
                Ok((place, [over(pages.reached_bytes), over(height)], are_converged, height))
            })
            .collect::<Result<_, BoundsError>>()
    })?;
    let of = |wanted: usize, which: usize| -> Option<Level> {
        let values: Vec<f64> =
            ratios.iter().filter(|(place, ..)| *place == wanted).map(|(_, ratios, ..)| ratios[which]).collect();
        over_all(&values)
    };
    let is_converged = |wanted: usize, which: usize| {
        ratios.iter().filter(|(place, ..)| *place == wanted).all(|(_, _, converged, _)| converged[which])
    };
    let of_workload = |place| {
        Some(BoundRatios {
            page_ideal: of(place, 0)?,
            packing: of(place, 1)?,
            packing_bytes: ratios.iter().find(|(of, ..)| *of == place).map(|(.., height)| *height)?,
            is_page_ideal_converged: is_converged(place, 0),
            is_packing_converged: is_converged(place, 1),
        })
    };
    Ok((0..plan.workloads.len()).map(of_workload).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::sweep::tests::plan;

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

    /// Returns rows with these smallest memories and a load of 100: one seed, two policies.
    fn written(plan: &Plan, values: &[[Option<u64>; 2]]) -> Vec<Row> {
        (0..plan.jobs())
            .map(|number| {
                let job = plan.job(number).expect("a job");
                let bytes = values[job.workload][job.policy];
                let row = Row::empty(plan, number).expect("a row");
                Row { load_bytes: 100, capacity_bytes: bytes, fits: bytes.is_some(), driver_ns: 500, ..row }
            })
            .collect()
    }

    #[test]
    fn policies_are_compared_workload_by_workload() {
        let mut plan = plan();
        plan.workloads.iter_mut().for_each(|workload| workload.seeds = 1);
        plan.capacities.truncate(1);
        let summary =
            Summary::of(&plan, &written(&plan, &[[Some(110), Some(100)], [Some(120), Some(110)], [Some(150), Some(150)]]), 0);
        let [base, other] = &summary.policies[..] else { panic!("two policies") };
        // By hand: (1.1 x 1.2 x 1.5)^(1/3) and (1.0 x 1.1 x 1.5)^(1/3).
        let mean = |policy: &PolicySummary| policy.ratio.expect("a ratio").mean;
        assert!((mean(base) - 1.98_f64.cbrt()).abs() < 1e-12 && (mean(other) - 1.65_f64.cbrt()).abs() < 1e-12);
        let versus = other.versus.expect("a comparison");
        assert_eq!((versus.counts, base.versus), ([2, 1, 0], None));
        assert!((versus.ratio.expect("a ratio").mean - (1.65_f64 / 1.98).cbrt()).abs() < 1e-12);
        assert!(!summary.compares_seeds(), "nothing is tested over workloads");
        // By hand: ln 1.5 as a share of ln 1.98, and of ln 1.65, which is the third workload's share.
        let share = |policy: &PolicySummary| policy.without_outlier.and_then(|without| without.share).expect("a share");
        assert_eq!(summary.outlier, Some(2));
        assert!((share(base) - 1.5_f64.ln() / 1.98_f64.ln()).abs() < 1e-12);
        assert!((other.without_outlier.and_then(|without| without.mean).expect("a mean") - 1.1_f64.sqrt()).abs() < 1e-12);
        assert_eq!((mean(base), base.ratio.map(|level| (level.low, level.high))), (mean(base), Some((1.1, 1.5))));
        assert_eq!(other.driver_ns[0].map(|level| level.count), Some(3));
        assert!((other.driver_ns[0].expect("a cost").mean - 500.0).abs() < 1e-9);
    }

    #[test]
    fn what_fails_with_more_memory_is_counted() {
        let mut plan = plan();
        plan.workloads.iter_mut().for_each(|workload| workload.seeds = 1);
        let mut rows = written(&plan, &[[Some(110), Some(110)], [Some(120), Some(110)], [Some(150), None]]);
        let searched = |workload: usize, policy: usize| (workload * 2 + policy) * 3;
        rows[searched(0, 0)].fails_above_bytes = Some(115);
        let given = |fits, bytes| Row { fits, capacity_bytes: Some(bytes), ..rows[searched(1, 0) + 2].clone() };
        let (more, less) = (given(false, 130), given(false, 100));
        rows[searched(1, 0) + 2] = more;
        rows[searched(2, 0) + 2] = less;
        rows[searched(2, 0) + 2].job = (searched(2, 0) + 2) as u64;
        let summary = Summary::of(&plan, &rows, 0);
        let counts = summary.cells.iter().map(|cells| cells.iter().map(|cell| cell.not_monotone).collect::<Vec<_>>());
        assert_eq!(
            counts.collect::<Vec<_>>(),
            [[1, 1, 0], [0, 0, 0]],
            "searched and given; failing with less memory does not count"
        );
        assert_eq!(summary.not_monotone(), 2);
    }

    #[test]
    fn what_fits_nowhere_counts_as_worse_and_in_no_mean() {
        let mut plan = plan();
        plan.workloads.iter_mut().for_each(|workload| workload.seeds = 1);
        plan.capacities.truncate(1);
        let summary = Summary::of(&plan, &written(&plan, &[[Some(110), None], [Some(120), Some(110)], [None, None]]), 0);
        let [base, other] = &summary.policies[..] else { panic!("two policies") };
        assert_eq!((base.ratio.map(|level| level.count), other.ratio.map(|level| level.count)), (Some(2), Some(1)));
        let versus = other.versus.expect("a comparison");
        assert_eq!((versus.counts, versus.ratio.map(|level| level.count)), ([1, 1, 1], Some(1)));
        assert_eq!(other.fits, [1.0 / 3.0]);
    }

    #[test]
    fn a_policy_with_a_fault_has_no_numbers() {
        let mut plan = plan();
        plan.workloads.iter_mut().for_each(|workload| workload.seeds = 2);
        plan.capacities.truncate(1);
        let mut rows = written(&plan, &[[Some(110), Some(100)], [Some(120), Some(110)], [Some(150), Some(150)]]);
        let broken = rows.iter().position(|row| plan.job(row.job).is_some_and(|job| job.policy == 1)).expect("a row");
        rows[broken] = Row { is_fault: true, fits: false, capacity_bytes: None, ..rows[broken].clone() };
        let summary = Summary::of(&plan, &rows, 0);
        let [base, other] = &summary.policies[..] else { panic!("two policies") };
        assert_eq!((other.faults, other.ratio, other.versus, &other.fits[..]), (1, None, None, &[][..]));
        assert!(other.driver_ns.iter().all(Option::is_none) && other.without_outlier.is_none());
        let first = &summary.cells[1][0];
        assert_eq!((first.faults, first.ratio, first.versus), (1, None, None));
        assert_eq!(summary.cells[1][1].ratio.map(|level| level.count), Some(2), "the other workloads have theirs");
        assert_eq!((base.faults, base.ratio.map(|level| level.count)), (0, Some(3)));
        let against_it = Summary::of(&plan, &rows, 1);
        assert_eq!((against_it.policies[0].versus, against_it.cells[0][0].versus), (None, None), "nothing is compared with it");
    }

    /// Returns rows of one workload with six seeds and two policies, for the smallest memory only.
    fn seeded(values: [[Option<u64>; 2]; 6]) -> Summary {
        let mut plan = plan();
        plan.capacities.truncate(1);
        plan.workloads.truncate(1);
        plan.workloads[0].seeds = 6;
        let rows = (0..plan.jobs()).map(|number| {
            let job = plan.job(number).expect("a job");
            let bytes = values[job.seed as usize - 1][job.policy];
            Row { load_bytes: 100, capacity_bytes: bytes, fits: bytes.is_some(), ..Row::empty(&plan, number).expect("a row") }
        });
        Summary::of(&plan, &rows.collect::<Vec<_>>(), 0)
    }

    #[test]
    fn policies_are_tested_over_the_seeds_of_a_workload() {
        let summary = seeded([110, 120, 130, 140, 150, 160].map(|bytes| [Some(bytes), Some(100)]));
        let versus = summary.cells[1][0].versus.expect("a comparison");
        assert_eq!((versus.counts, versus.test.effect, summary.cells[0][0].versus), ([6, 0, 0], -1.0, None));
        assert!((versus.test.p - 2.0 / 64.0).abs() < 1e-12 && versus.corrected_p.to_bits() == versus.test.p.to_bits());
        let ratio = versus.ratio.expect("a ratio");
        assert!(ratio.low < ratio.mean && ratio.mean < ratio.high && ratio.high < 1.0, "{ratio:?}");
        assert!(summary.compares_seeds());
        let mut plan = plan();
        plan.workloads.iter_mut().for_each(|workload| workload.seeds = 6);
        assert_eq!(summary.least_p(&plan).map(f64::to_bits), Some(versus.corrected_p.to_bits()), "it was reached");
        let failing = seeded([110, 120, 130, 140, 150, 160].map(|bytes| [Some(bytes), (bytes > 110).then_some(100)]));
        let versus = failing.cells[1][0].versus.expect("a comparison");
        assert_eq!((versus.counts, versus.ratio.map(|level| level.count)), ([5, 0, 1], Some(5)), "what fits nowhere is worse");
        assert_eq!(failing.cells[1][0].ratio, None);
    }

    #[test]
    fn the_course_of_a_run_is_by_step_and_half() {
        let mut plan = plan();
        plan.workloads.iter_mut().for_each(|workload| workload.seeds = 1);
        plan.capacities.truncate(1);
        let with_cost = |row: Row, (steps, work_ns): (u64, u64)| Row {
            steps,
            work_ns,
            later_steps: steps / 2,
            driver_calls: 40,
            driver_ns: 1000,
            later_driver_calls: 10,
            later_driver_ns: 0,
            waited_ns: 70,
            waiting_calls: 3,
            ..row
        };
        let rows: Vec<Row> = written(&plan, &[[Some(110); 2], [Some(120); 2], [Some(150), None]])
            .into_iter()
            .zip([(4, 900), (4, 900), (1, 900), (1, 900), (0, 0), (0, 0)])
            .map(|(row, steps)| with_cost(row, steps))
            .collect();
        let summary = Summary::of(&plan, &rows, 0);
        let mean = |level: Option<Level>| level.map(|level| level.mean);
        let [four, one, none] = [0, 1, 2].map(|workload| summary.cells[0][workload].courses[0].expect("it fits"));
        assert_eq!((mean(four.calls_per_step), mean(four.ns_per_step)), (Some(10.0), Some(250.0)));
        assert_eq!(
            (mean(four.later_calls_per_step), mean(four.later_ns_per_step), mean(four.later_share)),
            (Some(5.0), Some(0.0), Some(0.0))
        );
        assert_eq!((mean(one.calls_per_step), one.later_calls_per_step), (Some(40.0), None), "one step has no halves");
        assert_eq!(
            (none.calls_per_step, none.waited_ns, none.waiting_calls.mean),
            (None, None, 3.0),
            "no steps, and no work to wait for"
        );
        assert_eq!(mean(four.waited_ns), Some(70.0));
        let all = summary.policies[0].courses[0];
        assert!((mean(all.calls_per_step).expect("a mean") - 20.0).abs() < 1e-9, "the geometric mean of 10 and 40");
        let counts =
            [all.calls_per_step, all.later_share, all.waited_ns, all.waiting_calls].map(|level| level.map(|level| level.count));
        assert_eq!(counts, [Some(2), Some(3), Some(2), Some(3)]);
        assert_eq!(summary.cells[1][2].courses[0], None, "it does not fit");
    }
}
