//! Invalid arguments, reported like every other failure, also as JSON.

use std::ffi::{OsStr, OsString};
use std::io::Write;

use clap::{Arg, Command, Error};

use crate::terminal::output;
use crate::terminal::runner::{self, Form, Lines, Outcome, Subject};

/// Prints clap's answer to the arguments: an error (exit code 2), or help (0, or 2 where it cannot be written).
pub fn answer(error: &Error, arguments: &[OsString], program: &Command) -> Outcome {
    if !error.use_stderr() {
        return match runner::print_bytes(Form::Text, error.render().ansi().to_string().as_bytes()) {
            Ok(()) => Outcome::Good,
            Err(error) => {
                output::complain(&format!("{error:#}"));
                Outcome::CouldNotRun
            }
        };
    }
    if wants_json(arguments.iter().skip(1).cloned(), program) {
        let mut lines = Lines::default();
        let added = lines.add(&runner::failure(Subject::None, &one_line(error)));
        // Standard output may be full, and the error is printed below.
        let _ = added.and_then(|()| runner::print_bytes(Form::Json, lines.text().as_bytes()));
    }
    let said = error.to_string();
    if said.lines().all(|line| output::one_line(line) == line) {
        let _ = error.print();
    } else {
        // It repeats arguments that a terminal would obey.
        let lines: String = said.lines().map(|line| output::one_line(line) + "\n").collect();
        let _ = std::io::stderr().write_all(lines.as_bytes());
    }
    Outcome::CouldNotRun
}

/// Whether `--json` is among the arguments of a subcommand that has it, or of an unknown one. `--json=VALUE` counts too, except
/// `--json=false`; the value of another option does not.
fn wants_json(arguments: impl Iterator<Item = OsString>, program: &Command) -> bool {
    let arguments: Vec<OsString> = arguments.take_while(|argument| argument != "--").collect();
    let subcommand = arguments.first().and_then(|name| program.find_subcommand(name));
    let has_json =
        subcommand.is_none_or(|subcommand| subcommand.get_arguments().any(|argument| argument.get_long() == Some("json")));
    let is_value = |place: usize| {
        let before = place.checked_sub(1).and_then(|before| arguments[before].to_str());
        before.is_some_and(|before| subcommand.is_some_and(|subcommand| takes_any_value(subcommand, before)))
    };
    has_json && (0..arguments.len()).any(|place| asks_for_json(&arguments[place]) && !is_value(place))
}

fn asks_for_json(argument: &OsStr) -> bool {
    let value = argument.to_str().and_then(|argument| argument.strip_prefix("--json"));
    value.is_some_and(|value| value.is_empty() || value.starts_with('=') && value != "=false")
}

/// Whether this is an option whose value is the next argument, even if that starts with a hyphen.
fn takes_any_value(subcommand: &Command, option: &str) -> bool {
    let is_it = |argument: &&Arg| {
        let is_short = argument.get_short().is_some_and(|short| option.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4])));
        is_short || argument.get_long().is_some_and(|long| option.strip_prefix("--") == Some(long))
    };
    subcommand.get_arguments().find(is_it).is_some_and(|argument| argument.is_allow_hyphen_values_set())
}

/// The message without the usage that follows it.
pub fn one_line(error: &Error) -> String {
    let text = error.to_string();
    let message = text.split("\n\nUsage:").next().unwrap_or(&text).split("\n\nFor more information").next().unwrap_or(&text);
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::*;

    fn program() -> Command {
        let json = || Arg::new("json").long("json").action(ArgAction::SetTrue);
        let number = || Arg::new("number").short('n').long("number").allow_hyphen_values(true);
        Command::new("program")
            .subcommand(Command::new("with").arg(json()).arg(number()).arg(Arg::new("file").required(true)))
            .subcommand(Command::new("without"))
    }

    #[test]
    fn json_is_wanted_if_asked_for_and_known() {
        let wants = |line: &str| wants_json(line.split_whitespace().map(OsString::from), &program());
        assert!(wants("with --json") && wants("with --nosuch --json x") && wants("nosuch --json") && wants("--json"));
        assert!(
            wants("with --json=true") && wants("with --json= x") && wants("with -n 1 --json") && wants("with --number=1 --json")
        );
        assert!(!wants("with --json=false") && !wants("with --jsonx") && !wants("without --json=true"));
        assert!(!wants("with -n --json") && !wants("with --number --json") && wants("with -n --json --json"));
        assert!(!wants("with file") && !wants("with -- --json") && !wants("without --json"));
    }

    #[test]
    fn the_message_is_one_line_without_usage() {
        let said = |line: &str| one_line(&program().try_get_matches_from(line.split_whitespace()).expect_err(line));
        assert_eq!(said("program with --jsn x"), "unexpected argument '--jsn' found tip: a similar argument exists: '--json'");
        assert_eq!(said("program with"), "the following required arguments were not provided: <file>");
    }
}
