//! `parkade diff` compares two recordings of a program, or checks one against a bound; or does so with folders of ranks.
//!
//! A file in one folder is compared with the file of the same rank in the other, the worst first. Pairs are compared one after the other, so
//! that only one pair is in memory at a time. All are shown in a table after the full comparison of the worst, or as one JSON
//! object.

mod compared;
mod json;
mod text;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use parkade_analysis::diff::{Relation, Run};

use self::compared::{Compared, Shown, compare};
use self::text::{change, percent};
use crate::recordings::{Inputs, RankNumbers, RanksFrom};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::{Word, all, sections, view};
use crate::terminal::output::{self, Tone, count, list};
use crate::terminal::recording::{self, short_name};
use crate::terminal::runner::{Command, Form, Lines, Outcome, fail, print_bytes, render, run, written};
use crate::terminal::size::show_bytes;
use crate::terminal::table::{Mark, Table};

pub(crate) use self::compared::Args;

sections! {
    "diff": json::Object<'_>;
    "diff of folders": Object<'_>;
}

impl Command for Args {
    type Found = Compared;

    fn compute(&self) -> Result<Compared> {
        compare(self)
    }

    fn outcome(&self, compared: &Compared) -> Outcome {
        compared.checks.iter().fold(Outcome::Good, |worst, checked| worst.worse(compared.verdict(checked).outcome()))
    }

    fn form(&self) -> Form {
        self.print.form()
    }

    fn answer(&self, compared: &Compared) -> Answer {
        text::answer(compared, self.all)
    }

    fn json(&self, compared: &Compared, lines: &mut Lines) -> Result<()> {
        lines.add(&json::Object::of(compared))
    }
}

/// Runs the command on files or folders.
pub(crate) fn run_diff(args: &Args) -> Outcome {
    run_folders(args).unwrap_or_else(|| run(args))
}

/// The part of one rank's comparison that is kept.
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
    is_unlike: bool,
    /// Whether the checked run died.
    pub(super) died: bool,
    /// The full answer.
    pub(super) answer: Answer,
    /// The same as JSON, if that is printed.
    pub(super) json: Vec<u8>,
}

/// The peaks of the first side, if there are two, and of the last.
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

/// The result for all ranks.
pub(super) struct Job {
    /// The ranks, worst first.
    pub(super) ranks: Vec<Rank>,
    matched: Matched,
    has_bounds: bool,
    pub(super) outcome: Outcome,
}

/// The folders' files, if a folder is given. A folder with one recording counts as that file.
fn run_folders(args: &Args) -> Option<Outcome> {
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
        bail!(
            "{} is a file and cannot be compared with a folder of several files: give two files or two folders",
            file.display()
        );
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
    // A file without a counterpart may not be a recording at all.
    for (number, file) in &matched.alone {
        if let Err(error) = recording::read(file) {
            let error = error.context(format!("rank {number}, found in only one folder: {}", file.display()));
            outcome = outcome.worse(fail(args, error));
        }
    }
    matched.notes.extend(unlike(&ranks));
    ranks.sort_by_key(Rank::weight);
    let has_bounds = !args.fail_above.is_empty();
    outcome = ranks.iter().fold(outcome, |worst, rank| worst.worse(rank.outcome));
    // A rank without a counterpart passes no check.
    if has_bounds && matched.are_alone() {
        outcome = outcome.worse(Outcome::NotKnown);
    }
    let job = Job { ranks, matched, has_bounds, outcome };
    print(args, job)?;
    Ok(outcome)
}

/// The ranks whose recordings are not of one program, so that their change is not growth.
fn unlike(ranks: &[Rank]) -> Option<String> {
    let unlike: Vec<u64> = ranks.iter().filter(|rank| rank.is_unlike).map(|rank| rank.number).collect();
    let of = if unlike.len() == 1 { "rank" } else { "ranks" };
    (!unlike.is_empty()).then(|| {
        format!(
            "The recordings of {of} {} have little in common: they are from different programs, or from one program with \
             different shapes, so the changes there do not show how one program grew.",
            list(&unlike)
        )
    })
}

/// The recordings under a path.
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
        json: if args.form() == Form::Json { render(&of_rank, &compared)? } else { Vec::new() },
        answer: of_rank.answer(&compared),
    })
}

/// Whether the recordings of a device are from different programs, or from one with different shapes.
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
    // The first among equals.
    all.rev().max_by_key(Levels::growth_bytes).unwrap_or(Levels { before: None, last: none })
}

impl Levels {
    /// By how much reserved memory grew; without a first side, its full amount.
    fn growth_bytes(&self) -> i128 {
        i128::from(self.last.reserved_bytes) - self.before.map_or(0, |before| i128::from(before.reserved_bytes))
    }
}

impl Rank {
    /// Sorts the worst first: above a bound, unknown, grown most.
    fn weight(&self) -> (bool, bool, i128, u64) {
        let is = |outcome| self.outcome == outcome;
        (!is(Outcome::CheckFailed), !is(Outcome::NotKnown), -self.levels.growth_bytes(), self.number)
    }
}

fn print(args: &Args, job: Job) -> Result<()> {
    let form = args.form();
    if form == Form::Json {
        job.ranks.iter().try_for_each(|rank| print_bytes(form, &rank.json))?;
        let mut lines = Lines::default();
        lines.add(&Object::of(&job))?;
        return print_bytes(form, lines.text().as_bytes());
    }
    print_bytes(form, &written(form, &answer(job, args.all)))
}

/// A rank's files.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Pair {
    number: u64,
    a: PathBuf,
    /// `None` if only one folder is given.
    b: Option<PathBuf>,
}

/// The ranks that are compared, and those without a counterpart.
#[derive(Debug, Default)]
struct Matched {
    pairs: Vec<Pair>,
    only_a: Vec<u64>,
    only_b: Vec<u64>,
    /// The source of the numbers.
    from: RanksFrom,
    /// The files of ranks that are in only one folder.
    alone: Vec<(u64, PathBuf)>,
    /// Notes on the matching.
    notes: Vec<String>,
}

impl Matched {
    /// Whether some rank is in only one folder.
    fn are_alone(&self) -> bool {
        !(self.only_a.is_empty() && self.only_b.is_empty())
    }
}

/// Pairs files of the same rank. If the names in a folder contain no numbers, the files are paired in order.
fn matched(a: &[PathBuf], b: Option<&[PathBuf]>) -> Matched {
    let mut notes = Vec::new();
    let mut numbers = [a, b.unwrap_or(&[])].map(|files| {
        let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        RankNumbers::of(&paths)
    });
    let are_names = numbers.iter().all(|numbers| numbers.from == RanksFrom::Names || numbers.of_files.is_empty());
    if !are_names {
        numbers = [a.len(), b.map_or(0, <[_]>::len)].map(RankNumbers::positions);
        notes.push("The file names do not contain rank numbers, so the files are paired in order.".to_owned());
    }
    let [numbers_a, numbers_b] = numbers;
    let file_b = |number: u64| {
        let place = numbers_b.of_files.iter().position(|&other| other == number)?;
        b?.get(place).cloned()
    };
    let mut found = Matched { from: if are_names { RanksFrom::Names } else { RanksFrom::Positions }, ..Matched::default() };
    for (&number, file) in numbers_a.of_files.iter().zip(a) {
        match file_b(number) {
            None if b.is_some() => {
                found.only_a.push(number);
                found.alone.push((number, file.clone()));
            }
            other => found.pairs.push(Pair { number, a: file.clone(), b: other }),
        }
    }
    for (&number, file) in numbers_b.of_files.iter().zip(b.unwrap_or_default()) {
        if !numbers_a.of_files.contains(&number) {
            found.only_b.push(number);
            found.alone.push((number, file.clone()));
        }
    }
    let alone = |name: &str, alone: &[u64]| {
        let ranks = if alone.len() == 1 { "rank" } else { "ranks" };
        (!alone.is_empty()).then(|| format!("Only {name} has {ranks} {}, so nothing is compared there.", list(alone)))
    };
    notes.extend([alone("A", &found.only_a), alone("B", &found.only_b)].into_iter().flatten());
    found.pairs.sort_by_key(|pair| pair.number);
    Matched { notes, ..found }
}

/// What grew most, the table of ranks, and the comparison of the worst, or of all.
fn answer(job: Job, all: bool) -> Answer {
    let mut answer = Answer::new();
    let tone = if job.outcome == Outcome::CheckFailed { Tone::Bad } else { Tone::Plain };
    sentence(&job).into_iter().for_each(|said| answer.headline(tone, said));
    answer.paragraphs(&job.matched.notes);
    answer.gap();
    answer.table(table(&job));
    let in_full = if all { job.ranks.len() } else { 1 };
    for rank in job.ranks.into_iter().take(in_full) {
        answer.gap();
        answer.title(format!("rank {}", rank.number));
        answer.append(rank.answer);
    }
    answer
}

fn table(job: &Job) -> Table {
    let are_pairs = job.ranks.iter().any(|rank| rank.levels.before.is_some());
    let mut heads = vec!["rank", "recording"];
    heads.extend(if are_pairs {
        &["peak reserved A", "B", "change", "", "change of allocated"][..]
    } else {
        &["peak reserved", "peak allocated"]
    });
    heads.push(if job.has_bounds { "check" } else { "ended" });
    let marked = heads.len() - 1;
    let mut table = Table::new(heads).with_left([0, 1]);
    for rank in &job.ranks {
        let mark = match rank.outcome {
            Outcome::CheckFailed | Outcome::CouldNotRun => Mark::Bad,
            Outcome::NotKnown => Mark::Plain,
            Outcome::Good => {
                if job.has_bounds {
                    Mark::Good
                } else {
                    Mark::Plain
                }
            }
        };
        table.marked(cells(rank, job.has_bounds), marked, mark);
    }
    table
}

fn cells(rank: &Rank, has_bounds: bool) -> Vec<String> {
    let last = rank.levels.last;
    let mut cells = vec![rank.number.to_string(), short_name(rank.b.as_deref().unwrap_or(&rank.a))];
    match rank.levels.before {
        None => cells.extend([show_bytes(last.reserved_bytes), show_bytes(last.allocated_bytes)]),
        Some(before) => cells.extend([
            show_bytes(before.reserved_bytes),
            show_bytes(last.reserved_bytes),
            change(before.reserved_bytes, last.reserved_bytes),
            percent(before.reserved_bytes, last.reserved_bytes),
            change(before.allocated_bytes, last.allocated_bytes),
        ]),
    }
    let ended = if rank.died { "died" } else { "-" };
    cells.push(match rank.outcome {
        _ if !has_bounds => ended.to_owned(),
        Outcome::Good => "holds".to_owned(),
        Outcome::CheckFailed | Outcome::CouldNotRun => "too much".to_owned(),
        Outcome::NotKnown => "not known".to_owned(),
    });
    cells
}

/// How many ranks are above a bound, or which one grew most.
fn sentence(job: &Job) -> Option<String> {
    let worst = job.ranks.first()?;
    let all = count(job.ranks.len() as u64, "rank");
    let failed = job.ranks.iter().filter(|rank| rank.outcome == Outcome::CheckFailed).count();
    let unknown = job.ranks.iter().filter(|rank| rank.outcome == Outcome::NotKnown).count();
    if failed > 0 {
        return Some(format!("{failed} of {all} are above a bound; rank {} is the worst.", worst.number));
    }
    if unknown > 0 {
        let peak = "its peak covers only the time before it died, or is compared with a peak that does";
        return Some(format!("{unknown} of {all} not known to be within the bounds, first rank {}: {peak}.", worst.number));
    }
    let growth = worst.levels.growth_bytes();
    Some(match worst.levels.before {
        None => reserves_most(job, worst),
        Some(_) if growth > 0 => format!("Of {all}, reserved memory grew most on rank {}.", worst.number),
        Some(_) => format!("Reserved memory grew on none of {all}."),
    })
}

/// How the rank that reserves the most differs from the others.
fn reserves_most(job: &Job, most: &Rank) -> String {
    let reserved = |rank: &Rank| rank.levels.last.reserved_bytes;
    let others: Vec<u64> = job.ranks.iter().filter(|rank| rank.number != most.number).map(reserved).collect();
    let (all, peak) = (count(job.ranks.len() as u64, "rank"), show_bytes(reserved(most)));
    match others.first() {
        None => format!("Rank {} reserves {peak}.", most.number),
        Some(other) if others.iter().any(|one| one != other) => {
            let least = others.iter().copied().min().unwrap_or(0);
            format!("Of {all}, rank {} reserves the most: {peak}; the least is {}.", most.number, show_bytes(least))
        }
        Some(other) if *other == reserved(most) => format!("All {all} reserve the same: {peak}."),
        Some(other) => {
            let others = if others.len() == 1 { "the other".to_owned() } else { format!("each of the other {}", others.len()) };
            format!("Rank {} reserves {peak}, {others} {}.", most.number, show_bytes(*other))
        }
    }
}

view! {
    pub(super) struct Object<'a>(job: &'a Job) {
        /// The ranks that were compared; of a rank with several devices, the device on which reserved memory grew most.
        pairs: Vec<ComparedRank> = all(&job.ranks, ComparedRank::of),
        /// `names` if the file names contain the numbers of the ranks, else `positions`: the order of the files.
        ranks_from: Word<RanksFrom> = Word::of(&job.matched.from),
        /// The ranks of the first folder only.
        only_a: &'a [u64] = &job.matched.only_a,
        /// The ranks of the second folder only.
        only_b: &'a [u64] = &job.matched.only_b,
        /// Whether a peak of some rank is above a bound.
        exceeded: bool = job.ranks.iter().any(|rank| rank.is_exceeded),
        /// The result of checking the bounds over all ranks, including those in only one folder; null without bounds.
        check: Option<Word<Outcome>> = job.has_bounds.then(|| Word::of(&job.outcome)),
        /// How the ranks were paired, and which have no counterpart.
        notes: &'a [String] = &job.matched.notes,
    }
}

view! {
    struct ComparedRank(rank: &Rank) {
        /// The rank.
        rank: u64 = rank.number,
        /// The rank's file in the first folder.
        a: String = rank.a.display().to_string(),
        /// The rank's file in the second folder; null if one folder is given.
        b: Option<String> = rank.b.as_ref().map(|file| file.display().to_string()),
        /// The peak of reserved memory of the first side, if there are two.
        peak_reserved_bytes_a: Option<u64> = rank.levels.before.map(|peaks| peaks.reserved_bytes),
        /// The peak of reserved memory of the second side, or of the only one.
        peak_reserved_bytes: u64 = rank.levels.last.reserved_bytes,
        /// The peak of allocated memory of the first side, if there are two.
        peak_allocated_bytes_a: Option<u64> = rank.levels.before.map(|peaks: Peaks| peaks.allocated_bytes),
        /// The peak of allocated memory of the second side, or of the only one.
        peak_allocated_bytes: u64 = rank.levels.last.allocated_bytes,
        /// Whether the run that is checked died.
        died: bool = rank.died,
        /// Whether a peak is above a bound.
        exceeded: bool = rank.is_exceeded,
        /// The result of checking the bounds.
        check: Word<Outcome> = Word::of(&rank.outcome),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    fn pairs(matched: &Matched) -> Vec<(u64, &str, &str)> {
        let name = |path: &Path| path.to_str().map(str::to_owned).unwrap_or_default();
        let of = |pair: &Pair| (pair.number, name(&pair.a).leak() as &str, pair.b.as_deref().map_or("", |b| name(b).leak()));
        matched.pairs.iter().map(of).collect()
    }

    #[test]
    fn ranks_are_matched_by_their_numbers_whatever_else_the_names_say() {
        let (a, b) =
            (files(&["rank0.pickle", "rank10.pickle", "rank2.pickle"]), files(&["new_rank2_s5.pkl", "new_rank0_s9.pkl"]));
        let found = matched(&a, Some(&b));
        let expected = [(0, "rank0.pickle", "new_rank0_s9.pkl"), (2, "rank2.pickle", "new_rank2_s5.pkl")];
        assert_eq!((pairs(&found), &found.only_a, found.from), (expected.to_vec(), &vec![10], RanksFrom::Names));
        assert_eq!(found.notes, ["Only A has rank 10, so nothing is compared there."]);
    }

    #[test]
    fn without_numbers_the_order_pairs_them() {
        let (a, b) = (files(&["left.pickle", "right.pickle"]), files(&["rank4.pickle", "rank5.pickle", "rank6.pickle"]));
        let found = matched(&a, Some(&b));
        assert_eq!(pairs(&found), [(0, "left.pickle", "rank4.pickle"), (1, "right.pickle", "rank5.pickle")]);
        assert!(found.only_b == [2] && found.notes.len() == 2 && found.from == RanksFrom::Positions, "{:?}", found.notes);
        let one = matched(&files(&["rank3.pickle", "rank1.pickle"]), None);
        assert_eq!((pairs(&one), one.are_alone()), (vec![(1, "rank1.pickle", ""), (3, "rank3.pickle", "")], false));
    }
}
