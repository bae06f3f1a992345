//! `parkade conform`: the conformance suite, on the simulated device or on a real one.

mod json;
mod report;
mod table;
mod watch;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::commands::policy_names::policy;
use anyhow::{Result, anyhow, bail};
use clap::{Parser, ValueEnum};
use parkade_conformance::backend::{AnyBackend, Cuda, Needs};
use parkade_conformance::checks::laws_any_policy;
use parkade_conformance::checks::laws_any_policy::Share;
use parkade_conformance::scenarios::everything;
use parkade_conformance::suite::{Effort, Entry, Reference, Row, Summary};
use parkade_conformance::{checks, suite};

use crate::terminal::args::{Force, Json};
use crate::terminal::outputs::{Target, Wanted};
use crate::terminal::runner::{Command, Form, Lines, Outcome, Subject};

/// Check the laws of the allocator, the device contract, the documents' scenarios and PyTorch's own allocator tests.
///
/// On the simulated device (the default) this needs no GPU. On a real one some entries fill the device's memory and
/// release it again; nothing else should use the device meanwhile. A broken law is shown with the shortest sequence found that breaks
/// it, as a script for `parkade ops`.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade conform
  parkade conform --filter scenario/A5
  parkade conform --cases 20000 --seed 7
  parkade conform --policy bfc
  parkade conform --policy breaking-handles
  parkade conform --backend cuda --device 1 --report conformance.md
  parkade conform --json > conformance.jsonl

Exit code: 0 everything passed or was skipped, 1 something failed, 2 could not run.")]
pub(crate) struct Args {
    /// What to run on.
    #[arg(long, value_enum, default_value_t)]
    backend: BackendName,
    /// The index of the CUDA device.
    #[arg(long, default_value_t = 0, value_name = "N")]
    device: u32,
    /// Run only entries whose group/name contains this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Check only the laws of policies, for this policy or for `all`, floating-handles and breaking-handles among them, with every
    /// sequence [default: everything, with a tenth of the sequences for each policy]. parkade sweep --list has them.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Random sequences for each law and event timing [default: 1200 simulated, 60 on a real device].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cases: Option<u32>,
    /// The seed of the random sequences.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    json: Json,
    /// Write a report (Markdown), with what the scenarios showed; `-` is standard output. An existing file is not overwritten without
    /// --force.
    #[arg(long, value_name = "FILE")]
    report: Option<Target>,
    #[command(flatten)]
    force: Force,
    /// List the entries without running them.
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, ValueEnum, Default, PartialEq, Eq)]
enum BackendName {
    /// The simulated device.
    #[default]
    Sim,
    /// A CUDA device.
    Cuda,
}

/// A finished run.
pub(crate) struct Run {
    facts: Vec<(&'static str, String)>,
    effort: Effort,
    filter: Option<String>,
    rows: Vec<Row>,
    took: Duration,
}

impl Run {
    fn summary(&self) -> Summary {
        Summary::of(&self.rows)
    }
}

/// What to print.
pub(crate) enum Answer {
    /// The title and claim of each entry.
    List(Vec<(String, &'static str)>),
    Run(Run),
}

impl Command for Args {
    type Answer = Answer;

    fn compute(&self) -> Result<Answer> {
        match self.backend {
            BackendName::Sim => run_on(&AnyBackend::simulated(), Vec::new(), self, 1200),
            BackendName::Cuda => {
                let cuda = Cuda::new(self.device);
                let backend = AnyBackend::new(cuda.clone());
                if !self.list {
                    // First of all, so that a missing device is reported in one line.
                    backend.open(&Needs::default()).map_err(|unable| anyhow!("cannot run on CUDA: {unable}"))?;
                }
                run_on(&backend, checks::cuda_entries(&cuda), self, 60)
            }
        }
    }

    fn outcome(&self, answer: &Answer) -> Outcome {
        match answer {
            Answer::Run(run) if run.summary().failed > 0 => Outcome::CheckFailed,
            _ => Outcome::Good,
        }
    }

    fn form(&self) -> Form {
        if self.list { Form::Text } else { self.json.form() }
    }

    fn subject(&self) -> Subject<'_> {
        Subject::Command
    }

    fn text(&self, answer: &Answer, out: &mut dyn Write) -> Result<()> {
        match answer {
            Answer::Run(run) => table::print(out, run)?,
            Answer::List(entries) => {
                let width = entries.iter().map(|(title, _)| title.len()).max().unwrap_or(0);
                entries.iter().try_for_each(|(title, says)| writeln!(out, "{title:width$}  {says}"))?;
            }
        }
        Ok(())
    }

    fn json(&self, answer: &Answer, lines: &mut Lines) -> Result<()> {
        let Answer::Run(run) = answer else { return Ok(()) };
        run.rows.iter().try_for_each(|row| lines.add_as_declared(&json::Line::of(row)))
    }
}

fn run_on(backend: &AnyBackend, own: Vec<Entry>, args: &Args, cases: u32) -> Result<Answer> {
    let mut entries = match args.policy.as_deref() {
        None => everything(backend, own_path().as_deref()).into_iter().chain(own).collect(),
        Some("all") => laws_any_policy::entries(backend, None, Share::Whole),
        Some(name) => laws_any_policy::entries(backend, Some(policy(name)?), Share::Whole),
    };
    if let Some(filter) = &args.filter {
        entries.retain(|entry| entry.title().contains(filter.as_str()));
        if entries.is_empty() {
            bail!("no entry's name contains {filter:?}: `parkade conform --list` names them");
        }
    }
    if args.list {
        return Ok(Answer::List(entries.iter().map(|entry| (entry.title(), entry.says)).collect()));
    }
    // Before minutes are spent. An earlier report stays until the new one is complete.
    let outputs = Wanted::new(args.force.force, args.form()).writes("--report", args.report.as_ref()).check()?;
    let effort = Effort::new(args.cases.unwrap_or(cases), args.seed);
    let start = Instant::now();
    let hangs_after = (!backend.is_simulated()).then(|| watch::hangs_after(&effort));
    let watch = watch::Watch::new(entries.len(), args.json.json, hangs_after);
    let reference =
        (!backend.is_simulated()).then(|| Reference::new(AnyBackend::simulated(), everything(&AnyBackend::simulated(), None)));
    let rows = suite::run(backend, &entries, reference.as_ref(), &effort, &watch);
    watch.finish();
    let run = Run { facts: backend.describe(), effort, filter: args.filter.clone(), rows, took: start.elapsed() };
    if let Some(target) = &args.report {
        outputs.write(target, report::markdown(&run).as_bytes())?;
    }
    Ok(Answer::Run(run))
}

/// This binary, whose commands some scenarios run. In the Python package's command the program is an interpreter, which has no such commands.
fn own_path() -> Option<PathBuf> {
    std::env::current_exe().ok().filter(|path| path.file_stem().is_some_and(|name| name == "parkade"))
}
