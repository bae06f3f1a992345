//! `parkade`, the one binary: arguments in, tables and JSON out. It decides nothing about memory; only `kill` acts.
//!
//! Exit codes: 0 all is well, 1 a check failed, 2 it could not be run.
#![forbid(unsafe_code)]

mod advise;
mod conform;
mod diagnose;
mod enable;
mod export;
mod frontier;
mod info;
#[cfg(target_os = "linux")] // it reads /proc
mod kill;
mod merge;
mod ops;
mod output;
mod pack;
mod replay;
mod report;
mod size;
mod stats;
mod sweep;
mod target;
mod usage;
mod verify;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Half of the time to load a large recording went into fresh pages; this allocator asks for them in large pieces and keeps them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// GPU memory, replayed: what PyTorch's allocator did, and whether parkade's core decides exactly so.
#[derive(Parser)]
#[command(name = "parkade", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Conform(conform::Args),
    Verify(verify::Args),
    Replay(replay::Args),
    Advise(advise::Args),
    Diagnose(diagnose::Args),
    Report(report::Args),
    Stats(stats::Args),
    Export(export::Args),
    Pack(pack::Args),
    Sweep(sweep::Args),
    Merge(merge::Args),
    Frontier(frontier::Args),
    Ops(ops::Args),
    Info(info::Args),
    #[cfg(target_os = "linux")]
    Kill(kill::Args),
    Enable(enable::Args),
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Outcome {
    /// Everything asked for is so.
    Good,
    /// A check failed.
    CheckFailed,
    /// Something could not be run; it has been said.
    CouldNotRun,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        ExitCode::from(outcome as u8)
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::answer(&error, &Cli::command()),
    };
    let result = match cli.command {
        Command::Conform(args) => conform::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Diagnose(args) => diagnose::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Frontier(args) => frontier::run(&args),
        Command::Ops(args) => ops::run(&args),
        Command::Info(args) => info::run(&args),
        #[cfg(target_os = "linux")]
        Command::Kill(args) => kill::run(&args),
        Command::Enable(args) => enable::run(&args),
    };
    match result {
        Ok(outcome) => outcome.into(),
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            Outcome::CouldNotRun.into()
        }
    }
}
