//! Two folders of ranks compared, rank by rank, the worst first; or the ranks of one folder, each shown alone and checked.
//!
//! Pairs are compared one after the other, so that no more than one is ever in memory.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use parkade_analysis::diff::{Relation, Run};

use super::matching::{Matched, Pair, matched};
use super::{Args, Compared, Shown, compare, folders_json, folders_table};
use crate::recordings::Inputs;
use crate::terminal::runner::{Command, Form, Lines, Outcome, fail, print_bytes, render};
use crate::terminal::{output, recording};

/// What is kept of one rank's comparison.
pub(super) struct Rank {
    pub(super) number: u64,
    pub(super) a: PathBuf,
    pub(super) b: Option<PathBuf>,
    pub(super) outcome: Outcome,
    /// Whether a peak is above a bound.
    pub(super) is_exceeded: bool,
    /// The device on which reserved memory grew most.
    pub(super) levels: Levels,
    /// Whether the two recordings have little in common.
    pub(super) is_unlike: bool,
    /// Whether the run that is checked died.
    pub(super) died: bool,
    /// The answer in full.
    pub(super) answer: Vec<u8>,
}

/// Peaks, of the first side if there are two, and of the last.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Levels {
    pub(super) before: Option<Peaks>,
    pub(super) last: Peaks,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Peaks {
    pub(super) reserved_bytes: u64,
    pub(super) allocated_bytes: u64,
}

/// What came of all ranks.
pub(super) struct Job {
    /// The worst first.
    pub(super) ranks: Vec<Rank>,
    pub(super) matched: Matched,
    pub(super) has_bounds: bool,
    pub(super) outcome: Outcome,
}

/// The folders' files, if a folder is given. A folder with one recording is as that file.
pub(super) fn run(args: &Args) -> Option<Outcome> {
    let is_folder = |path: &Path| path.is_dir();
    if !is_folder(&args.a) && !args.b.as_deref().is_some_and(is_folder) {
        return None;
    }
    let outcome = match compare_all(args) {
        Ok(outcome) => outcome,
        Err(error) => fail(args, error),
    };
    Some(outcome)
}

fn compare_all(args: &Args) -> Result<Outcome> {
    args.check_bounds()?;
    let (a, b) = (files(&args.a)?, args.b.as_deref().map(files).transpose()?);
    let is_one = |files: &[PathBuf]| files.len() == 1;
    if is_one(&a) && b.as_deref().is_none_or(is_one) {
        let of_files = Args { a: a[0].clone(), b: b.map(|files| files[0].clone()), ..args.clone() };
        let compared = of_files.compute()?;
        print_bytes(args.form(), &render(&of_files, &compared)?)?;
        return Ok(of_files.outcome(&compared));
    }
    if let Some(file) = [Some(&args.a), args.b.as_ref()].into_iter().flatten().find(|path| !path.is_dir()) {
        bail!("{} is a file and is compared with a folder of several: give two files, or two folders", file.display());
    }
    let mut matched = matched(&a, b.as_deref());
    if matched.pairs.is_empty() {
        bail!("no rank is in both folders: {}", matched.notes.join(" "));
    }
    let mut ranks: Vec<Rank> = Vec::new();
    let mut outcome = Outcome::Good;
    for pair in &matched.pairs {
        match rank(args, pair) {
            Ok(rank) => ranks.push(rank),
            Err(error) => outcome = outcome.worse(fail(args, error.context(format!("rank {}", pair.number)))),
        }
    }
    // What is compared with nothing may be no recording at all.
    for (number, file) in &matched.alone {
        if let Err(error) = recording::read(file) {
            let error = error.context(format!("rank {number}, which one folder has: {}", file.display()));
            outcome = outcome.worse(fail(args, error));
        }
    }
    matched.notes.extend(unlike(&ranks));
    ranks.sort_by_key(Rank::weight);
    let has_bounds = !args.fail_above.is_empty();
    outcome = ranks.iter().fold(outcome, |worst, rank| worst.worse(rank.outcome));
    // A rank that nothing is compared with passes no check.
    if has_bounds && matched.are_alone() {
        outcome = outcome.worse(Outcome::NotKnown);
    }
    let job = Job { ranks, matched, has_bounds, outcome };
    print(args, &job)?;
    Ok(outcome)
}

/// Which ranks' recordings are not of one program, so that their change is no growth.
fn unlike(ranks: &[Rank]) -> Option<String> {
    let unlike: Vec<u64> = ranks.iter().filter(|rank| rank.is_unlike).map(|rank| rank.number).collect();
    let of = if unlike.len() == 1 { "rank" } else { "ranks" };
    (!unlike.is_empty()).then(|| {
        format!(
            "The recordings of {of} {} have little in common: they are of different programs, or of one with other shapes, so what changed \
             there is no growth of one program.",
            output::list(&unlike)
        )
    })
}

/// The recordings that a path means.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let inputs = Inputs::of(&[path.to_owned()]);
    if let Some(refusal) = inputs.all.iter().find_map(|input| input.refusal.as_ref()) {
        bail!("{}: {refusal}", path.display());
    }
    inputs.remarks.iter().for_each(|remark| output::complain(remark));
    Ok(inputs.all.into_iter().map(|input| input.path).collect())
}

fn rank(args: &Args, pair: &Pair) -> Result<Rank> {
    let of_rank = Args { a: pair.a.clone(), b: pair.b.clone(), ..args.clone() };
    let compared = compare(&of_rank)?;
    Ok(Rank {
        number: pair.number,
        a: pair.a.clone(),
        b: pair.b.clone(),
        outcome: of_rank.outcome(&compared),
        is_exceeded: compared.is_exceeded(),
        levels: levels(&compared),
        is_unlike: compared.devices.iter().any(is_unlike),
        died: compared.devices.iter().any(|shown| shown.last().ending.death().is_some()),
        answer: render(&of_rank, &compared)?,
    })
}

/// Whether the recordings of a device are of different programs, or of one with other shapes.
fn is_unlike(shown: &Shown) -> bool {
    matches!(shown, Shown::Two(comparison) if comparison.likeness.relation == Relation::LittleInCommon)
}

fn levels(compared: &Compared) -> Levels {
    let peaks = |run: &Run| Peaks { reserved_bytes: run.peak_reserved.bytes, allocated_bytes: run.peak_allocated.bytes };
    let of = |shown: &Shown| Levels {
        before: if let Shown::Two(comparison) = shown { Some(peaks(&comparison.a)) } else { None },
        last: peaks(shown.last()),
    };
    let none = Peaks { reserved_bytes: 0, allocated_bytes: 0 };
    let all = compared.devices.iter().map(of);
    // The first of equals.
    all.rev().max_by_key(Levels::growth_bytes).unwrap_or(Levels { before: None, last: none })
}

impl Levels {
    /// By how much reserved memory grew; without a first side, all of it.
    pub(super) fn growth_bytes(&self) -> i128 {
        i128::from(self.last.reserved_bytes) - self.before.map_or(0, |before| i128::from(before.reserved_bytes))
    }
}

impl Rank {
    /// Sorts the worst first: above a bound, not known, grown most.
    fn weight(&self) -> (bool, bool, i128, u64) {
        let is = |outcome| self.outcome == outcome;
        (!is(Outcome::CheckFailed), !is(Outcome::NotKnown), -self.levels.growth_bytes(), self.number)
    }
}

fn print(args: &Args, job: &Job) -> Result<()> {
    let form = args.form();
    if form == Form::Json {
        job.ranks.iter().try_for_each(|rank| print_bytes(form, &rank.answer))?;
        let mut lines = Lines::default();
        lines.add(&folders_json::Object::of(job))?;
        return print_bytes(form, lines.text().as_bytes());
    }
    let mut text = Vec::new();
    folders_table::print(&mut text, job, args.all)?;
    print_bytes(form, &text)
}
