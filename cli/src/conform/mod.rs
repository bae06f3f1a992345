//! `parkade conform`: the conformance suite, on the simulated device or on a real one.

mod json;
mod report;
mod table;
mod watch;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use parkade_conformance::backend::{Backend, Cuda, Needs, Simulated};
use parkade_conformance::checks::policies;
use parkade_conformance::checks::policies::Share;
use parkade_conformance::suite::{Effort, Entry, Reference, Row, Summary};
use parkade_conformance::{checks, suite};
use parkade_policies::{CATALOGUE, Named, named};

use crate::{Outcome, output};

/// Check the laws of the allocator, the device contract, the documents' scenarios and PyTorch's own allocator tests.
///
/// On the simulated device (the default) this needs no GPU. On a real one it fills the device's memory with a ballast for some entries and
/// gives all of it back; nobody else should be using it meanwhile. A law that is broken is shown with the shortest sequence found
/// that breaks it, as a script for `parkade ops`.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade conform
  parkade conform --filter scenario/A5
  parkade conform --cases 20000 --seed 7
  parkade conform --policy tlsf
  parkade conform --backend cuda --device 1 --report conformance.md
  parkade conform --json > conformance.jsonl

Exit code: 0 everything passed or was skipped, 1 something failed, 2 it could not be run.")]
pub(crate) struct Args {
    /// What to run on.
    #[arg(long, value_enum, default_value_t)]
    backend: BackendName,
    /// The index of the CUDA device.
    #[arg(long, default_value_t = 0, value_name = "N")]
    device: u32,
    /// Only entries whose group/name contains this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only the laws of policies, for the policy of this name, or for `all` of them, with all the sequences [default: everything, with a
    /// tenth of the sequences for each policy].
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Random sequences a law and adversary [default: 1200 simulated, 60 on a real device].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cases: Option<u32>,
    /// From which the sequences are drawn: the same seed draws the same.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object a line for each entry.
    #[arg(long)]
    json: bool,
    /// Write a report (Markdown), with what the scenarios showed.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// List the entries and run none.
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
struct Run {
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

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match args.backend {
        BackendName::Sim => run_on(&Simulated, Vec::new(), args, 1200),
        BackendName::Cuda => {
            let backend = Cuda::new(args.device);
            if !args.list {
                // Before anything is done: whoever has no such device learns it in one line.
                backend.open(&Needs::default()).map_err(|unable| anyhow::anyhow!("cannot run on CUDA: {unable}"))?;
            }
            run_on(&backend, checks::cuda_entries(), args, 60)
        }
    }
}

fn run_on<B: Backend + Sync + 'static>(backend: &B, own: Vec<Entry<B>>, args: &Args, cases: u32) -> Result<Outcome> {
    let mut entries = match args.policy.as_deref() {
        None => parkade_scenarios::everything(backend, own_path().as_deref()).into_iter().chain(own).collect(),
        Some("all") => policies::entries(backend, None, Share::Whole),
        Some(name) => policies::entries(backend, Some(policy_named(name)?), Share::Whole),
    };
    if let Some(filter) = &args.filter {
        entries.retain(|entry| entry.title().contains(filter.as_str()));
        if entries.is_empty() {
            bail!("no entry's name contains {filter:?}: `parkade conform --list` names them");
        }
    }
    if args.list {
        return list(&entries);
    }
    // A report that cannot be written is known before minutes are spent on it; an earlier one stays until there is a new one.
    let report = args.report.as_deref().map(report::Draft::begin).transpose()?;
    let effort = Effort { cases: args.cases.unwrap_or(cases), seed: args.seed };
    let start = Instant::now();
    let hangs_after = (!backend.is_simulated()).then(|| watch::hangs_after(&effort));
    let watch = watch::Watch::new(entries.len(), args.json, hangs_after);
    let reference = (!backend.is_simulated()).then(|| Reference::new(Simulated, parkade_scenarios::everything(&Simulated, None)));
    let rows = suite::run(backend, &entries, reference.as_ref(), &effort, &watch);
    watch.finish();
    let run = Run { facts: backend.describe(), effort, filter: args.filter.clone(), rows, took: start.elapsed() };
    let outcome = if run.summary().failed == 0 { Outcome::Good } else { Outcome::CheckFailed };
    let printed = print(args, &run);
    if let Some(draft) = report {
        draft.finish(&report::markdown(&run))?;
    }
    match printed {
        // Whoever reads only the first lines still gets the exit code.
        Err(error) if output::is_broken_pipe(&error) => Ok(outcome),
        printed => printed.map(|()| outcome),
    }
}

/// This binary, whose commands some scenarios run.
fn own_path() -> Option<PathBuf> {
    std::env::current_exe().ok()
}

fn policy_named(name: &str) -> Result<&'static Named> {
    let names = || CATALOGUE.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
    named(name).with_context(|| format!("there is no policy {name:?}: the policies are {}, and all", names()))
}

fn list<B: Backend>(entries: &[Entry<B>]) -> Result<Outcome> {
    let mut out = output::stdout();
    let width = entries.iter().map(|entry| entry.title().len()).max().unwrap_or(0);
    for entry in entries {
        writeln!(out, "{:width$}  {}", entry.title(), entry.says)?;
    }
    out.flush()?;
    Ok(Outcome::Good)
}

fn print(args: &Args, run: &Run) -> Result<()> {
    let mut out = output::stdout();
    if args.json {
        json::print(&mut out, run)?;
    } else {
        table::print(&mut out, run, output::Paint::for_stdout())?;
    }
    Ok(out.flush()?)
}
