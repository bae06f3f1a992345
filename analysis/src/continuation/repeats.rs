//! Finds earlier moments at which a program was at the same point as it is now.
//!
//! In every step, a training loop does what it did in the step before. Read backwards from an operation, the program has the
//! same shape as when read backwards from the same point in the step before, for almost as long as the program has run. Other
//! points agree only briefly: two layers of a model look alike, but the operations before them do not.
//!
//! The shape of a program is the sequence of its operations without sizes ([`Shape`]). Training steps of different lengths
//! request different sizes, but they request and free in the same order. An allocation is therefore described by its stream,
//! pool and stack, and a free by how many requests ago its block was allocated.
//!
//! [`align`] aligns two stretches of a program that did nearly the same. It pairs equal operations one by one. Where the
//! stretches differ, it searches for the nearest operations from which they agree again.

use std::hash::BuildHasher;

use parkade_recording::{DeviceRecording, StackId};
use parkade_replay::Operation;
use rustc_hash::FxBuildHasher;

/// A candidate must agree for this many operations without a difference.
const LEAST_REACH: usize = 8;
/// The number of candidates examined, starting with those whose shape agrees for longest without a difference.
const CANDIDATES: usize = 128;
/// How far back the shape is compared, in operations.
const LOOK_BACK: usize = 16_384;
/// An alignment shorter than this is no evidence.
const SHORTEST: usize = 24;
/// A repetition of fewer operations is not a step but a loop within one.
const SHORTEST_STEP: usize = 16;
/// A score is near the highest if it is less than one part in this many below it.
const NEAR_PART: usize = 12;
/// An operation without a counterpart cancels this many that agree.
const DIFFERENCE_COST: usize = 2;

/// A step is at most this many times shorter than the latest one ...
const SHORTER: usize = 4;
/// ... and at most this many times longer.
const LONGER: usize = 4;

/// The same point in two steps has the same number of live blocks, give or take this many ...
const MORE_BLOCKS: usize = 2;
/// ... or one part in this many. In a loop over layers the number grows with every layer.
const MORE_BLOCKS_PART: usize = 100;

/// The point in an earlier step that corresponds to a later point.
#[derive(Clone, Debug)]
pub(super) struct Repeat {
    /// The operation there that corresponds to the later operation.
    pub(super) operation: usize,
    /// The alignment of the operations before each of them.
    pub(super) before: Alignment,
}

/// The points that correspond to the operation `now` in the step before, in the step before that, and so on; at most `most`
/// of them, the latest first. Each is aligned with its successor.
pub(super) fn repeats(words: &[u64], live_blocks: &[usize], now: usize, most: usize) -> Vec<Repeat> {
    let mut found: Vec<Repeat> = Vec::new();
    while found.len() < most {
        let later = found.last().map_or(now, |repeat| repeat.operation);
        let Some(repeat) = one_earlier(words, Some(live_blocks), later) else { break };
        // Steps of one loop are of similar length. A much shorter one is a repetition within the first step, such as a loop over
        // layers.
        let first = found.first().map_or(0, |first| now - first.operation);
        if (later - repeat.operation) * SHORTER < first
            || later - repeat.operation > first.saturating_mul(LONGER).max(now * usize::from(first == 0))
        {
            break;
        }
        found.push(repeat);
    }
    found
}

/// Whether one more step precedes the earliest moment and leaves more blocks behind than it found: the first step allocates an
/// optimizer's states. `step` is the number of operations in a step.
pub(super) fn has_first_step(words: &[u64], earliest: usize, step: usize) -> bool {
    one_earlier(words, None, earliest).is_some_and(|first| (earliest - first.operation) * 2 >= step)
}

/// The corresponding point one step before the operation `now`. If `live_blocks` is given, about that many blocks must be
/// live there.
fn one_earlier(words: &[u64], live_blocks: Option<&[usize]>, now: usize) -> Option<Repeat> {
    let reach = agreements(&words[..=now]);
    // The first step differs from the others, so it is searched for less strictly.
    let least_reach = if live_blocks.is_some() { LEAST_REACH } else { 1 };
    let is_like = |place: usize| {
        live_blocks.is_none_or(|blocks| blocks[place].abs_diff(blocks[now]) <= MORE_BLOCKS.max(blocks[now] / MORE_BLOCKS_PART))
    };
    let mut candidates: Vec<(usize, usize)> = reach
        .iter()
        .enumerate()
        .skip(1)
        .filter(|&(back, &reach)| reach >= least_reach && is_like(now - back))
        .map(|(back, &reach)| (reach, back))
        .collect();
    candidates.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    candidates.truncate(CANDIDATES);
    let repeat = |(reach, back): (usize, usize)| {
        let before = align(words, (now - back, now), Direction::Backwards, LOOK_BACK, now + 1);
        (reach, Repeat { operation: now - back, before })
    };
    let found: Vec<(usize, Repeat)> = candidates.into_iter().map(repeat).collect();
    let score = |repeat: &Repeat| repeat.before.pairs.len().saturating_sub(DIFFERENCE_COST * repeat.before.skipped);
    let highest = found.iter().map(|(_, repeat)| score(repeat)).max()?;
    // Neighbouring operations score nearly the same; choose the one that agrees for longest without a difference.
    let is_near = |repeat: &Repeat| score(repeat).saturating_mul(NEAR_PART) >= highest.saturating_mul(NEAR_PART - 1);
    let near = found.into_iter().filter(|(_, repeat)| is_near(repeat));
    let (_, best) = near.max_by_key(|(reach, repeat)| (*reach, score(repeat), repeat.operation))?;
    let (agree, differ) = (best.before.pairs.len(), best.before.skipped);
    (agree >= SHORTEST && now - best.operation >= SHORTEST_STEP && differ * DIFFERENCE_COST <= agree).then_some(best)
}

/// For each distance: the number of consecutive operations, counted backwards from the end, that agree with those at that
/// distance before them (the Z function of the reversed words).
fn agreements(words: &[u64]) -> Vec<usize> {
    let count = words.len();
    let word = |place: usize| words[count - 1 - place];
    let mut reach = vec![0; count];
    let (mut left, mut right) = (0, 0);
    for place in 1..count {
        let mut agree = if place < right { reach[place - left].min(right - place) } else { 0 };
        while place + agree < count && word(agree) == word(place + agree) {
            agree += 1;
        }
        if place + agree > right {
            (left, right) = (place, place + agree);
        }
        reach[place] = agree;
    }
    reach
}

/// After a difference, this many operations must agree ...
const AGREE: usize = 6;
/// ... at most this many operations further on, counting both sides together.
const FURTHEST: usize = 96;
/// An alignment ends when more than one in this many operations has no counterpart ...
const SKIPPED_PART: usize = 4;
/// ... not counting this many.
const SKIPPED_FREE: usize = 96;
/// The distance between the stretches may change by one part in this many. With a looser bound, an alignment with a
/// neighbouring point could drift until it aligns the point with itself.
const DRIFT_PART: i64 = 4;

/// The direction in which stretches are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// Into the past.
    Backwards,
    /// Into the future.
    Forwards,
}

/// Operations that correspond.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Alignment {
    /// Pairs of operation indices; the one in the earlier stretch comes first.
    pub(super) pairs: Vec<(usize, usize)>,
    /// The number of operations without a counterpart.
    skipped: usize,
}

/// Pairs the operations of `words` starting at `earlier` and `later` (inclusive), at most `most` pairs, and none at or beyond
/// `end`.
pub(super) fn align(words: &[u64], (earlier, later): (usize, usize), direction: Direction, most: usize, end: usize) -> Alignment {
    let at = |start: usize, steps: usize| match direction {
        Direction::Backwards => start.checked_sub(steps),
        Direction::Forwards => Some(start + steps).filter(|&place| place < end),
    };
    let same = |a: usize, b: usize| match (at(earlier, a), at(later, b)) {
        (Some(a), Some(b)) => words.get(a).is_some_and(|word| words.get(b) == Some(word)),
        _ => false,
    };
    let agrees = |a: usize, b: usize| (0..AGREE).all(|more| same(a + more, b + more));
    let largest_drift = (later as i64 - earlier as i64) / DRIFT_PART;
    let stays = |a: usize, b: usize| (a as i64 - b as i64).abs() <= largest_drift;
    let mut found = Alignment::default();
    let (mut a, mut b) = (0, 0);
    while found.pairs.len() < most {
        let Some(pair) = at(earlier, a).zip(at(later, b)) else { break };
        if same(a, b) {
            found.pairs.push(pair);
            (a, b) = (a + 1, b + 1);
            continue;
        }
        let ways = (1..=FURTHEST).flat_map(|total| (0..=total).map(move |skip| (a + skip, b + total - skip)));
        let Some((next_a, next_b)) = { ways }.find(|&(a, b)| stays(a, b) && agrees(a, b)) else { break };
        found.skipped += (next_a - a).max(next_b - b);
        (a, b) = (next_a, next_b);
        if found.skipped > SKIPPED_FREE + found.pairs.len() / SKIPPED_PART {
            break;
        }
    }
    found
}

/// A free of a block that was allocated at least this many requests ago is described as a free of an old block, because the
/// steps in between vary.
const LONG_AGO: u64 = 128;

/// Descriptions of operations: equal descriptions mean that the program did the same thing.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// One description for each operation.
    pub(super) words: Vec<u64>,
}

impl Shape {
    /// Describes the operations of this recording.
    pub(super) fn of(operations: &[(usize, Operation)], recording: &DeviceRecording) -> Shape {
        let mut next = 0_u64;
        let word = |&(entry, operation): &(usize, Operation)| match operation {
            Operation::Allocate { id, stream, pool, .. } => {
                next = id as u64 + 1;
                let stack = recording.trace.get(entry).map_or(StackId::NONE, |entry| entry.stack);
                FxBuildHasher.hash_one((1, stream, pool, stack))
            }
            Operation::Free { id, .. } => FxBuildHasher.hash_one((2, next.saturating_sub(id as u64).min(LONG_AGO))),
            Operation::EmptyCache => FxBuildHasher.hash_one(3),
            Operation::AbandonPool(_) => FxBuildHasher.hash_one(4),
            Operation::ReleasePool(_) => FxBuildHasher.hash_one(5),
        };
        Shape { words: operations.iter().map(word).collect() }
    }
}
