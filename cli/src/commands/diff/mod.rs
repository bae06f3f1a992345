//! `parkade diff` compares two recordings of a program, or checks one against a bound; or does so with folders of ranks.
//!
//! A file in one folder is compared with the file of the same rank in the other, the worst first. Pairs are compared one after the other, so
//! that only one pair is in memory at a time. All are shown in a table after the full comparison of the worst, or as one JSON
//! object.

mod begins;
mod compared;
mod json;
mod text;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use parkade_analysis::diff::{Relation, Run};

use self::compared::{Compared, Shown, change, compare, percent};
use crate::recordings::{Inputs, RankNumbers, RanksFrom};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::{Word, all, sections, view};
use crate::terminal::output::{self, Tone, count, list};
use crate::terminal::recording::{self, short_name};
use crate::terminal::runner::{Command, Form, Lines, Outcome, fail, print_bytes, render, run, written};
use crate::terminal::size::show_bytes;
use crate::terminal::surroundings::is_folder;
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
        text::answer(compared, self.all, Some(self.outcome(compared)))
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
    /// Where the change begins and what it consists of, on the device on which reserved memory grew most.
    begins: Vec<begins::Row>,
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
    /// The odd one out of a single folder.
    odd: Option<Odd>,
    matched: Matched,
    has_bounds: bool,
    pub(super) outcome: Outcome,
}

/// The folders' files, if a folder is given. A folder with one recording counts as that file.
fn run_folders(args: &Args) -> Option<Outcome> {
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
    if let Some(file) = [Some(&args.a), args.b.as_ref()].into_iter().flatten().find(|path| !is_folder(path)) {
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
    // A rank that is in only one folder cannot pass a check.
    if has_bounds && matched.are_alone() {
        outcome = outcome.worse(Outcome::NotKnown);
    }
    let odd = if args.b.is_none() { odd(args, &ranks) } else { None };
    let job = Job { ranks, odd, matched, has_bounds, outcome };
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
        begins: compared.devices.iter().rev().max_by_key(|shown| levels_of(shown).growth_bytes()).map_or_else(
            Vec::new,
            |shown| {
                if pair.b.is_some() { begins::rows(&compared, shown, ["A", "B"]) } else { Vec::new() }
            },
        ),
        json: if args.form() == Form::Json { render(&of_rank, &compared)? } else { Vec::new() },
        answer: text::answer(&compared, args.all, None),
    })
}

/// The rank whose memory differs most from the others', compared with a typical one of them.
struct Odd {
    rank: u64,
    typical: u64,
    /// What the rank has more or less of.
    why: Vec<begins::Row>,
    /// How the two recordings are related, with the names of the ranks.
    relation: Option<String>,
    /// The command that compares the two.
    command: String,
    /// The full comparison.
    answer: Answer,
}

/// Finds why one rank of a folder differs; `None` if all need the same memory, or if the answer is the same as that of two files.
fn odd(args: &Args, ranks: &[Rank]) -> Option<Odd> {
    let [odd, typical] = odd_and_typical(ranks)?;
    let steps = args.steps.filter(|(a, b)| a == b);
    let of_two = Args { a: typical.a.clone(), b: Some(odd.a.clone()), steps, fail_above: Vec::new(), ..args.clone() };
    // Both files were read before, so an error here says only that they cannot be compared with each other.
    let compared = compare(&of_two).ok()?;
    let shown = compared.devices.iter().max_by_key(|shown| levels_of(shown).growth_bytes().unsigned_abs())?;
    let [name_a, name_b] = [typical, odd].map(|rank| format!("rank {}", rank.number));
    let names = [name_a.as_str(), name_b.as_str()];
    Some(Odd {
        rank: odd.number,
        typical: typical.number,
        why: begins::rows(&compared, shown, names),
        relation: if let Shown::Two(comparison) = shown { text::relation(&compared, comparison, names) } else { None },
        command: format!("parkade diff {} {}", recording::in_shell(&typical.a), recording::in_shell(&odd.a)),
        answer: text::answer(&compared, args.all, None),
    })
}

/// The rank that is farthest from the median of the others, and the other that is nearest to that median: by reserved memory or,
/// if all reserve the same, by allocated memory.
fn odd_and_typical(ranks: &[Rank]) -> Option<[&Rank; 2]> {
    let measures: [fn(&Rank) -> u64; 2] = [|rank| rank.levels.last.reserved_bytes, |rank| rank.levels.last.allocated_bytes];
    let of = measures.into_iter().find(|of| ranks.iter().any(|rank| of(rank) != of(&ranks[0])))?;
    let median_of_others = |rank: &Rank| {
        let mut others: Vec<u64> = ranks.iter().filter(|other| other.number != rank.number).map(of).collect();
        others.sort_unstable();
        let middle = |place: usize| others.get(place).copied().unwrap_or(0);
        u64::midpoint(middle(others.len().saturating_sub(1) / 2), middle(others.len() / 2))
    };
    // The one that needs more among equals.
    let odd = ranks.iter().max_by_key(|rank| (of(rank).abs_diff(median_of_others(rank)), of(rank)))?;
    let median = median_of_others(odd);
    let others = ranks.iter().filter(|other| other.number != odd.number);
    let typical = others.min_by_key(|other| (of(other).abs_diff(median), other.number))?;
    Some([odd, typical])
}

/// Whether the recordings of a device are from different programs, or from one with different shapes.
fn is_unlike(shown: &Shown) -> bool {
    matches!(shown, Shown::Two(comparison) if comparison.likeness.relation == Relation::LittleInCommon)
}

fn levels(compared: &Compared) -> Levels {
    let none = Peaks { reserved_bytes: 0, allocated_bytes: 0 };
    let all = compared.devices.iter().map(levels_of);
    // The first among equals.
    all.rev().max_by_key(Levels::growth_bytes).unwrap_or(Levels { before: None, last: none })
}

fn levels_of(shown: &Shown) -> Levels {
    let peaks = |run: &Run| Peaks { reserved_bytes: run.peak_reserved.bytes, allocated_bytes: run.peak_allocated.bytes };
    Levels {
        before: if let Shown::Two(comparison) = shown { Some(peaks(&comparison.a)) } else { None },
        last: peaks(shown.last()),
    }
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
    rows(&job).into_iter().for_each(|(label, text)| answer.row(label, text));
    answer.paragraphs(&job.matched.notes);
    answer.gap();
    answer.table(table(&job));
    let in_full = if all { job.ranks.len() } else { 1 };
    if let Some(odd) = job.odd.as_ref().filter(|_| all) {
        answer.gap();
        answer.title(format!("rank {} (A) and rank {} (B)", odd.typical, odd.rank));
        answer.append(odd.answer.clone());
    }
    for rank in job.ranks.into_iter().take(in_full) {
        answer.gap();
        answer.title(format!("rank {}", rank.number));
        answer.append(rank.answer);
    }
    if let Some(odd) = job.odd.filter(|_| !all) {
        answer.gap();
        answer.title(format!("to compare rank {} with rank {} in full:", odd.rank, odd.typical));
        answer.code(Tone::Plain, odd.command);
    }
    answer
}

/// Why the odd rank of a folder differs; of two folders, where the change of the worst rank begins.
fn rows(job: &Job) -> Vec<begins::Row> {
    match (&job.odd, job.ranks.first()) {
        (Some(odd), _) => {
            let (rank, typical) = (odd.rank, odd.typical);
            let relation = odd.relation.clone().map(|relation| ("same", relation));
            let typical =
                format!("rank {rank} is compared with rank {typical}, whose memory is nearest to the median of the others");
            odd.why.iter().cloned().chain(relation).chain([("with", typical)]).collect()
        }
        (None, Some(worst)) => worst.begins.clone(),
        (None, None) => Vec::new(),
    }
}

fn table(job: &Job) -> Table {
    let are_pairs = job.ranks.iter().any(|rank| rank.levels.before.is_some());
    let mut heads = vec!["rank", "recording"];
    heads.extend(if are_pairs {
        &["peak reserved A", "B", "change", "", "change of allocated"][..]
    } else {
        &["peak reserved", "peak allocated"]
    });
    let shows_deaths = !job.has_bounds && job.ranks.iter().any(|rank| rank.died);
    if job.has_bounds {
        heads.push("check");
    } else if shows_deaths {
        heads.push("out of memory");
    }
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
        table.marked(cells(rank, job.has_bounds, shows_deaths), marked, mark);
    }
    table
}

fn cells(rank: &Rank, has_bounds: bool, shows_deaths: bool) -> Vec<String> {
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
    let check = match rank.outcome {
        Outcome::Good => "holds",
        Outcome::CheckFailed | Outcome::CouldNotRun => "too much",
        Outcome::NotKnown => "not known",
    };
    if has_bounds {
        cells.push(check.to_owned());
    } else if shows_deaths {
        cells.push(if rank.died { "died" } else { "no" }.to_owned());
    }
    cells
}

/// How many ranks are above a bound, or which one grew most.
fn sentence(job: &Job) -> Option<String> {
    let worst = job.ranks.first()?;
    let all = count(job.ranks.len() as u64, "rank");
    let failed = job.ranks.iter().filter(|rank| rank.outcome == Outcome::CheckFailed).count();
    let unknown = job.ranks.iter().filter(|rank| rank.outcome == Outcome::NotKnown).count();
    let code = if job.has_bounds { format!(" The exit code is {}.", job.outcome as u8) } else { String::new() };
    if failed > 0 {
        let are = if failed == 1 { "is" } else { "are" };
        return Some(format!("{failed} of {all} {are} above a bound; rank {} is the worst.{code}", worst.number));
    }
    if unknown > 0 {
        let are = if unknown == 1 { "is" } else { "are" };
        let peak = "its peak covers only the time before it died, or is compared with a peak that does";
        let first = worst.number;
        return Some(format!("{unknown} of {all} {are} not known to be within the bounds, first rank {first}: {peak}.{code}"));
    }
    let growth = worst.levels.growth_bytes();
    Some(match worst.levels.before {
        None => reserves(job, worst) + &code,
        Some(before) if growth > 0 => {
            let [a, b] = [before, worst.levels.last].map(|peaks| peaks.reserved_bytes);
            format!(
                "Of {all}, reserved memory grew most on rank {}: by {} to {}.{code}",
                worst.number,
                change(a, b),
                show_bytes(b)
            )
        }
        Some(_) => format!("Reserved memory grew on none of {all}.{code}"),
    })
}

/// How the odd rank's reserved memory differs from the others'; if none is odd, how much all reserve.
fn reserves(job: &Job, worst: &Rank) -> String {
    let reserved = |rank: &Rank| rank.levels.last.reserved_bytes;
    let odd = job.odd.as_ref().and_then(|odd| job.ranks.iter().find(|rank| rank.number == odd.rank)).unwrap_or(worst);
    let others = || job.ranks.iter().filter(|rank| rank.number != odd.number).map(reserved);
    let (number, own) = (odd.number, reserved(odd));
    let (all, peak) = (count(job.ranks.len() as u64, "rank"), show_bytes(own));
    let (Some(least), Some(most)) = (others().min(), others().max()) else { return format!("Rank {number} reserves {peak}.") };
    if least == most && own == most {
        return format!("All {all} reserve the same: {peak}.");
    }
    if least == most {
        let most = show_bytes(most);
        return match others().count() {
            1 => format!("Rank {number} reserves {peak}, the other rank {most}."),
            number_of_others => format!("Rank {number} reserves {peak}; the other {number_of_others} ranks reserve {most} each."),
        };
    }
    let extreme = if own > most {
        " the most:"
    } else if own < least {
        " the least:"
    } else {
        ""
    };
    format!("Of {all}, rank {number} reserves{extreme} {peak}; the others reserve {} to {}.", show_bytes(least), show_bytes(most))
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
        /// The rank of a single folder whose memory differs most from the others'; null for two folders, or if no rank differs.
        odd_one_out: Option<OddOne<'a>> = job.odd.as_ref().map(OddOne::of),
        /// How the ranks were paired, and which have no counterpart.
        notes: &'a [String] = &job.matched.notes,
    }
}

view! {
    struct OddOne<'a>(odd: &'a Odd) {
        /// The rank.
        rank: u64 = odd.rank,
        /// The rank that it is compared with: the nearest to the median of the others.
        compared_with: u64 = odd.typical,
        /// What differs, in sentences.
        why: Vec<&'a str> = odd.why.iter().map(|(_, text)| text.as_str()).collect(),
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
