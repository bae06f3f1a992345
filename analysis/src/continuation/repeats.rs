//! Finds earlier moments at which a program was at the same point as it is now, and appends copies of what it did from there
//! to its end.
//!
//! In every step, a training loop does what it did in the step before. Read backwards from an operation, the program has the
//! same shape as when read backwards from the same point in the step before, for almost as long as the program has run. Other
//! points agree only briefly: two layers of a model look alike, but the operations before them do not.
//!
//! The shape of a program is the sequence of its operations without sizes ([`Shape`]). Training steps of different lengths
//! request different sizes, but they request and free in the same order. An allocation is therefore described by its stream,
//! pool and stack, and a free by how many requests ago its block was allocated.
//!
//! [`align`] aligns two stretches of a program that did nearly the same. It pairs equal operations one by one. If the
//! stretches differ, it searches for the nearest operations from which they agree again.
//!
//! A copy of a stretch ([`Splice`]) works on its own blocks. A block that the original freed corresponds to a block that is live
//! now: one that the copy allocated, the same block if it is still live, or the block that a later step allocated at the same
//! point.
//!
//! The sizes of requests that were never made are derived from the requests of earlier steps ([`Sizes`]). Steps differ in
//! size: more tokens, larger images. If two requests had the same size, or sizes in a fixed proportion, in every earlier
//! step, they will again. The sizes in a truncated step therefore follow from those that it had already requested.

use std::hash::BuildHasher;

use parkade_recording::{DeviceRecording, StackId};
use parkade_replay::{Completion, Operation, Requests};
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

/// A candidate must agree for this many operations without a difference.
const LEAST_REACH: usize = 8;
/// The number of candidates examined, starting with those whose shape agrees for longest without a difference.
const CANDIDATES: usize = 128;
/// The number of previous operations over which the shape is compared.
const LOOK_BACK: usize = 16_384;
/// An alignment shorter than this is no evidence.
const SHORTEST: usize = 24;
/// A repetition of fewer operations is not a step but a loop within one.
const SHORTEST_STEP: usize = 16;
/// A score is near the highest if it is less than one part in this many below it.
const NEAR_PART: usize = 12;
/// An operation without a counterpart cancels this many that agree.
const DIFFERENCE_COST: usize = 2;

/// A step is at most this many times shorter than the latest one.
const SHORTER: usize = 4;
/// A step is at most this many times longer than the latest one.
const LONGER: usize = 4;

/// At the same point in two steps, the numbers of live blocks differ by at most this many, or by the share given by
/// [`MORE_BLOCKS_PART`] if that is more.
const MORE_BLOCKS: usize = 2;
/// At the same point in two steps, the numbers of live blocks may differ by one part in this many. In a loop over layers, the
/// number grows with every layer.
const MORE_BLOCKS_PART: usize = 100;

/// The point in an earlier step that corresponds to a later point.
#[derive(Clone, Debug)]
pub(super) struct Repeat {
    /// The operation there that corresponds to the later operation.
    pub(super) operation: usize,
    /// The alignment of the operations before each of them.
    pub(super) before: Alignment,
}

/// Returns the points that correspond to the operation `now` in the step before, in the step before that, and so on; at most
/// `most` of them, the latest first. Each is aligned with its successor.
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

/// Returns whether one more step precedes the earliest moment and leaves more blocks behind than it found: the first step
/// allocates an optimizer's states. `step` is the number of operations in a step.
pub(super) fn has_first_step(words: &[u64], earliest: usize, step: usize) -> bool {
    one_earlier(words, None, earliest).is_some_and(|first| (earliest - first.operation) * 2 >= step)
}

/// Returns the corresponding point one step before the operation `now`. If `live_blocks` is given, about that many blocks
/// must be live there.
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

/// Returns, for each distance, the number of consecutive operations, counted backwards from the end, that agree with those at
/// that distance before them (the Z function of the reversed words).
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

/// After a difference, this many operations must agree for the alignment to continue.
const AGREE: usize = 6;
/// The operations that agree again after a difference are at most this many operations further on, counting both sides
/// together.
const FURTHEST: usize = 96;
/// An alignment ends when more than one in this many operations has no counterpart, not counting the first [`SKIPPED_FREE`].
const SKIPPED_PART: usize = 4;
/// The number of operations without a counterpart that do not count.
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

/// A program that is being continued.
pub(super) struct Splice<'a> {
    recorded: &'a [(usize, Operation)],
    /// The recorded operation that frees each block, if one does.
    freed_at: Vec<Option<usize>>,
    /// The recorded operation that allocated each block.
    allocated_at: Vec<usize>,
    /// All operations: the recorded ones and the copies.
    pub(super) operations: Vec<(usize, Operation)>,
    next_id: usize,
    next_entry: usize,
    /// The recorded blocks that are live at the current position in the recorded program, each with the block that represents
    /// it now.
    stands_for: FxHashMap<usize, usize>,
    /// Blocks that have represented no recorded block since the last jump. The copy frees them at its end.
    left: Vec<usize>,
    /// Recorded blocks that are allocated once and kept.
    lasting: FxHashSet<usize>,
    /// Sizes of live blocks.
    live: FxHashMap<usize, u64>,
    live_bytes: u64,
    /// The peak of live bytes since the last call to `take_peak_bytes`.
    peak_bytes: u64,
}

impl<'a> Splice<'a> {
    /// Starts after the last recorded operation, which counts as served.
    pub(super) fn new(requests: &'a Requests, last: usize, entries: usize) -> Splice<'a> {
        let recorded = &requests.operations[..=last];
        let mut splice = Splice {
            recorded,
            freed_at: Vec::new(),
            allocated_at: Vec::new(),
            operations: recorded.to_vec(),
            next_id: 0,
            next_entry: entries,
            stands_for: FxHashMap::default(),
            left: Vec::new(),
            lasting: FxHashSet::default(),
            live: FxHashMap::default(),
            live_bytes: 0,
            peak_bytes: 0,
        };
        if let Some((_, Operation::Allocate { failed, .. })) = splice.operations.last_mut() {
            *failed = false;
        }
        for (place, (_, operation)) in splice.operations.clone().into_iter().enumerate() {
            match operation {
                Operation::Allocate { id, bytes, failed, .. } => {
                    splice.freed_at.push(None);
                    splice.allocated_at.push(place);
                    splice.next_id = id + 1;
                    if !failed {
                        splice.stands_for.insert(id, id);
                        splice.note_live(id, bytes);
                    }
                }
                Operation::Free { id, .. } => {
                    splice.stands_for.remove(&id);
                    splice.note_freed(id);
                    if let Some(at) = splice.freed_at.get_mut(id) {
                        *at = Some(place);
                    }
                }
                _ => {}
            }
        }
        splice.peak_bytes = splice.live_bytes;
        splice
    }

    /// Moves the current position in the recorded program from the end back to just after the operation `to`. `before` aligns
    /// what precedes `to` with what precedes the end.
    pub(super) fn jump_back(&mut self, to: usize, before: &Alignment) {
        let later: FxHashMap<usize, usize> = before.pairs.iter().copied().collect();
        let at_end = std::mem::take(&mut self.stands_for);
        let mut is_used: FxHashSet<usize> = FxHashSet::default();
        for id in 0..self.allocated_at.len() {
            let is_live = self.allocated_at[id] <= to && self.freed_at[id].is_none_or(|freed| freed > to);
            if !is_live {
                continue;
            }
            let same = at_end.get(&id).copied();
            let counterpart = || at_end.get(&self.id_at(*later.get(&self.allocated_at[id])?)?).copied();
            if let Some(block) = same.or_else(counterpart).filter(|&block| is_used.insert(block)) {
                self.stands_for.insert(id, block);
            }
        }
        // The next step would have freed these blocks, which the last step allocated and which represent no recorded block.
        let recent = |id: &usize| self.allocated_at.get(*id).is_some_and(|&at| at > to);
        let mut left: Vec<usize> =
            at_end.iter().filter(|(id, block)| recent(id) && !is_used.contains(block)).map(|(_, &block)| block).collect();
        left.sort_unstable();
        self.left.extend(left);
    }

    /// Finds the blocks that are allocated once and kept, given the latest earlier moment that corresponds to the end of the
    /// recorded program: those that have been live since before that moment, unless the block that the step before allocated
    /// at the same point has been freed.
    pub(super) fn find_lasting(&mut self, moment: usize, before: &Alignment) {
        let earlier: FxHashMap<usize, usize> = before.pairs.iter().map(|&(earlier, later)| (later, earlier)).collect();
        let is_freed = |place: &usize| self.id_at(*place).is_some_and(|id| self.freed_at[id].is_some());
        let lasts = |&id: &usize| {
            let at = self.allocated_at[id];
            self.freed_at[id].is_none() && at <= moment && !earlier.get(&at).is_some_and(is_freed)
        };
        self.lasting = (0..self.allocated_at.len()).filter(lasts).collect();
    }

    /// Copies the recorded operations after `from`, up to `to`. `size_of` returns the size of a copied request, given its
    /// index.
    pub(super) fn copy(&mut self, from: usize, to: usize, size_of: &dyn Fn(usize) -> Option<u64>) {
        let Some(&(first_entry, _)) = self.recorded.get(from) else { return };
        let base = self.next_entry;
        for place in from + 1..=to {
            let (entry, operation) = self.recorded[place];
            let at = base + entry.saturating_sub(first_entry);
            self.next_entry = at + 1;
            match operation {
                Operation::Allocate { id, bytes, stream, pool, failed } => {
                    if failed && place + 1 < self.recorded.len() {
                        continue;
                    }
                    // The block was allocated once and has been live ever since, so it is not allocated again.
                    if self.lasting.contains(&id) {
                        self.stands_for.insert(id, id);
                        continue;
                    }
                    let bytes = size_of(place).unwrap_or(bytes);
                    let copy = self.next_id;
                    self.next_id += 1;
                    self.stands_for.insert(id, copy);
                    self.note_live(copy, bytes);
                    self.operations.push((at, Operation::Allocate { id: copy, bytes, stream, pool, failed: false }));
                }
                Operation::Free { id, completion } => {
                    let Some(copy) = self.stands_for.remove(&id) else { continue };
                    self.free(at, copy, moved(completion, entry, at));
                }
                Operation::EmptyCache => self.operations.push((at, Operation::EmptyCache)),
                Operation::AbandonPool(_) | Operation::ReleasePool(_) => {}
            }
        }
        for block in std::mem::take(&mut self.left) {
            self.free(self.next_entry, block, Completion::AtOnce);
        }
    }

    fn free(&mut self, at: usize, id: usize, completion: Completion) {
        if self.live.contains_key(&id) {
            self.note_freed(id);
            self.operations.push((at, Operation::Free { id, completion }));
        }
    }

    /// Returns the peak of live bytes since the last call.
    pub(super) fn take_peak_bytes(&mut self) -> u64 {
        std::mem::replace(&mut self.peak_bytes, self.live_bytes)
    }

    fn id_at(&self, place: usize) -> Option<usize> {
        match self.recorded.get(place)?.1 {
            Operation::Allocate { id, .. } => Some(id),
            _ => None,
        }
    }

    fn note_live(&mut self, id: usize, bytes: u64) {
        self.live.insert(id, bytes);
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    fn note_freed(&mut self, id: usize) {
        self.live_bytes = self.live_bytes.saturating_sub(self.live.remove(&id).unwrap_or(0));
    }
}

/// Returns when the memory of a copied free becomes available: as long after the free as in the original.
fn moved(completion: Completion, entry: usize, at: usize) -> Completion {
    match completion {
        Completion::AtEntry(completed) => {
            let later = at.saturating_add((completed as usize).saturating_sub(entry));
            u32::try_from(later).map_or(Completion::Never, Completion::AtEntry)
        }
        other => other,
    }
}

/// Smaller requests may be in proportion by chance.
const LEAST_BYTES: u64 = 4096;

/// The facts that the requests of earlier steps show about a step of which only the beginning is known.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    /// The size in the new step, keyed by the sizes of the same request in the earlier steps.
    equal: FxHashMap<Vec<u64>, u64>,
    /// The same for proportional sizes, keyed by the earlier sizes divided by their greatest common divisor: the divisor and the
    /// new size.
    proportional: FxHashMap<Vec<u64>, (u64, u64)>,
}

impl Sizes {
    /// Records a request that the new step also made: its sizes in the earlier steps and in the new one. Later requests count
    /// more than earlier ones, so they are recorded last.
    pub(super) fn note(&mut self, earlier: &[u64], new: u64) {
        let divisor = divisor_of(earlier);
        let is_large = earlier.iter().all(|&size| size >= LEAST_BYTES);
        if is_large && varies(earlier) {
            let known = self.proportional.entry(earlier.iter().map(|size| size / divisor).collect()).or_insert((divisor, new));
            if known.0 <= divisor {
                *known = (divisor, new);
            }
        }
        self.equal.insert(earlier.to_vec(), new);
    }

    /// Returns the size of a request in the new step, given its sizes in the earlier steps. Returns `None` if the earlier
    /// sizes do not determine it.
    pub(super) fn size(&self, earlier: &[u64]) -> Option<u64> {
        if earlier.len() > 1 && !varies(earlier) {
            return earlier.first().copied();
        }
        if let Some(&size) = self.equal.get(earlier) {
            return Some(size);
        }
        let divisor = divisor_of(earlier);
        if earlier.len() < 2 || earlier.iter().any(|&size| size < LEAST_BYTES) {
            return None;
        }
        let direction: Vec<u64> = earlier.iter().map(|size| size / divisor).collect();
        let &(known, size) = self.proportional.get(&direction)?;
        u64::try_from(u128::from(size) * u128::from(divisor) / u128::from(known)).ok()
    }
}

fn varies(sizes: &[u64]) -> bool {
    sizes.windows(2).any(|pair| pair[0] != pair[1])
}

fn divisor_of(sizes: &[u64]) -> u64 {
    sizes.iter().fold(0, |divisor, &size| greatest_common_divisor(divisor, size))
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    let (mut a, mut b) = (one, other);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_size_follows_one_that_was_equal_or_in_proportion() {
        let mut sizes = Sizes::default();
        sizes.note(&[30_000, 50_000], 70_000);
        sizes.note(&[4096, 4096], 4096);
        assert_eq!(sizes.size(&[30_000, 50_000]), Some(70_000));
        assert_eq!(sizes.size(&[120_000, 200_000]), Some(280_000), "four times as large in both");
        assert_eq!(sizes.size(&[9000, 15_000]), Some(21_000));
        assert_eq!(sizes.size(&[8192, 8192]), Some(8192), "the same in every step");
        assert_eq!(sizes.size(&[30_000, 60_000]), None);
        assert_eq!(sizes.size(&[3, 5]), None, "a proportion of small numbers says nothing");
    }

    #[test]
    fn one_earlier_step_tells_equal_sizes_only() {
        let mut sizes = Sizes::default();
        sizes.note(&[300], 700);
        assert_eq!((sizes.size(&[300]), sizes.size(&[600])), (Some(700), None));
    }
}
