//! Shows the ranks of one job side by side, as text, as JSON and as rows of a page. `parkade_analysis::ranks` decides what is compared.

use std::path::{Path, PathBuf};

use anyhow::Result;
use parkade_analysis::ranks::{Comparison, Difference, FailsFirst, LEAST_RANKS, Measure, Odd, RankRun, Variant, compare};
use serde_json::Value;

use crate::recordings::{RankNumbers, RanksFrom};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::{Word, all, sections, view};
use crate::terminal::output::Tone;
use crate::terminal::recording::short_name;
use crate::terminal::runner::Lines;
use crate::terminal::table::{Mark, Table};
use crate::terminal::{output, size};

/// The compared runs, in the order of their ranks.
pub struct Ranks {
    runs: Vec<Ranked>,
    comparison: Comparison,
    from: RanksFrom,
}

/// One device's run.
struct Ranked {
    rank: u64,
    /// The index of its file among the given ones.
    place: usize,
    file: PathBuf,
    run: RankRun,
}

impl Ranks {
    /// Compares runs, each with the index of its file; `None` if they come from fewer than two files.
    pub fn of(numbers: &RankNumbers, files: &[&Path], runs: Vec<(usize, RankRun)>) -> Option<Ranks> {
        Some(Ranks::of_any(numbers, files, runs)).filter(Ranks::are_of_several_files)
    }

    /// Does the same for any number of files.
    pub fn of_any(numbers: &RankNumbers, files: &[&Path], runs: Vec<(usize, RankRun)>) -> Ranks {
        let ranked = |(place, run): (usize, RankRun)| {
            Some(Ranked { rank: *numbers.of_files.get(place)?, place, file: files.get(place)?.to_path_buf(), run })
        };
        let mut runs: Vec<Ranked> = runs.into_iter().filter_map(ranked).collect();
        runs.sort_by_key(|ranked| (ranked.rank, ranked.run.device));
        let comparison = compare(&runs.iter().map(|ranked| ranked.run.clone()).collect::<Vec<_>>());
        Ranks { runs, comparison, from: numbers.from }
    }

    /// Returns whether at least two files have runs.
    pub fn are_of_several_files(&self) -> bool {
        self.runs.windows(2).any(|pair| pair[0].place != pair[1].place)
    }

    /// Returns the findings of the comparison, with their table.
    pub fn answer(&self) -> Answer {
        let mut answer = Answer::new();
        let mut sentences = sentences(self).into_iter();
        let verdict = sentences.next().into_iter().chain(self.odd_one());
        let tone = if self.comparison.fails_first.is_some() { Tone::Bad } else { Tone::Plain };
        answer.headline(tone, output::sentence(&verdict.collect::<Vec<_>>().join("; ")));
        let is_in_verdict = self.odd_one().is_some();
        answer.paragraphs(sentences.skip(usize::from(is_in_verdict)).map(|text| output::sentence(&text)));
        answer.gap();
        answer.table(table(self).with_left([0, 1]));
        answer
    }

    /// Returns the findings of the comparison.
    pub fn sentences(&self) -> Vec<String> {
        sentences(self).iter().map(|text| output::sentence(text)).collect()
    }

    /// Names the rank that differs most from the others, and how; `None` if no rank stands out.
    pub fn odd_one(&self) -> Option<String> {
        let first = self.comparison.odd.first()?;
        Some(format!("{} is the odd one out: {}", named(self, &[first.run]), deviation(self, *first)))
    }

    /// Adds the comparison as one line, with more keys if there are any.
    pub fn add_to(&self, lines: &mut Lines, addition: Option<Value>) -> Result<()> {
        let mut object = serde_json::to_value(Object::of(self))?;
        if let (Some(keys), Some(Value::Object(more))) = (object.as_object_mut(), addition) {
            keys.extend(more);
        }
        lines.add(&object)
    }

    /// Returns whether the files are recordings of more than one program.
    pub fn are_of_several_programs(&self) -> bool {
        self.comparison.differences.iter().any(|difference| matches!(difference, Difference::Program(_)))
    }

    /// Returns whether a file has several devices, so that a rank's number does not identify a run.
    fn have_devices(&self) -> bool {
        self.runs.windows(2).any(|pair| pair[0].rank == pair[1].rank)
    }
}

/// One device's run.
pub struct Row<'a> {
    /// The rank.
    pub rank: u64,
    /// The index of its file among the given ones.
    pub place: usize,
    /// Its file.
    pub file: &'a Path,
    /// The device, if some file has several.
    pub device: Option<u32>,
    /// The contents of the columns, and whether they stand out.
    pub cells: Vec<(String, Standing)>,
    /// Whether it runs out of memory first.
    pub fails_first: bool,
    /// Whether it differs from the others.
    pub is_odd: bool,
}

/// The form in which a cell is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Like the others.
    Ordinary,
    /// Unlike the others.
    Odd,
    /// Out of memory.
    Failed,
}

impl Ranks {
    /// The columns of [`Row::cells`].
    pub const COLUMNS: [&str; COLUMNS.len()] = COLUMNS;

    /// Returns the runs, in the order of their ranks.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let has_devices = self.have_devices();
        (0..self.runs.len()).map(|run| self.row(run, has_devices)).collect()
    }

    fn row(&self, run: usize, has_devices: bool) -> Row<'_> {
        let ranked = &self.runs[run];
        let odd = self.comparison.odd.iter().find(|odd| odd.run == run).map(|odd| column(odd.measure));
        let standing = |place: usize| match place {
            _ if odd == Some(place) => Standing::Odd,
            OUT_OF_MEMORY if ranked.run.failure.is_some() => Standing::Failed,
            _ => Standing::Ordinary,
        };
        Row {
            rank: ranked.rank,
            place: ranked.place,
            file: &ranked.file,
            device: has_devices.then_some(ranked.run.device),
            cells: cells(ranked).into_iter().enumerate().map(|(place, cell)| (cell, standing(place))).collect(),
            fails_first: self.comparison.fails_first.is_some_and(|first| first.run == run),
            is_odd: odd.is_some(),
        }
    }

    /// Returns the runs, the most informative ones first: the first to fail, those that differ from the others, one of each differing
    /// version, settings and program, and then all in the order of their ranks.
    pub fn by_weight(&self) -> Vec<usize> {
        let comparison = &self.comparison;
        let first = comparison.fails_first.iter().map(|first| first.run);
        let odd = comparison.odd.iter().map(|odd| odd.run);
        let differing = comparison.differences.iter().filter(|difference| !matches!(difference, Difference::Copies(_)));
        let variants = differing.flat_map(|difference| difference.variants().iter().skip(1));
        let differing = variants.filter_map(|variant| variant.runs.first().copied());
        let mut seen = vec![false; self.runs.len()];
        let all = first.chain(odd).chain(differing).chain(0..self.runs.len());
        all.filter(|&run| !std::mem::replace(&mut seen[run], true)).collect()
    }
}

/// Returns the column of a measure.
const fn column(measure: Measure) -> usize {
    match measure {
        Measure::Entries => 0,
        Measure::PeakAllocated => 3,
        Measure::PeakReserved => 4,
        Measure::Free => 5,
        Measure::LargestHole => 6,
    }
}

/// The compared columns.
const COLUMNS: [&str; 7] =
    ["entries", "out of memory", "retries", "peak allocated", "peak reserved", "free at the end", "largest hole"];
/// The column that is coloured.
const OUT_OF_MEMORY: usize = 1;

/// Returns a table with a row for each run. A dash stands for a missing value.
fn table(ranks: &Ranks) -> Table {
    let mut table = Table::new(["rank", "recording"].into_iter().chain(COLUMNS));
    let has_devices = ranks.have_devices();
    for ranked in &ranks.runs {
        let device = if has_devices { format!(" device {}", ranked.run.device) } else { String::new() };
        let names = [format!("{}{device}", ranked.rank), short_name(&ranked.file)];
        let marked = names.len() + OUT_OF_MEMORY;
        let mark = if ranked.run.failure.is_some() { Mark::Bad } else { Mark::Plain };
        table.marked(names.into_iter().chain(cells(ranked)), marked, mark);
    }
    table
}

/// Returns the contents of a run's [`COLUMNS`].
fn cells(ranked: &Ranked) -> [String; COLUMNS.len()] {
    let run = &ranked.run;
    let dash = || "-".to_owned();
    let show = |bytes: Option<i64>| bytes.map_or_else(dash, size::show);
    let show_end = |bytes: Option<u64>| bytes.map_or_else(dash, size::show_bytes);
    [
        run.entries.to_string(),
        match run.failure {
            Some(failure) => format!("entry {}", failure.entry),
            None if run.ooms > 0 => format!("survived {}", run.ooms),
            None => dash(),
        },
        run.retries.map_or_else(dash, |retries| retries.to_string()),
        show(run.peak_allocated_bytes),
        show(run.peak_reserved_bytes),
        show_end(run.end.map(|end| end.free_bytes)),
        show_end(run.end.map(|end| end.largest_hole_bytes)),
    ]
}

/// The maximum number of outliers, and of variants of a difference, that are named.
const NAMED: usize = 4;
/// The maximum number of ranks or ranges that are listed.
const RANGES: usize = 8;

fn sentences(ranks: &Ranks) -> Vec<String> {
    let mut sentences = vec![fails_first(ranks)];
    sentences.extend(odd(ranks));
    sentences.extend(ranks.comparison.differences.iter().map(|difference| differs(ranks, difference)));
    sentences
}

fn fails_first(ranks: &Ranks) -> String {
    let Some(FailsFirst { run, next, is_by_time, failed }) = ranks.comparison.fails_first else {
        let survived = ranks.runs.iter().filter(|ranked| ranked.run.ooms > 0).count();
        return match survived {
            0 => format!("none of {} ran out of memory", number(ranks)),
            _ => format!("none of {} died of an out-of-memory error; {survived} continued after one", number(ranks)),
        };
    };
    let entry = ranks.runs[run].run.failure.map_or(0, |failure| failure.entry);
    let (of, name) = (number(ranks), named(ranks, &[run]));
    match next {
        _ if failed == 1 => format!("of {of}, only {name} ran out of memory, at entry {entry}"),
        Some((next, later_us)) => {
            let later = later_us as f64 / 1e6;
            let next = named(ranks, &[next]);
            format!("of {of}, {failed} ran out of memory, {name} first, at entry {entry}, {later:.3} s before {next}")
        }
        None if is_by_time => format!("of {of}, {failed} ran out of memory, {name} first, at entry {entry}"),
        None => format!(
            "of {of}, {failed} ran out of memory, {name} after the fewest entries ({entry}); which of them was first is \
             unknown, because not all files contain times"
        ),
    }
}

/// Returns the number of ranks: `3 ranks`, or `4 devices of 2 ranks`.
fn number(ranks: &Ranks) -> String {
    let mut numbers: Vec<u64> = ranks.runs.iter().map(|ranked| ranked.rank).collect();
    numbers.dedup();
    let devices = if ranks.have_devices() { format!("{} of ", output::count(ranks.runs.len(), "device")) } else { String::new() };
    format!("{devices}{}", output::count(numbers.len(), "rank"))
}

fn odd(ranks: &Ranks) -> Vec<String> {
    let comparison = &ranks.comparison;
    if comparison.compared.len() < LEAST_RANKS {
        return Vec::new();
    }
    let ([_, others @ ..], Some(first)) = (comparison.odd.as_slice(), ranks.odd_one()) else {
        return vec!["no rank stands out".to_owned()];
    };
    let mut sentences = vec![first];
    let too = others.iter().take(NAMED - 1);
    sentences.extend(too.map(|odd| format!("{} also stands out: {}", named(ranks, &[odd.run]), deviation(ranks, *odd))));
    if comparison.odd.len() > NAMED {
        sentences.push(format!("{} more stand out (--json lists all)", comparison.odd.len() - NAMED));
    }
    sentences
}

/// Compares its value with the range of the ranks that do not stand out.
fn deviation(ranks: &Ranks, odd: Odd) -> String {
    let show = |value: i64| if odd.measure.is_bytes() { size::show(value) } else { value.to_string() };
    let comparison = &ranks.comparison;
    let is_ordinary = |run: &&usize| comparison.odd.iter().all(|other| other.run != **run);
    let others = || comparison.compared.iter().filter(is_ordinary).filter_map(|&run| odd.measure.of(&ranks.runs[run].run));
    let [least, most] = [others().min(), others().max()].map(|value| show(value.unwrap_or(odd.median)));
    let (value, others) = (show(odd.value), if least == most { least } else { format!("{least} to {most}") });
    match odd.measure {
        Measure::PeakAllocated => format!("its peak allocated memory is {value}, compared with {others} on the others"),
        Measure::PeakReserved => format!("its peak reserved memory is {value}, compared with {others} on the others"),
        Measure::Free => format!("it ends with {value} free, the others with {others}"),
        Measure::LargestHole => format!("its largest hole at the end is {value}, compared with {others} on the others"),
        Measure::Entries => format!("its trace has {value} entries, compared with {others} on the others"),
    }
}

fn differs(ranks: &Ranks, difference: &Difference) -> String {
    let variants = difference.variants();
    let each = |says: &dyn Fn(&Variant) -> String| {
        let named: Vec<String> = variants.iter().take(NAMED).map(says).collect();
        let more = if variants.len() > NAMED { format!("; and {} more", variants.len() - NAMED) } else { String::new() };
        format!("{}{more}", named.join("; "))
    };
    match difference {
        Difference::Release(_) => {
            format!("the versions of PyTorch differ: {}", each(&|one| format!("{} in {}", one.value, named(ranks, &one.runs))))
        }
        Difference::Settings(_) => {
            let settings = |one: &Variant| if one.value.is_empty() { "default settings" } else { &one.value }.to_owned();
            let says = |one: &Variant| format!("{} in {}", output::shorten(&settings(one), 80), named(ranks, &one.runs));
            format!("the settings differ: {}", each(&says))
        }
        Difference::Program(_) if variants.iter().all(|one| one.runs.len() == 1) => {
            "these recordings are from different programs: the sizes that they request have little in common, so parkade names \
             no odd one out"
                .to_owned()
        }
        Difference::Program(_) => {
            let others: Vec<usize> = variants.iter().skip(1).flat_map(|one| one.runs.iter().copied()).collect();
            format!(
                "{} ran a different program than the others, or a different part of it: the sizes requested have little in \
                 common, so the search for the odd one out excludes {}",
                named(ranks, &others),
                if others.len() == 1 { "it" } else { "them" }
            )
        }
        Difference::Copies(_) => {
            let identical = each(&|one| named(ranks, &one.runs));
            format!("identical recordings, which count as one in the search for the odd one out: {identical}")
        }
    }
}

/// Names runs: `rank 3`, `ranks 0-2, 5`, `rank 3 device 1`. Only the first are named if there are many.
fn named(ranks: &Ranks, runs: &[usize]) -> String {
    let word = if runs.len() == 1 { "rank" } else { "ranks" };
    let mut runs = runs.to_vec();
    runs.sort_unstable();
    let names: Vec<String> = if ranks.have_devices() {
        runs.iter().map(|&run| format!("{} device {}", ranks.runs[run].rank, ranks.runs[run].run.device)).collect()
    } else {
        ranges(runs.iter().map(|&run| ranks.runs[run].rank))
    };
    let more = if names.len() > RANGES { " ..." } else { "" };
    format!("{word} {}{more}", output::list(names.iter().take(RANGES)))
}

/// Combines consecutive numbers of an ascending sequence in ranges.
fn ranges(numbers: impl Iterator<Item = u64>) -> Vec<String> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let show = |&(first, last): &(u64, u64)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    ranges.iter().map(show).collect()
}

view! {
    struct Object<'a>(ranks: &'a Ranks) {
        /// Each device of each recording, by rank.
        ranks: Vec<Rank<'a>> = all(&ranks.runs, Rank::of),
        /// `names` if the file names contain the numbers of the ranks, else `positions`: the order of the files.
        ranks_from: Word<RanksFrom> = Word::of(&ranks.from),
        /// Who runs out of memory first.
        fails_first: Option<First> = ranks.comparison.fails_first.map(|first| First::of(ranks, first)),
        /// The rank most unlike the others, the first in `stand_out`.
        odd_one_out: Option<OddOne> = ranks.comparison.odd.first().map(|odd| OddOne::of(ranks, odd)),
        /// All that deviate this much, by measure, the most deviant first in each; empty for fewer than three ranks.
        stand_out: Vec<OddOne> = all(&ranks.comparison.odd, |odd| OddOne::of(ranks, odd)),
        /// The number of runs that were compared to find these: those of the most frequent program, with copies counted once.
        compared: usize = ranks.comparison.compared.len(),
        /// What makes it unlikely that the files are ranks of one job.
        differences: Vec<Differs> = all(&ranks.comparison.differences, |difference| Differs::of(ranks, difference)),
    }
}

sections! {
    "Ranks": Object<'_>;
}

view! {
    struct Rank<'a>(ranked: &'a Ranked) {
        /// The rank.
        rank: u64 = ranked.rank,
        /// The device in its file.
        device: u32 = ranked.run.device,
        /// The recording.
        file: String = ranked.file.display().to_string(),
        /// The number of entries in the trace.
        entries: usize = ranked.run.entries,
        /// The first out-of-memory entry.
        fails_at_entry: Option<usize> = ranked.run.failure.map(|failure| failure.entry),
        /// The time of that entry, in microseconds since 1970.
        failed_at_us: Option<u64> = ranked.run.failure.and_then(|failure| failure.time_us),
        /// The number of requests that run out of memory.
        ooms: u64 = ranked.run.ooms,
        /// `num_alloc_retries`; null without a trace.
        retries: Option<i64> = ranked.run.retries,
        /// The peak of allocated memory; null without a trace.
        peak_allocated_bytes: Option<i64> = ranked.run.peak_allocated_bytes,
        /// The peak of reserved memory; null without a trace.
        peak_reserved_bytes: Option<i64> = ranked.run.peak_reserved_bytes,
        /// Free in the cache when the snapshot was taken; null for `replay`.
        free_bytes: Option<u64> = ranked.run.end.map(|end| end.free_bytes),
        /// The largest hole then; null for `replay`.
        largest_hole_bytes: Option<u64> = ranked.run.end.map(|end| end.largest_hole_bytes),
        /// The PyTorch version whose rules the recorded run followed.
        profile: &'static str = ranked.run.profile,
        /// The recorded run's settings.
        settings: &'a str = &ranked.run.settings,
    }
}

view! {
    /// Names a run.
    struct Name(ranks: &Ranks, run: usize) {
        /// The rank.
        rank: u64 = ranks.runs[run].rank,
        /// The device.
        device: u32 = ranks.runs[run].run.device,
    }
}

/// What shows which rank ran out of memory first.
enum FirstBy {
    Time,
    Entry,
}

parkade_recording::names! {
    FirstBy {
        FirstBy::Time => "time",
        FirstBy::Entry => "entry",
    }
}

view! {
    struct First(ranks: &Ranks, first: FailsFirst) {
        /// The rank.
        rank: u64 = ranks.runs[first.run].rank,
        /// The device.
        device: u32 = ranks.runs[first.run].run.device,
        /// `time`; or `entry`, the fewest entries, if not all files state times.
        by: Word<FirstBy> = Word::of(if first.is_by_time { &FirstBy::Time } else { &FirstBy::Entry }),
        /// The rank that runs out of memory next.
        next: Option<Name> = first.next.map(|(run, _)| Name::of(ranks, run)),
        /// How much later that is.
        next_after_us: Option<u64> = first.next.map(|(_, later_us)| later_us),
        /// The number of ranks that run out of memory.
        failed: usize = first.failed,
    }
}

view! {
    struct OddOne(ranks: &Ranks, odd: &Odd) {
        /// The rank.
        rank: u64 = ranks.runs[odd.run].rank,
        /// The device.
        device: u32 = ranks.runs[odd.run].run.device,
        /// The first in which it stands out of these keys of `ranks`: `peak_allocated_bytes`, `peak_reserved_bytes`,
        /// `free_bytes`, `largest_hole_bytes`, `entries`.
        measure: Word<Measure> = Word::of(&odd.measure),
        /// Its value in that measure.
        value: i64 = odd.value,
        /// The median of the others.
        median_of_others: i64 = odd.median,
        /// Its deviation.
        score: f64 = odd.score,
    }
}

view! {
    struct Differs(ranks: &Ranks, difference: &Difference) {
        /// What differs.
        of: Word<Difference> = Word::of(difference),
        /// The groups, the largest first.
        variants: Vec<OneVariant> = all(difference.variants(), |variant| OneVariant::of(ranks, variant)),
    }
}

view! {
    struct OneVariant(ranks: &Ranks, variant: &Variant) {
        /// The version, or the settings; else empty.
        value: String = variant.value.clone(),
        /// The runs of the group.
        ranks: Vec<Name> = all(&variant.runs, |&run| Name::of(ranks, run)),
    }
}
