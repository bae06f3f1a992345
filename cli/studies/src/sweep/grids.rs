//! The tables of a sweep: memory and driver time, by policy and by workload and policy.

use std::fmt::Write as _;

use parkade_research::study::sweep::{BoundRatios, Capacity, Cell, Level, Plan, PolicySummary, Summary};

use super::finished::about_artefacts;
use super::grid::{Grid, Head};
use parkade_terminal::size;

/// Driver time is also shown for the capacity nearest to this factor.
const TIGHT: f64 = 1.1;
/// What the bounds are.
const ABOUT_BOUNDS: &str = "In parentheses are bounds: the page ideal is what an allocator needs that can remap pages of 2 MiB at will, and the \
                            packing is the best found offline, with every lifetime known in advance and nothing moved.";
/// Stands for a missing number.
const NONE: &str = "–";

/// The tables for a terminal.
pub(super) fn short(plan: &Plan, summary: &Summary, beside: &[Option<BoundRatios>]) -> Vec<Grid> {
    let mut grids = vec![memory(plan, summary, beside), driver(plan, summary), cells_of_memory(plan, summary, beside)];
    let policies = plan.policies.len();
    for (number, row) in grids.iter_mut().take(2).flat_map(|grid| grid.rows.iter_mut().take(policies).enumerate()) {
        if let Some(name) = row.first_mut() {
            *name = format!("{:>2} {name}", number + 1);
        }
    }
    grids
}

/// All tables.
pub(super) fn all(plan: &Plan, summary: &Summary, beside: &[Option<BoundRatios>]) -> Vec<Grid> {
    let mut grids = vec![memory(plan, summary, beside), driver(plan, summary), cells_of_memory(plan, summary, beside)];
    grids.extend(
        timed(plan)
            .into_iter()
            .filter(|&place| plan.capacities[place] != Capacity::Smallest)
            .map(|place| cells_of_driver(plan, summary, place)),
    );
    grids
}

/// What the smallest memory is.
pub(super) fn about_smallest(plan: &Plan, summary: &Summary) -> String {
    let programs: u64 = plan.workloads.iter().map(|workload| workload.seeds).sum();
    format!(
        "The smallest memory is the smallest of those tried in which the program fits; a program that fits may fail with a little more: \
         so it was seen in {} of {} searches.",
        summary.not_monotone(),
        programs * plan.policies.len() as u64
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
fn given(plan: &Plan) -> impl Iterator<Item = usize> {
    let is_given = |capacity: &Capacity| matches!(capacity, Capacity::Load(_) | Capacity::Bytes(_));
    plan.capacities.iter().enumerate().filter(move |(_, capacity)| is_given(capacity)).map(|(place, _)| place)
}

/// Places of the capacities whose driver times are shown.
fn timed(plan: &Plan) -> Vec<usize> {
    let distance = |place: &usize| match plan.capacities[*place] {
        Capacity::Load(share) => (share.value() - TIGHT).abs(),
        _ => f64::INFINITY,
    };
    let tight = given(plan).min_by(|one, other| distance(one).total_cmp(&distance(other)));
    let at = |wanted| plan.capacities.iter().position(|capacity| *capacity == wanted);
    [at(Capacity::Smallest), tight, at(Capacity::Plenty)].into_iter().flatten().collect()
}

fn memory(plan: &Plan, summary: &Summary, beside: &[Option<BoundRatios>]) -> Grid {
    let baseline = &plan.policies[summary.baseline];
    let mut header: Vec<Head> = ["policy", "memory/LOAD", "95% interval", "n"].map(Head::from).into();
    header.extend(given(plan).map(|place| {
        let name = capacity(plan.capacities[place]);
        Head { short: name.replace(" LOAD", "x"), name: format!("fits in {name}") }
    }));
    let mut note = format!(
        "The smallest memory in which a program fits over LOAD, the most bytes that live at once: geometric means over n of {} with \
         bootstrap intervals (BCa). Then the share of programs that fit in a given memory (each workload counts the same, whatever its seeds).",
        parkade_terminal::output::count(plan.workloads.len() as u64, "workload")
    );
    let comparisons = plan.policies.len() - 1;
    if comparisons > 0 {
        header.push(Head { name: format!("over {baseline}"), short: format!("/{baseline}") });
        header.extend(["95% interval", "less/same/more", "effect", "p", "p (Holm)"].map(Head::from));
        let _ = write!(
            note,
            " Then against {baseline}, workload by workload: \
             the ratio, in how many it needs less, as much, and more, the matched-pairs rank-biserial effect (-1: never more), and the p \
             value of Wilcoxon's signed-rank test, alone and corrected for all {comparisons} comparisons."
        );
    }
    let mut rows: Vec<Vec<String>> = summary.policies.iter().map(|policy| memory_row(plan, policy)).collect();
    for (name, level) in ["(page ideal)", "(packing)"].into_iter().zip(BoundRatios::over_workloads(beside)) {
        let Some(level) = level else { continue };
        let mut row = vec![name.to_owned(), format!("{:.3}", level.mean), interval(level, 3), level.count.to_string()];
        row.resize_with(header.len(), none);
        rows.push(row);
    }
    let note = format!("{note} {}", about_smallest(plan, summary));
    let note = if beside.is_empty() { note } else { format!("{note} {ABOUT_BOUNDS}") };
    Grid { title: "Memory".to_owned(), note, header, rows }
}

fn memory_row(plan: &Plan, policy: &PolicySummary) -> Vec<String> {
    let mut row = vec![policy.name.clone()];
    row.push(policy.ratio.map_or_else(none, |level| format!("{:.3}", level.mean)));
    row.push(policy.ratio.map_or_else(none, |level| interval(level, 3)));
    row.push(policy.ratio.map_or(0, |level| level.count).to_string());
    row.extend(given(plan).map(|place| format!("{:.0}%", policy.fits[place] * 100.0)));
    match &policy.versus {
        None if plan.policies.len() == 1 => {}
        None => row.extend((0..6).map(|_| none())),
        Some(versus) => {
            row.push(versus.ratio.map_or_else(none, |level| format!("{:.3}", level.mean)));
            row.push(versus.ratio.map_or_else(none, |level| interval(level, 3)));
            row.push(versus.counts.map(|count| count.to_string()).join("/"));
            row.push(format!("{:+.2}", versus.test.effect));
            row.push(p_value(versus.test.p));
            row.push(p_value(versus.corrected_p));
        }
    }
    row
}

fn driver(plan: &Plan, summary: &Summary) -> Grid {
    let mut header = vec![Head::from("policy")];
    for place in timed(plan) {
        let name = capacity(plan.capacities[place]);
        header.push(Head { name: format!("driver ms, {name}"), short: format!("ms {name}") });
        header.extend(["95% interval", "n"].map(Head::from));
    }
    let rows = summary.policies.iter().map(|policy| {
        let mut row = vec![policy.name.clone()];
        for place in timed(plan) {
            match policy.driver_ns[place].map(milliseconds) {
                None => row.extend([none(), none(), "0".to_owned()]),
                Some(level) => row.extend([number(level.mean), spread(level), level.count.to_string()]),
            }
        }
        row
    });
    let note = "The cost of a program's driver calls as measured on an H200, without waiting: geometric means over the n workloads \
                that fit in that memory, with bootstrap intervals (BCa). Means over different workloads are not comparable.";
    let note = format!("{note}{}", about_artefacts(plan));
    Grid { title: "Driver time".to_owned(), note, rows: rows.collect(), header }
}

fn cells_of_memory(plan: &Plan, summary: &Summary, beside: &[Option<BoundRatios>]) -> Grid {
    let cell = |cell: &Cell| cell.ratio.map_or_else(none, |level| with_range(level, |value| format!("{value:.3}")));
    let note =
        "The smallest memory tried in which the workload fits, over LOAD; with several seeds their geometric mean and range.";
    let mut grid = by_workload(plan, summary, "Smallest memory over LOAD".to_owned(), note.to_owned(), &cell);
    if !beside.is_empty() {
        let show = |level: Level| with_range(level, |value| format!("{value:.3}"));
        grid.header.extend([("page ideal", "pages"), ("packing", "packed")].map(|(name, short)| Head::named(name, short)));
        for (row, beside) in grid.rows.iter_mut().zip(beside) {
            row.extend(beside.map_or_else(|| [none(), none()], |beside| [show(beside.page_ideal), show(beside.packing)]));
        }
    }
    grid
}

fn cells_of_driver(plan: &Plan, summary: &Summary, place: usize) -> Grid {
    let cell = |cell: &Cell| cell.driver_ns[place].map_or_else(none, |level| with_range(milliseconds(level), number));
    let title = format!("Driver time, {}", capacity(plan.capacities[place]));
    let note = format!("Milliseconds of driver calls, without waiting; {NONE} where it does not fit.");
    let note = if plan.capacities[place] == Capacity::Plenty { note + &about_artefacts(plan) } else { note };
    by_workload(plan, summary, title, note, &cell)
}

fn by_workload(plan: &Plan, summary: &Summary, title: String, note: String, cell: &dyn Fn(&Cell) -> String) -> Grid {
    let mut header = vec![Head::from("workload")];
    let numbered = plan.policies.iter().enumerate();
    header.extend(numbered.map(|(place, name)| Head { name: name.clone(), short: (place + 1).to_string() }));
    let rows = plan.workloads.iter().enumerate().map(|(place, workload)| {
        let cells = summary.cells.iter().map(|cells| cell(&cells[place]));
        std::iter::once(workload.name.clone()).chain(cells).collect()
    });
    Grid { title, note, rows: rows.collect(), header }
}

fn none() -> String {
    NONE.to_owned()
}

fn milliseconds(level: Level) -> Level {
    Level { mean: level.mean / 1e6, low: level.low / 1e6, high: level.high / 1e6, ..level }
}

/// One value has no interval.
fn interval(level: Level, decimals: usize) -> String {
    if level.count < 2 { none() } else { format!("{:.decimals$}–{:.decimals$}", level.low, level.high) }
}

fn spread(level: Level) -> String {
    if level.count < 2 { none() } else { format!("{}–{}", number(level.low), number(level.high)) }
}

/// With the range over seeds, if they differ.
fn with_range(level: Level, show: impl Fn(f64) -> String) -> String {
    let [mean, low, high] = [level.mean, level.low, level.high].map(show);
    if low == high { mean } else { format!("{mean} ({low}–{high})") }
}

/// Three digits.
fn number(value: f64) -> String {
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$}")
}

fn p_value(p: f64) -> String {
    if p < 0.0001 { "<0.0001".to_owned() } else { format!("{p:.4}") }
}
