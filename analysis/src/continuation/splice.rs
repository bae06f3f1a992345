//! Appends copies of stretches of a program to its end, so that each copy frees the counterparts of what its original freed,
//! and derives the sizes of the copied requests.
//!
//! A copy works on its own blocks. A block that the original freed corresponds to a block that is live now: one that the copy
//! allocated, the same block if it is still live, or the block that a later step allocated at the same point.
//!
//! The sizes of requests that were never made are derived from the requests of earlier steps ([`Sizes`]). Steps differ in
//! size: more tokens, larger images. If two requests had the same size, or sizes in a fixed proportion, in every earlier
//! step, they will again. The sizes in a truncated step therefore follow from those that it had already requested.

use parkade_replay::{Completion, Operation, Requests};
use rustc_hash::{FxHashMap, FxHashSet};

use super::repeats::Alignment;

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

/// What the requests of earlier steps show about a step of which only the beginning is known.
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

    /// The size of a request in the new step, given its sizes in the earlier steps. `None` if the earlier sizes do not determine
    /// it.
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
