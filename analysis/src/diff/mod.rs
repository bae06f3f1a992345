//! Compares two recorded runs: peaks, what holds the memory at them, fragmentation, driver calls, and individual steps.
//!
//! [`show`] summarizes one [`Side`], a device of a recording or one of its steps; [`diff`] summarizes two and pairs what they
//! have in common: it narrows both to the steps that are compared and pairs steps of the same number. `side` replays a
//! recording, finds steps and their phases, and summarizes them; `likeness` judges whether the runs are comparable, `steps`
//! pairs the steps, and `onset` finds where a change begins.
//!
//! [`Growth`] pairs what holds the memory at the two peaks by the code that allocated it. Blocks with stacks are paired by
//! stack if both recordings have stacks. The other blocks are grouped by size class, according to the requested bytes, which
//! do not depend on settings.

mod likeness;
mod onset;
mod side;
mod steps;

pub use likeness::{Likeness, Relation};
pub use onset::{Crossing, Measure, Onset, StepOnset};
pub use side::{
    Bound, Check, DiffError, DriverUse, NoSteps, Part, Peak, Phase, PhaseChange, PhaseUse, REPETITION, Request, Run, Side, Which,
};
pub use steps::{StepLevels, StepPair, Steps};

use std::cmp::Reverse;
use std::collections::BTreeMap;

use parkade_recording::{Action, StackId};
use rustc_hash::FxHashMap;

use likeness::{Stacks, first_difference, likeness};
use side::{Replayed, StepSpans, phase_changes, repeated_spans};
use steps::steps;

/// The comparison of two sides.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// The first side.
    pub a: Run,
    /// The second side.
    pub b: Run,
    /// Their similarity.
    pub likeness: Likeness,
    /// The first entry at which the allocator answered differently, if both sides make the same requests.
    pub first_other_answer: Option<usize>,
    /// How `growth` is grouped.
    pub grouping: Grouping,
    /// Where the change of the peak begins; `None` if there is no change, or if only the ends are compared.
    pub onset: Option<Onset>,
    /// The holders of the memory at the peaks of allocated memory, the largest change first.
    pub growth: Vec<Growth>,
    /// The holders of the memory in use at the peaks of reserved memory, the largest change first.
    pub growth_at_reserved: Vec<Growth>,
    /// The memory that each phase requested; empty unless both files have phases.
    pub phases: Vec<PhaseChange>,
    /// The steps in pairs, if whole runs are compared.
    pub steps: Steps,
}

/// Summarizes one side.
///
/// # Errors
/// Returns [`DiffError`] if the recording contradicts itself, or does not have the requested step.
pub fn show(side: Side<'_>) -> Result<Run, DiffError> {
    Ok(Run::of(&Replayed::of(side)?))
}

/// Compares two sides. Whole runs are narrowed to what can be compared: if one has no trace, to their final states; if
/// one lacks its oldest entries or ended earlier, to the steps that both have; if both are from the same run, to the
/// last complete step of each.
///
/// # Errors
/// Returns [`DiffError`] for the first side that cannot be summarized.
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
    let growth_at = |of: fn(&Run) -> u32| growth((&a, of(&run_a), &stacks_a), (&b, of(&run_b), &stacks_b));
    let (grouping, growth) = growth_at(|run| run.peak_allocated.moment);
    let (_, growth_at_reserved) = growth_at(|run| run.peak_reserved.moment);
    let steps = steps(&a, &b);
    Ok(Comparison {
        likeness,
        first_other_answer,
        grouping,
        onset: Onset::of(&run_a, &run_b, &b, &steps.pairs),
        growth,
        growth_at_reserved,
        phases: phase_changes((&a, peak_a), (&b, peak_b)),
        steps,
        a: run_a,
        b: run_b,
    })
}

/// Finds the steps of both sides by repetition if only one is annotated, because a mark and a repetition may end at different
/// points in a step. Without marks, the steps of a run whose oldest entries are missing have no numbers and cannot be paired
/// with those of another run.
fn tell_alike<'r>(a: &mut Replayed<'r>, b: &mut Replayed<'r>) {
    let mark = |side: &Replayed<'_>| side.steps.as_ref().ok().map(|steps| steps.mark == REPETITION);
    let is_lost = |side: &Replayed<'_>| side.requests.lost_beginning.is_some();
    let is_repeated = [&*a, &*b].map(|side| mark(side) == Some(true));
    // If the caller asked for a step by its number, the number refers to the step's own file.
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

/// Narrows two whole runs to the steps that both have, if one lacks its oldest entries or ended earlier. Peaks in steps
/// that only one run has would reveal nothing about what changed.
fn narrow_to_common<'r>(a: &mut Replayed<'r>, b: &mut Replayed<'r>) {
    let (Ok(spans_a), Ok(spans_b)) = (&a.steps, &b.steps) else { return };
    let is_cut = a.requests.lost_beginning.is_some() || b.requests.lost_beginning.is_some();
    let numbers = |spans: &StepSpans| Some((spans.spans.first()?.number, spans.spans.last()?.number));
    let (Some((first_a, last_a)), Some((first_b, last_b))) = (numbers(spans_a), numbers(spans_b)) else { return };
    let first = first_a.max(first_b);
    // A run that died had begun one more step.
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

/// Returns whether the program requested memory after its last complete step.
fn has_tail(side: &Replayed<'_>) -> bool {
    let end = side.steps.as_ref().ok().and_then(|steps| steps.spans.last()).map_or(0, |span| span.to);
    let tail = side.side.device.trace.get(end as usize..).unwrap_or(&[]);
    tail.iter().any(|entry| matches!(entry.action, Action::Alloc | Action::Oom))
}

/// Narrows two recordings of the same run to the last complete step of each.
fn narrow_to_last<'r>(a: &mut Replayed<'r>, b: &mut Replayed<'r>) {
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

/// Requests up to this size have their own pool (spec 1.4) and form one class.
const SMALL: u64 = 1 << 20;

/// Requests of similar sizes, from one power of two to the next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SizeClass {
    /// The smallest size in the class, in bytes.
    pub least_bytes: u64,
    /// The first size above the class, in bytes.
    pub below_bytes: u64,
}

impl SizeClass {
    /// Returns the class of a request.
    #[must_use]
    pub fn of(requested_bytes: u64) -> SizeClass {
        let power = requested_bytes.checked_ilog2().filter(|_| requested_bytes >= SMALL);
        power.map_or(SizeClass { least_bytes: 0, below_bytes: SMALL }, |power| {
            let least_bytes = 1 << power;
            SizeClass { least_bytes, below_bytes: u64::saturating_mul(least_bytes, 2) }
        })
    }
}

/// The origin of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A call site in the program, as each recording numbers it. Among stacks that differ only in their line numbers, the one
    /// that holds the most.
    Stack {
        /// In the first recording.
        a: Option<StackId>,
        /// In the second recording.
        b: Option<StackId>,
    },
    /// Blocks without stacks, by requested size.
    Sizes(SizeClass),
}

/// Live blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Their bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// The memory that blocks of one origin hold at the two peaks of allocated memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// The blocks' origin.
    pub origin: Origin,
    /// On the first side.
    pub a: Held,
    /// On the second side.
    pub b: Held,
}

impl Growth {
    /// Returns the bytes on the second side minus those on the first.
    #[must_use]
    pub fn change_bytes(&self) -> i128 {
        i128::from(self.b.bytes) - i128::from(self.a.bytes)
    }
}

/// The way in which blocks are grouped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grouping {
    /// By stack; blocks without a stack by size.
    Stacks,
    /// By size, because at least one recording has no stacks.
    Sizes {
        /// Whether the first recording has stacks.
        a_has_stacks: bool,
        /// Whether the second recording has stacks.
        b_has_stacks: bool,
    },
}

parkade_recording::names! {
    Grouping {
        Grouping::Stacks => "stack",
        Grouping::Sizes { .. } => "size",
    }
}

impl Held {
    /// Returns the sum of these blocks and the other blocks.
    #[must_use]
    pub const fn and(self, other: Held) -> Held {
        Held { bytes: self.bytes.saturating_add(other.bytes), blocks: self.blocks.saturating_add(other.blocks) }
    }
}

/// Identifies a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Stack { portable: u64, exact: Option<u64> },
    Sizes(SizeClass),
}

/// One side's part of a group.
#[derive(Clone, Copy, Default)]
struct Share {
    held: Held,
    /// The stack that holds the most, and the number of bytes it holds.
    most: Option<(u64, StackId)>,
}

/// Returns the holders of the memory at a given moment on each side, the largest change first.
fn growth(a: (&Replayed<'_>, u32, &Stacks), b: (&Replayed<'_>, u32, &Stacks)) -> (Grouping, Vec<Growth>) {
    let (a_has_stacks, b_has_stacks) = (!a.2.is_empty(), !b.2.is_empty());
    let by_stack = a_has_stacks && b_has_stacks;
    let mut groups: BTreeMap<Key, [Share; 2]> = BTreeMap::new();
    // Many stacks may have one portable form, and the comparison visits all of them.
    let mut has_same_lines: FxHashMap<u64, bool> = FxHashMap::default();
    for (place, (own, other)) in [(a, b), (b, a)].into_iter().enumerate() {
        for ((stack, class), held) in holders(own.0, own.1, by_stack) {
            let key = match own.2.forms(stack) {
                Some(forms) => {
                    let portable = forms.portable;
                    let is_same = has_same_lines.entry(portable).or_insert_with(|| own.2.has_same_lines(other.2, portable));
                    Key::Stack { portable, exact: is_same.then_some(forms.exact) }
                }
                None => Key::Sizes(class),
            };
            let share = &mut groups.entry(key).or_default()[place];
            share.held = share.held.and(held);
            if stack != StackId::NONE && share.most.is_none_or(|(bytes, _)| held.bytes > bytes) {
                share.most = Some((held.bytes, stack));
            }
        }
    }
    let mut growth: Vec<Growth> = groups.into_iter().map(|(key, shares)| of_group(key, shares)).collect();
    growth
        .sort_by_cached_key(|group| (Reverse(group.change_bytes().unsigned_abs()), Reverse(group.b.bytes), order(group.origin)));
    let grouping = if by_stack { Grouping::Stacks } else { Grouping::Sizes { a_has_stacks, b_has_stacks } };
    (grouping, growth)
}

/// Returns the live blocks at a given moment: by stack, and those without a stack by size class.
fn holders(replayed: &Replayed<'_>, moment: u32, by_stack: bool) -> BTreeMap<(StackId, SizeClass), Held> {
    let all = SizeClass { least_bytes: 0, below_bytes: u64::MAX };
    let mut holders: BTreeMap<(StackId, SizeClass), Held> = BTreeMap::new();
    let blocks = replayed.timeline.log.blocks.iter();
    for block in blocks.filter(|block| block.born <= moment && moment < block.freed) {
        let key = match block.stack {
            stack if by_stack && stack != StackId::NONE => (stack, all),
            _ => (StackId::NONE, SizeClass::of(block.requested)),
        };
        let held = holders.entry(key).or_default();
        *held = held.and(Held { bytes: block.size, blocks: 1 });
    }
    holders
}

fn of_group(key: Key, [a, b]: [Share; 2]) -> Growth {
    let stack = |share: Share| share.most.map(|(_, stack)| stack);
    let origin = match key {
        Key::Stack { .. } => Origin::Stack { a: stack(a), b: stack(b) },
        Key::Sizes(class) => Origin::Sizes(class),
    };
    Growth { origin, a: a.held, b: b.held }
}

/// Returns a sort key that does not depend on hashes.
fn order(origin: Origin) -> (Option<SizeClass>, Option<StackId>, Option<StackId>) {
    match origin {
        Origin::Stack { a, b } => (None, a, b),
        Origin::Sizes(class) => (Some(class), None, None),
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn classes_are_powers_of_two_above_the_small_pool() {
        let class = |bytes| {
            let class = SizeClass::of(bytes);
            (class.least_bytes, class.below_bytes)
        };
        assert_eq!([0, 1, SMALL - 1].map(class), [(0, SMALL); 3]);
        assert_eq!([SMALL, 2 * SMALL - 1].map(class), [(SMALL, 2 * SMALL); 2]);
        assert_eq!(class(u64::MAX), (1 << 63, u64::MAX));
    }
}
