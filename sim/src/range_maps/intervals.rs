//! A set of half-open ranges that never overlap, each with a value.
//!
//! It holds placed ranges, reservations, and the addresses that a model has returned.

use std::collections::BTreeMap;

/// Ranges by start.
#[derive(Clone, Debug)]
pub(crate) struct Intervals<T> {
    by_start: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Intervals<T> {
    fn default() -> Self {
        Intervals { by_start: BTreeMap::new() }
    }
}

impl<T> Intervals<T> {
    /// The end of the highest range that overlaps `bytes` bytes at `start`; `None` if none does. A range that
    /// would run past the end of the address space counts as overlapping, with the largest address as the
    /// end.
    pub(crate) fn overlap_end(&self, start: u64, bytes: u64) -> Option<u64> {
        let Some(end) = start.checked_add(bytes) else { return Some(u64::MAX) };
        let (&other, &(other_bytes, _)) = self.by_start.range(..end).next_back()?;
        let other_end = other.saturating_add(other_bytes);
        (other_end > start).then_some(other_end)
    }

    /// Adds a range unless it is empty or overlaps another. Returns whether it did.
    pub(crate) fn insert(&mut self, start: u64, bytes: u64, value: T) -> bool {
        let free = bytes > 0 && self.overlap_end(start, bytes).is_none();
        if free {
            self.by_start.insert(start, (bytes, value));
        }
        free
    }

    /// Removes the range that starts at `start`: its size in bytes and its value.
    pub(crate) fn remove(&mut self, start: u64) -> Option<(u64, T)> {
        self.by_start.remove(&start)
    }

    /// How many ranges there are.
    pub(crate) fn count(&self) -> usize {
        self.by_start.len()
    }

    /// The ranges that overlap the addresses from `start` up to `end`, lowest first: start and size in bytes.
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.covering(start).map_or(start, |(first, _, _)| first);
        self.by_start.range(first..end.max(first)).map(|(&start, &(bytes, _))| (start, bytes))
    }

    /// The range that covers `address`: start, size in bytes, value.
    pub(crate) fn covering(&self, address: u64) -> Option<(u64, u64, &T)> {
        let (&start, (bytes, value)) = self.by_start.range(..=address).next_back()?;
        (address - start < *bytes).then_some((start, *bytes, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_overlaps_at_both_ends_and_inside() {
        let mut set = Intervals::default();
        assert!(set.insert(100, 50, 'a'));
        assert_eq!(set.overlap_end(50, 50), None, "touching below");
        assert_eq!(set.overlap_end(150, 10), None, "touching above");
        assert_eq!(set.overlap_end(149, 1), Some(150));
        assert_eq!(set.overlap_end(0, 1000), Some(150), "around");
        assert_eq!(set.overlap_end(120, 5), Some(150), "inside");
        assert_eq!(set.overlap_end(u64::MAX, 2), Some(u64::MAX), "over the end of the address space");
        assert!(!set.insert(149, 5, 'b'));
        assert!(!set.insert(500, 0, 'c'), "empty");
        assert_eq!(set.covering(149), Some((100, 50, &'a')));
        assert_eq!(set.covering(150), None);
        assert!(set.insert(150, 50, 'b'));
        assert_eq!(set.remove(100), Some((50, 'a')));
        assert_eq!(set.remove(100), None);
    }
}
