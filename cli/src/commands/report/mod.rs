//! `parkade report`: a recorded run as a page, as pictures, as text for a terminal.
//!
//! `gather` computes everything once; `html`, `svg`, `text` and `json` show it. `limit` finds the one limit that all parts assume, `labels`
//! names stacks, `tries` tries settings, `several` puts the ranks of a job on one page, `palette` has the colours. `data` packs what the page's script draws; style and script are the files in `web/`.

mod advice;
mod choice;
mod data;
mod flame;
mod gather;
mod holders_table;
mod html;
mod json;
mod kinds;
mod labels;
mod limit;
pub(crate) mod markup;
mod palette;
mod ranks_table;
mod several;
mod svg;
mod text;
mod tries;
mod words;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use parkade_analysis::ranks::RankRun;

use crate::each::{Finished, OnEach, Together};
use crate::recordings::Inputs;
use crate::terminal::args::{Files, Force, Json, Profile};
use crate::terminal::outputs::{Outputs, Target, Wanted};
use crate::terminal::runner::{Command, Form, Lines, Subject};
use crate::terminal::{output, size};

use gather::Report;

/// Show what happened in a recorded run: memory over time, the heap at any moment, other settings.
///
/// With --output, one page that any browser opens, without network access. With --svg, a picture; with
/// --flamegraph, one of who holds the memory. With none of them, text for the terminal.
///
/// Of several recordings the page has a table, the one setting for all ranks that parkade advise recommends, and the ranks beside each
/// other: up to eight in full, those that say most.
#[derive(Parser, Clone)]
#[command(after_help = "Examples:
  parkade report snapshot.pickle -o report.html
  parkade report snapshot.pickle -o report.html --limit 16GiB --settings max_split_size_mb:256
  parkade report snapshot.pickle --svg timeline.svg
  parkade report snapshot.pickle --svg heap.svg --entry 8652
  parkade report snapshot.pickle --flamegraph peak.svg --folded peak.txt
  parkade report snapshot.pickle
  parkade report snapshots/ -o ranks.html

Exit code: 0 shown, 2 could not run.")]
pub(crate) struct Args {
    #[command(flatten)]
    files: Files,
    /// The one of them that is shown.
    #[arg(skip)]
    file: PathBuf,
    #[arg(skip)]
    part: Part,
    /// Write a page here; `-` is standard output. An existing file is not overwritten without --force.
    #[arg(long, short, value_name = "FILE")]
    output: Option<Target>,
    /// Write a picture here: the timeline, or with --entry the heap; `-` is standard output. Pictures and folded stacks are of one
    /// recording. An existing file is not overwritten without --force.
    #[arg(long, value_name = "FILE")]
    svg: Option<Target>,
    /// The picture shows the heap after so many entries.
    #[arg(long, value_name = "N", requires = "svg")]
    entry: Option<usize>,
    /// Write a flamegraph here: the live memory at the peak, by stack. Without stacks in the file, by kind and size of blocks.
    /// `-` is standard output. An existing file is not overwritten without --force.
    #[arg(long, value_name = "FILE")]
    flamegraph: Option<Target>,
    /// Write the same as folded stacks here, a line for each: the calls with semicolons between them, a blank, the bytes. `-` is standard
    /// output. An existing file is not overwritten without --force.
    #[arg(long, value_name = "FILE")]
    folded: Option<Target>,
    /// Only this device.
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// The memory limit of the recorded run (set_per_process_memory_fraction), which the recording does not contain [default: what an
    /// out-of-memory error in the recording shows].
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// The memory with which other settings are tried [default: --limit, else what an out-of-memory error in the recording shows, else as
    /// much as is needed].
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    capacity: Option<u64>,
    /// Also try these settings, as in PYTORCH_CUDA_ALLOC_CONF; may be repeated.
    #[arg(long, value_name = "SETTINGS")]
    settings: Vec<String>,
    /// The PyTorch release whose decisions are made under other settings [default: the one that made the recording].
    #[arg(long, value_name = "RELEASE")]
    profile: Option<Profile>,
    /// If the log of all blocks would make the page larger than this, the heap is shown at chosen moments only. The rest of a page
    /// takes about 140 KiB in any case.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes, default_value = "10MiB")]
    page_size: u64,
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    force: Force,
}

/// What is asked about a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Part {
    /// Everything: it is the only one.
    #[default]
    Whole,
    /// Everything, as one of several.
    OneOfSeveral,
    /// What is compared: the page of all has the rest.
    RunsOnly,
}

/// What a report on one file shows.
pub(crate) struct Shown {
    /// None if only runs were asked for.
    report: Option<Report>,
    runs: Vec<RankRun>,
}

impl Command for Args {
    type Answer = Shown;

    fn compute(&self) -> Result<Shown> {
        if self.part == Part::RunsOnly {
            let runs = several::runs(self).with_context(|| self.file.display().to_string())?;
            return Ok(Shown { report: None, runs });
        }
        // Before the file is read, which may take long.
        let outputs = self.outputs(&[&self.file])?;
        let mut report = gather::gather(self).with_context(|| self.file.display().to_string())?;
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
        Subject::Named(Some(&self.file))
    }

    fn text(&self, shown: &Shown, out: &mut dyn Write) -> Result<()> {
        let targets = self.targets();
        if let Some(report) = shown.report.as_ref().filter(|_| targets.is_empty()) {
            text::print(out, report, text::Size::of_terminal())?;
        }
        targets.iter().try_for_each(|(_, target)| wrote(out, target))
    }

    fn json(&self, shown: &Shown, lines: &mut Lines) -> Result<()> {
        shown.report.as_ref().map_or(Ok(()), |report| lines.add(&json::Object::of(report)))
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
        let targets = self.targets();
        if let Some((what, _)) = targets.iter().find(|(what, _)| *what != PAGE) {
            bail!("a {what} is of one recording, and {} are given: choose one of them", inputs.all.len());
        }
        self.outputs(&inputs.paths()).map(drop)
    }

    fn makes_one_of_all(&self) -> bool {
        self.output.is_some()
    }

    fn finish(&self, together: Together<'_, ()>, out: &mut dyn Write) -> Result<Finished> {
        let Some(target) = &self.output else { return Ok(Finished::default()) };
        several::write_page(self, &together, target, out)
    }
}

/// Says that a file was written.
fn wrote(out: &mut dyn Write, target: &Target) -> Result<()> {
    let Some(file) = target.file() else { return Ok(()) };
    let bytes = fs::metadata(file).map_or(0, |data| data.len());
    let (name, size) = (output::one_line(&target.to_string()), size::show_bytes(bytes));
    Ok(writeln!(out, "wrote {name} ({size})")?)
}

/// The one target that several recordings can have.
const PAGE: &str = "page";

impl Args {
    /// The files to write, each with what it is to hold.
    fn targets(&self) -> Vec<(&'static str, &Target)> {
        let all =
            [(PAGE, &self.output), ("picture", &self.svg), ("flamegraph", &self.flamegraph), ("folded stacks", &self.folded)];
        all.into_iter().filter_map(|(what, target)| Some((what, target.as_ref()?))).collect()
    }

    /// The right to write them, if they may be written.
    fn outputs<P: AsRef<Path>>(&self, recordings: &[P]) -> Result<Outputs> {
        let wanted = Wanted::new(self.force.force, self.form())
            .reads(recordings)
            .writes("--output", self.output.as_ref())
            .writes("--svg", self.svg.as_ref())
            .writes("--flamegraph", self.flamegraph.as_ref());
        wanted.writes("--folded", self.folded.as_ref()).check()
    }

    /// What the files are to hold. All are made before one is written.
    fn made(&self, report: &Report) -> Result<Vec<(&Target, Vec<u8>)>> {
        let mut made = Vec::new();
        if let Some(target) = &self.svg {
            made.push((target, picture(report, self.entry)?.into_bytes()));
        }
        if let Some(target) = &self.output {
            made.push((target, html::page(report)?.into_bytes()));
        }
        if self.flamegraph.is_some() || self.folded.is_some() {
            let lines = flame::folded(report);
            made.extend(self.flamegraph.iter().map(|target| (target, flame::picture(report, &lines).into_bytes())));
            made.extend(self.folded.iter().map(|target| (target, flame::folded_text(&lines).into_bytes())));
        }
        Ok(made)
    }
}

/// The picture of the only device.
fn picture(report: &Report, entry: Option<usize>) -> Result<String> {
    let [device] = report.devices.as_slice() else {
        let numbers = output::list(report.devices.iter().map(|device| device.number));
        bail!("a picture shows one device, and the recording has {numbers}: choose one with --device");
    };
    match entry {
        None => Ok(svg::timeline(report, device)),
        Some(entry) if entry > device.timeline.entries => {
            bail!("there is no entry {entry}: the trace has {} entries", device.timeline.entries)
        }
        Some(entry) => Ok(svg::heap(report, device, entry as u32)),
    }
}

/// What pages and pictures made by parkade have near their beginning.
const OWN_MARK: &str = "made by parkade report";
