//! Printing and writing the results of a sweep, and the result as one JSON object.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use parkade_policies::named;
use parkade_research::study::sweep::{
    BoundRatios, Cell, Comparison, Course, CourseOfAll, Level, Plan, PolicySummary, Row, SeedComparison, Without,
};

use super::finished::{self, Finished, OfOverlap, Overlap};
use super::grid::Grid;
use super::{grids, html};
use crate::terminal::answer::Answer;
use crate::terminal::args::Json;
use crate::terminal::json_struct::{all, view};
use crate::terminal::output;
use crate::terminal::output::Tone;
use crate::terminal::outputs::{Target, Wanted};
use crate::terminal::runner::{Form, Lines};

/// What to print and write.
#[derive(Parser)]
pub(crate) struct Shown {
    /// The policy that the others are compared with [default: pytorch if it takes part, or the first policy].
    #[arg(long, value_name = "POLICY")]
    baseline: Option<String>,
    /// Print a row for each workload, and all measures, not only the verdict and the means.
    #[arg(long)]
    all: bool,
    /// Print the tables as Markdown.
    #[arg(long, conflicts_with_all = ["latex", "json"])]
    markdown: bool,
    /// Print the tables for LaTeX, with booktabs.
    #[arg(long, conflicts_with = "json")]
    latex: bool,
    #[command(flatten)]
    pub(super) json: Json,
    /// Write the rows here as CSV; `-` is standard output. An existing file is not overwritten without --force.
    #[arg(long, value_name = "FILE")]
    csv: Option<Target>,
    /// Write a page with plots and tables here; `-` is standard output. An existing file is not overwritten without --force.
    #[arg(long, value_name = "FILE")]
    html: Option<Target>,
    /// The workload whose reserved memory the page shows over time [default: the one on which policies differ most].
    #[arg(long, value_name = "WORKLOAD", requires = "html")]
    curve: Option<String>,
}

/// Refuses options that need the programs, not only their rows.
pub(crate) fn check_without_programs(shown: &Shown) -> Result<()> {
    if shown.curve.is_some() {
        bail!("--curve needs the programs, which files of rows do not hold: give it to parkade sweep");
    }
    Ok(())
}

/// Refuses options that need all rows, not only a part.
pub(crate) fn check_part(shown: &Shown) -> Result<()> {
    let asked = [
        ("--html", shown.html.is_some()),
        ("--csv", shown.csv.is_some()),
        ("--markdown", shown.markdown),
        ("--latex", shown.latex),
    ];
    match asked.iter().find(|(_, is_asked)| *is_asked) {
        Some((option, _)) => bail!("{option} needs the rows of all parts: give it to parkade merge"),
        None => Ok(()),
    }
}

/// Refuses names that are not in the plan.
pub(crate) fn check(shown: &Shown, plan: &Plan) -> Result<()> {
    baseline(shown, plan)?;
    if let Some(name) = &shown.curve
        && !plan.workloads.iter().any(|workload| workload.name == *name)
    {
        let names: Vec<&str> = plan.workloads.iter().map(|workload| workload.name.as_str()).collect();
        bail!("--curve {name:?} is not one of the workloads: {}", names.join(", "));
    }
    Ok(())
}

fn baseline(shown: &Shown, plan: &Plan) -> Result<usize> {
    let place = |name: &str| plan.policies.iter().position(|policy| policy == name);
    match &shown.baseline {
        None => Ok(place("pytorch").unwrap_or(0)),
        Some(name) => {
            let known = named(name).map_or_else(|_| name.clone(), |known| known.name.into_owned());
            place(&known).ok_or_else(|| anyhow!("--baseline {name:?} is not one of the policies: {}", plan.policies.join(", ")))
        }
    }
}

impl Shown {
    /// JSON, text, or tables for documents.
    pub(crate) fn form(&self) -> Form {
        if self.markdown || self.latex { Form::Data } else { self.json.form() }
    }

    /// The finished sweep, without sources and bounds.
    pub(crate) fn finish(&self, plan: Plan, rows: Vec<Row>, overlap: Overlap) -> Result<Finished> {
        let baseline = baseline(self, &plan)?;
        Ok(Finished::of(plan, rows, baseline, overlap))
    }

    /// Adds the files given by options to those that the command writes.
    pub(crate) fn add_to<'a>(&'a self, wanted: Wanted<'a>) -> Wanted<'a> {
        wanted.writes("--csv", self.csv.as_ref()).writes("--html", self.html.as_ref())
    }

    /// Whether any such file is given.
    pub(crate) fn writes(&self) -> bool {
        self.csv.is_some() || self.html.is_some()
    }

    /// The file of rows.
    pub(super) fn csv(&self) -> Option<&Target> {
        self.csv.as_ref()
    }

    /// A table for documents.
    pub(super) fn noted(&self, grid: &Grid) -> String {
        if self.latex { grid.latex() } else { grid.markdown() }
    }

    /// The contents of these files.
    pub(crate) fn made(&self, finished: &Finished) -> Result<Vec<(&Target, Vec<u8>)>> {
        let csv = self.csv.iter().map(|target| Ok((target, csv_of(&finished.rows)?)));
        let page = || html::page(finished, &finished.summary, self.curve.as_deref()).into_bytes();
        csv.chain(self.html.iter().map(|target| Ok((target, page())))).collect()
    }

    /// The tables for documents.
    pub(crate) fn tables(&self, finished: &Finished) -> String {
        let mut grids = grids::all(finished);
        // Tables are copied separately, so each has the notes.
        for grid in &mut grids {
            let about_builds = finished.about_builds().iter().fold(String::new(), |text, line| text + " " + line);
            grid.note += &output::one_line(&about_builds);
        }
        grids.iter().map(|grid| self.noted(grid)).collect::<Vec<_>>().join("\n")
    }

    /// What the sweep found.
    pub(crate) fn answer(&self, finished: &Finished) -> Answer {
        let (mut answer, subject) = (Answer::new(), finished::subject(&finished.plan));
        answer.headline(Tone::Plain, grids::verdict(finished));
        answer.gap();
        if self.all {
            answer.paragraph(subject);
            for grid in grids::short(finished) {
                answer.gap();
                grid.add_to(&mut answer);
            }
            answer.gap();
            answer.paragraph(grids::about_smallest(finished));
        } else {
            grids::brief(finished).add_to(&mut answer);
            answer.paragraph(subject);
            answer.hint("--all shows each workload");
        }
        answer.paragraphs(finished.about_builds());
        answer
    }

    /// Prints the result as JSON.
    pub(crate) fn json(finished: &Finished, lines: &mut Lines) -> Result<()> {
        lines.add(&Object::of(finished))
    }
}

/// Rows as CSV, with their fields in declaration order.
fn csv_of(rows: &[Row]) -> Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.iter().try_for_each(|row| writer.serialize(row))?;
    Ok(writer.into_inner()?)
}

view! {
    struct Object<'a>(finished: &'a Finished) {
        programs: BTreeMap<&'a str, u64> = finished::rows_by_build(&finished.rows),
        mixed: bool = finished::are_mixed(&finished.rows),
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
    /// An interval over one seed has infinite ends, which become null.
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
