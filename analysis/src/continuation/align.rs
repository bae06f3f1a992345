//! Aligning two stretches of a program that did nearly the same.
//!
//! Equal operations are paired one by one. Where the stretches differ, the nearest places are searched from which they agree again.

/// After a difference, this many operations must agree ...
const AGREE: usize = 6;
/// ... at most this many operations further on, counted on both sides together.
const FURTHEST: usize = 96;
/// An alignment ends when more than one in this many operations has no counterpart ...
const SKIPPED_PART: usize = 4;
/// ... beyond these first ones.
const SKIPPED_FREE: usize = 96;
/// The distance between the stretches may change by one part in this many: otherwise an alignment of a place with its neighbour would
/// slip into one of the place with itself.
const DRIFT_PART: i64 = 4;

/// In which direction stretches are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// Into the past.
    Backwards,
    /// Into the future.
    Forwards,
}

/// Operations that correspond.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Alignment {
    /// Pairs of places, that in the earlier stretch first.
    pub(crate) pairs: Vec<(usize, usize)>,
    /// How many operations have no counterpart.
    pub(crate) skipped: usize,
}

/// Pairs the operations of `words` from the places `earlier` and `later` on, these included, at most `most` of them and none from `end`
/// on.
pub(crate) fn align(words: &[u64], (earlier, later): (usize, usize), direction: Direction, most: usize, end: usize) -> Alignment {
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
