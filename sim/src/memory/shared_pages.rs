//! The sharing rule of small cudaMallocs: up to 1 MiB, several of them live in one 2 MiB page.
//!
//! Facts, "Sizes and addresses" and "Holes": spaced by their size rounded up to 512 bytes; a new page costs 2 MiB, what fits
//! into a page already taken costs nothing; the page returns only with its last tenant.
//!
//! Where the facts are silent: sizes mix in a page; of the pages with room the one with the tightest longest hole is used (the
//! lowest address among equals), and in it the lowest hole that is long enough.

use std::collections::{BTreeMap, BTreeSet};

use super::page::PAGE_BYTES;
use crate::range_maps::Holes;

/// Largest cudaMalloc that shares a page with others, in bytes (facts: Sizes and addresses).
pub(crate) const SMALL_BYTES: u64 = 1 << 20;
/// Spacing of cudaMallocs that share a page, in bytes (facts: Sizes and addresses).
pub(crate) const SPACING_BYTES: u64 = 512;

/// The shared pages, by address.
#[derive(Clone, Default, Debug)]
pub(crate) struct SmallPages {
    pages: BTreeMap<u64, SharedPage>,
    /// (longest hole in bytes, page address) of every page, to find room without a walk.
    by_room: BTreeSet<(u64, u64)>,
}

#[derive(Clone, Debug)]
struct SharedPage {
    holes: Holes,
    longest_bytes: u64,
    tenants: u32,
}

/// The bytes that a small cudaMalloc of `bytes` takes in its page.
pub(crate) fn spaced_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(SPACING_BYTES)
}

impl SmallPages {
    /// A place of `spaced` bytes in a page already taken: the page's address and the place's, or `None` if none has room.
    pub(crate) fn place(&mut self, spaced: u64) -> Option<(u64, u64)> {
        let &(_, page_address) = self.by_room.range((spaced, 0)..).next()?;
        self.place_in(page_address, spaced).map(|address| (page_address, address))
    }

    /// The address of such a place in a page that was just taken; `None` only for more than a page.
    pub(crate) fn place_in_new(&mut self, page_address: u64, spaced: u64) -> Option<u64> {
        let mut holes = Holes::default();
        holes.insert(page_address, PAGE_BYTES);
        self.pages.insert(page_address, SharedPage { holes, longest_bytes: PAGE_BYTES, tenants: 0 });
        self.by_room.insert((PAGE_BYTES, page_address));
        self.place_in(page_address, spaced)
    }

    /// Ends a tenancy. True if it was the page's last: the page is forgotten here and the caller gives it back.
    pub(crate) fn leave(&mut self, page_address: u64, address: u64, spaced: u64) -> bool {
        let Some(page) = self.pages.get_mut(&page_address) else { return false };
        page.holes.insert(address, spaced);
        page.tenants = page.tenants.saturating_sub(1);
        let empty = page.tenants == 0;
        self.refresh(page_address);
        if empty && let Some(page) = self.pages.remove(&page_address) {
            self.by_room.remove(&(page.longest_bytes, page_address));
        }
        empty
    }

    fn place_in(&mut self, page_address: u64, spaced: u64) -> Option<u64> {
        let page = self.pages.get_mut(&page_address)?;
        let address = page.holes.take_first_fit(spaced)?;
        page.tenants += 1;
        self.refresh(page_address);
        Some(address)
    }

    /// Brings the index by room up to date after the page's holes changed.
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
    fn a_freed_place_is_used_again_and_the_page_goes_with_its_last_tenant() {
        let mut small = SmallPages::default();
        assert_eq!(small.place(512), None);
        let half = PAGE_BYTES / 2;
        assert_eq!(small.place_in_new(PAGE_BYTES, half), Some(PAGE_BYTES));
        assert_eq!(small.place(half), Some((PAGE_BYTES, PAGE_BYTES + half)));
        assert_eq!(small.place(512), None);
        assert!(!small.leave(PAGE_BYTES, PAGE_BYTES, half));
        assert_eq!(small.place(half + 512), None);
        assert_eq!(small.place(512), Some((PAGE_BYTES, PAGE_BYTES)));
        assert!(!small.leave(PAGE_BYTES, PAGE_BYTES + half, half));
        assert!(small.leave(PAGE_BYTES, PAGE_BYTES, 512));
        assert_eq!(small.place(512), None, "the page is forgotten");
    }
}
