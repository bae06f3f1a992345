//! Tables of the smallest memory: by workload and policy, over seeds, and as means.

use std::fmt::Write as _;

use parkade_research::study::sweep::{BoundRatios, Level, PolicySummary, SeedComparison, Without};

use super::finished::Finished;
use super::grid::{Grid, Head};
use super::grids::{about_smallest, by_workload, capacity, given, none, range, ratio, with_range};

/// What the columns and rows are that are no policies.
const ABOUT_BOUNDS: &str = "LOAD with pools is a lower bound, as LOAD is: until the graphs of a private pool are reset, the pool counts for the most bytes that have \
                            lived in it. The ideal remapper and the offline packer are not bounds but results: what an ideal allocator needs that remaps pages of 2 MiB at \
                            will, and the best packing that was found with every lifetime known in advance and nothing moved. An allocator that learns of requests one by one \
                            may need less. Both ignore private pools, so they may lie below LOAD with pools.";

/// The smallest memory of each workload, with what it is compared with.
pub(super) fn memory_of_cells(finished: &Finished) -> Grid {
    let note = format!(
        "The smallest memory tried in which the workload fits, over LOAD, the most bytes that live at once; with several seeds their \
         geometric mean and range. {} {ABOUT_BOUNDS}",
        about_smallest(finished)
    );
    let show = |level: Option<Level>| level.map_or_else(none, |level| with_range(level, ratio));
    let mut grid = by_workload(finished, "Smallest memory over LOAD".to_owned(), note, &|cell| show(cell.ratio));
    grid.header.push(Head::named("LOAD with pools", "pools"));
    for (row, level) in grid.rows.iter_mut().zip(&finished.summary.load_with_pools) {
        row.push(show(*level));
    }
    if !finished.beside.is_empty() {
        grid.header
            .extend([("ideal remapper", "remapped"), ("offline packer", "packed")].map(|(name, short)| Head::named(name, short)));
        for (row, beside) in grid.rows.iter_mut().zip(&finished.beside) {
            row.extend([show(beside.map(|beside| beside.page_ideal)), show(beside.map(|beside| beside.packing))]);
        }
    }
    grid
}

/// The policies against the baseline over the seeds of each workload; none if no workload has several.
pub(super) fn over_seeds(finished: &Finished) -> Option<Grid> {
    let (plan, summary) = (&finished.plan, &finished.summary);
    if !summary.compares_seeds() {
        return None;
    }
    let baseline = &plan.policies[summary.baseline];
    let comparisons = summary.cells.iter().flatten().filter(|cell| cell.versus.is_some()).count();
    let note = format!(
        "The smallest memory over that of {baseline}: the geometric mean over the workload's seeds, its 95 % bootstrap interval (BCa), and the p value of \
         Wilcoxon's signed-rank test over the seeds, corrected for all {comparisons} comparisons of this table (Holm). Fewer than six seeds cannot reach 0.05. \
         The tests are about the programs that a generator makes from other seeds, not about other programs. Workloads with one seed are left out."
    );
    let show = |versus: SeedComparison| match versus.ratio {
        None => none(),
        Some(level) => format!("{} ({}), p {}", ratio(level.mean), range(level, ratio), p_value(versus.corrected_p)),
    };
    let mut grid =
        by_workload(finished, format!("Over the seeds, against {baseline}"), note, &|cell| cell.versus.map_or_else(none, show));
    let mut has_several = plan.workloads.iter().map(|workload| workload.seeds > 1);
    grid.rows.retain(|_| has_several.next().unwrap_or(false));
    Some(grid)
}

/// The means over the workloads.
pub(super) fn memory(finished: &Finished) -> Grid {
    let (plan, summary) = (&finished.plan, &finished.summary);
    let mut header: Vec<Head> = ["policy", "memory/LOAD", "range", "n"].map(Head::from).into();
    let mut note = format!(
        "Geometric means of the table by workload over n of {}, with the least and the greatest value. The workloads are chosen and no sample of anything, so \
         there are no intervals and no tests over them.",
        crate::terminal::output::count(plan.workloads.len() as u64, "workload")
    );
    if let Some(outlier) = outlier(finished) {
        header.push(Head { name: format!("without {outlier}"), short: "without".to_owned() });
        header.push(Head { name: format!("{outlier}'s part"), short: "its part".to_owned() });
        let _ = write!(
            note,
            " Of all workloads {outlier} makes the largest part of the excess over LOAD, so the means come again without it, with its part (in logarithms, which \
             geometric means add up)."
        );
    }
    header.push(Head::named("equal buffers", "equal"));
    note += " Equal buffers: what a program needs that only allocates 64 buffers of 16 MiB, over their sum. Nothing can be fragmented there, so more than 1 is by construction: \
             such a policy uses only a part of the device, or takes it in large pieces.";
    header.extend(given(plan).map(|place| {
        let name = capacity(plan.capacities[place]);
        Head { short: name.replace(" LOAD", "x"), name: format!("fits in {name}") }
    }));
    note += " Then the share of workloads that fit in a given memory (each workload counts the same, whatever its seeds).";
    if plan.policies.len() > 1 {
        let baseline = &plan.policies[summary.baseline];
        header.push(Head { name: format!("over {baseline}"), short: format!("/{baseline}") });
        header.extend(["range", "less/same/more"].map(Head::from));
        let _ = write!(
            note,
            " Then against {baseline}, workload by workload: the ratio, and in how many a policy needs less, as much, and more."
        );
    }
    let mut rows: Vec<Vec<String>> =
        summary.policies.iter().zip(&finished.equal_buffers).map(|(policy, one)| policy_row(finished, policy, *one)).collect();
    rows.extend(beside(finished).into_iter().map(|row| padded(row, header.len())));
    Grid { title: "Memory: means".to_owned(), note: format!("{note} {ABOUT_BOUNDS}"), header, rows }
}

/// The name of the sweep's outlier.
fn outlier(finished: &Finished) -> Option<&str> {
    finished.summary.outlier.map(|place| finished.plan.workloads[place].name.as_str())
}

fn policy_row(finished: &Finished, policy: &PolicySummary, equal_buffers: Option<f64>) -> Vec<String> {
    let plan = &finished.plan;
    let mut row = mean_cells(&policy.name, policy.ratio, policy.without_outlier);
    row.push(equal_buffers.map_or_else(none, ratio));
    row.extend(given(plan).map(|place| format!("{:.0}%", policy.fits[place] * 100.0)));
    match &policy.versus {
        None if plan.policies.len() == 1 => {}
        None => row.extend((0..3).map(|_| none())),
        Some(versus) => {
            row.push(versus.ratio.map_or_else(none, |level| ratio(level.mean)));
            row.push(versus.ratio.map_or_else(none, |level| range(level, ratio)));
            row.push(versus.counts.map(|count| count.to_string()).join("/"));
        }
    }
    row
}

/// Rows of what is no policy: the lower bound first.
fn beside(finished: &Finished) -> Vec<Vec<String>> {
    let pools = finished.summary.load_with_pools.iter().map(|level| level.map(|level| level.mean)).collect();
    let ideal = |which: fn(&BoundRatios) -> Level| {
        finished.beside.iter().map(|beside| beside.as_ref().map(|beside| which(beside).mean)).collect()
    };
    let mut rows = vec![("(LOAD with pools, a lower bound)", pools)];
    if !finished.beside.is_empty() {
        rows.push(("(ideal remapper)", ideal(|beside| beside.page_ideal)));
        rows.push(("(offline packer)", ideal(|beside| beside.packing)));
    }
    rows.into_iter()
        .map(|(name, ratios): (&str, Vec<Option<f64>>)| {
            let without = finished.summary.outlier.map(|outlier| Without::of(&ratios, outlier));
            mean_cells(name, Level::over_workloads(&ratios), without)
        })
        .collect()
}

fn mean_cells(name: &str, level: Option<Level>, without: Option<Without>) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    row.push(level.map_or_else(none, |level| ratio(level.mean)));
    row.push(level.map_or_else(none, |level| range(level, ratio)));
    row.push(level.map_or(0, |level| level.count).to_string());
    if let Some(Without { mean, share }) = without {
        row.push(mean.map_or_else(none, ratio));
        row.push(share.map_or_else(none, |share| format!("{:.0}%", share * 100.0)));
    }
    row
}

fn padded(mut row: Vec<String>, length: usize) -> Vec<String> {
    row.resize_with(length, none);
    row
}

fn p_value(p: f64) -> String {
    if p < 0.0001 { "<0.0001".to_owned() } else { format!("{p:.4}") }
}
