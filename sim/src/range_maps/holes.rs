//! A set of free ranges that coalesce: used for free pages, for the space in a shared page, and for free
//! addresses.
//!
//! The unit is the caller's (bytes, pages). Ranges passed to [`Holes::insert`] must not overlap the set; that
//! is not checked.

use std::collections::BTreeMap;

/// Free ranges by start. Ranges that touch are merged.
#[derive(Clone, Default, Debug)]
pub(crate) struct Holes {
    by_start: BTreeMap<u64, u64>,
    /// No hole is longer. Most searches in vain end here.
    longest_at_most: u64,
}

impl Holes {
    /// Adds a range and merges it with the holes on either side.
    pub(crate) fn insert(&mut self, start: u64, length: u64) {
        if length == 0 {
            return;
        }
        let mut length = length;
        if let Some(next) = self.by_start.remove(&start.saturating_add(length)) {
            length += next;
        }
        match self.by_start.range_mut(..start).next_back() {
            Some((&before, before_length)) if before.saturating_add(*before_length) == start => {
                *before_length += length;
                length = *before_length;
            }
            _ => {
                self.by_start.insert(start, length);
            }
        }
        self.longest_at_most = self.longest_at_most.max(length);
    }

    /// Takes `length` from the start of the lowest hole that is long enough (first fit), if there is one.
    pub(crate) fn take_first_fit(&mut self, length: u64) -> Option<u64> {
        let (start, found) = self.first_fit(length)?;
        self.by_start.remove(&start);
        if found > length {
            self.by_start.insert(start + length, found - length);
        }
        Some(start)
    }

    /// No hole is longer than this; the longest may be shorter.
    pub(crate) fn longest_at_most(&self) -> u64 {
        self.longest_at_most
    }

    /// How many holes there are.
    pub(crate) fn count(&self) -> usize {
        self.by_start.len()
    }

    /// The lowest hole that is long enough: its start and length.
    pub(crate) fn first_fit(&mut self, length: u64) -> Option<(u64, u64)> {
        if length > self.longest_at_most {
            return None;
        }
        let mut longest = 0;
        for (&start, &found) in &self.by_start {
            if found >= length {
                return Some((start, found));
            }
            longest = longest.max(found);
        }
        self.longest_at_most = longest;
        None
    }

    /// Whether this range is free, and nothing else.
    pub(crate) fn are_only(&self, start: u64, length: u64) -> bool {
        self.by_start.len() == 1 && self.by_start.first_key_value() == Some((&start, &length))
    }

    /// The highest hole that is at least `slack` longer than `length`, and the highest aligned place for
    /// `length` in it: the place, the hole's start and its end.
    pub(crate) fn highest_fit(&self, length: u64, slack: u64, alignment: u64) -> Option<(u64, u64, u64)> {
        let needed = length.checked_add(slack)?;
        self.by_start.iter().rev().find_map(|(&start, &found)| {
            let end = start.saturating_add(found);
            let address = end.checked_sub(length)? / alignment * alignment;
            (found >= needed && address >= start).then_some((address, start, end))
        })
    }

    /// The hole that contains an address: its start and end.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &found) = self.by_start.range(..=address).next_back()?;
        let end = start.saturating_add(found);
        (address < end).then_some((start, end))
    }

    /// The free parts of a range: starts and lengths.
    pub(crate) fn parts(&self, start: u64, length: u64) -> Vec<(u64, u64)> {
        let end = start.saturating_add(length);
        let clip = |(hole, found): (u64, u64)| (hole.max(start), hole.saturating_add(found).min(end));
        let first = self.around(start).map_or(start, |(hole, _)| hole);
        let overlapping = self.by_start.range(first..end.max(first)).map(|(&hole, &found)| clip((hole, found)));
        overlapping.map(|(from, to)| (from, to - from)).collect()
    }

    /// Takes the free parts of a range.
    pub(crate) fn remove(&mut self, start: u64, length: u64) {
        for (from, taken) in self.parts(start, length) {
            let Some((hole, hole_end)) = self.around(from) else { continue };
            self.by_start.remove(&hole);
            if hole < from {
                self.by_start.insert(hole, from - hole);
            }
            if from + taken < hole_end {
                self.by_start.insert(from + taken, hole_end - from - taken);
            }
        }
    }

    /// Takes up to `length` from the lowest hole: its start and how much was taken.
    pub(crate) fn take_lowest(&mut self, length: u64) -> Option<(u64, u64)> {
        let (start, found) = self.by_start.pop_first()?;
        let taken = found.min(length);
        if found > taken {
            self.by_start.insert(start + taken, found - taken);
        }
        Some((start, taken))
    }

    /// Length of the longest hole; zero if there is none.
    pub(crate) fn longest(&self) -> u64 {
        self.by_start.values().copied().max().unwrap_or(0)
    }

    /// All holes, lowest first: start and length.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.by_start.iter().map(|(&start, &length)| (start, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_on_both_sides() {
        let mut holes = Holes::default();
        holes.insert(0, 10);
        holes.insert(20, 10);
        assert_eq!(holes.iter().collect::<Vec<_>>(), [(0, 10), (20, 10)]);
        holes.insert(10, 10);
        assert_eq!(holes.iter().collect::<Vec<_>>(), [(0, 30)]);
        assert_eq!(holes.longest(), 30);
        assert!(holes.are_only(0, 30) && !holes.are_only(0, 20));
    }

    #[test]
    fn first_fit_takes_the_lowest_hole_that_is_long_enough() {
        let mut holes = Holes::default();
        holes.insert(0, 5);
        holes.insert(10, 20);
        holes.insert(40, 8);
        assert_eq!(holes.take_first_fit(8), Some(10));
        assert_eq!(holes.take_first_fit(13), None);
        assert_eq!(holes.take_first_fit(12), Some(18));
        holes.insert(48, 4);
        assert_eq!(holes.first_fit(12), Some((40, 12)), "a hole may be longer than any was when a search was in vain");
        assert_eq!(holes.take_first_fit(4), Some(0));
        assert_eq!(holes.iter().collect::<Vec<_>>(), [(4, 1), (40, 12)]);
    }

    #[test]
    fn lowest_takes_piece_by_piece() {
        let mut holes = Holes::default();
        holes.insert(0, 5);
        holes.insert(10, 20);
        assert_eq!(holes.take_lowest(8), Some((0, 5)));
        assert_eq!(holes.take_lowest(3), Some((10, 3)));
        assert_eq!(holes.iter().collect::<Vec<_>>(), [(13, 17)]);
    }
}
