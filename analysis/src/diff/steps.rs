//! Two runs step by step: which steps are compared, and the steps of one number beside each other.

use parkade_recording::Action;

use super::side::{Part, Replayed};
use super::step_spans::{NoSteps, StepSpan, StepSpans};
use crate::timeline::Levels;

/// The memory of one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepLevels {
    /// Its first entry.
    pub first_entry: usize,
    /// Its last entry.
    pub last_entry: usize,
    /// The most allocated bytes during it.
    pub peak_allocated_bytes: u64,
    /// The most reserved bytes during it.
    pub peak_reserved_bytes: u64,
    /// Allocated bytes at its end.
    pub allocated_at_end_bytes: u64,
    /// Reserved bytes at its end.
    pub reserved_at_end_bytes: u64,
}

/// A step of both runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepPair {
    /// Its number, from 0.
    pub step: usize,
    /// In the first run.
    pub a: StepLevels,
    /// In the second run.
    pub b: StepLevels,
}

/// The steps that both runs have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Steps {
    /// What marks them in the two runs.
    pub marks: Option<(String, String)>,
    /// The steps of both, in order.
    pub pairs: Vec<StepPair>,
    /// How many only the first run has.
    pub only_a: usize,
    /// How many only the second run has.
    pub only_b: usize,
    /// Why the first run has none.
    pub none_in_a: Option<NoSteps>,
    /// Why the second run has none.
    pub none_in_b: Option<NoSteps>,
}

/// Narrows two whole runs to the steps that both have, if one lost its beginning or ended earlier. Peaks of steps that only one has
/// would say nothing about what changed.
pub(super) fn narrow_to_common<'r>(a: &mut Replayed<'r>, b: &mut Replayed<'r>) {
    let (Ok(spans_a), Ok(spans_b)) = (&a.steps, &b.steps) else { return };
    let is_cut = a.requests.lost_beginning.is_some() || b.requests.lost_beginning.is_some();
    let numbers = |spans: &StepSpans| Some((spans.spans.first()?.number, spans.spans.last()?.number));
    let (Some((first_a, last_a)), Some((first_b, last_b))) = (numbers(spans_a), numbers(spans_b)) else { return };
    let first = first_a.max(first_b);
    // A run that died has begun one step more.
    let begun = |side: &Replayed<'_>, last: usize| if has_tail(side) { last + 1 } else { last };
    let last = begun(a, last_a).min(begun(b, last_b));
    let is_same_end = last_a == last_b;
    if first > last_a.min(last_b) || (!is_cut && is_same_end) {
        return;
    }
    let window = |side: &Replayed<'_>, spans: &StepSpans, own_last: usize| {
        let from = if is_cut { spans.numbered(first).map_or(0, |span| span.from) } else { 0 };
        let to = if is_same_end || last > own_last { None } else { spans.numbered(last).map(|span| span.to) };
        (from, to.unwrap_or(side.to))
    };
    let (of_a, of_b) = (window(a, spans_a, last_a), window(b, spans_b, last_b));
    for (side, (from, to)) in [(a, of_a), (b, of_b)] {
        (side.from, side.to) = (from, to);
        side.side.part = Part::Common { first, last };
    }
}

/// Whether the program requested memory after its last whole step.
fn has_tail(side: &Replayed<'_>) -> bool {
    let end = side.steps.as_ref().ok().and_then(|steps| steps.spans.last()).map_or(0, |span| span.to);
    let tail = side.side.device.trace.get(end as usize..).unwrap_or(&[]);
    tail.iter().any(|entry| matches!(entry.action, Action::Alloc | Action::Oom))
}

/// Narrows two recordings of one run to the last whole step of each.
pub(super) fn narrow_to_last<'r>(a: &mut Replayed<'r>, b: &mut Replayed<'r>) {
    let last = |side: &Replayed<'_>| side.steps.as_ref().ok().and_then(|steps| steps.spans.last()).copied();
    let (Some(last_a), Some(last_b)) = (last(a), last(b)) else { return };
    if last_a.number == last_b.number {
        return;
    }
    for (side, span) in [(a, last_a), (b, last_b)] {
        (side.from, side.to) = (span.from, span.to);
        side.side.part = Part::Step(span.number);
    }
}

/// Pairs the steps of two whole runs by number.
pub(super) fn steps(a: &Replayed<'_>, b: &Replayed<'_>) -> Steps {
    let (spans_a, spans_b) = match (&a.steps, &b.steps) {
        _ if !has_steps(a.side.part) || !has_steps(b.side.part) => return Steps::default(),
        (Ok(spans_a), Ok(spans_b)) => (spans_a, spans_b),
        (a, b) => {
            return Steps { none_in_a: a.as_ref().err().copied(), none_in_b: b.as_ref().err().copied(), ..Steps::default() };
        }
    };
    let pair = |span: &StepSpan| {
        let (other, step) = (spans_b.numbered(span.number)?, span.number);
        Some(StepPair { step, a: levels(&a.timeline.levels, *span), b: levels(&b.timeline.levels, other) })
    };
    let pairs: Vec<StepPair> = spans_a.spans.iter().filter_map(pair).collect();
    Steps {
        marks: Some((spans_a.mark.clone(), spans_b.mark.clone())),
        only_a: spans_a.spans.len() - pairs.len(),
        only_b: spans_b.spans.len() - pairs.len(),
        pairs,
        none_in_a: None,
        none_in_b: None,
    }
}

const fn has_steps(part: Part) -> bool {
    matches!(part, Part::Whole | Part::Common { .. })
}

fn levels(levels: &Levels, span: StepSpan) -> StepLevels {
    let highest =
        |level: &[u64]| level.get(span.from as usize..=span.to as usize).and_then(|part| part.iter().max()).copied().unwrap_or(0);
    let at_end = |level: &[u64]| level.get(span.to as usize).copied().unwrap_or(0);
    StepLevels {
        first_entry: span.from as usize,
        last_entry: (span.to as usize).saturating_sub(1),
        peak_allocated_bytes: highest(&levels.allocated),
        peak_reserved_bytes: highest(&levels.reserved),
        allocated_at_end_bytes: at_end(&levels.allocated),
        reserved_at_end_bytes: at_end(&levels.reserved),
    }
}
