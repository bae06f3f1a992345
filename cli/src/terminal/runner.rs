//! One way to run every command: compute, print as text or JSON, turn the outcome into the exit code.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::terminal::output;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All is well.
    Good,
    /// A check failed.
    CheckFailed,
    /// Something could not be run; the error has been printed.
    CouldNotRun,
    /// What was asked cannot be known from the file.
    NotKnown,
}

impl Outcome {
    /// The outcome of several files, of which these are two: whether all could be run matters most, then whether checks failed,
    /// then whether something is not known.
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

/// What a command prints on standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Text for people, with colours on a terminal.
    Text,
    /// Text for programs, byte for byte.
    Data,
    /// JSON, one object a line.
    Json,
}

impl Form {
    /// JSON if that is asked for, else text.
    pub fn json_if(json: bool) -> Form {
        if json { Form::Json } else { Form::Text }
    }
}

/// The file that a failure is about.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// No single file.
    None,
    /// This one, named before the message on standard error.
    File(&'a Path),
    /// This one, or standard input. The message names it itself.
    Named(Option<&'a Path>),
    /// The arguments: JSON, which has a line for each result, does not report it.
    Command,
}

/// A command with its arguments.
pub trait Command {
    /// What it computes.
    type Answer;

    /// Does the work. Output that must appear at once is printed here.
    ///
    /// # Errors
    /// Why it could not be done. The runner names the [`subject`](Command::subject) and prints it.
    fn compute(&self) -> Result<Self::Answer>;

    /// How the command ended.
    fn outcome(&self, _: &Self::Answer) -> Outcome {
        Outcome::Good
    }

    /// What is printed.
    fn form(&self) -> Form {
        Form::Text
    }

    /// What a failure is about.
    fn subject(&self) -> Subject<'_> {
        Subject::None
    }

    /// Prints the answer as text or data.
    ///
    /// # Errors
    /// It cannot be written.
    fn text(&self, _: &Self::Answer, _: &mut dyn Write) -> Result<()> {
        Ok(())
    }

    /// The answer as JSON.
    ///
    /// # Errors
    /// It cannot be serialised.
    fn json(&self, _: &Self::Answer, _: &mut Lines) -> Result<()> {
        Ok(())
    }

    /// Lines for standard error beside the answer.
    fn remarks(&self, _: &Self::Answer) -> Vec<String> {
        Vec::new()
    }
}

/// Lines of JSON.
#[derive(Default)]
pub struct Lines(String);

impl Lines {
    /// Adds an object whose keys, and those of all objects in it, are sorted.
    ///
    /// # Errors
    /// It cannot be serialised.
    pub fn add(&mut self, object: &impl Serialize) -> Result<()> {
        self.add_as_declared(&serde_json::to_value(object)?)
    }

    /// Adds an object with its keys in the order in which they are declared.
    ///
    /// # Errors
    /// It cannot be serialised.
    pub fn add_as_declared(&mut self, object: &impl Serialize) -> Result<()> {
        self.0.push_str(&output::json(object)?);
        self.0.push('\n');
        Ok(())
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Runs a command and returns how it ended. Output that nobody reads does not change that.
pub fn run<C: Command>(command: &C) -> Outcome {
    let answer = match command.compute() {
        Ok(answer) => answer,
        Err(error) => return fail(command, error),
    };
    let printed = print(command, &answer);
    for remark in command.remarks(&answer) {
        output::complain(&remark);
    }
    match printed {
        Err(error) => {
            output::complain(&format!("{error:#}"));
            Outcome::CouldNotRun
        }
        Ok(()) => command.outcome(&answer),
    }
}

fn print<C: Command>(command: &C, answer: &C::Answer) -> Result<()> {
    on_stdout(command.form(), |out| write_answer(command, answer, out))
}

/// The answer as it is to be printed by [`print_bytes`].
///
/// # Errors
/// It cannot be serialised.
pub fn render<C: Command>(command: &C, answer: &C::Answer) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    write_answer(command, answer, &mut text)?;
    Ok(text)
}

/// Prints what was rendered in this form.
///
/// # Errors
/// Standard output is full.
pub fn print_bytes(form: Form, bytes: &[u8]) -> Result<()> {
    on_stdout(form, |out| Ok(out.write_all(bytes)?))
}

fn write_answer<C: Command>(command: &C, answer: &C::Answer, out: &mut dyn Write) -> Result<()> {
    if command.form() != Form::Json {
        return command.text(answer, out);
    }
    let mut lines = Lines::default();
    command.json(answer, &mut lines)?;
    Ok(out.write_all(lines.text().as_bytes())?)
}

fn on_stdout(form: Form, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut out: Box<dyn Write> = if form == Form::Text { Box::new(output::text()) } else { Box::new(output::stdout()) };
    write(&mut out)?;
    Ok(out.flush()?)
}

/// Reports why a command, or its part about one file, could not be run.
pub fn fail<C: Command>(command: &C, error: anyhow::Error) -> Outcome {
    let subject = command.subject();
    if command.form() == Form::Json && !matches!(subject, Subject::Command) {
        // Standard output may be full, and standard error has the message too.
        let mut lines = Lines::default();
        let _ =
            lines.add(&failure(subject, &format!("{error:#}"))).and_then(|()| print_bytes(Form::Json, lines.text().as_bytes()));
    }
    output::complain(&message(command, &error));
    Outcome::CouldNotRun
}

/// Why a command could not be run, in a line that names its file.
pub fn message<C: Command>(command: &C, error: &anyhow::Error) -> String {
    match command.subject() {
        Subject::File(file) => format!("{}: {error:#}", file.display()),
        _ => format!("{error:#}"),
    }
}

/// The JSON object of a failure.
pub fn failure(subject: Subject<'_>, message: &str) -> Value {
    #[derive(Serialize)]
    struct Failure<'a> {
        error: &'a str,
    }
    #[derive(Serialize)]
    struct FileFailure<'a> {
        error: &'a str,
        file: Option<String>,
    }
    let name = |file: Option<&Path>| file.map(|file| file.display().to_string());
    let object = match subject {
        Subject::None | Subject::Command => serde_json::to_value(Failure { error: message }),
        Subject::File(file) => serde_json::to_value(FileFailure { error: message, file: name(Some(file)) }),
        Subject::Named(file) => serde_json::to_value(FileFailure { error: message, file: name(file) }),
    };
    object.unwrap_or_default()
}
