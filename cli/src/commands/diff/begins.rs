//! The lines below a verdict: why more or less is reserved, which blocks changed, and in which step and at which entry the change
//! begins.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use parkade_analysis::diff::{
    Comparison, Crossing, Grouping, Growth, Held, Measure, Part, Phase, REPETITION, Relation, Request, Run, StepOnset,
};
use parkade_recording::StackId;

use super::compared::{Compared, File, Shown, WITHOUT_STACK, change, origin, phase_words};
use crate::commands::diagnose::parts;
use crate::terminal::output::count;
use crate::terminal::size::{show_apart, show_bytes};

/// A label and a text.
pub(super) type Row = (&'static str, String);

/// Names the part of reserved memory that no block holds.
pub(super) const UNUSED: &str = "reserved, but not in use";
/// The number of increases, and of decreases, that are named.
const PARTS: usize = 2;
/// The smallest share of the largest change that is named.
const LEAST_SHARE: f64 = 0.1;

/// Why reserved memory changed, which blocks did, and where the change begins, with these names for the two sides; for a run that
/// is not compared, what reached its peak.
pub(super) fn rows(compared: &Compared, shown: &Shown, names: [&str; 2]) -> Vec<Row> {
    match shown {
        Shown::One(run) => peak(compared, run).into_iter().collect(),
        Shown::Two(comparison) => {
            let is_unlike = comparison.likeness.relation == Relation::LittleInCommon;
            let onset = comparison.onset.as_ref().filter(|_| !is_unlike);
            let step = onset.and_then(|onset| onset.step).map(|step| begins(comparison, step, names));
            let crossing =
                onset.and_then(|onset| onset.crossing.as_ref()).map(|crossing| above(compared, comparison, crossing, names));
            [why(comparison, names), blocks(compared, comparison, names), step, crossing].into_iter().flatten().collect()
        }
    }
}

/// The request that reached the peak.
fn peak(compared: &Compared, run: &Run) -> Option<Row> {
    let request = run.peak_reserved.request?;
    let step = run.peak_reserved.step.map_or_else(String::new, |step| format!(", in step {step} (counted from 0)"));
    Some(("at", format!("the peak of reserved memory{step}, {}", requests(&compared.a, request))))
}

fn begins(comparison: &Comparison, step: StepOnset, [a, b]: [&str; 2]) -> Row {
    let measure = comparison.onset.as_ref().map_or(Measure::Reserved, |onset| onset.measure);
    let verb = if measure == Measure::Reserved { "reserves" } else { "allocates" };
    let is_inferred = comparison.steps.marks.as_ref().is_some_and(|(a, b)| a == REPETITION && b == REPETITION);
    let counted = if is_inferred { "counted from 0, inferred from what the runs repeat" } else { "counted from 0" };
    let [of_a, of_b] = show_apart(step.a_bytes, step.b_bytes);
    let before = match step.before_bytes {
        None if step.step == 0 => String::new(),
        None => "; no earlier step is in both files".to_owned(),
        Some(0) => "; before, they do not differ".to_owned(),
        Some(bytes) => format!("; before, they differ by at most {}", show_bytes(bytes)),
    };
    let first = if step.before_bytes.is_none() && step.step == 0 { ", the first step" } else { "" };
    ("begins", format!("in step {} ({counted}){first}: {b} {verb} up to {of_b}, {a} up to {of_a}{before}", step.step))
}

/// Where the second run first needs more than the first one ever does, which may be long after the change begins.
fn above(compared: &Compared, comparison: &Comparison, crossing: &Crossing, [a, b]: [&str; 2]) -> Row {
    let measure = comparison.onset.as_ref().map_or(Measure::Reserved, |onset| onset.measure);
    let peak = show_bytes(measure.peak_bytes(&comparison.a));
    let step = crossing.step.map(|step| format!("step {step}"));
    let is_named = |phase: &&Phase| !matches!(phase, Phase::Outside | Phase::BeforeTrace);
    let phase = crossing.phase.as_ref().filter(is_named).map(|phase| phase_words(phase, true));
    let time = crossing.after_us.map(|after_us| format!("{:.3} s after the first entry", after_us as f64 / 1e6));
    let places = [step, phase, time].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let places = if places.is_empty() { places } else { format!(" ({places})") };
    let request = crossing.request.map_or_else(String::new, |request| format!(": {}", requests(compared.second(), request)));
    ("above", format!("{b} first exceeds {a}'s peak of {peak} at entry {} of {b}{places}{request}", crossing.entry))
}

/// Who requests how much.
fn requests(file: &File, request: Request) -> String {
    let bytes = show_bytes(request.bytes);
    let line = Some(request.stack).filter(|&stack| stack != StackId::NONE);
    match line.and_then(|stack| parts::stack_line(&file.names, &file.recording, stack)) {
        Some(line) => format!("{line} requests {bytes}"),
        None => format!("{bytes} is requested (no stack is recorded)"),
    }
}

/// Where a change of reserved memory is: in memory in use, or in memory that is reserved but not in use.
fn why(comparison: &Comparison, [_, b]: [&str; 2]) -> Option<Row> {
    if comparison.a.peak_reserved.bytes == comparison.b.peak_reserved.bytes {
        return None;
    }
    let [unused_a, unused_b] = unused(comparison);
    let used = |run: &Run, unused: u64| run.peak_reserved.bytes.saturating_sub(unused);
    let (used_a, used_b) = (used(&comparison.a, unused_a), used(&comparison.b, unused_b));
    let mut parts = [(by(used_a, used_b), "in use"), (by(unused_a, unused_b), "reserved but unused (fragmentation and cache)")];
    parts.sort_by_key(|(change, _)| Reverse(change.abs()));
    let part = |(change, what): (i128, &str)| {
        let more = if change > 0 { "more" } else { "less" };
        format!("{} {more} {what}", bytes_of(change))
    };
    let when = if comparison.a.part == Part::End { "at the end" } else { "at its peak of reserved memory" };
    let said = match parts {
        [larger, (0, what)] => format!("{b} has {} {when}; what is {what} is the same", part(larger)),
        [larger, smaller] => format!("{b} has {}, and {}, {when}", part(larger), part(smaller)),
    };
    Some(("why", said))
}

/// The groups of blocks that changed most, the largest increases and decreases.
fn blocks(compared: &Compared, comparison: &Comparison, [name_a, name_b]: [&str; 2]) -> Option<Row> {
    let measure = comparison.onset.as_ref().map_or_else(|| of_the_ends(comparison), |onset| Some(onset.measure))?;
    let groups = rows_of_groups(compared, growth(comparison, measure));
    let of = |(_, [a, b]): &(String, [Held; 2])| by(a.bytes, b.bytes);
    let largest = groups.iter().map(|group| of(group).abs()).max().filter(|&largest| largest > 0)?;
    let is_named = |group: &&(String, [Held; 2])| of(group).abs() as f64 >= largest as f64 * LEAST_SHARE;
    let (increases, decreases): (Vec<_>, Vec<_>) =
        groups.iter().filter(is_named).filter(|group| of(group) != 0).partition(|group| of(group) > 0);
    let mut named: Vec<&(String, [Held; 2])> =
        increases.into_iter().take(PARTS).chain(decreases.into_iter().take(PARTS)).collect();
    named.sort_by_key(|group| Reverse(of(group).abs()));
    // If no block has a stack, a note says so.
    let is_by_size = matches!(comparison.grouping, Grouping::Sizes { .. });
    let text = |(name, [a, b]): &(String, [Held; 2])| {
        let number = if is_by_size { a.blocks.to_string() } else { count(a.blocks, "block") };
        let name = name.strip_suffix(WITHOUT_STACK).filter(|_| is_by_size).unwrap_or(name);
        format!("{} in {name} ({number} in {name_a}, {} in {name_b})", change(a.bytes, b.bytes), b.blocks)
    };
    let listed: Vec<String> = named.iter().map(|group| text(group)).collect();
    let together = groups.iter().map(of).sum::<i128>();
    let rest = together - named.iter().map(|group| of(group)).sum::<i128>();
    let rest = if rest == 0 { String::new() } else { format!("; {} in all others", signed(rest)) };
    let together = if named.len() == 1 && rest.is_empty() { String::new() } else { format!("; together {}", signed(together)) };
    Some(("blocks", format!("{}{rest}{together}", listed.join("; "))))
}

/// The measure that changed, if only the ends are compared.
fn of_the_ends(comparison: &Comparison) -> Option<Measure> {
    let is_other = |measure: &Measure| measure.peak_bytes(&comparison.a) != measure.peak_bytes(&comparison.b);
    [Measure::Reserved, Measure::Allocated].into_iter().find(is_other)
}

fn signed(change: i128) -> String {
    let sign = if change < 0 { "-" } else { "+" };
    format!("{sign}{}", bytes_of(change))
}

/// The amount of a change, without its sign.
fn bytes_of(change: i128) -> String {
    show_bytes(u64::try_from(change.unsigned_abs()).unwrap_or(u64::MAX))
}

fn by(a: u64, b: u64) -> i128 {
    i128::from(b) - i128::from(a)
}

/// What is held at the peaks of this measure.
pub(super) fn growth(comparison: &Comparison, measure: Measure) -> &[Growth] {
    match measure {
        Measure::Reserved => &comparison.growth_at_reserved,
        Measure::Allocated => &comparison.growth,
    }
}

/// Reserved memory that no block holds at the peaks of reserved memory.
pub(super) fn unused(comparison: &Comparison) -> [u64; 2] {
    [&comparison.a, &comparison.b].map(|run| {
        let heap = &run.peak_reserved.heap;
        heap.reserved_bytes.saturating_sub(heap.allocated_bytes)
    })
}

/// The groups, the largest change first. Stacks that look the same in one line share a row.
pub(super) fn rows_of_groups(compared: &Compared, growth: &[Growth]) -> Vec<(String, [Held; 2])> {
    let mut rows: BTreeMap<String, [Held; 2]> = BTreeMap::new();
    for group in growth {
        let [a, b] = rows.entry(origin(compared, group.origin)).or_default();
        (*a, *b) = (a.and(group.a), b.and(group.b));
    }
    let mut rows: Vec<(String, [Held; 2])> = rows.into_iter().collect();
    rows.sort_by_key(|(_, [a, b])| Reverse((b.bytes.abs_diff(a.bytes), b.bytes)));
    rows
}
