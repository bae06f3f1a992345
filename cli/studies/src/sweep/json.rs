//! A sweep as one JSON object.

use std::collections::BTreeMap;

use parkade_research::study::sweep::{BoundRatios, Cell, Comparison, Level, Plan, PolicySummary};

use super::builds::{self, OfOverlap};
use super::finished::Finished;
use parkade_terminal::json_struct::{all, view};

view! {
    pub(super) struct Object<'a>(finished: &'a Finished) {
        programs: BTreeMap<&'a str, u64> = builds::rows_by_build(&finished.rows),
        mixed: bool = builds::are_mixed(&finished.rows),
        overlap: OfOverlap = OfOverlap::of(&finished.overlap),
        not_monotone: u64 = finished.summary.not_monotone(),
        bounds: Vec<Bounds<'a>> = all(finished.plan.workloads.iter().zip(&finished.beside), |(workload, beside)| {
            Bounds::of(&workload.name, *beside)
        }),
        plan: &'a Plan = &finished.plan,
        jobs: usize = finished.rows.len(),
        baseline: &'a str = &finished.plan.policies[finished.summary.baseline],
        policies: Vec<Policy<'a>> = all(finished.summary.policies.iter().zip(&finished.summary.cells), |(policy, cells)| {
            Policy::of(&finished.plan, policy, cells)
        }),
    }
}

view! {
    struct Bounds<'a>(workload: &'a str, beside: Option<BoundRatios>) {
        workload: &'a str = workload,
        page_ideal_over_load: Option<Mean> = beside.map(|beside| Mean::of(beside.page_ideal)),
        packing_over_load: Option<Mean> = beside.map(|beside| Mean::of(beside.packing)),
    }
}

view! {
    struct Policy<'a>(plan: &'a Plan, policy: &'a PolicySummary, cells: &[Cell]) {
        policy: &'a str = &policy.name,
        memory_over_load: Option<Mean> = policy.ratio.map(Mean::of),
        versus_baseline: Option<Versus> = policy.versus.as_ref().map(Versus::of),
        fits: BTreeMap<String, f64> = by_capacity(plan, policy.fits.iter().copied()),
        driver_ns: BTreeMap<String, Option<Mean>> = costs(plan, &policy.driver_ns),
        workloads: Vec<Workload<'a>> =
            all(plan.workloads.iter().zip(cells), |(workload, cell)| Workload::of(plan, &workload.name, cell)),
    }
}

view! {
    struct Workload<'a>(plan: &Plan, workload: &'a str, cell: &Cell) {
        workload: &'a str = workload,
        memory_over_load: Option<Mean> = cell.ratio.map(Mean::of),
        not_monotone: u64 = cell.not_monotone,
        driver_ns: BTreeMap<String, Option<Mean>> = costs(plan, &cell.driver_ns),
    }
}

view! {
    struct Versus(versus: &Comparison) {
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
    /// The infinite ends of a mean over one workload are null.
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
