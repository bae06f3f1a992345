//! A sweep as one JSON object.

use std::collections::BTreeMap;

use parkade_research::study::sweep::{
    BoundRatios, Cell, Comparison, Course, CourseOfAll, Level, Plan, PolicySummary, SeedComparison, Without,
};

use super::builds::{self, OfOverlap};
use super::finished::Finished;
use crate::terminal::json_struct::{all, view};

view! {
    pub(super) struct Object<'a>(finished: &'a Finished) {
        programs: BTreeMap<&'a str, u64> = builds::rows_by_build(&finished.rows),
        mixed: bool = builds::are_mixed(&finished.rows),
        overlap: OfOverlap = OfOverlap::of(&finished.overlap),
        not_monotone: u64 = finished.summary.not_monotone(),
        bounds: Vec<Bounds<'a>> = bounds(finished),
        plan: &'a Plan = &finished.plan,
        jobs: usize = finished.rows.len(),
        baseline: &'a str = &finished.plan.policies[finished.summary.baseline],
        outlier: Option<&'a str> = finished.summary.outlier.map(|place| finished.plan.workloads[place].name.as_str()),
        policies: Vec<Policy<'a>> = all(
            finished.summary.policies.iter().zip(&finished.summary.cells).zip(&finished.equal_buffers),
            |((policy, cells), equal_buffers)| Policy::of(&finished.plan, policy, cells, *equal_buffers),
        ),
    }
}

fn bounds(finished: &Finished) -> Vec<Bounds<'_>> {
    let workloads = finished.plan.workloads.iter().zip(&finished.summary.load_with_pools).enumerate();
    all(workloads, |(place, (workload, pools))| Bounds::of(&workload.name, *pools, finished.beside.get(place).copied().flatten()))
}

view! {
    struct Bounds<'a>(workload: &'a str, pools: Option<Level>, beside: Option<BoundRatios>) {
        workload: &'a str = workload,
        load_with_pools_over_load: Option<Mean> = pools.map(Mean::of),
        page_ideal_over_load: Option<Mean> = beside.map(|beside| Mean::of(beside.page_ideal)),
        packing_over_load: Option<Mean> = beside.map(|beside| Mean::of(beside.packing)),
    }
}

view! {
    struct Policy<'a>(plan: &'a Plan, policy: &'a PolicySummary, cells: &[Cell], equal_buffers: Option<f64>) {
        policy: &'a str = &policy.name,
        memory_over_load: Option<Mean> = policy.ratio.map(Mean::of),
        without_outlier: Option<OfOthers> = policy.without_outlier.map(OfOthers::of),
        equal_buffers_over_load: Option<f64> = equal_buffers,
        versus_baseline: Option<Versus> = policy.versus.as_ref().map(Versus::of),
        fits: BTreeMap<String, f64> = by_capacity(plan, policy.fits.iter().copied()),
        driver_ns: BTreeMap<String, Option<Mean>> = costs(plan, &policy.driver_ns),
        driver: BTreeMap<String, Driver> = by_capacity(plan, policy.courses.iter().map(Driver::of)),
        workloads: Vec<Workload<'a>> =
            all(plan.workloads.iter().zip(cells), |(workload, cell)| Workload::of(plan, &workload.name, cell)),
    }
}

view! {
    struct OfOthers(without: Without) {
        mean: Option<f64> = without.mean,
        share: Option<f64> = without.share,
    }
}

view! {
    struct Driver(course: &CourseOfAll) {
        calls_per_step: Option<Mean> = course.calls_per_step.map(Mean::of),
        ns_per_step: Option<Mean> = course.ns_per_step.map(Mean::of),
        later_share: Option<Mean> = course.later_share.map(Mean::of),
        waited_ns: Option<Mean> = course.waited_ns.map(Mean::of),
        waiting_calls: Option<Mean> = course.waiting_calls.map(Mean::of),
    }
}

view! {
    struct Workload<'a>(plan: &Plan, workload: &'a str, cell: &Cell) {
        workload: &'a str = workload,
        memory_over_load: Option<Mean> = cell.ratio.map(Mean::of),
        not_monotone: u64 = cell.not_monotone,
        versus_baseline: Option<OverSeeds> = cell.versus.as_ref().map(OverSeeds::of),
        driver_ns: BTreeMap<String, Option<Mean>> = costs(plan, &cell.driver_ns),
        driver: BTreeMap<String, Option<OwnDriver>> =
            by_capacity(plan, cell.courses.iter().map(|course| course.as_ref().map(OwnDriver::of))),
    }
}

view! {
    struct OwnDriver(course: &Course) {
        calls_per_step: Option<Mean> = course.calls_per_step.map(Mean::of),
        ns_per_step: Option<Mean> = course.ns_per_step.map(Mean::of),
        later_calls_per_step: Option<Mean> = course.later_calls_per_step.map(Mean::of),
        later_ns_per_step: Option<Mean> = course.later_ns_per_step.map(Mean::of),
        later_share: Option<Mean> = course.later_share.map(Mean::of),
        waited_ns: Option<Mean> = course.waited_ns.map(Mean::of),
        waiting_calls: Mean = Mean::of(course.waiting_calls),
    }
}

view! {
    struct Versus(versus: &Comparison) {
        ratio: Option<Mean> = versus.ratio.map(Mean::of),
        less: usize = versus.counts[0],
        same: usize = versus.counts[1],
        more: usize = versus.counts[2],
    }
}

view! {
    struct OverSeeds(versus: &SeedComparison) {
        ratio: Option<Mean> = versus.ratio.map(Mean::of),
        less: usize = versus.counts[0],
        same: usize = versus.counts[1],
        more: usize = versus.counts[2],
        effect: f64 = versus.test.effect,
        p: f64 = versus.test.p,
        p_holm: f64 = versus.corrected_p,
        p_is_exact: bool = versus.test.is_exact,
    }
}

view! {
    /// The infinite ends of an interval over one seed are null.
    struct Mean(level: Level) {
        mean: f64 = level.mean,
        low: f64 = level.low,
        high: f64 = level.high,
        n: usize = level.count,
    }
}

fn by_capacity<T>(plan: &Plan, values: impl IntoIterator<Item = T>) -> BTreeMap<String, T> {
    plan.capacities.iter().map(ToString::to_string).zip(values).collect()
}

fn costs(plan: &Plan, driver_ns: &[Option<Level>]) -> BTreeMap<String, Option<Mean>> {
    by_capacity(plan, driver_ns.iter().map(|level| level.map(Mean::of)))
}
