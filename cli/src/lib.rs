#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod commands;
#[cfg(test)]
mod definitions;
mod threads;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{CommandFactory, Parser, Subcommand};

use commands::{
    advise, completions, conform, diagnose, diff, enable, export, frontier, info, man, merge, ops, pack, replay, report, stats,
    sweep, verify,
};
#[cfg(target_os = "linux")]
use parkade_kill as kill;
use parkade_ranks::each::{OnEach, run_each};
// Every command finds what it shares with others under `crate::`.
use parkade_ranks::{each, ranks, recordings};
use parkade_terminal::{args, ending, json_struct, output, outputs, progress, recording, release, runner, size, table};
use runner::run;

/// What holds for all commands.
const AFTER_HELP: &str = "\
Sizes: 16GiB, 16G, 7.2GiB and 512M are powers of 1024; 16GB and 512MB are powers of 1000; a number alone is bytes.

Exit code: 0 success, 1 a check failed (something differs, or the program does not fit), 2 the command could not run, 3 the answer is \
not known from this file.";

/// GPU memory, replayed: what PyTorch's allocator did, and what it would have done under other settings.
#[derive(Parser)]
#[command(name = "parkade", version, propagate_version = true, max_term_width = 110, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Advise(advise::Args),
    Diagnose(diagnose::Args),
    Diff(diff::Args),
    Report(report::Args),
    Verify(verify::Args),
    Replay(replay::Args),
    Stats(stats::Args),
    Export(export::Args),
    Pack(pack::Args),
    Sweep(sweep::Args),
    Merge(merge::Args),
    Frontier(frontier::Args),
    Conform(conform::Args),
    Ops(ops::Args),
    Info(info::Args),
    #[cfg(target_os = "linux")]
    Kill(kill::Args),
    Enable(enable::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    /// Whether it computes on several threads.
    const fn is_parallel(&self) -> bool {
        use Command::{Advise, Conform, Diff, Frontier, Merge, Report, Sweep};
        matches!(self, Advise(_) | Conform(_) | Diff(_) | Frontier(_) | Merge(_) | Report(_) | Sweep(_))
    }
}

/// Runs the command that the process's arguments name, prints its answer, and returns its exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::answer(&error, &Cli::command()),
    };
    if cli.command.is_parallel()
        && let Err(error) = threads::start()
    {
        output::complain(&format!("{error:#}"));
        return runner::Outcome::CouldNotRun.into();
    }
    match &cli.command {
        Command::Conform(args) => run(args),
        Command::Verify(args) => run(args),
        Command::Replay(args) => run_each(args),
        Command::Advise(args) => run_each(args),
        Command::Diagnose(args) => run_each(args),
        Command::Diff(args) => diff::run_diff(args),
        Command::Report(args) => run_each(args),
        Command::Stats(args) => run_each(args),
        Command::Export(args) => run(args),
        Command::Pack(args) => run(args),
        Command::Sweep(args) => run(args),
        Command::Merge(args) => run(args),
        Command::Frontier(args) => run(args),
        Command::Ops(args) => run(args),
        Command::Info(args) => run(args),
        #[cfg(target_os = "linux")]
        Command::Kill(args) => run(args),
        Command::Enable(args) => run(args),
        Command::Completions(args) => run(&args.of(Cli::command())),
        Command::Man(args) => run(&args.of(Cli::command())),
    }
}

/// What a command about one recording prints on standard output, and on standard error beside it. Files are written as the arguments say.
/// For tests that run many commands in one process.
///
/// # Errors
/// The arguments are wrong, the command is none about one recording, or it could not be run.
pub fn answer(arguments: impl IntoIterator<Item = OsString>) -> Result<Vec<u8>> {
    match &Cli::try_parse_from(arguments)?.command {
        Command::Replay(args) => answer_about_one(args),
        Command::Advise(args) => answer_about_one(args),
        Command::Diagnose(args) => answer_about_one(args),
        Command::Report(args) => answer_about_one(args),
        Command::Stats(args) => answer_about_one(args),
        Command::Verify(args) => answer_of(args),
        Command::Diff(args) => answer_of(args),
        Command::Export(args) => answer_of(args),
        Command::Pack(args) => answer_of(args),
        _ => bail!("this command is none about one recording"),
    }
}

fn answer_about_one<C: OnEach>(command: &C) -> Result<Vec<u8>> {
    match command.inputs() {
        [file] => answer_of(&command.on(file, false)),
        files => bail!("one file is answered about, and {} are given", files.len()),
    }
}

fn answer_of<C: runner::Command>(command: &C) -> Result<Vec<u8>> {
    let answer = command.compute()?;
    let mut printed = runner::render(command, &answer)?;
    for remark in command.remarks(&answer) {
        printed.extend(remark.into_bytes());
        printed.push(b'\n');
    }
    let _ = command.outcome(&answer);
    Ok(printed)
}
