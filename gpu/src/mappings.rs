//! Tracks where memory is mapped in one reservation, and which parts the device may access.
//!
//! This is only bookkeeping: it records what the driver has done. It makes no driver calls and does not predict which
//! calls the driver would refuse.

use std::collections::BTreeMap;

/// The mappings of one reservation. They never overlap, because the driver refuses to map over a mapping.
#[derive(Default, Debug)]
pub(crate) struct Mappings {
    by_start: BTreeMap<u64, Mapping>,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    /// Whether the device has access.
    is_open: bool,
}

impl Mappings {
    /// Returns how many mappings there are.
    pub(crate) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Adds a mapping. The device has no access to it yet.
    pub(crate) fn insert(&mut self, address: u64, bytes: u64) {
        self.by_start.insert(address, Mapping { bytes, is_open: false });
    }

    /// Records that the device was granted access to a range. A mapping that is only partly in the range remains
    /// without access, which is the safe choice.
    pub(crate) fn open(&mut self, address: u64, bytes: u64) {
        for start in self.starts_within(address, bytes) {
            if let Some(mapping) = self.by_start.get_mut(&start) {
                mapping.is_open = true;
            }
        }
    }

    /// Records that everything in a range was unmapped.
    pub(crate) fn remove(&mut self, address: u64, bytes: u64) {
        for start in self.starts_within(address, bytes) {
            self.by_start.remove(&start);
        }
    }

    /// Returns whether the device may access the entire range, which may span several adjacent mappings.
    pub(crate) fn are_open(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let Some((&first, _)) = self.by_start.range(..=address).next_back() else { return false };
        let mut reached = first;
        for (&start, mapping) in self.by_start.range(first..) {
            if start != reached || !mapping.is_open {
                return false;
            }
            reached = start + mapping.bytes;
            if reached >= end {
                return reached > address;
            }
        }
        false
    }

    /// Returns the accessible mappings under a range that is entirely mapped, lowest address first: (address, bytes).
    /// The first one may begin before the range, and the last one may end beyond it. Returns `None` if a part of the
    /// range is not accessible.
    pub(crate) fn under(&self, address: u64, bytes: u64) -> Option<Vec<(u64, u64)>> {
        if !self.are_open(address, bytes) {
            return None;
        }
        let (&first, _) = self.by_start.range(..=address).next_back()?;
        let mappings = self.by_start.range(first..address.checked_add(bytes)?);
        Some(mappings.map(|(&start, mapping)| (start, mapping.bytes)).collect())
    }

    /// Returns the ranges that the device may access, lowest first, with adjacent ones merged: (address, bytes).
    pub(crate) fn open_runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (&start, mapping) in self.by_start.iter().filter(|(_, mapping)| mapping.is_open) {
            match runs.last_mut() {
                Some((address, bytes)) if *address + *bytes == start => *bytes += mapping.bytes,
                _ => runs.push((start, mapping.bytes)),
            }
        }
        runs
    }

    /// Returns the starts of the mappings that are entirely in a range.
    fn starts_within(&self, address: u64, bytes: u64) -> Vec<u64> {
        let end = address.saturating_add(bytes);
        let whole = |start: u64, mapping: &Mapping| mapping.bytes <= end - start;
        self.by_start.range(address..end).filter(|&(&start, mapping)| whole(start, mapping)).map(|(&start, _)| start).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Tests that compare the bookkeeping with an array of pages, and cases that a random sequence would miss.

    use super::Mappings;

    const PAGE: u64 = 2 << 20;
    const BASE: u64 = 0x7000_0000_0000;

    /// Creates adjacent mappings with these numbers of pages, starting at `BASE`.
    fn mapped(pages: &[u64]) -> Mappings {
        let (mut mappings, mut at) = (Mappings::default(), BASE);
        for &count in pages {
            mappings.insert(at, count * PAGE);
            at += count * PAGE;
        }
        mappings
    }

    #[test]
    fn a_range_is_open_only_after_access_to_all_of_it() {
        let mut mappings = mapped(&[1, 10, 1]);
        assert!(!mappings.are_open(BASE, 4));
        mappings.open(BASE, 11 * PAGE);
        assert!(mappings.are_open(BASE, 11 * PAGE));
        assert!(mappings.are_open(BASE + PAGE - 4, 8), "across the border of two mappings");
        assert!(!mappings.are_open(BASE + 11 * PAGE - 4, 8), "into a mapping without access");
        assert!(!mappings.are_open(BASE - 4, 8), "from before the first mapping");
        mappings.open(BASE + 11 * PAGE, PAGE);
        assert!(mappings.are_open(BASE, 12 * PAGE));
        assert!(!mappings.are_open(BASE, 12 * PAGE + 1), "past the last mapping");
        assert!(!mappings.are_open(BASE + 12 * PAGE, 0), "at the end, where nothing is mapped");
    }

    #[test]
    fn a_gap_is_not_open() {
        let mut mappings = mapped(&[1, 1, 1]);
        mappings.open(BASE, 3 * PAGE);
        mappings.remove(BASE + PAGE, PAGE);
        assert_eq!(mappings.len(), 2);
        assert!(!mappings.are_open(BASE, 3 * PAGE));
        assert!(!mappings.are_open(BASE + PAGE, 4));
        assert!(mappings.are_open(BASE + 2 * PAGE, PAGE));
        assert_eq!(mappings.open_runs(), [(BASE, PAGE), (BASE + 2 * PAGE, PAGE)]);
    }

    #[test]
    fn memory_mapped_again_has_lost_its_access() {
        let mut mappings = mapped(&[1]);
        mappings.open(BASE, PAGE);
        mappings.remove(BASE, PAGE);
        mappings.insert(BASE, PAGE);
        assert!(!mappings.are_open(BASE, 4));
    }

    #[test]
    fn a_mapping_that_is_cut_stays_as_it_was() {
        let mut mappings = mapped(&[10, 1]);
        mappings.open(BASE, 9 * PAGE);
        assert!(!mappings.are_open(BASE, 4));
        mappings.open(BASE, 11 * PAGE);
        mappings.remove(BASE, 9 * PAGE);
        assert_eq!(mappings.open_runs(), [(BASE, 11 * PAGE)]);
    }

    #[test]
    fn the_end_of_the_address_space_does_not_overflow() {
        let mut mappings = Mappings::default();
        mappings.insert(u64::MAX - PAGE + 1 - PAGE, PAGE);
        mappings.open(u64::MAX - 2 * PAGE + 1, PAGE);
        assert!(!mappings.are_open(u64::MAX - PAGE, u64::MAX));
        assert!(mappings.are_open(u64::MAX - 2 * PAGE + 1, PAGE));
        mappings.remove(u64::MAX - 2 * PAGE + 1, u64::MAX);
        assert_eq!(mappings.len(), 0);
    }

    /// One page of the model: its mapping, and whether the device may access it.
    #[derive(Clone, Copy, PartialEq)]
    struct Page {
        mapping: u64,
        is_open: bool,
    }

    /// Runs a random sequence on 24 pages and compares each answer with that of an array of pages.
    #[test]
    fn mappings_agree_with_an_array_of_pages() {
        const PAGES: usize = 24;
        let mut state = 20_261_u64;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let (mut mappings, mut pages, mut open_answers) = (Mappings::default(), [None::<Page>; PAGES], 0);
        for number in 0..20_000_u64 {
            let first = below(PAGES);
            let count = 1 + below(PAGES - first);
            let range = first..first + count;
            let (address, bytes) = (BASE + first as u64 * PAGE, count as u64 * PAGE);
            // The bookkeeping never sees calls that the driver refuses: those that map over a mapping or cut one.
            let cuts = |edge: usize| {
                edge > 0
                    && edge < PAGES
                    && pages[edge].is_some_and(|page| pages[edge - 1].is_some_and(|before| before.mapping == page.mapping))
            };
            let is_cut = cuts(first) || cuts(first + count);
            match below(3) {
                0 if pages[range.clone()].iter().all(Option::is_none) => {
                    mappings.insert(address, bytes);
                    pages[range.clone()].fill(Some(Page { mapping: number, is_open: false }));
                }
                1 if !is_cut => {
                    mappings.open(address, bytes);
                    pages[range.clone()].iter_mut().flatten().for_each(|page| page.is_open = true);
                }
                2 if !is_cut => {
                    mappings.remove(address, bytes);
                    pages[range.clone()].fill(None);
                }
                _ => {}
            }
            let first = below(PAGES);
            let count = 1 + below(PAGES - first);
            let expected = pages[first..first + count].iter().all(|page| page.is_some_and(|page| page.is_open));
            open_answers += u32::from(expected);
            assert_eq!(mappings.are_open(BASE + first as u64 * PAGE, count as u64 * PAGE), expected, "after {number}");
            let mut names: Vec<u64> = pages.iter().flatten().map(|page| page.mapping).collect();
            names.dedup();
            assert_eq!(mappings.len(), names.len());
            let open_pages = pages.iter().flatten().filter(|page| page.is_open).count() as u64;
            assert_eq!(mappings.open_runs().iter().map(|&(_, bytes)| bytes).sum::<u64>(), open_pages * PAGE);
        }
        assert!(open_answers > 1_000, "only {open_answers} ranges were open: the sequence tests too little");
    }

    #[test]
    fn the_mappings_under_a_range_are_whole_ones() {
        let mut mappings = mapped(&[1, 10, 1]);
        assert_eq!(mappings.under(BASE, PAGE), None, "without access");
        mappings.open(BASE, 12 * PAGE);
        let [first, second, third] = [(BASE, PAGE), (BASE + PAGE, 10 * PAGE), (BASE + 11 * PAGE, PAGE)];
        assert_eq!(mappings.under(BASE + 2 * PAGE, 4), Some(vec![second]));
        assert_eq!(mappings.under(BASE + PAGE - 4, 8), Some(vec![first, second]));
        assert_eq!(mappings.under(BASE, 12 * PAGE), Some(vec![first, second, third]));
        assert_eq!(mappings.under(BASE, 12 * PAGE + 1), None, "past the end");
        mappings.remove(BASE + PAGE, 10 * PAGE);
        assert_eq!(mappings.under(BASE, 12 * PAGE), None, "across a gap");
    }
}
