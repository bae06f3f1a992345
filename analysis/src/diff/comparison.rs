//! The comparison itself: both sides replayed, summed up and paired.

use super::growth::{Grouping, Growth, growth};
use super::likeness::{Likeness, Relation, likeness};
use super::phases::{PhaseChange, phase_changes};
use super::placements::first_difference;
use super::portable_stack::Stacks;
use super::run::Run;
use super::side::{DiffError, Part, Replayed, Side, Which};
use super::step_spans::{NoSteps, REPETITION, repeated_spans};
use super::steps::{Steps, narrow_to_common, narrow_to_last, steps};

/// Two sides compared.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// The first side.
    pub a: Run,
    /// The second side.
    pub b: Run,
    /// How much they have in common.
    pub likeness: Likeness,
    /// Where both make the same requests: the first entry at which the allocator answered otherwise.
    pub first_other_answer: Option<usize>,
    /// How `growth` is grouped.
    pub grouping: Grouping,
    /// What holds the memory at the peaks of allocated memory, the largest change first.
    pub growth: Vec<Growth>,
    /// What was requested in which phase; empty unless both files tell phases apart.
    pub phases: Vec<PhaseChange>,
    /// Step by step, if whole runs are compared.
    pub steps: Steps,
}

/// Sums up one side.
///
/// # Errors
/// [`DiffError`] if the recording contradicts itself, or does not have the step asked for.
pub fn show(side: Side<'_>) -> Result<Run, DiffError> {
    Ok(Run::of(&Replayed::of(side)?))
}

/// Compares two sides. Whole runs are narrowed to what can be compared: if one has no trace, to their ends; if one lost its
/// beginning or ended earlier, to the steps that both have; two recordings of one run, to the last whole step of each.
///
/// # Errors
/// [`DiffError`] for the first side that cannot be shown.
pub fn diff<'r>(mut a: Side<'r>, mut b: Side<'r>) -> Result<Comparison, (Which, DiffError)> {
    if a.device.trace.is_empty() || b.device.trace.is_empty() {
        for side in [&mut a, &mut b].into_iter().filter(|side| side.part == Part::Whole) {
            side.part = Part::End;
        }
    }
    let (a, b) = rayon::join(|| Replayed::of(a), || Replayed::of(b));
    let (mut a, mut b) = (a.map_err(|error| (Which::A, error))?, b.map_err(|error| (Which::B, error))?);
    tell_alike(&mut a, &mut b);
    let stacks = |replayed: &Replayed<'_>| Stacks::of(&replayed.side.recording.stacks, replayed.side.device);
    let (stacks_a, stacks_b) = (stacks(&a), stacks(&b));
    let likeness = likeness((a.side.recording, a.side.device, &stacks_a), (b.side.recording, b.side.device, &stacks_b));
    match likeness.relation {
        _ if a.side.part != Part::Whole || b.side.part != Part::Whole => {}
        Relation::SameRun => narrow_to_last(&mut a, &mut b),
        Relation::SameRequests | Relation::Related => narrow_to_common(&mut a, &mut b),
        Relation::SameRecording | Relation::LittleInCommon | Relation::Unknown => {}
    }
    let first_other_answer = match likeness.relation {
        Relation::SameRequests => first_difference(&a.side.device.trace, &b.side.device.trace),
        _ => None,
    };
    let (run_a, run_b) = (Run::of(&a), Run::of(&b));
    let (peak_a, peak_b) = (run_a.peak_allocated.moment, run_b.peak_allocated.moment);
    let (grouping, growth) = growth((&a, peak_a, &stacks_a), (&b, peak_b, &stacks_b));
    Ok(Comparison {
        likeness,
        first_other_answer,
        grouping,
        growth,
        phases: phase_changes((&a, peak_a), (&b, peak_b)),
        steps: steps(&a, &b),
        a: run_a,
        b: run_b,
    })
}

/// Tells the steps of both by repetition if only one is marked: a mark and a repetition may end at other places of a step. Without
/// marks, the steps of a run that lost its beginning have no numbers, so they cannot be paired with another run's.
fn tell_alike<'r>(a: &mut Replayed<'r>, b: &mut Replayed<'r>) {
    let mark = |side: &Replayed<'_>| side.steps.as_ref().ok().map(|steps| steps.mark == REPETITION);
    let is_lost = |side: &Replayed<'_>| side.requests.lost_beginning.is_some();
    let is_repeated = [&*a, &*b].map(|side| mark(side) == Some(true));
    // A step that was asked for by its number is that of its own file.
    if is_repeated == [false; 2] || a.side.part != Part::Whole || b.side.part != Part::Whole {
        return;
    }
    let is_any_lost = is_lost(a) || is_lost(b);
    for side in [a, b] {
        if is_any_lost {
            side.steps = Err(NoSteps::NotNumbered);
        } else if mark(side) == Some(false)
            && let Ok(steps) = repeated_spans(side.side.device, false)
        {
            side.steps = Ok(steps);
        }
    }
}
