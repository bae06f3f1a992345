//! Printing and writing the results of a sweep.

use std::io::Write;

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use parkade_research::study::sweep::{Plan, Row};

use super::builds::Overlap;
use super::finished::{self, Finished};
use super::grid::Grid;
use super::{grids, html, json};
use crate::terminal::args::Json;
use crate::terminal::output;
use crate::terminal::outputs::{Target, Wanted};
use crate::terminal::runner::{Form, Lines};

/// What to print and write.
#[derive(Parser)]
pub(crate) struct Shown {
    /// The policy that the others are compared with [default: pytorch if it takes part, else the first].
    #[arg(long, value_name = "POLICY")]
    baseline: Option<String>,
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
            place(name).ok_or_else(|| anyhow!("--baseline {name:?} is not one of the policies: {}", plan.policies.join(", ")))
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

    /// Whether there are any.
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

    /// What these files are to hold.
    pub(crate) fn made(&self, finished: &Finished) -> Result<Vec<(&Target, Vec<u8>)>> {
        let csv = self.csv.iter().map(|target| Ok((target, csv_of(&finished.rows)?)));
        let page = || html::page(finished, &finished.summary, self.curve.as_deref()).into_bytes();
        csv.chain(self.html.iter().map(|target| Ok((target, page())))).collect()
    }

    /// Prints the tables.
    pub(crate) fn text(&self, finished: &Finished, out: &mut dyn Write) -> Result<()> {
        if self.form() == Form::Data {
            let mut grids = grids::all(finished);
            // Tables are copied separately, so each has the notes.
            for grid in &mut grids {
                let about_builds = finished.about_builds().iter().fold(String::new(), |text, line| text + " " + line);
                grid.note += &output::one_line(&about_builds);
            }
            let tables: Vec<String> = grids.iter().map(|grid| self.noted(grid)).collect();
            return Ok(write!(out, "{}", tables.join("\n"))?);
        }
        writeln!(out, "{}", finished::subject(&finished.plan))?;
        for grid in grids::short(finished) {
            write!(out, "\n{}", grid.text())?;
        }
        write!(out, "\n{}", output::paragraph(&grids::about_smallest(finished), 0))?;
        for line in finished.about_builds() {
            writeln!(out, "{}", output::one_line(&line))?;
        }
        Ok(())
    }

    /// Prints the result as JSON.
    pub(crate) fn json(finished: &Finished, lines: &mut Lines) -> Result<()> {
        lines.add(&json::Object::of(finished))
    }
}

/// Rows as CSV, with their fields in declaration order.
fn csv_of(rows: &[Row]) -> Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.iter().try_for_each(|row| writer.serialize(row))?;
    Ok(writer.into_inner()?)
}
