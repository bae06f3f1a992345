//! The lines below a verdict: in which step and at which entry a change begins, and what it consists of.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use parkade_analysis::diff::{Comparison, Crossing, Growth, Held, Measure, Phase, REPETITION, Relation, Request, Run, StepOnset};
use parkade_recording::StackId;

use super::compared::{Compared, File, Shown};
use super::words::{change, origin, percent, phase_words};
use crate::commands::diagnose::parts;
use crate::terminal::output::count;
use crate::terminal::size::{show_apart, show_bytes};

/// A label and a text.
pub(super) type Row = (&'static str, String);

/// Names the part of reserved memory that no block holds.
pub(super) const UNUSED: &str = "reserved, but not in use";
/// The number of parts of a change that are named.
const PARTS: usize = 2;
/// The smallest share of a change that is named.
const LEAST_SHARE: f64 = 0.1;

/// Where the change begins and what it consists of, with these names for the two sides; for a run that is not compared, what
/// reached its peak.
pub(super) fn rows(compared: &Compared, shown: &Shown, names: [&str; 2]) -> Vec<Row> {
    match shown {
        Shown::One(run) => peak(compared, run).into_iter().collect(),
        Shown::Two(comparison) => {
            let is_unlike = comparison.likeness.relation == Relation::LittleInCommon;
            let onset = comparison.onset.as_ref().filter(|_| !is_unlike);
            let step = onset.and_then(|onset| onset.step).map(|step| begins(comparison, step, names));
            let crossing = onset.and_then(|onset| onset.crossing.as_ref()).map(|crossing| at(compared, crossing, names));
            [step, crossing, consists_of(compared, comparison, names)].into_iter().flatten().collect()
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
        None => "no earlier step is compared".to_owned(),
        Some(0) => "before, they do not differ".to_owned(),
        Some(bytes) => format!("before, they differ by at most {}", show_bytes(bytes)),
    };
    ("begins", format!("in step {} ({counted}): {b} {verb} up to {of_b}, {a} up to {of_a}; {before}", step.step))
}

/// Where the second run first needs more than the first one ever does.
fn at(compared: &Compared, crossing: &Crossing, [a, b]: [&str; 2]) -> Row {
    let step = crossing.step.map(|step| format!("step {step}"));
    let is_named = |phase: &&Phase| !matches!(phase, Phase::Outside | Phase::BeforeTrace);
    let phase = crossing.phase.as_ref().filter(is_named).map(|phase| phase_words(phase, true));
    let time = crossing.after_us.map(|after_us| format!("{:.3} s after the first entry", after_us as f64 / 1e6));
    let places = [step, phase, time].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let places = if places.is_empty() { places } else { format!(" ({places})") };
    let request = crossing.request.map_or_else(String::new, |request| format!(": {}", requests(compared.second(), request)));
    ("at", format!("entry {} of {b}{places}, {b} first exceeds {a}'s peak{request}", crossing.entry))
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

/// The largest parts of the change.
fn consists_of(compared: &Compared, comparison: &Comparison, [name_a, name_b]: [&str; 2]) -> Option<Row> {
    let measure = comparison.onset.as_ref().map_or_else(|| of_the_ends(comparison), |onset| Some(onset.measure))?;
    let (whole_a, whole_b) = (measure.peak_bytes(&comparison.a), measure.peak_bytes(&comparison.b));
    let mut found: Vec<(i128, String)> = Vec::new();
    for (name, [a, b]) in rows_of_groups(compared, growth(comparison, measure)) {
        let blocks = format!("{} in {name_a}, {} in {name_b}", count(a.blocks, "block"), b.blocks);
        found.push((by(a.bytes, b.bytes), format!("{} in {name} ({blocks})", change(a.bytes, b.bytes))));
    }
    if measure == Measure::Reserved {
        let [a, b] = unused(comparison);
        found.push((by(a, b), format!("{} {UNUSED} (fragmentation and cache)", change(a, b))));
    }
    let whole = by(whole_a, whole_b);
    found.retain(|(change, _)| change.signum() == whole.signum() && *change as f64 / whole as f64 >= LEAST_SHARE);
    found.sort_by_key(|(change, _)| Reverse(change.abs()));
    let parts: Vec<String> = found.into_iter().take(PARTS).map(|(_, text)| text).collect();
    let percent = percent(whole_a, whole_b);
    let percent = if percent.is_empty() { percent } else { format!(" ({percent})") };
    (!parts.is_empty()).then(|| ("where", format!("of the {}{percent}: {}", change(whole_a, whole_b), parts.join("; "))))
}

/// The measure that changed, if only the ends are compared.
fn of_the_ends(comparison: &Comparison) -> Option<Measure> {
    let is_other = |measure: &Measure| measure.peak_bytes(&comparison.a) != measure.peak_bytes(&comparison.b);
    [Measure::Reserved, Measure::Allocated].into_iter().find(is_other)
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
