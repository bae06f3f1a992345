//! How small cudaMallocs share pages: those of up to 1 MiB are placed several to a 2 MiB page.
//!
//! Measured (facts: Sizes and addresses; facts: Holes): they are spaced by their size rounded up to 512
//! bytes, a new page costs 2 MiB, a range that fits into a page already taken costs nothing, and the page is
//! returned with its last range.
//!
//! Not measured, chosen here: ranges of different sizes share pages. Of the pages with room, the one whose
//! longest hole is shortest is used, the lowest address first; in it, the lowest hole that is long enough.

use std::collections::{BTreeMap, BTreeSet};

use super::page::PAGE_BYTES;
use crate::range_maps::Holes;

/// Largest cudaMalloc that shares a page with others, in bytes (facts: Sizes and addresses).
pub(crate) const SMALL_BYTES: u64 = 1 << 20;
/// Ranges that share a page begin on multiples of this, in bytes (facts: Sizes and addresses).
pub(crate) const SPACING_BYTES: u64 = 512;

/// The shared pages, by address.
#[derive(Clone, Default, Debug)]
pub(crate) struct SharedPages {
    pages: BTreeMap<u64, SharedPage>,
    /// (longest hole in bytes, page address) of every page, to find room without visiting all pages.
    by_room: BTreeSet<(u64, u64)>,
}

#[derive(Clone, Debug)]
struct SharedPage {
    holes: Holes,
    longest_bytes: u64,
    live_ranges: u32,
}

/// The bytes that a cudaMalloc of `bytes` takes in its page.
pub(crate) fn spaced_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(SPACING_BYTES)
}

impl SharedPages {
    /// Finds `spaced` bytes in a page already taken: the address of the page and of the place. `None` if no
    /// page has room.
    pub(crate) fn place(&mut self, spaced: u64) -> Option<(u64, u64)> {
        let &(_, page_address) = self.by_room.range((spaced, 0)..).next()?;
        self.place_in(page_address, spaced).map(|address| (page_address, address))
    }

    /// Adds a page that was just taken, and finds `spaced` bytes in it. `None` only for more than a page.
    pub(crate) fn place_in_new(&mut self, page_address: u64, spaced: u64) -> Option<u64> {
        let mut holes = Holes::default();
        holes.insert(page_address, PAGE_BYTES);
        self.pages.insert(page_address, SharedPage { holes, longest_bytes: PAGE_BYTES, live_ranges: 0 });
        self.by_room.insert((PAGE_BYTES, page_address));
        self.place_in(page_address, spaced)
    }

    /// Frees a place. True if it was the page's last: the page is removed here, and the caller returns it.
    pub(crate) fn leave(&mut self, page_address: u64, address: u64, spaced: u64) -> bool {
        let Some(page) = self.pages.get_mut(&page_address) else { return false };
        page.holes.insert(address, spaced);
        page.live_ranges = page.live_ranges.saturating_sub(1);
        let empty = page.live_ranges == 0;
        self.refresh(page_address);
        if empty && let Some(page) = self.pages.remove(&page_address) {
            self.by_room.remove(&(page.longest_bytes, page_address));
        }
        empty
    }

    fn place_in(&mut self, page_address: u64, spaced: u64) -> Option<u64> {
        let page = self.pages.get_mut(&page_address)?;
        let address = page.holes.take_first_fit(spaced)?;
        page.live_ranges += 1;
        self.refresh(page_address);
        Some(address)
    }

    /// Updates the index by room after the page's holes changed.
    fn refresh(&mut self, page_address: u64) {
        if let Some(page) = self.pages.get_mut(&page_address) {
            self.by_room.remove(&(page.longest_bytes, page_address));
            page.longest_bytes = page.holes.longest();
            self.by_room.insert((page.longest_bytes, page_address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spacing_is_the_size_rounded_up_to_512() {
        assert_eq!([700, 5_000, 700_000, 512, 1].map(spaced_bytes), [1_024, 5_120, 700_416, 512, 512]);
    }

    #[test]
    fn a_freed_place_is_used_again_and_the_page_goes_with_its_last_range() {
        let mut shared = SharedPages::default();
        assert_eq!(shared.place(512), None);
        let half = PAGE_BYTES / 2;
        assert_eq!(shared.place_in_new(PAGE_BYTES, half), Some(PAGE_BYTES));
        assert_eq!(shared.place(half), Some((PAGE_BYTES, PAGE_BYTES + half)));
        assert_eq!(shared.place(512), None);
        assert!(!shared.leave(PAGE_BYTES, PAGE_BYTES, half));
        assert_eq!(shared.place(half + 512), None);
        assert_eq!(shared.place(512), Some((PAGE_BYTES, PAGE_BYTES)));
        assert!(!shared.leave(PAGE_BYTES, PAGE_BYTES + half, half));
        assert!(shared.leave(PAGE_BYTES, PAGE_BYTES, 512));
        assert_eq!(shared.place(512), None, "the page is gone");
    }
}
