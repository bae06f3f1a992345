//! `parkade report` shows a recorded run as a page, as pictures, or as text for a terminal.
//!
//! `gather` computes everything once; `html`, `svg`, `text` and `json` show it, with the sentences of `words` and the tables of `holders`.
//! `simulated` gathers a run under a policy. `labels` names stacks, `several` puts the ranks of a job on one page, `palette` has the
//! colours. Style and script of the page are the files in `web/`.

mod gather;
mod holders;
mod html;
mod json;
mod labels;
mod palette;
mod several;
mod simulated;
mod svg;
mod text;
mod words;

use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail};
use parkade_analysis::ranks::RankRun;

use self::gather::{Origin, PAGE, Part, Report, wrote};
#[cfg(feature = "native")]
use self::simulated::gather as under_policy;
use crate::commands::simulated::Memory;
use crate::each::{Finished, OnEach, Together};
use crate::recordings::Inputs;
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::sections;
use crate::terminal::output;
use crate::terminal::outputs::Target;
use crate::terminal::runner::{Command, Form, Lines, Subject};

pub(crate) use self::gather::Args;

/// The content of a report on one file.
pub(crate) struct Shown {
    /// `None` if only the runs were requested.
    report: Option<Report>,
    runs: Vec<RankRun>,
}

sections! {
    "report": json::Object;
    "report --policy": simulated::SimulatedObject<'_>;
}

/// The page for browsers shows recorded runs; its module does not contain the simulation and the packer.
#[cfg(not(feature = "native"))]
fn under_policy(_: &Args, policy: parkade_policies::Named) -> Result<Report> {
    bail!("a run under the policy {} is not in the page: use the program parkade", policy.name)
}

impl Command for Args {
    type Found = Shown;

    fn compute(&self) -> Result<Shown> {
        if self.part == Part::RunsOnly {
            let runs = several::runs(self).with_context(|| self.file.display().to_string())?;
            return Ok(Shown { report: None, runs });
        }
        // Claimed before the file is read, which may take long.
        let outputs = self.outputs(&[&self.file])?;
        let gathered = self.under.policy_for(&self.file).and_then(|policy| match policy {
            Some(policy) => under_policy(self, policy),
            None => gather::gather(self).or_else(|error| self.simulation(error)),
        });
        let mut report =
            if self.under.is_workload() { gathered? } else { gathered.with_context(|| self.file.display().to_string())? };
        for (target, bytes) in self.made(&report)? {
            outputs.write(target, &bytes)?;
        }
        let runs = std::mem::take(&mut report.runs);
        Ok(Shown { report: Some(report), runs })
    }

    fn form(&self) -> Form {
        self.json.form()
    }

    fn subject(&self) -> Subject<'_> {
        if self.under.is_workload() { Subject::None } else { Subject::Named(Some(&self.file)) }
    }

    fn answer(&self, shown: &Shown) -> Answer {
        let targets = self.targets();
        match &shown.report {
            Some(report) if targets.is_empty() => text::answer(report, text::Size::of_terminal()),
            _ => {
                let mut answer = Answer::new();
                answer.paragraphs(targets.iter().filter_map(|(_, target)| wrote(target)));
                answer
            }
        }
    }

    fn json(&self, shown: &Shown, lines: &mut Lines) -> Result<()> {
        match &shown.report {
            None => Ok(()),
            Some(report) => match &report.origin {
                Origin::Recorded { settings, made_by } => lines.add(&json::Object::of(report, settings, made_by)),
                Origin::Simulated { policy, kind, .. } => lines.add(&simulated::SimulatedObject::of(report, policy, *kind)),
            },
        }
    }
}

impl OnEach for Args {
    type Kept = ();

    fn inputs(&self) -> &[PathBuf] {
        &self.files.files
    }

    fn on(&self, file: &Path, is_one_of_several: bool) -> Args {
        let file = file.to_owned();
        if !is_one_of_several {
            return Args { file, ..self.clone() };
        }
        let is_page = self.output.is_some() && self.form() == Form::Text;
        let part = if is_page { Part::RunsOnly } else { Part::OneOfSeveral };
        Args { file, part, output: None, ..self.clone() }
    }

    fn keep(&self, _: &Shown) {}

    fn rank_runs(&self, shown: &Shown) -> Result<Vec<RankRun>> {
        Ok(shown.runs.clone())
    }

    fn check_several(&self, inputs: &Inputs) -> Result<()> {
        if self.under.policy.is_some() {
            let given = inputs.all.len();
            bail!(
                "--policy shows one recording, but {given} are given: choose one, or compare them with parkade replay --policy"
            );
        }
        let targets = self.targets();
        if let Some((what, _)) = targets.iter().find(|(what, _)| *what != PAGE) {
            bail!("a {what} shows one recording, but {} are given: choose one of them", inputs.all.len());
        }
        self.outputs(&inputs.paths()).map(drop)
    }

    fn makes_one_of_all(&self) -> bool {
        self.output.is_some()
    }

    fn finish(&self, together: Together<'_, ()>) -> Result<Finished> {
        let Some(target) = &self.output else { return Ok(Finished::default()) };
        several::write_page(self, &together, target)
    }
}

impl Args {
    /// The report on a file under the policy that parkade simulated it with, if this is why the file cannot be replayed. It cannot be
    /// compared with other files.
    fn simulation(&self, error: Error) -> Result<Report> {
        if self.part != Part::Whole {
            return Err(error);
        }
        let (under, policy, memory) = self.under.of_simulation(error)?;
        let memory = Memory { capacity_bytes: self.capacity, limit_bytes: self.limit }.or(memory);
        under_policy(&Args { under, capacity: memory.capacity_bytes, limit: memory.limit_bytes, ..self.clone() }, policy)
    }

    /// The contents of the files. All are made before any is written.
    fn made(&self, report: &Report) -> Result<Vec<(&Target, Vec<u8>)>> {
        let mut made = Vec::new();
        if let Some(target) = &self.svg {
            made.push((target, picture(report, self.entry)?.into_bytes()));
        }
        if let Some(target) = &self.output {
            made.push((target, html::page(report)?.into_bytes()));
        }
        if self.flamegraph.is_some() || self.folded.is_some() {
            let lines = svg::folded(report);
            made.extend(self.flamegraph.iter().map(|target| (target, svg::flamegraph(report, &lines).into_bytes())));
            made.extend(self.folded.iter().map(|target| (target, svg::folded_text(&lines).into_bytes())));
        }
        Ok(made)
    }
}

/// The picture of the only device.
fn picture(report: &Report, entry: Option<usize>) -> Result<String> {
    let [device] = report.devices.as_slice() else {
        let numbers = output::list(report.devices.iter().map(|device| device.number));
        bail!("a picture shows one device, but the recording has {numbers}: choose one with --device");
    };
    match entry {
        None => Ok(svg::timeline(report, device)),
        Some(entry) if entry > device.timeline.entries => {
            bail!("there is no entry {entry}: the trace has {} entries", device.timeline.entries)
        }
        Some(entry) => Ok(svg::heap(report, device, entry as u32)),
    }
}
