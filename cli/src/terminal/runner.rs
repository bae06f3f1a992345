//! Runs every command in the same way: computes, prints text or JSON, and turns the outcome into the exit code.
//!
//! Invalid arguments are reported like any other failure, including as JSON.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Arg, Error};
use serde::Serialize;
use serde_json::Value;

use super::answer::Answer;
use super::json_struct::{sections, view};
use super::output::{self, Width};
use super::surroundings::{self, Medium};

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Success.
    Good,
    /// A check failed.
    CheckFailed,
    /// Something could not be run; the error has been printed.
    CouldNotRun,
    /// The file does not contain the answer.
    NotKnown,
}

impl Outcome {
    /// Returns the worse of two outcomes: could not run is the worst, then a failed check, then not known.
    pub fn worse(self, other: Outcome) -> Outcome {
        let weight = |outcome: Outcome| match outcome {
            Outcome::Good => 0,
            Outcome::NotKnown => 1,
            Outcome::CheckFailed => 2,
            Outcome::CouldNotRun => 3,
        };
        if weight(other) > weight(self) { other } else { self }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        ExitCode::from(outcome as u8)
    }
}

/// The output that a command prints on standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Human-readable text, with colours on a terminal.
    Text,
    /// The same text as Markdown.
    Markdown,
    /// Text for programs, byte for byte.
    Data,
    /// JSON, one object per line.
    Json,
}

impl Form {
    /// Returns JSON if it is requested, else text.
    pub fn json_if(json: bool) -> Form {
        if json { Form::Json } else { Form::Text }
    }
}

/// The subject of a failure.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// No single file.
    None,
    /// This file, which precedes the message on standard error.
    File(&'a Path),
    /// This file, or standard input. The message itself names it.
    Named(Option<&'a Path>),
    /// The arguments. JSON does not report the failure, because it has a line for each result.
    Command,
}

/// A command with its arguments.
pub trait Command {
    /// The result of the command.
    type Found;

    /// Does the work. Output that must appear immediately is printed here.
    ///
    /// # Errors
    /// The reason for a failure. The runner prints it with the [`subject`](Command::subject).
    fn compute(&self) -> Result<Self::Found>;

    /// Returns how the command ended.
    fn outcome(&self, _: &Self::Found) -> Outcome {
        Outcome::Good
    }

    /// Returns the form of the output.
    fn form(&self) -> Form {
        Form::Text
    }

    /// Returns the subject of a failure.
    fn subject(&self) -> Subject<'_> {
        Subject::None
    }

    /// Returns the human-readable answer.
    fn answer(&self, _: &Self::Found) -> Answer {
        Answer::new()
    }

    /// Returns the full answer, if the usual one is shorter.
    fn everything(&self, _: &Self::Found) -> Option<Answer> {
        None
    }

    /// Writes the result as text for programs, if the command has this form.
    ///
    /// # Errors
    /// The text cannot be written.
    fn data(&self, _: &Self::Found, _: &mut dyn Write) -> Result<()> {
        Ok(())
    }

    /// Adds the result as JSON.
    ///
    /// # Errors
    /// It cannot be serialised.
    fn json(&self, _: &Self::Found, _: &mut Lines) -> Result<()> {
        Ok(())
    }

    /// Returns lines for standard error.
    fn remarks(&self, _: &Self::Found) -> Vec<String> {
        Vec::new()
    }
}

/// Lines of JSON.
#[derive(Default)]
pub struct Lines(String);

impl Lines {
    /// Adds an object with sorted keys, including those of nested objects.
    ///
    /// # Errors
    /// It cannot be serialised.
    pub fn add(&mut self, object: &impl Serialize) -> Result<()> {
        self.add_as_declared(&serde_json::to_value(object)?)
    }

    /// Adds an object with its keys in the order of their declaration.
    ///
    /// # Errors
    /// It cannot be serialised.
    pub fn add_as_declared(&mut self, object: &impl Serialize) -> Result<()> {
        self.0.push_str(&output::json(object)?);
        self.0.push('\n');
        Ok(())
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Runs a command and returns how it ended. A closed pipe does not change that.
pub fn run<C: Command>(command: &C) -> Outcome {
    let found = match command.compute() {
        Ok(found) => found,
        Err(error) => return fail(command, error),
    };
    let printed = print(command, &found);
    for remark in command.remarks(&found) {
        output::complain(&remark);
    }
    match printed {
        Err(error) => {
            output::complain(&format!("{error:#}"));
            Outcome::CouldNotRun
        }
        Ok(()) => command.outcome(&found),
    }
}

fn print<C: Command>(command: &C, found: &C::Found) -> Result<()> {
    on_stdout(command.form(), |out| write_found(command, found, out))
}

/// Renders the answer for [`print_bytes`].
///
/// # Errors
/// It cannot be serialised.
pub fn render<C: Command>(command: &C, found: &C::Found) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    write_found(command, found, &mut text)?;
    Ok(text)
}

/// Prints rendered output of this form.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_bytes(form: Form, bytes: &[u8]) -> Result<()> {
    on_stdout(form, |out| Ok(out.write_all(bytes)?))
}

fn write_found<C: Command>(command: &C, found: &C::Found, out: &mut dyn Write) -> Result<()> {
    match command.form() {
        Form::Json => {
            let mut lines = Lines::default();
            command.json(found, &mut lines)?;
            Ok(out.write_all(lines.text().as_bytes())?)
        }
        Form::Data => command.data(found, out),
        form => Ok(out.write_all(&written_with(form, &command.answer(found), || command.everything(found)))?),
    }
}

/// Renders a human-readable answer in the requested form.
pub fn written(form: Form, answer: &Answer) -> Vec<u8> {
    written_with(form, answer, || None)
}

/// Renders it with everything that was found, if the medium can fold that.
fn written_with(form: Form, answer: &Answer, everything: impl FnOnce() -> Option<Answer>) -> Vec<u8> {
    let text = match form {
        Form::Markdown => answer.markdown(),
        _ if surroundings::medium() == Medium::Html => {
            if answer.is_empty() {
                String::new()
            } else {
                answer.html(everything().as_ref())
            }
        }
        _ => answer.text(Width::of_output()),
    };
    text.into_bytes()
}

fn on_stdout(form: Form, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut out: Box<dyn Write> = if form == Form::Text { Box::new(output::text()) } else { Box::new(output::stdout()) };
    write(&mut out)?;
    Ok(out.flush()?)
}

/// Reports why a command, or the command on one file, could not be run.
pub fn fail<C: Command>(command: &C, error: anyhow::Error) -> Outcome {
    let subject = command.subject();
    if command.form() == Form::Json && !matches!(subject, Subject::Command) {
        // An error is ignored because standard error has the message too.
        let mut lines = Lines::default();
        let _ =
            lines.add(&failure(subject, &format!("{error:#}"))).and_then(|()| print_bytes(Form::Json, lines.text().as_bytes()));
    }
    output::complain(&message(command, &error));
    Outcome::CouldNotRun
}

/// Explains in one line why a command could not be run, with its file.
pub fn message<C: Command>(command: &C, error: &anyhow::Error) -> String {
    match command.subject() {
        Subject::File(file) => format!("{}: {error:#}", file.display()),
        _ => format!("{error:#}"),
    }
}

view! {
    /// A failure.
    pub(crate) struct Failure<'a>(subject: Subject<'_>, message: &'a str) {
        /// What went wrong, on one line.
        error: &'a str = message,
        /// The recording, for commands that read one; null for a message.
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<Option<String>> = match subject {
            Subject::None | Subject::Command => None,
            Subject::File(file) => Some(Some(file.display().to_string())),
            Subject::Named(file) => Some(file.map(|file| file.display().to_string())),
        },
    }
}

sections! {
    "Failures": Failure<'_>;
}

/// Returns the JSON object of a failure.
pub fn failure(subject: Subject<'_>, message: &str) -> Value {
    serde_json::to_value(Failure::of(subject, message)).unwrap_or_default()
}

/// Prints clap's response to the arguments: an error (exit code 2), or help (0, or 2 if it cannot be written).
pub fn refuse_arguments(error: &Error, arguments: &[OsString], program: &clap::Command) -> Outcome {
    if !error.use_stderr() {
        return match print_bytes(Form::Text, styled(error).as_bytes()) {
            Ok(()) => Outcome::Good,
            Err(error) => {
                output::complain(&format!("{error:#}"));
                Outcome::CouldNotRun
            }
        };
    }
    if wants_json(arguments.iter().skip(1).cloned(), program) {
        let mut lines = Lines::default();
        let added = lines.add(&failure(Subject::None, &argument_error(error)));
        // An error is ignored because the message is printed below.
        let _ = added.and_then(|()| print_bytes(Form::Json, lines.text().as_bytes()));
    }
    if surroundings::are_provided() {
        output::complain(&argument_error(error));
        return Outcome::CouldNotRun;
    }
    let said = error.to_string();
    if said.lines().all(|line| output::one_line(line) == line) {
        let _ = error.print();
    } else {
        // It repeats arguments that contain control characters.
        let lines: String = said.lines().map(|line| output::one_line(line) + "\n").collect();
        let _ = std::io::stderr().write_all(lines.as_bytes());
    }
    Outcome::CouldNotRun
}

#[cfg(feature = "native")]
fn styled(error: &Error) -> String {
    error.render().ansi().to_string()
}

#[cfg(not(feature = "native"))]
fn styled(error: &Error) -> String {
    error.render().to_string()
}

/// Returns whether the arguments contain `--json` and the subcommand has that option or is unknown. `--json=VALUE` counts too, except
/// `--json=false`; the value of a different option does not.
fn wants_json(arguments: impl Iterator<Item = OsString>, program: &clap::Command) -> bool {
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

/// Returns whether this option takes the next argument as its value, even if that starts with a hyphen.
fn takes_any_value(subcommand: &clap::Command, option: &str) -> bool {
    let is_it = |argument: &&Arg| {
        let is_short = argument.get_short().is_some_and(|short| option.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4])));
        is_short || argument.get_long().is_some_and(|long| option.strip_prefix("--") == Some(long))
    };
    subcommand.get_arguments().find(is_it).is_some_and(|argument| argument.is_allow_hyphen_values_set())
}

/// Returns the message without the usage after it.
pub fn argument_error(error: &Error) -> String {
    let text = error.to_string();
    let message = text.split("\n\nUsage:").next().unwrap_or(&text).split("\n\nFor more information").next().unwrap_or(&text);
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::*;

    fn program() -> clap::Command {
        let json = || Arg::new("json").long("json").action(ArgAction::SetTrue);
        let number = || Arg::new("number").short('n').long("number").allow_hyphen_values(true);
        clap::Command::new("program")
            .subcommand(clap::Command::new("with").arg(json()).arg(number()).arg(Arg::new("file").required(true)))
            .subcommand(clap::Command::new("without"))
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
        let said = |line: &str| argument_error(&program().try_get_matches_from(line.split_whitespace()).expect_err(line));
        assert_eq!(said("program with --jsn x"), "unexpected argument '--jsn' found tip: a similar argument exists: '--json'");
        assert_eq!(said("program with"), "the following required arguments were not provided: <file>");
    }
}
