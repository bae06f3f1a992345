#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod commands;
pub mod each;
#[cfg(feature = "native")]
pub mod in_process;
pub mod ranks;
pub mod recordings;
#[cfg(all(test, feature = "suite"))]
mod schema;
pub mod terminal;

// The list of the tests of files, which the tests below compare with the definitions of the commands.
#[cfg(test)]
#[path = "../tests/common/writers.rs"]
#[allow(dead_code, reason = "the tests of files use the rest")]
mod writers;

use std::ffi::OsString;
#[cfg(feature = "native")]
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[cfg(feature = "suite")]
use commands::conform;
#[cfg(all(feature = "native", not(feature = "suite")))]
use commands::conform_elsewhere as conform;
#[cfg(all(feature = "native", target_os = "linux"))]
use commands::kill;
use commands::{advise, diagnose, diff, report, verify};
#[cfg(feature = "native")]
use commands::{definitions, enable, export, info, merge, ops, pack, replay, run as run_program, stats, sweep};
use each::run_each;
#[cfg(feature = "native")]
pub use in_process::all_printed as answer;
#[cfg(feature = "native")]
use parkade_policies::Entry;
#[cfg(feature = "native")]
use parkade_research::policies::declare;
pub use terminal::runner::Outcome;
use terminal::runner::{self, run};
use terminal::surroundings::{Surroundings, Written, are_provided};
use terminal::{args, output};

/// Notes that apply to all commands.
const AFTER_HELP: &str = "\
Inputs: a log is text with an out-of-memory message, and only diagnose takes one; a snapshot is the file that \
torch.cuda.memory._dump_snapshot or parkade run writes; a folder has one snapshot for each rank.

Ranks: advise, diagnose, report, stats, replay and verify take several recordings, or a folder with one for each rank; diff takes one \
folder or two.

Sizes: 16GiB, 16G, 7.2GiB and 512M are powers of 1024; 16GB and 512MB are powers of 1000; a number alone is bytes.

Exit code: 0 success, 1 a check failed (something differs, or the program does not fit), 2 the command could not run, 3 the answer is \
not known from this file.";

/// The commands, grouped by the readers they serve, as `--help` lists them.
#[cfg(feature = "native")]
const GROUPS: [(&str, &[&str]); 3] = [
    (
        "Your run",
        &["advise", "run", "diagnose", "report", "diff", "stats", "replay", "verify", "export", "enable", "info", "kill"],
    ),
    ("Research", &["sweep", "merge", "pack", "conform", "ops"]),
    ("Other", &["completions", "man", "help"]),
];

/// The program, whose help lists the commands in groups.
#[cfg(feature = "native")]
fn program() -> clap::Command {
    use std::fmt::Write as _;

    let program = Cli::command();
    let about = |name: &str| {
        let command = program.find_subcommand(name);
        command.map_or_else(
            || "Print the help of a command".to_owned(),
            |command| command.get_about().map(ToString::to_string).unwrap_or_default(),
        )
    };
    let is_there = |name: &&&str| **name == "help" || program.find_subcommand(name).is_some();
    let mut listed = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(listed, "{title}:");
        for name in names.iter().filter(is_there) {
            let _ = writeln!(listed, "  {name:<13}{}", about(name));
        }
        listed.push('\n');
    }
    let template = format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{listed}Options:\n{{options}}{{after-help}}");
    program.help_template(template)
}

/// The program without its help, which nobody reads where there is no terminal.
#[cfg(not(feature = "native"))]
fn program() -> clap::Command {
    Cli::command()
}

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
    #[cfg(feature = "native")]
    Replay(replay::Args),
    #[cfg(feature = "native")]
    Stats(stats::Args),
    #[cfg(feature = "native")]
    Export(export::Args),
    #[cfg(feature = "native")]
    Pack(pack::Args),
    #[cfg(feature = "native")]
    Sweep(sweep::Args),
    #[cfg(feature = "native")]
    Merge(merge::Args),
    #[cfg(feature = "native")]
    Run(run_program::Args),
    #[cfg(feature = "native")]
    Conform(conform::Args),
    #[cfg(feature = "native")]
    Ops(ops::Args),
    #[cfg(feature = "native")]
    Info(info::Args),
    #[cfg(all(feature = "native", target_os = "linux"))]
    Kill(kill::Args),
    #[cfg(feature = "native")]
    Enable(enable::Args),
    #[cfg(feature = "native")]
    Completions(definitions::CompletionsArgs),
    #[cfg(feature = "native")]
    Man(definitions::ManArgs),
}

impl Command {
    /// Whether it computes on several threads.
    const fn is_parallel(&self) -> bool {
        #[cfg(feature = "native")]
        if matches!(self, Command::Conform(_) | Command::Merge(_) | Command::Sweep(_)) {
            return true;
        }
        matches!(self, Command::Advise(_) | Command::Diff(_) | Command::Report(_))
    }
}

/// Runs the command that the process's arguments name, prints its answer, and returns its exit code. A signal that ends the
/// process leaves no half-written file: the process belongs to this program, so it may handle the signals.
#[cfg(feature = "native")]
pub fn main() -> ExitCode {
    terminal::outputs::remove_on_signals();
    run_command(&std::env::args_os().collect::<Vec<_>>()).into()
}

/// Does the same as [`main`] in a program that declares policies of its own. Every command that takes the name of a policy knows
/// them, with their parameters, beside the catalogue; only `parkade run` does not, because it runs
/// the program on the Python package's library.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use parkade::policy::PyTorch;
/// use parkade::settings::Settings;
/// use parkade_policies::{Entry, Parameter};
///
/// const MINE: Entry = Entry::new("mine", "PyTorch's policy with some settings off", "our own", |values| {
///     let expandable_segments = values.text("expands") == "yes";
///     Box::new(PyTorch::new(Settings { expandable_segments, ..Settings::default() }))
/// })
/// .with_parameters(&[Parameter::choice("expands", "whether segments are expandable", "yes", &["yes", "no"])]);
///
/// fn main() -> ExitCode {
///     parkade_cli::main_with(&[MINE])
/// }
/// ```
#[cfg(feature = "native")]
pub fn main_with(own: &'static [Entry]) -> ExitCode {
    match declare(own) {
        Ok(()) => main(),
        Err(why) => {
            output::complain(&why);
            Outcome::CouldNotRun.into()
        }
    }
}

/// Runs the command that these arguments name, the program's name first, as the binary does: it prints the answer, and returns
/// how it ended. From then on, an abort ends the process with the exit code of a command that could not run: if memory cannot
/// be allocated, the runtime reports that and aborts.
pub fn run_command(arguments: &[OsString]) -> Outcome {
    end_aborts_as_failures();
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(error) => return runner::refuse_arguments(&error, arguments, &program()),
    };
    if cli.command.is_parallel()
        && !are_provided()
        && let Err(error) = terminal::progress::start_threads()
    {
        output::complain(&format!("{error:#}"));
        return Outcome::CouldNotRun;
    }
    match &cli.command {
        #[cfg(feature = "suite")]
        Command::Conform(args) => run(args),
        #[cfg(all(feature = "native", not(feature = "suite")))]
        Command::Conform(args) => args.run(),
        Command::Verify(args) => run(args),
        #[cfg(feature = "native")]
        Command::Replay(args) => run_each(args),
        Command::Advise(args) => run_each(args),
        Command::Diagnose(args) => run_each(args),
        Command::Diff(args) => diff::run_diff(args),
        Command::Report(args) => run_each(args),
        #[cfg(feature = "native")]
        Command::Stats(args) => run_each(args),
        #[cfg(feature = "native")]
        Command::Export(args) => run(args),
        #[cfg(feature = "native")]
        Command::Pack(args) => run(args),
        #[cfg(feature = "native")]
        Command::Run(args) => args.run(),
        #[cfg(feature = "native")]
        Command::Sweep(args) => run(args),
        #[cfg(feature = "native")]
        Command::Merge(args) => run(args),
        #[cfg(feature = "native")]
        Command::Ops(args) => run(args),
        #[cfg(feature = "native")]
        Command::Info(args) => run(args),
        #[cfg(all(feature = "native", target_os = "linux"))]
        Command::Kill(args) => run(args),
        #[cfg(feature = "native")]
        Command::Enable(args) => run(args),
        #[cfg(feature = "native")]
        Command::Completions(args) => run(&args.of(Cli::command())),
        #[cfg(feature = "native")]
        Command::Man(args) => run(&args.of(Cli::command())),
    }
}

/// Runs the command that these arguments name within surroundings that the caller provides, and returns how it ended and what it wrote. See
/// [`Surroundings::within`].
pub fn run_within(surroundings: Surroundings, arguments: &[OsString]) -> (Outcome, Written) {
    surroundings.within(|| run_command(arguments))
}

/// If it cannot be registered, an abort ends the process by its signal, as in any program.
#[cfg(feature = "native")]
fn end_aborts_as_failures() {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use signal_hook::consts::SIGABRT;
    use signal_hook::flag::register_conditional_shutdown;

    let _registered = register_conditional_shutdown(SIGABRT, Outcome::CouldNotRun as i32, Arc::new(AtomicBool::new(true)));
}

/// Without a machine, there are no signals.
#[cfg(not(feature = "native"))]
fn end_aborts_as_failures() {}

/// Returns the command for these arguments. A command that has been renamed is refused with its new name.
fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    if arguments.get(1).is_some_and(|name| name == "frontier") {
        let said = "`parkade frontier` is now `parkade sweep --largest-batch`: models are workloads \
            (-w transformer:preset=7b,mixed=on,steps=3), \
                    devices are capacities (-c H100-80GB,24GB)";
        return Err(program().error(ErrorKind::InvalidSubcommand, said));
    }
    let program = program();
    let matches = program.clone().try_get_matches_from(arguments);
    Cli::from_arg_matches(&matches.map_err(|error| args::explain_guess(error, &program, arguments))?)
}

#[cfg(test)]
mod tests {
    //! Tests the definitions of all commands: options that write files are known to the tests, and describe what they
    //! do.

    use std::any::TypeId;
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use clap::{Arg, Command, CommandFactory};

    use super::{Cli, writers};
    use crate::terminal::outputs::Target;

    /// The arguments of a type, as (command, argument).
    fn of_type<T: 'static>(program: &Command) -> BTreeSet<(&str, &str)> {
        let all =
            program.get_subcommands().flat_map(|command| command.get_arguments().map(|argument| (command.get_name(), argument)));
        let is_of_it = |argument: &Arg| argument.get_value_parser().type_id() == TypeId::of::<T>();
        all.filter(|(_, argument)| is_of_it(argument)).map(|(command, argument)| (command, argument.get_id().as_str())).collect()
    }

    /// A command that is in no group would be missing from the help.
    #[test]
    fn every_command_is_in_one_group() {
        let listed: Vec<&str> = super::GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let program = Cli::command();
        for command in program.get_subcommands() {
            assert_eq!(listed.iter().filter(|name| **name == command.get_name()).count(), 1, "{}", command.get_name());
            assert!(command.get_about().is_some_and(|about| about.to_string().len() <= 68), "{}", command.get_name());
        }
    }

    /// An option that is missing from the list would not be tested with existing files, links and full disks.
    #[test]
    fn the_tests_know_every_option_that_writes_a_file() {
        let program = Cli::command();
        let known = writers::WRITERS.iter().chain(&writers::WITHOUT_INPUT).map(|writer| (writer.command(), writer.option));
        assert_eq!(of_type::<Target>(&program), known.collect());
        let others: BTreeSet<(&str, &str)> = writers::OTHER_PATHS.into_iter().collect();
        assert_eq!(of_type::<PathBuf>(&program), others, "an option that writes a file has the type `Target`");
    }

    #[test]
    fn every_option_that_writes_a_file_names_force_and_standard_output() {
        let program = Cli::command();
        for (command, option) in of_type::<Target>(&program).into_iter().chain([("man", "output")]) {
            let command = program.find_subcommand(command).expect("a command");
            let find = |name: &str| command.get_arguments().find(|argument| argument.get_id() == name);
            let name = command.get_name();
            assert!(find("force").is_some(), "{name} has no --force");
            let option = find(option).expect("an option");
            let help = option.get_long_help().or(option.get_help()).expect("help").to_string();
            assert!(help.contains("--force") && help.contains("`-`"), "{name} --{}: {help}", option.get_id());
        }
    }
}
