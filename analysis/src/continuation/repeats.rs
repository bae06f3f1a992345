//! Earlier moments at which a program was where it is now.
//!
//! A training loop does in every step what it did in the step before. Seen backwards from an operation, the shape of the program agrees
//! with that seen backwards from the same place in the step before, for about as long as the program has run. Other places agree only
//! briefly: two layers of a model look alike, but not what is before them.

use super::align::{Alignment, Direction, align};

/// A place must agree for so many operations without a difference.
const LEAST_REACH: usize = 8;
/// How many places are looked at, those first from which the shape agrees longest without a difference.
const CANDIDATES: usize = 128;
/// How far back the shape is compared, in operations.
const LOOK_BACK: usize = 16_384;
/// An alignment shorter than this says nothing.
const SHORTEST: usize = 24;
/// Fewer operations are not a step, but a loop within one.
const SHORTEST_STEP: usize = 16;
/// A score is near the highest if it is less than one part in this many below it.
const NEAR_PART: usize = 12;
/// An operation without a counterpart counts against a place as much as this many that agree.
const DIFFERENCE_COST: usize = 2;

/// A step is at most this many times shorter than the last one ...
const SHORTER: usize = 4;
/// ... and at most this many times longer.
const LONGER: usize = 4;

/// The same place in two steps has the same number of live blocks, give or take these ...
const MORE_BLOCKS: usize = 2;
/// ... or one part in this many. In a loop over layers there are more with every layer.
const MORE_BLOCKS_PART: usize = 100;

/// The same place in an earlier step.
#[derive(Clone, Debug)]
pub(crate) struct Repeat {
    /// The operation there that corresponds to the later one.
    pub(crate) operation: usize,
    /// How what came before both corresponds.
    pub(crate) before: Alignment,
}

/// The same place in the step before that of the operation `now`, in the step before that one, and so on, at most `most` of them, the
/// latest first. Each is aligned with its successor.
pub(crate) fn repeats(words: &[u64], live_blocks: &[usize], now: usize, most: usize) -> Vec<Repeat> {
    let mut found: Vec<Repeat> = Vec::new();
    while found.len() < most {
        let later = found.last().map_or(now, |repeat| repeat.operation);
        let Some(repeat) = one_earlier(words, Some(live_blocks), later) else { break };
        // Steps of one loop are of similar length. A much shorter one is a repetition within the first step, such as that of layers.
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

/// Whether there is one more step before the earliest moment, which leaves other blocks behind than it found: the first step makes an
/// optimizer's states. `step` is how many operations a step has.
pub(crate) fn has_first_step(words: &[u64], earliest: usize, step: usize) -> bool {
    one_earlier(words, None, earliest).is_some_and(|first| (earliest - first.operation) * 2 >= step)
}

/// The same place one step before the operation `now`. With `live_blocks`, about as many blocks must be live there.
fn one_earlier(words: &[u64], live_blocks: Option<&[usize]>, now: usize) -> Option<Repeat> {
    let reach = agreements(&words[..=now]);
    // The first step differs from the others, so it is looked for less strictly.
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
    // Neighbouring places score nearly the same: of these, the one that agrees longest without a difference.
    let is_near = |repeat: &Repeat| score(repeat).saturating_mul(NEAR_PART) >= highest.saturating_mul(NEAR_PART - 1);
    let near = found.into_iter().filter(|(_, repeat)| is_near(repeat));
    let (_, best) = near.max_by_key(|(reach, repeat)| (*reach, score(repeat), repeat.operation))?;
    let (agree, differ) = (best.before.pairs.len(), best.before.skipped);
    (agree >= SHORTEST && now - best.operation >= SHORTEST_STEP && differ * DIFFERENCE_COST <= agree).then_some(best)
}

/// For every distance back: how many operations in a row, going backwards from the end, agree with those that distance before (the
/// Z function of the reversed words).
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
