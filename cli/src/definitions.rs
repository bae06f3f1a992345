//! What holds for the definitions of all commands: options that write files are known to the tests, and say what they do.

use std::any::TypeId;
use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory};

use crate::Cli;
use crate::terminal::outputs::Target;

#[path = "../tests/common/writers.rs"]
#[allow(dead_code, reason = "the tests of files use the rest")]
mod writers;

/// The arguments of a type, as (command, argument).
fn of_type<T: 'static>(program: &Command) -> BTreeSet<(&str, &str)> {
    let all =
        program.get_subcommands().flat_map(|command| command.get_arguments().map(|argument| (command.get_name(), argument)));
    let is_of_it = |argument: &Arg| argument.get_value_parser().type_id() == TypeId::of::<T>();
    all.filter(|(_, argument)| is_of_it(argument)).map(|(command, argument)| (command, argument.get_id().as_str())).collect()
}

/// An option that is missing in the list would not be tried with files that exist, links and full disks.
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
