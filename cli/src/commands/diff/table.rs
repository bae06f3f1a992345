//! A comparison as text: what changed in a sentence, then tables from the peaks to the steps, with the values of one run or of
//! two side by side.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use parkade_analysis::diff::{Comparison, Held, Part, Peak, Phase, Relation, Run, Which};

use super::compared::{Checked, Compared, Shown, Verdict};
use super::words::{self, change, percent};
use crate::terminal::answer::Answer;
use crate::terminal::output::{Tone, count};
use crate::terminal::recording::short_name;
use crate::terminal::size::show_bytes;
use crate::terminal::table::Table;

/// Groups of blocks that are listed without --all.
const GROUPS: usize = 10;

pub(super) fn answer(compared: &Compared, all: bool) -> Answer {
    let mut answer = Answer::new();
    for checked in &compared.checks {
        verdict(&mut answer, compared, checked);
    }
    if !compared.checks.is_empty() {
        answer.gap();
    }
    for (place, shown) in compared.devices.iter().enumerate() {
        if place > 0 {
            answer.gap();
        }
        if let Shown::One(run) = shown {
            answer.headline(Tone::Plain, format!("{}{}", words::on(compared, shown), words::headline_of_one(run)));
        }
        if let Shown::Two(comparison) = shown {
            answer.headline(Tone::Plain, format!("{}{}", words::on(compared, shown), words::headline(comparison)));
        }
        for text in words::out_of_memory(compared, shown) {
            answer.alert("out of memory:", text);
        }
        if let Shown::Two(comparison) = shown {
            answer.paragraphs(words::relation(compared, comparison));
        }
        files(&mut answer, compared, shown);
        match shown {
            Shown::One(run) if all => {
                answer.gap();
                peaks(&mut answer, &[run]);
                details(&mut answer, &[run]);
            }
            Shown::One(_) => {}
            Shown::Two(comparison) => two(&mut answer, compared, comparison, all),
        }
        let notes = words::notes(compared, shown);
        if !notes.is_empty() {
            answer.gap();
        }
        answer.paragraphs(notes);
    }
    answer.paragraphs(&compared.notes);
    if !all {
        let more = if compared.devices.iter().any(|shown| matches!(shown, Shown::Two(_))) { ", phases and steps" } else { "" };
        answer.hint(format!("--all also shows how memory is used at the peaks, the driver calls{more}"));
    }
    answer
}

/// A line for each side: its file, settings and extent.
fn files(answer: &mut Answer, compared: &Compared, shown: &Shown) {
    let runs = shown.runs();
    let has_several = compared.devices.len() > 1 || runs.iter().any(|run| run.device != runs[0].device);
    let files = [("A", &compared.a), ("B", compared.second())];
    for ((letter, file), run) in files.into_iter().zip(&runs) {
        let letter = if runs.len() > 1 { format!("{letter}: ") } else { String::new() };
        let device = if has_several { format!(" device {}", run.device) } else { String::new() };
        answer.toned(Tone::Dim, format!("{letter}{}{device}, {}", short_name(&file.path), words::run(file, run)));
    }
}

fn two(answer: &mut Answer, compared: &Compared, comparison: &Comparison, all: bool) {
    answer.gap();
    let runs = [&comparison.a, &comparison.b];
    peaks(answer, &runs);
    if all {
        details(answer, &runs);
    }
    groups(answer, compared, comparison, all);
    // A phase or a step of one program says nothing about another program's.
    if all && comparison.likeness.relation != Relation::LittleInCommon {
        phases(answer, comparison);
        steps(answer, comparison);
    }
}

fn has_trace(runs: &[&Run]) -> bool {
    runs.iter().all(|run| run.entries > 0 && run.part != Part::End)
}

/// How high the peaks are, and where.
fn peaks(answer: &mut Answer, runs: &[&Run]) {
    let has_trace = has_trace(runs);
    let mut table = Columns::new("memory", runs);
    table.bytes("peak allocated", |run| run.peak_allocated.bytes);
    if has_trace {
        table.text("  at", |run| place(&run.peak_allocated));
    }
    table.bytes("peak reserved", |run| run.peak_reserved.bytes);
    if has_trace {
        table.text("  at", |run| place(&run.peak_reserved));
    }
    answer.table(table.table);
}

/// How reserved memory is used at the peaks, and the driver calls.
fn details(answer: &mut Answer, runs: &[&Run]) {
    if !has_trace(runs) {
        return heap(answer, "at the end", runs, |run| &run.peak_reserved);
    }
    let is_at_both = |run: &Run| run.peak_allocated.heap.reserved_bytes == run.peak_reserved.bytes;
    if runs.iter().all(|run| is_at_both(run)) {
        heap(answer, "at both peaks", runs, |run| &run.peak_allocated);
    } else {
        heap(answer, "at the peak of allocated memory", runs, |run| &run.peak_allocated);
        heap(answer, "at the peak of reserved memory", runs, |run| &run.peak_reserved);
    }
    let mut table = Columns::new("driver calls", runs);
    table.number("segments taken", |run| run.driver.segments_taken);
    table.number("segments given back", |run| run.driver.segments_given_back);
    table.rare_number("page mappings", |run| run.driver.maps);
    table.rare_number("page unmappings", |run| run.driver.unmaps);
    table.bytes("bytes taken", |run| run.driver.taken_bytes);
    table.rare_number("retries after a refusal", |run| run.retries);
    table.rare_number("calls to empty_cache", |run| run.empty_cache_calls);
    table.rare_number("requests out of memory", |run| run.ooms);
    answer.gap();
    answer.table(table.table);
}

/// How memory is used at a peak.
fn heap(answer: &mut Answer, title: &str, runs: &[&Run], peak: fn(&Run) -> &Peak) {
    let mut table = Columns::new(title, runs);
    table.bytes("reserved", |run| peak(run).heap.reserved_bytes);
    for (place, (name, _)) in words::parts(&runs[0].peak_reserved.heap).into_iter().enumerate() {
        table.bytes(&format!("  {name}"), |run| words::parts(&peak(run).heap)[place].1);
    }
    if runs.iter().any(|run| peak(run).heap.pending_bytes > 0) {
        table.bytes("freed, but in use by other streams", |run| peak(run).heap.pending_bytes);
    }
    table.bytes("largest hole", |run| peak(run).heap.largest_hole_bytes);
    table.number("holes", |run| peak(run).heap.holes);
    table.number("segments", |run| peak(run).segments as u64);
    table.text("1 - allocated / reserved", |run| {
        peak(run).heap.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0))
    });
    answer.gap();
    answer.table(table.table);
}

fn place(peak: &Peak) -> String {
    let entry = peak.entry.map_or_else(|| "before entry 0".to_owned(), |entry| format!("entry {entry}"));
    let step = peak.step.map_or_else(String::new, |step| format!(", step {step}"));
    format!("{entry}{step}")
}

/// What holds the memory. Stacks that look the same in one line share a row; JSON lists each.
fn groups(answer: &mut Answer, compared: &Compared, comparison: &Comparison, all: bool) {
    if comparison.growth.is_empty() {
        return;
    }
    let mut rows: BTreeMap<String, [Held; 2]> = BTreeMap::new();
    for group in &comparison.growth {
        let [a, b] = rows.entry(words::origin(compared, group.origin)).or_default();
        (*a, *b) = (a.and(group.a), b.and(group.b));
    }
    let mut rows: Vec<(String, [Held; 2])> = rows.into_iter().collect();
    rows.sort_by_key(|(_, [a, b])| Reverse((b.bytes.abs_diff(a.bytes), b.bytes)));
    let (changed, same): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, [a, b])| a != b);
    let when = if comparison.a.part == Part::End || comparison.a.entries == 0 {
        "at the end"
    } else {
        "at the peak of allocated memory"
    };
    answer.gap();
    if changed.is_empty() {
        return answer.toned(Tone::Dim, format!("held {when}: the same in {}", count(same.len(), "group")));
    }
    let held = format!("held {when}");
    let mut table = Table::new(["change", "A (blocks)", "B (blocks)", held.as_str()]);
    let (shown, rest) = changed.split_at(if all { changed.len() } else { changed.len().min(GROUPS) });
    for (name, held) in shown {
        table.row(cells(name, *held));
    }
    if !rest.is_empty() {
        table.row(cells(&format!("{} more that changed (--all)", rest.len()), sum(rest)));
    }
    if !same.is_empty() {
        table.row(cells(&format!("{} that did not change", same.len()), sum(&same)));
    }
    let [(a, b), (c, d)] = [sum(&changed), sum(&same)].map(|[a, b]| (a, b));
    table.row(cells("together", [a.and(c), b.and(d)]));
    answer.table(table.with_left([3]));
}

fn sum(rows: &[(String, [Held; 2])]) -> [Held; 2] {
    rows.iter().fold(<[Held; 2]>::default(), |[a, b], (_, held)| [a.and(held[0]), b.and(held[1])])
}

fn cells(name: &str, [a, b]: [Held; 2]) -> [String; 4] {
    let held = |held: Held| format!("{} ({})", show_bytes(held.bytes), held.blocks);
    [change(a.bytes, b.bytes), held(a), held(b), name.to_owned()]
}

fn phases(answer: &mut Answer, comparison: &Comparison) {
    if comparison.phases.is_empty() {
        return;
    }
    let of_optimizer = |phase: &Phase| matches!(phase, Phase::Optimizer | Phase::ZeroGrad | Phase::Outside | Phase::BeforeTrace);
    let has_others = comparison.phases.iter().any(|change| !of_optimizer(&change.phase));
    let heads = [
        "requested during",
        "A holds at the peak",
        "B holds at the peak",
        "change",
        "A's peak during it",
        "B's peak during it",
        "change",
    ];
    let mut table = Table::new(heads);
    for phase in &comparison.phases {
        let (a, b) = (&phase.a, &phase.b);
        table.row([
            words::phase(&phase.phase, has_others),
            show_bytes(a.held_at_peak_bytes),
            show_bytes(b.held_at_peak_bytes),
            change(a.held_at_peak_bytes, b.held_at_peak_bytes),
            show_bytes(a.peak_allocated_bytes),
            show_bytes(b.peak_allocated_bytes),
            change(a.peak_allocated_bytes, b.peak_allocated_bytes),
        ]);
    }
    answer.gap();
    answer.table(table);
}

fn steps(answer: &mut Answer, comparison: &Comparison) {
    let pairs = &comparison.steps.pairs;
    let Some(said) = words::steps(&comparison.steps) else { return };
    answer.gap();
    answer.paragraph(said);
    answer.paragraphs(words::kept(&comparison.steps));
    let mut table =
        Table::new(["step", "A peak allocated", "B peak allocated", "change", "A peak reserved", "B peak reserved", "change"]);
    for pair in pairs {
        let (a, b) = (&pair.a, &pair.b);
        table.row([
            pair.step.to_string(),
            show_bytes(a.peak_allocated_bytes),
            show_bytes(b.peak_allocated_bytes),
            change(a.peak_allocated_bytes, b.peak_allocated_bytes),
            show_bytes(a.peak_reserved_bytes),
            show_bytes(b.peak_reserved_bytes),
            change(a.peak_reserved_bytes, b.peak_reserved_bytes),
        ]);
    }
    answer.table(table.with_left([]));
}

/// Whether a bound holds.
fn verdict(answer: &mut Answer, compared: &Compared, checked: &Checked) {
    let check = &checked.check;
    let device = if compared.devices.len() > 1 { format!("device {}: ", checked.device) } else { String::new() };
    let allowed = format!("{} (--fail-above {}; {} bytes)", show_bytes(check.allowed_bytes), checked.text, check.allowed_bytes);
    let peak = format!("{device}peak reserved {} ({} bytes)", show_bytes(check.peak_bytes), check.peak_bytes);
    match compared.verdict(checked) {
        Verdict::Exceeded => answer.alert("too much:", format!("{peak} is above {allowed}")),
        Verdict::Holds => answer.headline(Tone::Good, format!("holds: {peak} is not above {allowed}")),
        Verdict::Died(which) => {
            let (is, run) = match which {
                Which::A => ("is above", "A"),
                Which::B if matches!(compared.devices[0], Shown::Two(_)) => ("is not above", "B"),
                Which::B => ("is not above", "the run"),
            };
            let because = format!("{run} died, and its peak covers only the time before the error");
            answer.alert("not known:", format!("{peak} {is} {allowed}, but {because}"));
        }
    }
}

/// A table with a column for each run and, for two, the change.
struct Columns<'r> {
    runs: &'r [&'r Run],
    table: Table,
}

impl<'r> Columns<'r> {
    fn new(title: &str, runs: &'r [&'r Run]) -> Columns<'r> {
        let heads: &[&str] = if runs.len() > 1 { &["A", "B", "change", "%"] } else { &["this run"] };
        Columns { runs, table: Table::new(std::iter::once(title).chain(heads.iter().copied())) }
    }

    fn row(
        &mut self,
        name: &str,
        value: impl Fn(&Run) -> u64,
        show: impl Fn(u64) -> String,
        change: impl Fn(u64, u64) -> String,
    ) {
        let values: Vec<u64> = self.runs.iter().map(|run| value(run)).collect();
        let mut cells = vec![name.to_owned()];
        cells.extend(values.iter().map(|&value| show(value)));
        if let [a, b] = values[..] {
            cells.extend([change(a, b), percent(a, b)]);
        }
        self.table.row(cells);
    }

    fn bytes(&mut self, name: &str, value: impl Fn(&Run) -> u64) {
        self.row(name, value, show_bytes, change);
    }

    fn number(&mut self, name: &str, value: impl Fn(&Run) -> u64) {
        self.row(name, value, |number| number.to_string(), number_change);
    }

    /// Numbers that are mostly 0: adds a row only if one is not.
    fn rare_number(&mut self, name: &str, value: impl Fn(&Run) -> u64) {
        if self.runs.iter().any(|run| value(run) > 0) {
            self.number(name, value);
        }
    }

    fn text(&mut self, name: &str, text: impl Fn(&Run) -> String) {
        let cells: Vec<String> = std::iter::once(name.to_owned()).chain(self.runs.iter().map(|run| text(run))).collect();
        self.table.row(cells);
    }
}

fn number_change(a: u64, b: u64) -> String {
    match b.cmp(&a) {
        std::cmp::Ordering::Equal => "same".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", b - a),
        std::cmp::Ordering::Less => format!("-{}", a - b),
    }
}
