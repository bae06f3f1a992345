//! Maps over ranges of numbers and over pages: the data structures on which the other modules build.
//!
//! [`Holes`] is a set of free ranges that coalesce, [`Intervals`] a set of disjoint ranges that keep their borders,
//! [`Pieces`] a value for every number, and [`PageMap`] a map from numbers that are close together, such as those of
//! the pages mapped into one reservation. None of them depends on the meaning of its numbers (bytes, addresses, pages).

use std::collections::BTreeMap;

/// A set of free ranges that coalesce. It is used for free pages, for the space in a shared page and for free
/// addresses. Adjacent ranges are merged.
///
/// The caller chooses the unit (bytes, pages). Ranges passed to [`Holes::insert`] must not overlap the set; the
/// method does not check this.
#[derive(Clone, Default, Debug)]
pub(crate) struct Holes {
    by_start: BTreeMap<u64, u64>,
    /// An upper bound on the length of the holes. Most failing searches end with this check.
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
        let (start, _) = self.first_fit(length)?;
        self.take_start(start, length);
        Some(start)
    }

    /// Takes `length` from the start of the hole that begins at `start` and is long enough.
    pub(crate) fn take_start(&mut self, start: u64, length: u64) {
        let found = self.by_start.remove(&start);
        if let Some(rest) = found.and_then(|found| found.checked_sub(length)).filter(|&rest| rest > 0) {
            self.by_start.insert(start + length, rest);
        }
    }

    /// Returns an upper bound on the length of the holes; the longest hole may be shorter.
    pub(crate) fn longest_at_most(&self) -> u64 {
        self.longest_at_most
    }

    /// Returns how many holes there are.
    pub(crate) fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Returns the start and length of the lowest hole that is long enough.
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

    /// Returns whether this range is free and there are no other holes.
    pub(crate) fn are_only(&self, start: u64, length: u64) -> bool {
        self.by_start.len() == 1 && self.by_start.first_key_value() == Some((&start, &length))
    }

    /// Finds the highest hole that is at least `slack` longer than `length`, and the highest aligned position for
    /// `length` in it. Returns the position, the hole's start and its end.
    pub(crate) fn highest_fit(&self, length: u64, slack: u64, alignment: u64) -> Option<(u64, u64, u64)> {
        let needed = length.checked_add(slack)?;
        self.by_start.iter().rev().find_map(|(&start, &found)| {
            let end = start.saturating_add(found);
            let address = end.checked_sub(length)? / alignment * alignment;
            (found >= needed && address >= start).then_some((address, start, end))
        })
    }

    /// Returns the start and end of the hole that contains an address.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &found) = self.by_start.range(..=address).next_back()?;
        let end = start.saturating_add(found);
        (address < end).then_some((start, end))
    }

    /// Returns the starts and lengths of the free parts of a range.
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

    /// Takes up to `length` from the lowest hole. Returns the start and the length of the part taken.
    pub(crate) fn take_lowest(&mut self, length: u64) -> Option<(u64, u64)> {
        let (start, found) = self.by_start.pop_first()?;
        let taken = found.min(length);
        if found > taken {
            self.by_start.insert(start + taken, found - taken);
        }
        Some((start, taken))
    }

    /// Returns the length of the longest hole; zero if there is none.
    pub(crate) fn longest(&self) -> u64 {
        self.by_start.values().copied().max().unwrap_or(0)
    }

    /// Returns the start and length of all holes, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.by_start.iter().map(|(&start, &length)| (start, length))
    }
}

/// A set of half-open ranges that never overlap, each with a value.
///
/// It is used for placed ranges, reservations and the addresses that a model has returned.
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
    /// Returns the end of the highest range that overlaps `bytes` bytes at `start`; `None` if no range does. A range
    /// that would run past the end of the address space counts as overlapping, with the largest address as its end.
    pub(crate) fn overlap_end(&self, start: u64, bytes: u64) -> Option<u64> {
        let Some(end) = start.checked_add(bytes) else { return Some(u64::MAX) };
        let (&other, &(other_bytes, _)) = self.by_start.range(..end).next_back()?;
        let other_end = other.saturating_add(other_bytes);
        (other_end > start).then_some(other_end)
    }

    /// Adds a range unless it is empty or overlaps another one. Returns whether it was added.
    pub(crate) fn insert(&mut self, start: u64, bytes: u64, value: T) -> bool {
        let free = bytes > 0 && self.overlap_end(start, bytes).is_none();
        if free {
            self.by_start.insert(start, (bytes, value));
        }
        free
    }

    /// Removes the range that starts at `start`. Returns its size in bytes and its value.
    pub(crate) fn remove(&mut self, start: u64) -> Option<(u64, T)> {
        self.by_start.remove(&start)
    }

    /// Returns how many ranges there are.
    pub(crate) fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Returns the start and the size in bytes of the ranges that overlap the addresses from `start` up to `end`,
    /// lowest first.
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.covering(start).map_or(start, |(first, _, _)| first);
        self.by_start.range(first..end.max(first)).map(|(&start, &(bytes, _))| (start, bytes))
    }

    /// Returns the range that covers `address`: start, size in bytes and value.
    pub(crate) fn covering(&self, address: u64) -> Option<(u64, u64, &T)> {
        let (&start, (bytes, value)) = self.by_start.range(..=address).next_back()?;
        (address - start < *bytes).then_some((start, *bytes, value))
    }
}

/// A map from bytes to values, stored as pieces: adjacent pieces with equal values are merged, so one value for a
/// gigabyte is one entry.
///
/// It is used for the contents of physical memory and the accesses to it. The ranges are half-open, never overlap, and
/// are as long as possible.
#[derive(Clone, Debug)]
pub(crate) struct Pieces<V> {
    /// The end and value of each piece, by start.
    by_start: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for Pieces<V> {
    fn default() -> Self {
        Pieces { by_start: BTreeMap::new() }
    }
}

impl<V: Clone + PartialEq> Pieces<V> {
    /// Returns whether no byte has a value.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Returns how many pieces there are.
    pub(crate) fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Returns the pieces in `start..end`, lowest first and clipped to that range: start, end and
    /// value.
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, &V)> {
        let before = self.by_start.range(..start).next_back().filter(|(_, (piece_end, _))| *piece_end > start);
        let rest = self.by_start.range(start..end.max(start));
        before.into_iter().chain(rest).map(move |(&from, (to, value))| (from.max(start), end.min(*to), value))
    }

    /// Replaces the value of every byte in `start..end`. `change` is called once for each piece and each gap.
    pub(crate) fn update(&mut self, start: u64, end: u64, mut change: impl FnMut(Option<V>) -> Option<V>) {
        if start >= end {
            return;
        }
        self.split(start);
        self.split(end);
        let mut at = start;
        while at < end {
            let next = self.by_start.range(at..end).next().map(|(&next, _)| next);
            let (to, value) = match next {
                Some(next) if next == at => self.by_start.remove(&at).map_or((end, None), |(to, value)| (to, Some(value))),
                gap_end => (gap_end.unwrap_or(end), None),
            };
            if let Some(value) = change(value) {
                self.append(at, to, value);
            }
            at = to;
        }
        if let Some((to, value)) = self.by_start.remove(&end) {
            self.append(end, to, value);
        }
    }

    /// Replaces the value of every piece, or removes it.
    pub(crate) fn sweep(&mut self, mut keep: impl FnMut(V) -> Option<V>) {
        for (start, (end, value)) in std::mem::take(&mut self.by_start) {
            if let Some(value) = keep(value) {
                self.append(start, end, value);
            }
        }
    }

    /// Adds a piece whose bytes have no value, and merges it with an equal one below.
    fn append(&mut self, start: u64, end: u64, value: V) {
        match self.by_start.range_mut(..start).next_back() {
            Some((_, (below_end, below))) if *below_end == start && *below == value => *below_end = end,
            _ => {
                self.by_start.insert(start, (end, value));
            }
        }
    }

    /// Splits the piece that spans `at`, if there is one.
    fn split(&mut self, at: u64) {
        let Some((_, (end, value))) = self.by_start.range_mut(..at).next_back().filter(|(_, (end, _))| *end > at) else { return };
        let upper = (*end, value.clone());
        *end = at;
        self.by_start.insert(at, upper);
    }
}

/// The number of pages in a chunk: one for each bit in its mask.
const CHUNK: u64 = u64::BITS as u64;

#[derive(Clone, Debug)]
struct Chunk<V> {
    /// The positions that have a value.
    mask: u64,
    values: [Option<V>; CHUNK as usize],
}

impl<V: Copy> Chunk<V> {
    /// Returns the page of the first of `places` that has a value, if this is the chunk with this
    /// number.
    #[inline]
    fn first(&self, number: u64, places: u64) -> Option<(u64, V)> {
        self.value(number, (self.mask & places).trailing_zeros())
    }

    /// Returns the page of the last of `places` that has a value.
    #[inline]
    fn last(&self, number: u64, places: u64) -> Option<(u64, V)> {
        self.value(number, (self.mask & places).checked_ilog2()?)
    }

    #[inline]
    fn value(&self, number: u64, place: u32) -> Option<(u64, V)> {
        let value = self.values.get(place as usize).copied().flatten()?;
        Some((number * CHUNK + u64::from(place), value))
    }
}

/// Values by page number.
///
/// It is a sorted list of chunks of 64 pages, each with a bit mask of the pages that have a value. A lookup first
/// tries the chunk that was changed last, which is usually the right one. If it is not, the search covers only 1/64 as
/// many entries as there are pages.
#[derive(Clone, Debug)]
pub(crate) struct PageMap<V> {
    /// The numbers of the chunks in ascending order: the page numbers divided by 64.
    numbers: Vec<u64>,
    /// The chunks, each with at least one value. They are boxed so that little memory moves when one is inserted in
    /// the middle.
    chunks: Vec<Box<Chunk<V>>>,
    /// The index of the chunk that was changed last. It is only a hint: every use checks the chunk's number.
    changed_last: usize,
}

impl<V> Default for PageMap<V> {
    fn default() -> Self {
        PageMap { numbers: Vec::new(), chunks: Vec::new(), changed_last: 0 }
    }
}

/// Returns the number of the page's chunk, and the page's position in it.
fn split(page: u64) -> (u64, usize) {
    (page / CHUNK, (page % CHUNK) as usize)
}

impl<V: Copy> PageMap<V> {
    /// Returns the index of the first chunk with this number or a higher one, and whether it has exactly this number.
    #[inline]
    fn find(&self, number: u64) -> (usize, bool) {
        if self.numbers.get(self.changed_last) == Some(&number) {
            return (self.changed_last, true);
        }
        let place = self.numbers.partition_point(|&other| other < number);
        (place, self.numbers.get(place) == Some(&number))
    }

    /// Sets a page's value.
    pub(crate) fn insert(&mut self, page: u64, value: V) {
        let (number, place) = split(page);
        let (at, is_there) = self.find(number);
        if !is_there {
            self.numbers.insert(at, number);
            self.chunks.insert(at, Box::new(Chunk { mask: 0, values: [None; CHUNK as usize] }));
        }
        self.changed_last = at;
        let chunk = &mut self.chunks[at];
        chunk.mask |= 1 << place;
        chunk.values[place] = Some(value);
    }

    /// Removes a page's value.
    pub(crate) fn remove(&mut self, page: u64) -> Option<V> {
        let (number, place) = split(page);
        let (at, is_there) = self.find(number);
        if !is_there {
            return None;
        }
        self.changed_last = at;
        let chunk = &mut self.chunks[at];
        let value = chunk.values[place].take()?;
        chunk.mask &= !(1 << place);
        if chunk.mask == 0 {
            self.numbers.remove(at);
            self.chunks.remove(at);
        }
        Some(value)
    }

    /// Returns a page's value.
    #[inline]
    pub(crate) fn get(&self, page: u64) -> Option<V> {
        let (number, place) = split(page);
        let (at, is_there) = self.find(number);
        if is_there { self.chunks[at].values[place] } else { None }
    }

    /// Returns a mutable reference to a page's value.
    pub(crate) fn get_mut(&mut self, page: u64) -> Option<&mut V> {
        let (number, place) = split(page);
        let (at, is_there) = self.find(number);
        if !is_there {
            return None;
        }
        self.changed_last = at;
        self.chunks[at].values[place].as_mut()
    }

    /// Returns the last page that has a value, up to and including this one.
    #[inline]
    pub(crate) fn last_up_to(&self, page: u64) -> Option<(u64, V)> {
        let (number, place) = split(page);
        let (at, is_there) = self.find(number);
        let up_to = u64::MAX >> (CHUNK as usize - 1 - place);
        let here = if is_there { self.chunks[at].last(number, up_to) } else { None };
        here.or_else(|| {
            let before = at.checked_sub(1)?;
            self.chunks[before].last(self.numbers[before], u64::MAX)
        })
    }

    /// Returns the first page in `from..to` that has a value.
    #[inline]
    pub(crate) fn first_in(&self, from: u64, to: u64) -> Option<(u64, V)> {
        let (number, place) = split(from);
        let (at, is_there) = self.find(number);
        let here = if is_there { self.chunks[at].first(number, u64::MAX << place) } else { None };
        let further = || {
            let after = at + usize::from(is_there);
            self.chunks.get(after)?.first(self.numbers[after], u64::MAX)
        };
        here.or_else(further).filter(|&(page, _)| page < to)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

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
        assert_eq!(holes.first_fit(12), Some((40, 12)), "a hole may now be longer than any hole when a search failed");
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

    #[test]
    fn finds_overlaps_at_both_ends_and_inside() {
        let mut set = Intervals::default();
        assert!(set.insert(100, 50, 'a'));
        assert_eq!(set.overlap_end(50, 50), None, "touching below");
        assert_eq!(set.overlap_end(150, 10), None, "touching above");
        assert_eq!(set.overlap_end(149, 1), Some(150));
        assert_eq!(set.overlap_end(0, 1000), Some(150), "around");
        assert_eq!(set.overlap_end(120, 5), Some(150), "inside");
        assert_eq!(set.overlap_end(u64::MAX, 2), Some(u64::MAX), "past the end of the address space");
        assert!(!set.insert(149, 5, 'b'));
        assert!(!set.insert(500, 0, 'c'), "empty");
        assert_eq!(set.covering(149), Some((100, 50, &'a')));
        assert_eq!(set.covering(150), None);
        assert!(set.insert(150, 50, 'b'));
        assert_eq!(set.remove(100), Some((50, 'a')));
        assert_eq!(set.remove(100), None);
    }

    fn all(pieces: &Pieces<char>) -> Vec<(u64, u64, char)> {
        pieces.overlapping(0, u64::MAX).map(|(start, end, &value)| (start, end, value)).collect()
    }

    #[test]
    fn pieces_are_cut_filled_and_joined() {
        let mut pieces = Pieces::default();
        pieces.update(10, 20, |_| Some('a'));
        pieces.update(30, 40, |_| Some('a'));
        pieces.update(15, 35, |old| Some(if old.is_some() { 'b' } else { 'c' }));
        assert_eq!(all(&pieces), [(10, 15, 'a'), (15, 20, 'b'), (20, 30, 'c'), (30, 35, 'b'), (35, 40, 'a')]);
        assert_eq!(pieces.overlapping(12, 16).collect::<Vec<_>>(), [(12, 15, &'a'), (15, 16, &'b')]);
        assert_eq!(pieces.overlapping(40, 50).count(), 0);
        pieces.update(15, 35, |_| Some('a'));
        assert_eq!(all(&pieces), [(10, 40, 'a')], "equal neighbours are merged");
        pieces.update(12, 13, |_| None);
        assert_eq!(all(&pieces), [(10, 12, 'a'), (13, 40, 'a')]);
        pieces.update(12, 13, |_| Some('a'));
        assert_eq!((pieces.count(), all(&pieces)), (1, vec![(10, 40, 'a')]));
        pieces.update(40, 40, |_| Some('x'));
        pieces.sweep(|_| None);
        assert!(pieces.is_empty());
    }

    #[test]
    fn random_updates_agree_with_an_array() {
        let (mut pieces, mut naive, mut state) = (Pieces::default(), [None; 40], 1_u64);
        for _ in 0..3000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = state >> 33;
            let (start, length) = (draw % 40, draw / 40 % 12);
            let end = (start + length).min(40);
            let value = [None, Some('a'), Some('b'), Some('c')][(draw / 1000 % 4) as usize];
            pieces.update(start, end, |_| value);
            naive[start as usize..end.max(start) as usize].fill(value);
            let mut seen = [None; 40];
            let mut last = None;
            for (start, end, &value) in pieces.overlapping(0, 40) {
                assert!(last != Some((start, value)), "two pieces that should be merged");
                last = Some((end, value));
                seen[start as usize..end as usize].fill(Some(value));
            }
            assert_eq!(seen, naive);
        }
    }

    proptest! {
        /// Checks that the map returns the same answers as a `BTreeMap`, for pages that are close together, far apart,
        /// and at the ends of chunks.
        #[test]
        fn agrees_with_a_btree_map(
            steps in vec((prop_oneof![0_u64..8, 60_u64..70, 120_u64..400, 5000_u64..5010], any::<bool>()), 1..200),
            asked in vec((0_u64..5200, 0_u64..200), 20),
        ) {
            let (mut pages, mut plain) = (PageMap::default(), BTreeMap::new());
            for (number, (page, enters)) in steps.into_iter().enumerate() {
                if enters {
                    pages.insert(page, number);
                    plain.insert(page, number);
                } else {
                    prop_assert_eq!(pages.remove(page), plain.remove(&page));
                }
                prop_assert_eq!(pages.get(page), plain.get(&page).copied());
                prop_assert_eq!(pages.get_mut(page).copied(), plain.get(&page).copied());
            }
            for (page, length) in asked {
                let owned = |(&page, &value)| (page, value);
                prop_assert_eq!(pages.last_up_to(page), plain.range(..=page).next_back().map(owned));
                prop_assert_eq!(pages.first_in(page, page + length), plain.range(page..page + length).next().map(owned));
            }
        }
    }
}
