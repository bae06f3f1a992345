//! Runs a command on one or several recordings, and compares the ranks at the end.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use parkade_analysis::ranks::RankRun;
use serde_json::Value;

use crate::ranks::Ranks;
use crate::recordings::{Inputs, RankNumbers, each};
use crate::terminal::answer::Answer;
use crate::terminal::output;
use crate::terminal::recording::short_name;
use crate::terminal::runner::{Command, Form, Lines, Outcome, Subject, fail, print_bytes, render, run, written};

/// A command about recordings that answers about each one separately.
pub trait OnEach: Command + Sync + Sized {
    /// The part of each answer that [`OnEach::finish`] needs.
    type Kept: Send;

    /// Returns the given files and folders; none if the command is about something else.
    fn inputs(&self) -> &[PathBuf];

    /// Returns the same command for only this file, which may be one of several.
    fn on(&self, file: &Path, is_one_of_several: bool) -> Self;

    /// Returns the runs to compare between ranks.
    fn rank_runs(&self, found: &Self::Found) -> Result<Vec<RankRun>>;

    /// Returns the part of an answer that [`OnEach::finish`] needs.
    fn keep(&self, found: &Self::Found) -> Self::Kept;

    /// Refuses arguments that several recordings cannot have, before any is read.
    fn check_several(&self, _: &Inputs) -> Result<()> {
        Ok(())
    }

    /// Returns whether [`OnEach::finish`] combines all recordings, and so needs the runs of files that are not ranks too.
    fn makes_one_of_all(&self) -> bool {
        false
    }

    /// Returns whether the text also contains the answer about each rank, and the comparison of ranks if
    /// [`OnEach::finish`] answers for all.
    fn shows_each_rank(&self) -> bool {
        true
    }

    /// Makes the answer about all recordings.
    fn finish(&self, _: Together<'_, Self::Kept>) -> Result<Finished> {
        Ok(Finished::default())
    }
}

/// The result for all recordings together.
pub struct Finished {
    /// The outcome.
    pub outcome: Outcome,
    /// The human-readable answer.
    pub answer: Answer,
    /// A key and its value, added to the JSON object of the ranks.
    pub addition: Option<Value>,
}

impl Default for Finished {
    fn default() -> Finished {
        Outcome::Good.into()
    }
}

impl From<Outcome> for Finished {
    fn from(outcome: Outcome) -> Finished {
        Finished { outcome, answer: Answer::new(), addition: None }
    }
}

/// Several recordings, after each has its answer.
pub struct Together<'a, K> {
    /// The kept parts of the answers, each with the index of its file.
    pub kept: Vec<(usize, K)>,
    /// The files.
    pub files: Vec<&'a Path>,
    /// The rank of each file.
    pub numbers: &'a RankNumbers,
    /// Their runs.
    pub ranks: &'a Ranks,
    /// Whether they are ranks of one job, judging by their names.
    pub are_ranks: bool,
    /// The files that could not be read or replayed, with the reasons.
    pub failures: &'a [(&'a Path, String)],
}

/// An answer that has been turned into text.
struct Answered<K> {
    kept: K,
    text: Vec<u8>,
    remarks: Vec<String>,
    outcome: Outcome,
    runs: Result<Vec<RankRun>>,
}

/// Runs a command on all given files and returns the worst outcome.
pub fn run_each<C: OnEach>(command: &C) -> Outcome {
    let inputs = Inputs::of(command.inputs());
    for remark in &inputs.remarks {
        output::complain(remark);
    }
    match inputs.all.as_slice() {
        [] => run(command),
        [only] => match &only.refusal {
            None => run(&command.on(&only.path, false)),
            Some(refusal) => refuse(&command.on(&only.path, false), &only.path, anyhow!("{refusal}")),
        },
        _ => match run_all(command, &inputs) {
            Ok(outcome) => outcome,
            Err(error) => {
                output::complain(&format!("{error:#}"));
                Outcome::CouldNotRun
            }
        },
    }
}

fn run_all<C: OnEach>(command: &C, inputs: &Inputs) -> Result<Outcome> {
    command.check_several(inputs)?;
    let form = command.form();
    let numbers = inputs.ranks();
    let are_compared = numbers.is_some() || command.makes_one_of_all();
    let (mut worst, mut runs, mut printed, mut failures) = (Outcome::Good, Vec::new(), 0, Vec::new());
    let (mut kept, mut of_ranks) = (Vec::new(), Vec::new());
    let is_for_people = matches!(form, Form::Text | Form::Markdown);
    let is_rank_shown = !is_for_people || numbers.is_none() || command.shows_each_rank();
    let answer = |file: &Path| answer(&command.on(file, true), are_compared, is_rank_shown);
    each(inputs, form == Form::Json, answer, |place, answered| {
        let file = &inputs.all[place].path;
        let answered = match answered {
            Ok(answered) => answered,
            Err(error) => {
                failures.push((file.as_path(), format!("{error:#}")));
                worst = worst.worse(refuse(&command.on(file, true), file, error));
                return Ok(());
            }
        };
        if !answered.text.is_empty() {
            let heading = heading(form, numbers.as_ref(), place, file);
            let text = data_of(form, &answered.text, printed == 0);
            if is_for_people && numbers.is_some() {
                // The answer about all of them is printed first.
                of_ranks.push([&heading[..], text].concat());
            } else {
                print_bytes(form, &b"\n"[..usize::from(is_for_people && printed > 0)])?;
                print_bytes(form, &heading)?;
                print_bytes(form, text)?;
                printed += 1;
            }
        }
        answered.remarks.iter().for_each(|remark| output::complain(remark));
        worst = worst.worse(answered.outcome);
        kept.push((place, answered.kept));
        match answered.runs {
            Ok(found) => runs.extend(found.into_iter().map(|run| (place, run))),
            Err(error) => output::complain(&format!("{}: left out of the comparison of ranks: {error:#}", file.display())),
        }
        Ok(())
    })?;
    let are_ranks = numbers.is_some();
    let numbers = numbers.unwrap_or_else(|| RankNumbers::positions(inputs.all.len()));
    let ranks = Ranks::of_any(&numbers, &inputs.paths(), runs);
    let together = Together { kept, files: inputs.paths(), numbers: &numbers, ranks: &ranks, are_ranks, failures: &failures };
    let finished = command.finish(together);
    let addition = finished.as_ref().ok().and_then(|finished| finished.addition.clone());
    // The command's own answer about all ranks is more detailed than the comparison.
    let said =
        finished.as_ref().ok().filter(|_| is_for_people).map(|finished| written(form, &finished.answer)).unwrap_or_default();
    let is_answered = !is_rank_shown && !said.is_empty();
    let mut parts = Vec::new();
    if are_ranks && !is_answered && ranks.are_of_several_files() {
        match form {
            Form::Text | Form::Markdown => parts.push(written(form, &ranks.answer())),
            Form::Json => print_ranks(&ranks, addition)?,
            // It has rows of one kind only.
            Form::Data => {}
        }
    }
    // The list of written files comes after the comparison.
    parts.insert(if command.makes_one_of_all() { parts.len() } else { 0 }, said);
    parts.extend(of_ranks);
    for part in parts.iter().filter(|part| !part.is_empty()) {
        print_bytes(form, &b"\n"[..usize::from(printed > 0)])?;
        print_bytes(form, part)?;
        printed += 1;
    }
    let finished = finished?;
    if are_ranks && is_for_people && !failures.is_empty() {
        // Repeated at the end, because the first message has scrolled away.
        let all = inputs.all.len();
        let names: Vec<String> = failures.iter().map(|(file, _)| file.display().to_string()).collect();
        let read = all - failures.len();
        output::complain(&format!(
            "only {read} of {all} ranks could be read, so only these are compared; not read: {}",
            output::list(&names)
        ));
    }
    Ok(worst.worse(finished.outcome))
}

/// Computes the answer and turns it into text, so that the recording can be dropped.
fn answer<C: OnEach>(command: &C, is_ranked: bool, is_shown: bool) -> Result<Answered<C::Kept>> {
    let found = command.compute()?;
    let text = if is_shown { render(command, &found)? } else { Vec::new() };
    let runs = if is_ranked { command.rank_runs(&found) } else { Ok(Vec::new()) };
    let (kept, remarks, outcome) = (command.keep(&found), command.remarks(&found), command.outcome(&found));
    Ok(Answered { kept, text, remarks, outcome, runs })
}

/// Reports a file that could not be read or replayed. The errors of some commands name the file; that of a folder does not.
fn refuse<C: OnEach>(command: &C, file: &Path, error: anyhow::Error) -> Outcome {
    let name = file.display().to_string();
    let is_named = format!("{error:#}").starts_with(&name);
    match command.subject() {
        Subject::Named(_) if !is_named => fail(command, error.context(name)),
        _ => fail(command, error),
    }
}

/// Returns a title with the name of a file, for the text about it.
fn heading(form: Form, numbers: Option<&RankNumbers>, place: usize, file: &Path) -> Vec<u8> {
    if !matches!(form, Form::Text | Form::Markdown) {
        return Vec::new();
    }
    let rank = numbers.and_then(|numbers| numbers.of_files.get(place)).map_or_else(String::new, |rank| format!("rank {rank}: "));
    let mut answer = Answer::new();
    answer.title(format!("{rank}{}", short_name(file)));
    let mut heading = written(form, &answer);
    heading.push(b'\n');
    heading
}

/// Drops the heading of rows for programs, except the first.
fn data_of(form: Form, text: &[u8], is_first: bool) -> &[u8] {
    let after_heading = || text.iter().position(|&byte| byte == b'\n').map_or(&[][..], |end| &text[end + 1..]);
    if form == Form::Data && !is_first { after_heading() } else { text }
}

fn print_ranks(ranks: &Ranks, addition: Option<Value>) -> Result<()> {
    let mut lines = Lines::default();
    ranks.add_to(&mut lines, addition)?;
    print_bytes(Form::Json, lines.text().as_bytes())
}
