//! Printing and writing the results of a sweep, and the result as one JSON object.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Parser;
use parkade_research::policies::policies;
use parkade_research::study::Excess;
use parkade_research::study::sweep::{
    AblatedValue, Ablation, BoundRatios, Capacity, Cell, Comparison, Course, CourseOfAll, Level, Plan, PlannedWorkload,
    PolicySummary, Row, SeedComparison, Share, Without,
};

use super::grids::{self, Grid};
use super::html;
use super::rows::{self, Finished, OfOverlap, Overlap};
use crate::commands::enable::{self, Usable};
use crate::terminal::answer::Answer;
use crate::terminal::args::Json;
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::output;
use crate::terminal::output::Tone;
use crate::terminal::outputs::{Target, Wanted};
use crate::terminal::progress::WrongArgument;
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
        bail!("--curve needs the programs, which files of rows do not contain: give it to parkade sweep");
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
            let known = policies().named(name).map_or_else(|_| name.clone(), |known| known.name.into_owned());
            place(&known).ok_or_else(|| {
                WrongArgument(format!("--baseline {name:?} is not one of the policies: {}", plan.policies.join(", "))).into()
            })
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
            let notes = finished.about_faults().into_iter().chain(finished.about_builds());
            let about_builds = notes.fold(String::new(), |text, line| text + " " + &line);
            grid.note += &output::one_line(&about_builds);
        }
        grids.iter().map(|grid| self.noted(grid)).collect::<Vec<_>>().join("\n")
    }

    /// What the sweep found.
    pub(crate) fn answer(&self, finished: &Finished) -> Answer {
        let (mut answer, mut subject) = (Answer::new(), rows::subject(&finished.plan));
        grids::about_load(finished).into_iter().for_each(|load| subject += &format!("; {load}"));
        let faults = finished.about_faults();
        if faults.is_empty() {
            answer.headline(Tone::Plain, grids::verdict(finished));
        } else {
            faults.into_iter().for_each(|line| answer.headline(Tone::Bad, line));
            if finished.summary.policies.iter().any(|policy| policy.ratio.is_some()) {
                answer.paragraph(grids::verdict(finished));
            }
        }
        grids::best_rows(finished).into_iter().for_each(|(label, text)| answer.row(label, text));
        answer.gap();
        if self.all {
            answer.paragraph(subject);
            for grid in grids::short(finished).into_iter().chain(grids::ablations(finished)) {
                answer.gap();
                grid.add_to(&mut answer);
            }
            answer.gap();
            answer.paragraphs(grids::about_least_p(finished));
            answer.paragraph(grids::about_smallest(finished));
        } else {
            grids::brief(finished).add_to(&mut answer);
            answer.paragraph(enable::USABLE_LEGEND);
            let mut parameters = grids::brief_ablations(finished).peekable();
            let about_p = parameters.peek().and_then(|_| grids::about_least_p(finished));
            for grid in parameters {
                answer.gap();
                grid.add_to(&mut answer);
            }
            answer.paragraphs(about_p);
            answer.paragraphs(grids::not_monotone(finished));
            answer.paragraphs(grids::left_out(&finished.plan));
            answer.paragraph(subject);
            let each = if finished.plan.workloads.len() > 1 { "each workload, and " } else { "" };
            answer.hint(format!("--all shows {each}what driver calls cost in each memory size"));
        }
        answer.paragraphs(finished.about_builds());
        for (condition, line) in grids::lines(finished) {
            answer.paragraph(condition);
            answer.code(Tone::Good, line);
        }
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
    pub(super) struct Object<'a>(finished: &'a Finished) {
        /// How many rows each build made. Policies have different builds: the last part is a hash of the policy's own sources.
        programs: BTreeMap<&'a str, u64> = rows::rows_by_build(&finished.rows),
        /// Whether different builds made rows that are compared: rows of one policy, or with a different core.
        mixed: bool = rows::are_mixed(&finished.rows),
        /// The jobs that several files have from different builds.
        overlap: OfOverlap = OfOverlap::of(&finished.overlap),
        /// The first fault of each policy that broke, in a sentence.
        faults: Vec<String> = finished.about_faults(),
        /// The number of searches that found that a program fits but fails with a little more.
        not_monotone: u64 = finished.summary.not_monotone(),
        /// The minimum that each workload needs, and what ideal allocators need for it.
        bounds: Vec<Bounds<'a>> = bounds(finished),
        /// What was asked for.
        plan: OfPlan<'a> = OfPlan::of(&finished.plan),
        /// The least p value, after the correction, that any comparison over the seeds can reach; null without comparisons.
        least_p: Option<f64> = finished.summary.least_p(&finished.plan),
        /// The number of rows.
        jobs: usize = finished.rows.len(),
        /// The policy that the others are compared with.
        baseline: &'a str = &finished.plan.policies[finished.summary.baseline],
        /// The workload that contributes the most to the excess over LOAD; null if there is no excess or only one workload.
        outlier: Option<&'a str> = finished.summary.outlier.map(|place| finished.plan.workloads[place].name.as_str()),
        /// Each policy.
        policies: Vec<Policy<'a>> = all(
            finished.summary.policies.iter().zip(&finished.summary.cells).zip(&finished.equal_buffers).enumerate(),
            |(place, ((policy, cells), equal_buffers))| {
                let excesses = finished.excesses.get(place).map_or(&[][..], Vec::as_slice);
                Policy::of(&finished.plan, policy, (cells, excesses), *equal_buffers)
            },
        ),
        /// Each parameter of a policy whose values the sweep varies, while all combinations of the others stay the same.
        parameters: Vec<Parameter<'a>> = all(&finished.ablations.all, Parameter::of),
        /// The least p value, after the correction, that a comparison of parameters over the seeds can reach; null without
        /// comparisons.
        least_p_of_parameters: Option<f64> = finished.ablations.least_p,
    }
}

fn bounds(finished: &Finished) -> Vec<Bounds<'_>> {
    let workloads = finished.plan.workloads.iter().zip(&finished.summary.load_with_pools).enumerate();
    all(workloads, |(place, (workload, pools))| Bounds::of(&workload.name, *pools, finished.beside.get(place).copied().flatten()))
}

view! {
    /// What was asked for.
    struct OfPlan<'a>(plan: &'a Plan) {
        /// The workloads.
        workloads: Vec<Planned<'a>> = all(&plan.workloads, Planned::of),
        /// The policies.
        policies: &'a [String] = &plan.policies,
        /// The capacities.
        capacities: &'a [Capacity] = &plan.capacities,
        /// The address model.
        addresses: &'a str = &plan.addresses,
        /// The number of LOADs reserved before each program.
        #[serde(skip_serializing_if = "Option::is_none")]
        preallocate: Option<Share> = plan.preallocate,
        /// The part of LOAD to within which the smallest memory is found.
        precision: String = plan.precision.to_string(),
    }
}

view! {
    struct Planned<'a>(workload: &'a PlannedWorkload) {
        /// The workload's name.
        name: &'a str = &workload.name,
        /// The number of seeds that are run.
        seeds: u64 = workload.seeds,
        /// The hash of a workload that comes from a file.
        #[serde(skip_serializing_if = "Option::is_none")]
        hash: Option<&'a str> = workload.hash.as_deref(),
    }
}

view! {
    struct Bounds<'a>(workload: &'a str, pools: Option<Level>, beside: Option<BoundRatios>) {
        /// The workload.
        workload: &'a str = workload,
        /// A lower bound: each private pool is counted at its peak live bytes so far until it is dropped.
        load_with_pools_over_load: Option<Mean> = pools.map(Mean::of),
        /// Not a bound: the memory that an ideal allocator needs if it remaps pages of 2 MiB at will.
        page_ideal_over_load: Option<Mean> = beside.map(|beside| Mean::of(beside.page_ideal)),
        /// Whether it is proven that this ideal allocator needs no less; if not, the packing of its small buffers ran out of steps
        /// (`--bounds`), or pages cannot be shared so well.
        page_ideal_converged: Option<bool> = beside.map(|beside| beside.is_page_ideal_converged),
        /// Not a bound: the best offline packing found.
        packing_over_load: Option<Mean> = beside.map(|beside| Mean::of(beside.packing)),
        /// Whether it is proven that no packing needs less; if not, the search ran out of steps (`--bounds`).
        packing_converged: Option<bool> = beside.map(|beside| beside.is_packing_converged),
    }
}

view! {
    struct Policy<'a>(plan: &'a Plan, policy: &'a PolicySummary, by_workload: (&[Cell], &[Option<Excess>]), equal_buffers: Option<f64>) {
        /// The policy's name.
        policy: &'a str = &policy.name,
        /// How PyTorch can use it, as in `sweep --list`.
        under_pytorch: Word<Usable> = Word::of(&Usable::of(&policy.name)),
        /// The line that makes PyTorch use it; null if there is none, or if it needs none.
        line: Option<String> = Usable::of(&policy.name).line().map(str::to_owned),
        /// The smallest memory over LOAD.
        memory_over_load: Option<Mean> = policy.ratio.map(Mean::of),
        /// `memory_over_load` without the outlier.
        without_outlier: Option<OfOthers> = policy.without_outlier.map(OfOthers::of),
        /// The memory that a program needs to allocate only 64 buffers of 16 MiB, over their sum; a value above 1 is due to the
        /// policy's design.
        equal_buffers_over_load: Option<f64> = equal_buffers,
        /// The comparison with the baseline; null for the baseline itself.
        versus_baseline: Option<Versus> = policy.versus.as_ref().map(Versus::of),
        /// The number of runs that ended with a fault: the policy gave an answer that it must not give, or the device failed. If
        /// there are any, all figures are null.
        faults: u64 = policy.faults,
        /// The share of programs that fit in each capacity; empty if there is a fault.
        fits: BTreeMap<String, f64> = by_capacity(plan, policy.fits.iter().copied()),
        /// What the driver's calls cost in each capacity.
        driver_ns: BTreeMap<String, Option<Mean>> = costs(plan, &policy.driver_ns),
        /// The driver's work over the run in each capacity, over the workloads that fit.
        driver: BTreeMap<String, Driver> = by_capacity(plan, policy.courses.iter().map(Driver::of)),
        /// Each workload.
        workloads: Vec<Workload<'a>> = all(plan.workloads.iter().zip(by_workload.0).enumerate(), |(place, (workload, cell))| {
            Workload::of(plan, &workload.name, cell, by_workload.1.get(place).and_then(Option::as_ref))
        }),
    }
}

view! {
    struct Parameter<'a>(ablation: &'a Ablation) {
        /// The policy's name without parameters.
        policy: &'a str = &ablation.policy,
        /// The parameter's key.
        parameter: &'a str = ablation.key,
        /// The value that the others are compared with: the default, or the first value if the default is not in the sweep.
        reference: &'a str = &ablation.values[ablation.reference].value,
        /// Whether that value is the default.
        is_default: bool = ablation.is_default,
        /// The number of cases: a workload under a combination of the other parameters, if it fits with every value that fits
        /// at all.
        cases: usize = ablation.cases,
        /// The values.
        values: Vec<Value<'a>> = all(&ablation.values, Value::of),
    }
}

view! {
    struct Value<'a>(value: &'a AblatedValue) {
        /// The value.
        value: &'a str = &value.value,
        /// The smallest memory over LOAD, over the cases.
        memory_over_load: Option<Mean> = value.ratio.map(Mean::of),
        /// What the driver's calls cost with plenty of memory, over the cases.
        driver_ns: Option<Mean> = value.driver_ns.map(Mean::of),
        /// The comparison with the reference over all cases; null for the reference itself.
        versus_reference: Option<VersusReference> = value.versus.as_ref().map(VersusReference::of),
        /// The same over the seeds of the workloads with the most seeds; null with one seed.
        over_seeds: Option<OverSeeds> = value.over_seeds.as_ref().map(OverSeeds::of),
        /// The number of runs that ended with a fault. If there are any, the figures are null.
        faults: u64 = value.faults,
    }
}

view! {
    struct VersusReference(versus: &Comparison) {
        /// Memory over the reference's.
        ratio: Option<Mean> = versus.ratio.map(Mean::of),
        /// The number of cases that need less.
        less: usize = versus.counts[0],
        /// The number that need as much.
        same: usize = versus.counts[1],
        /// How many need more.
        more: usize = versus.counts[2],
    }
}

view! {
    struct OfOthers(without: Without) {
        /// The geometric mean.
        mean: Option<f64> = without.mean,
        /// The outlier's share of the excess, in logarithms.
        share: Option<f64> = without.share,
    }
}

view! {
    struct Driver(course: &CourseOfAll) {
        /// The calls for each step, where steps are known.
        calls_per_step: Option<Mean> = course.calls_per_step.map(Mean::of),
        /// The cost of the calls for each step.
        ns_per_step: Option<Mean> = course.ns_per_step.map(Mean::of),
        /// The share of the cost that falls in the later half.
        later_share: Option<Mean> = course.later_share.map(Mean::of),
        /// How long calls waited for the device, where workloads say how long work takes.
        waited_ns: Option<Mean> = course.waited_ns.map(Mean::of),
        /// Calls that return only when work of the device is done.
        waiting_calls: Option<Mean> = course.waiting_calls.map(Mean::of),
    }
}

view! {
    struct Workload<'a>(plan: &Plan, workload: &'a str, cell: &Cell, excess: Option<&Excess>) {
        /// The workload's name.
        workload: &'a str = workload,
        /// The smallest memory over LOAD.
        memory_over_load: Option<Mean> = cell.ratio.map(Mean::of),
        /// The number of runs that ended with a fault. If there are any, the figures are null.
        faults: u64 = cell.faults,
        /// The number of searches that were not monotone.
        not_monotone: u64 = cell.not_monotone,
        /// The comparison with the baseline over the seeds; null with one seed and for the baseline itself.
        versus_baseline: Option<OverSeeds> = cell.versus.as_ref().map(OverSeeds::of),
        /// What the driver's calls cost in each capacity.
        driver_ns: BTreeMap<String, Option<Mean>> = costs(plan, &cell.driver_ns),
        /// The driver's work over the run in each capacity; null if the workload does not fit.
        driver: BTreeMap<String, Option<OwnDriver>> =
            by_capacity(plan, cell.courses.iter().map(|course| course.as_ref().map(OwnDriver::of))),
        /// The first request, with the first seed, that the policy cannot serve in the memory of the offline packing; null if it
        /// serves all, or without a packing.
        first_excess: Option<FirstExcess> = excess.map(FirstExcess::of),
    }
}

view! {
    /// The first request that a policy cannot serve in the memory of the offline packing; `parkade stats --policy` lists the blocks.
    struct FirstExcess(excess: &Excess) {
        /// The event that requests it.
        event: usize = excess.event,
        /// The requested bytes.
        requested_bytes: u64 = excess.requested_bytes,
        /// The bytes that the policy has reserved then.
        reserved_bytes: u64 = excess.reserved_bytes,
        /// The number of live blocks that are in the way.
        blocks_in_the_way: usize = excess.in_the_way.len(),
        /// The bytes of these blocks.
        bytes_in_the_way: u64 = excess.in_the_way.iter().map(|block| block.bytes).sum(),
    }
}

view! {
    struct OwnDriver(course: &Course) {
        /// The calls for each step; null if the steps are not known.
        calls_per_step: Option<Mean> = course.calls_per_step.map(Mean::of),
        /// The cost of the calls for each step.
        ns_per_step: Option<Mean> = course.ns_per_step.map(Mean::of),
        /// The calls for each step of the later half; null with fewer than two steps.
        later_calls_per_step: Option<Mean> = course.later_calls_per_step.map(Mean::of),
        /// The cost of those calls for each step.
        later_ns_per_step: Option<Mean> = course.later_ns_per_step.map(Mean::of),
        /// The share of the cost that falls in the later half.
        later_share: Option<Mean> = course.later_share.map(Mean::of),
        /// How long calls waited; null if the workload does not say how long its work takes.
        waited_ns: Option<Mean> = course.waited_ns.map(Mean::of),
        /// Calls that return only when work of the device is done.
        waiting_calls: Mean = Mean::of(course.waiting_calls),
    }
}

view! {
    struct Versus(versus: &Comparison) {
        /// Memory over the baseline's.
        ratio: Option<Mean> = versus.ratio.map(Mean::of),
        /// The number of workloads that need less.
        less: usize = versus.counts[0],
        /// The number that need as much.
        same: usize = versus.counts[1],
        /// How many need more.
        more: usize = versus.counts[2],
    }
}

view! {
    struct OverSeeds(versus: &SeedComparison) {
        /// Memory over the baseline's, with its 95 % interval.
        ratio: Option<Mean> = versus.ratio.map(Mean::of),
        /// The number of seeds that need less.
        less: usize = versus.counts[0],
        /// The number that need as much.
        same: usize = versus.counts[1],
        /// How many need more.
        more: usize = versus.counts[2],
        /// The matched-pairs rank-biserial effect; -1 is never more.
        effect: f64 = versus.test.effect,
        /// The p value of Wilcoxon's signed-rank test over the seeds.
        p: f64 = versus.test.p,
        /// The p value corrected for all comparisons of the sweep.
        p_holm: f64 = versus.corrected_p,
        /// Whether it was computed exactly.
        p_is_exact: bool = versus.test.is_exact,
    }
}

view! {
    /// An interval over one seed has infinite ends, which become null.
    struct Mean(level: Level) {
        /// The mean.
        mean: f64 = level.mean,
        /// The smallest value, or the lower end of the interval.
        low: f64 = level.low,
        /// The largest value, or the upper end of the interval.
        high: f64 = level.high,
        /// The number of values.
        n: usize = level.count,
    }
}

fn by_capacity<T>(plan: &Plan, values: impl IntoIterator<Item = T>) -> BTreeMap<String, T> {
    plan.capacities.iter().map(ToString::to_string).zip(values).collect()
}

fn costs(plan: &Plan, driver_ns: &[Option<Level>]) -> BTreeMap<String, Option<Mean>> {
    by_capacity(plan, driver_ns.iter().map(|level| level.map(Mean::of)))
}
