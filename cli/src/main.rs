#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod commands;
mod json_struct;
mod output;
mod output_file;
mod progress;
mod recording;
mod runner;
mod size;
mod table;
mod usage;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

#[cfg(target_os = "linux")]
use commands::kill;
use commands::{
    advise, conform, diagnose, diff, enable, export, frontier, info, merge, ops, pack, replay, report, stats, sweep, verify,
};
use runner::run;

/// It keeps pages that it got in large pieces. With the system's allocator, page faults took half the time of loading a large recording.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// GPU memory, replayed: what PyTorch's allocator did, and what it would have done under other settings.
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
    Diff(diff::Args),
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

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::answer(&error, &Cli::command()),
    };
    match &cli.command {
        Command::Conform(args) => run(args),
        Command::Verify(args) => run(args),
        Command::Replay(args) => run(args),
        Command::Advise(args) => run(args),
        Command::Diagnose(args) => run(args),
        Command::Diff(args) => run(args),
        Command::Report(args) => run(args),
        Command::Stats(args) => run(args),
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
    }
}
