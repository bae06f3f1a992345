//! The steps that two runs have in common, and the memory that each run uses in them.

use super::side::{NoSteps, Part, Replayed, StepSpan};
use crate::timeline::Levels;

/// The memory use of one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepLevels {
    /// The step's first entry, counted from 0.
    pub first_entry: usize,
    /// The step's last entry.
    pub last_entry: usize,
    /// The peak of allocated bytes during the step.
    pub peak_allocated_bytes: u64,
    /// The peak of reserved bytes during the step.
    pub peak_reserved_bytes: u64,
    /// Allocated bytes at the end of the step.
    pub allocated_at_end_bytes: u64,
    /// Reserved bytes at the end of the step.
    pub reserved_at_end_bytes: u64,
}

/// A step that both runs have.
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
    /// What marks the steps in the two runs.
    pub marks: Option<(String, String)>,
    /// The common steps, in order.
    pub pairs: Vec<StepPair>,
    /// The number of steps that only the first run has.
    pub only_a: usize,
    /// The number of steps that only the second run has.
    pub only_b: usize,
    /// Why the first run has no steps.
    pub none_in_a: Option<NoSteps>,
    /// Why the second run has no steps.
    pub none_in_b: Option<NoSteps>,
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
