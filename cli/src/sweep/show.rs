//! Putting out what all rows of a sweep say.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use parkade_policies::{Named, named};
use parkade_research::study::sweep::{Beside, Capacity, Level, Plan, Row, Source, Summary};
use serde_json::{Value, json};

use super::builds::{self, Overlap};
use super::{csv, grids, page};
use crate::{output, target};

/// What to put out.
#[derive(Parser)]
pub(crate) struct Shown {
    /// The policy that the others are compared with; pytorch if it takes part, else the first.
    #[arg(long, value_name = "POLICY")]
    baseline: Option<String>,
    /// Print the tables as Markdown.
    #[arg(long, conflicts_with_all = ["latex", "json"])]
    markdown: bool,
    /// Print the tables for LaTeX, with booktabs.
    #[arg(long, conflicts_with = "json")]
    latex: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(super) json: bool,
    /// Write the rows here as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with plots and tables here.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The workload whose reserved memory the page shows over time; the one on which policies differ most if not given.
    #[arg(long, value_name = "WORKLOAD", requires = "html")]
    curve: Option<String>,
}

/// A sweep with all its rows.
pub(crate) struct Finished<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) rows: &'a [Row],
    /// The plan's workloads and policies, or nothing where they cannot be made.
    pub(crate) sources: &'a [Source],
    pub(crate) policies: &'a [&'static Named],
    /// Bounds of the plan's workloads, or nothing.
    pub(crate) beside: &'a [Option<Beside>],
    /// The jobs that several builds did.
    pub(crate) overlap: &'a Overlap,
}

impl Finished<'_> {
    /// What must be known of who made the rows; nothing where this build made all.
    pub(super) fn about_builds(&self) -> Vec<String> {
        builds::lines(self.rows, self.overlap)
    }
}

impl Shown {
    /// Says a failure in JSON too, where that is asked for.
    pub(crate) fn say_failed(&self, error: anyhow::Error) -> anyhow::Error {
        if self.json && !output::is_broken_pipe(&error) {
            let mut out = output::stdout();
            // Nobody may be listening; the error itself is said by the caller.
            let _ = writeln!(out, "{}", json!({ "error": format!("{error:#}") })).and_then(|()| out.flush());
        }
        error
    }
}

/// Refuses files that cannot or must not be written, before anything is done for them: those that are `read`, and one for two things.
pub(crate) fn check_files(shown: &Shown, rows: Option<&Path>, read: &[PathBuf]) -> Result<()> {
    let pages = [shown.csv.as_deref(), shown.html.as_deref()].into_iter().flatten();
    let files: Vec<&Path> = rows.into_iter().chain(pages.clone()).collect();
    for (place, one) in files.iter().enumerate() {
        for source in read {
            target::refuse_source(source, one).with_context(|| one.display().to_string())?;
        }
        if let Some(other) = files[place + 1..].iter().find(|other| target::is_same_file(one, other)) {
            bail!("two things are to be written to {}: choose two files", other.display());
        }
    }
    pages.into_iter().try_for_each(target::refuse_unwritable)
}

/// Refuses what needs the programs themselves, where only their rows are there.
pub(crate) fn check_without_programs(shown: &Shown) -> Result<()> {
    if shown.curve.is_some() {
        bail!("--curve needs the programs, which files of rows do not hold: give it to parkade sweep");
    }
    Ok(())
}

/// Refuses what needs all rows, where only a part of them is made.
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

/// Refuses what the plan does not have.
pub(crate) fn check(shown: &Shown, plan: &Plan) -> Result<()> {
    baseline(shown, plan)?;
    if let Some(name) = &shown.curve
        && !plan.workloads.iter().any(|workload| workload.name == *name)
    {
        let names: Vec<&str> = plan.workloads.iter().map(|workload| workload.name.as_str()).collect();
        bail!("--curve {name:?} is none of the workloads: {}", names.join(", "));
    }
    Ok(())
}

fn baseline(shown: &Shown, plan: &Plan) -> Result<usize> {
    let place = |name: &str| plan.policies.iter().position(|policy| policy == name);
    match &shown.baseline {
        None => Ok(place("pytorch").unwrap_or(0)),
        Some(name) => {
            place(name).ok_or_else(|| anyhow!("--baseline {name:?} is none of the policies: {}", plan.policies.join(", ")))
        }
    }
}

pub(crate) fn show(shown: &Shown, finished: &Finished<'_>) -> Result<()> {
    let plan = finished.plan;
    let mut summary = Summary::of(plan, finished.rows, baseline(shown, plan)?);
    leave_artefacts_out(plan, &mut summary);
    if let Some(file) = &shown.csv {
        target::write(file, csv::of(finished.rows).as_bytes())?;
    }
    if let Some(file) = &shown.html {
        target::write(file, page::page(finished, &summary, shown.curve.as_deref()).as_bytes())?;
    }
    let mut out = output::stdout();
    if shown.json {
        writeln!(out, "{}", serde_json::to_string(&object(finished, &summary))?)?;
    } else if shown.markdown || shown.latex {
        let notation = if shown.latex { super::grid::Grid::latex } else { super::grid::Grid::markdown };
        let mut grids = grids::all(plan, &summary, finished.beside);
        // A table is pasted somewhere alone.
        for grid in &mut grids {
            let about_builds = finished.about_builds().iter().fold(String::new(), |text, line| text + " " + line);
            grid.note += &output::one_line(&about_builds);
        }
        let tables: Vec<String> = grids.iter().map(notation).collect();
        write!(out, "{}", tables.join("\n"))?;
    } else {
        writeln!(out, "{}", subject(plan))?;
        for grid in grids::short(plan, &summary, finished.beside) {
            write!(out, "\n{}", output_lines(&grid.text()))?;
        }
        writeln!(out, "\n{}", grids::about_smallest(plan, &summary))?;
        for line in finished.about_builds() {
            writeln!(out, "{}", output::one_line(&line))?;
        }
    }
    Ok(out.flush()?)
}

/// Whether a policy takes all that there is before the program begins: what it takes of a device with plenty says nothing.
pub(super) fn takes_everything(policy: &str) -> bool {
    named(policy).is_some_and(|policy| policy.keeps_memory)
}

/// What such a policy's calls cost on a device with plenty is the price of 4 TiB.
fn leave_artefacts_out(plan: &Plan, summary: &mut Summary) {
    let Some(plenty) = plan.capacities.iter().position(|capacity| *capacity == Capacity::Plenty) else { return };
    for (policy, cells) in
        summary.policies.iter_mut().zip(&mut summary.cells).filter(|(policy, _)| takes_everything(&policy.name))
    {
        let costs = cells.iter_mut().map(|cell| &mut cell.driver_ns).chain([&mut policy.driver_ns]);
        costs.for_each(|driver_ns| driver_ns[plenty] = None);
    }
}

/// Which policies that concerns, as a sentence; empty if none.
pub(super) fn about_artefacts(plan: &Plan) -> String {
    let names: Vec<&str> = plan.policies.iter().map(String::as_str).filter(|name| takes_everything(name)).collect();
    let what = "which would take a part of all that there is before the program begins";
    if names.is_empty() { String::new() } else { format!(" With plenty without {}, {what}.", names.join(" and ")) }
}

/// Names of files may hold anything.
fn output_lines(text: &str) -> String {
    text.lines().map(|line| output::one_line(line) + "\n").collect()
}

/// What was compared, in one line.
pub(super) fn subject(plan: &Plan) -> String {
    let seeds = plan.workloads.iter().map(|workload| workload.seeds).max().unwrap_or(0);
    let mut line = format!(
        "{} x {}, {}; addresses: {}",
        output::count(plan.workloads.len() as u64, "workload"),
        match plan.policies.len() {
            1 => "1 policy".to_owned(),
            policies => format!("{policies} policies"),
        },
        output::count(seeds, "seed"),
        plan.addresses
    );
    if let Some(share) = plan.preallocate {
        let _ = write!(line, "; {share} LOAD taken before the program begins");
    }
    line
}

fn object(finished: &Finished<'_>, summary: &Summary) -> Value {
    let plan = finished.plan;
    let capacities: Vec<String> = plan.capacities.iter().map(ToString::to_string).collect();
    let by_capacity =
        |values: Vec<Value>| -> Value { capacities.iter().cloned().zip(values).collect::<serde_json::Map<_, _>>().into() };
    let policies: Vec<Value> = summary
        .policies
        .iter()
        .zip(&summary.cells)
        .map(|(policy, cells)| {
            let versus = policy.versus.map(|versus| {
                let [less, same, more] = versus.counts;
                json!({ "ratio": level(versus.ratio), "less": less, "same": same, "more": more, "effect": versus.test.effect,
                        "p": versus.test.p, "p_holm": versus.corrected_p, "p_is_exact": versus.test.is_exact })
            });
            let cells: Vec<Value> = plan
                .workloads
                .iter()
                .zip(cells)
                .map(|(workload, cell)| {
                    json!({ "workload": workload.name, "memory_over_load": level(cell.ratio), "not_monotone": cell.not_monotone,
                            "driver_ns": by_capacity(cell.driver_ns.iter().map(|&cost| level(cost)).collect()) })
                })
                .collect();
            json!({ "policy": policy.name, "memory_over_load": level(policy.ratio), "versus_baseline": versus,
                    "fits": by_capacity(policy.fits.iter().map(|&share| share.into()).collect()),
                    "driver_ns": by_capacity(policy.driver_ns.iter().map(|&cost| level(cost)).collect()), "workloads": cells })
        })
        .collect();
    let bounds: Vec<Value> = plan
        .workloads
        .iter()
        .zip(finished.beside)
        .map(|(workload, beside)| {
            json!({ "workload": workload.name, "page_ideal_over_load": level(beside.map(|beside| beside.page_ideal)),
                    "packing_over_load": level(beside.map(|beside| beside.packing)) })
        })
        .collect();
    json!({ "programs": builds::rows_by_build(finished.rows), "mixed": builds::are_mixed(finished.rows), "overlap": builds::overlap(finished.overlap),
            "not_monotone": summary.not_monotone(), "bounds": bounds, "plan": plan, "jobs": finished.rows.len(),
            "baseline": plan.policies[summary.baseline], "policies": policies })
}

/// Infinite ends are those of a mean over one workload.
fn level(level: Option<Level>) -> Value {
    level.map_or(
        Value::Null,
        |level| json!({ "mean": level.mean, "low": finite(level.low), "high": finite(level.high), "n": level.count }),
    )
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
