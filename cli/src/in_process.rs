//! Runs commands inside another program: the answer is returned instead of printed.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use clap::Parser;

use crate::each::OnEach;
use crate::terminal::output::Width;
use crate::terminal::progress::{Failure, Watch, on_threads};
use crate::terminal::runner::{self, Outcome, Subject};
use crate::terminal::surroundings;
use crate::{Cli, Command, parse};

/// The output of a command.
pub struct Answered {
    /// Its standard output.
    pub printed: Vec<u8>,
    /// The human-readable answer, if requested.
    pub text: String,
    /// The same as an HTML fragment.
    pub html: String,
    /// The lines of its standard error.
    pub remarks: Vec<String>,
    /// How it ended.
    pub outcome: Outcome,
}

/// Does a command's work on at most this many threads, all of which have ended when it returns. Without a number, it uses as many as the
/// command `parkade`.
///
/// `with_text` adds the answer as text without hints on other options, whatever form the arguments request.
///
/// The command is about one recording (advise, diagnose, report, stats, replay, export, pack), about recordings (verify, diff), or about
/// a study (sweep, merge).
///
/// # Errors
/// See [`Failure`].
pub fn answer(arguments: &[OsString], threads: Option<usize>, watch: &Arc<Watch>, with_text: bool) -> Result<Answered, Failure> {
    let cli = parse(arguments).map_err(|error| Failure::Usage(runner::argument_error(&error)))?;
    on_threads(threads, watch, || answer_of(&cli.command, with_text))
}

/// Returns the standard output and standard error of a command about recordings. Files are written as the arguments say. Tests use this to
/// run many commands in one process.
///
/// # Errors
/// The arguments are wrong, the command is not about recordings, or it could not be run.
pub fn all_printed(arguments: impl IntoIterator<Item = OsString>) -> Result<Vec<u8>> {
    let answered = answer_of(&Cli::try_parse_from(arguments)?.command, false)?;
    let mut printed = answered.printed;
    for remark in answered.remarks {
        printed.extend(remark.into_bytes());
        printed.push(b'\n');
    }
    Ok(printed)
}

fn answer_of(command: &Command, with_text: bool) -> Result<Answered> {
    match command {
        Command::Replay(args) => about_one(args, with_text),
        Command::Advise(args) => about_one(args, with_text),
        Command::Diagnose(args) => about_one(args, with_text),
        Command::Report(args) => about_one(args, with_text),
        Command::Stats(args) => about_one(args, with_text),
        Command::Verify(args) => about(args, with_text),
        Command::Diff(args) => about(args, with_text),
        Command::Export(args) => about(args, with_text),
        Command::Pack(args) => about(args, with_text),
        Command::Sweep(args) => about(args, with_text),
        Command::Merge(args) => about(args, with_text),
        _ => bail!("this command works only on a terminal"),
    }
}

fn about_one<C: OnEach>(command: &C, with_text: bool) -> Result<Answered> {
    match command.inputs() {
        [] => about(command, with_text),
        [file] if surroundings::is_folder(file) => Err(is_folder(file)),
        [file] => about(&command.on(file, false), with_text),
        files => bail!("expected one file, got {}", files.len()),
    }
}

fn is_folder(path: &Path) -> anyhow::Error {
    anyhow!("{} is a folder: expected one file", path.display())
}

fn about<C: runner::Command>(command: &C, with_text: bool) -> Result<Answered> {
    let found = command.compute().map_err(|error| match command.subject() {
        // Worded as by `runner::message`; the kind of error is kept.
        Subject::File(file) => error.context(file.display().to_string()),
        _ => error,
    })?;
    let printed = runner::render(command, &found)?;
    let (mut text, mut html) = (String::new(), String::new());
    if with_text {
        let answer = command.answer(&found).without_hints();
        text = anstream::adapter::strip_str(&answer.text(Width::of_output())).to_string();
        html = answer.html(command.everything(&found).as_ref());
    }
    Ok(Answered { printed, text, html, remarks: command.remarks(&found), outcome: command.outcome(&found) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/resnet50_sweep.limit5_oom.pickle.xz");

    fn asked(arguments: &[&str], watch: &Arc<Watch>) -> Result<Answered, Failure> {
        let arguments: Vec<OsString> = ["parkade"].iter().chain(arguments).map(OsString::from).collect();
        answer(&arguments, Some(2), watch, true)
    }

    #[test]
    fn answers_are_returned_and_their_work_is_seen() {
        let watch = Arc::default();
        let answered = asked(&["verify", "--json", RECORDING], &watch).expect("an answer");
        assert!(answered.printed.starts_with(b"{") && answered.outcome == Outcome::Good && answered.remarks.is_empty());
        assert!(watch.progress().1 > 0, "{:?}", watch.progress());
    }

    #[test]
    fn the_text_has_no_hints() {
        let text = asked(&["advise", "--json", RECORDING], &Arc::default()).expect("an answer").text;
        assert!(text.contains("why    fragmentation") && !text.contains("--all"), "{text}");
    }

    #[test]
    fn failures_are_told_apart() {
        let failure = |arguments: &[&str]| asked(arguments, &Arc::default()).err().expect("no answer");
        assert!(matches!(failure(&["advise", RECORDING, "--limit", "12 apples"]), Failure::Usage(why) if why.contains("apples")));
        let missing = failure(&["diagnose", "nowhere.pickle"]);
        assert!(matches!(missing, Failure::CouldNotRun(why) if why.starts_with("nowhere.pickle: cannot be read")));
        assert!(matches!(failure(&["info"]), Failure::CouldNotRun(_)));
        assert!(
            matches!(failure(&["diagnose", env!("CARGO_MANIFEST_DIR")]), Failure::CouldNotRun(why) if why.contains("folder"))
        );
    }

    #[test]
    fn cancelled_work_ends() {
        for command in ["verify", "advise", "diagnose", "replay"] {
            let watch = Arc::new(Watch::default());
            watch.cancel();
            assert!(matches!(asked(&[command, "--json", RECORDING], &watch), Err(Failure::Cancelled)), "{command}");
        }
    }
}
