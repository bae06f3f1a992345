//! The tables of a sweep: each workload first, then the means. `memory_grids` and `driver_grids` make them.

use parkade_research::study::sweep::{Capacity, Cell, Level, Plan};

use super::driver_grids::{course, courses_of_cells, driver, driver_of_cells, waiting_of_cells};
use super::finished::Finished;
use super::grid::{Grid, Head};
use super::memory_grids::{memory, memory_of_cells, over_seeds};
use crate::terminal::size;

/// Driver time is also shown for the capacity nearest to this factor.
const TIGHT: f64 = 1.1;
/// Stands for a missing number.
pub(super) const NONE: &str = "–";

/// The tables for a terminal. In the first one policies are numbers, which the others say.
pub(super) fn short(finished: &Finished) -> Vec<Grid> {
    let mut grids = vec![memory_of_cells(finished), memory(finished), driver(finished), course(finished)];
    let policies = finished.plan.policies.len();
    for (number, row) in grids.iter_mut().skip(1).flat_map(|grid| grid.rows.iter_mut().take(policies).enumerate()) {
        if let Some(name) = row.first_mut() {
            *name = format!("{:>2} {name}", number + 1);
        }
    }
    grids
}

/// All tables.
pub(super) fn all(finished: &Finished) -> Vec<Grid> {
    let mut grids = vec![memory_of_cells(finished)];
    let places = given_or_plenty(&finished.plan);
    grids.extend(places.iter().map(|&place| driver_of_cells(finished, place)));
    grids.extend(places.iter().map(|&place| courses_of_cells(finished, place)));
    grids.extend(places.iter().map(|&place| waiting_of_cells(finished, place)));
    grids.extend(over_seeds(finished));
    grids.extend([memory(finished), driver(finished), course(finished)]);
    grids
}

/// What the smallest memory is.
pub(super) fn about_smallest(finished: &Finished) -> String {
    let programs: u64 = finished.plan.workloads.iter().map(|workload| workload.seeds).sum();
    format!(
        "The smallest memory is the smallest of those tried in which the program fits; a program that fits may fail with a little more: \
         so it was seen in {} of {} searches.",
        finished.summary.not_monotone(),
        programs * finished.plan.policies.len() as u64
    )
}

/// A capacity in words.
pub(super) fn capacity(capacity: Capacity) -> String {
    match capacity {
        Capacity::Smallest => "smallest".to_owned(),
        Capacity::Plenty => "plenty".to_owned(),
        Capacity::Load(share) => format!("{share} LOAD"),
        Capacity::Bytes(bytes) => size::show_bytes(bytes),
    }
}

/// Places of the capacities that programs are given.
pub(super) fn given(plan: &Plan) -> impl Iterator<Item = usize> {
    let is_given = |capacity: &Capacity| matches!(capacity, Capacity::Load(_) | Capacity::Bytes(_));
    plan.capacities.iter().enumerate().filter(move |(_, capacity)| is_given(capacity)).map(|(place, _)| place)
}

/// Places of the capacities whose driver times are shown.
pub(super) fn timed(plan: &Plan) -> Vec<usize> {
    let distance = |place: &usize| match plan.capacities[*place] {
        Capacity::Load(share) => (share.value() - TIGHT).abs(),
        _ => f64::INFINITY,
    };
    let tight = given(plan).min_by(|one, other| distance(one).total_cmp(&distance(other)));
    let at = |wanted| plan.capacities.iter().position(|capacity| *capacity == wanted);
    [at(Capacity::Smallest), tight, at(Capacity::Plenty)].into_iter().flatten().collect()
}

/// Those of them that are the same for all policies.
pub(super) fn given_or_plenty(plan: &Plan) -> Vec<usize> {
    timed(plan).into_iter().filter(|&place| plan.capacities[place] != Capacity::Smallest).collect()
}

/// A table of workloads and policies.
pub(super) fn by_workload(finished: &Finished, title: String, note: String, cell: &dyn Fn(&Cell) -> String) -> Grid {
    let plan = &finished.plan;
    let mut header = vec![Head::from("workload")];
    let numbered = plan.policies.iter().enumerate();
    header.extend(numbered.map(|(place, name)| Head { name: name.clone(), short: (place + 1).to_string() }));
    let rows = plan.workloads.iter().enumerate().map(|(place, workload)| {
        let cells = finished.summary.cells.iter().map(|cells| cell(&cells[place]));
        std::iter::once(workload.name.clone()).chain(cells).collect()
    });
    Grid { title, note, rows: rows.collect(), header }
}

pub(super) fn none() -> String {
    NONE.to_owned()
}

pub(super) fn milliseconds(level: Level) -> Level {
    Level { mean: level.mean / 1e6, low: level.low / 1e6, high: level.high / 1e6, ..level }
}

/// One value has no range.
pub(super) fn range(level: Level, show: impl Fn(f64) -> String) -> String {
    if level.count < 2 { none() } else { format!("{}–{}", show(level.low), show(level.high)) }
}

/// With the range over seeds, if they differ.
pub(super) fn with_range(level: Level, show: impl Fn(f64) -> String) -> String {
    let [mean, low, high] = [level.mean, level.low, level.high].map(show);
    if low == high { mean } else { format!("{mean} ({low}–{high})") }
}

/// Three decimals, for ratios.
pub(super) fn ratio(value: f64) -> String {
    format!("{value:.3}")
}

/// Three digits.
pub(super) fn number(value: f64) -> String {
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$}")
}
