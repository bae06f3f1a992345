//! A map from bytes to values, stored as pieces: neighbours with equal values are merged, so one value for a
//! gigabyte is one entry.
//!
//! Used for the contents of physical memory, and for the accesses to it.

use std::collections::BTreeMap;

/// Values of half-open ranges that never overlap and are as long as possible.
#[derive(Clone, Debug)]
pub(crate) struct Pieces<V> {
    /// (end, value) by start.
    by_start: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for Pieces<V> {
    fn default() -> Self {
        Pieces { by_start: BTreeMap::new() }
    }
}

impl<V: Clone + PartialEq> Pieces<V> {
    /// Whether no byte has a value.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// How many pieces there are.
    pub(crate) fn count(&self) -> usize {
        self.by_start.len()
    }

    /// The pieces in `start..end`, lowest first and clipped to it: start, end, value.
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

    /// Adds a piece whose bytes have no value, merging it with an equal one below.
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(all(&pieces), [(10, 40, 'a')], "equal neighbours are one");
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
                assert!(last != Some((start, value)), "two pieces that should be one");
                last = Some((end, value));
                seen[start as usize..end as usize].fill(Some(value));
            }
            assert_eq!(seen, naive);
        }
    }
}
