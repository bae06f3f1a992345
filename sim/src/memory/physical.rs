//! The device's physical memory: how many 2 MiB pages are taken, which ones, and what others hold.
//!
//! Page numbers are unbounded, and the lowest free number is taken first. Any range may get any pages,
//! because the driver backs any range with any pages (facts: Holes). Whether there is room is decided in
//! bytes: the capacity need not be a whole number of pages, and what other processes hold may be any number.

use super::contents::Contents;
use super::page::{PAGE_BYTES, PageId, PageRun, PageRuns, bytes_of};
use crate::range_maps::Holes;

/// The physical memory of one device. All quantities are in bytes unless they say pages.
#[derive(Clone, Debug)]
pub(crate) struct PhysicalMemory {
    capacity_bytes: u64,
    base_bytes: u64,
    withheld_bytes: u64,
    external_bytes: u64,
    taken_pages: u64,
    peak_pages: u64,
    free: Holes,
    /// Pages from this number on were never taken.
    next_fresh: u64,
    contents: Contents,
}

impl PhysicalMemory {
    /// Memory of `capacity_bytes`, of which the driver's context holds `base_bytes` from the start.
    pub(crate) fn new(capacity_bytes: u64, base_bytes: u64) -> Self {
        PhysicalMemory {
            capacity_bytes,
            base_bytes,
            withheld_bytes: 0,
            external_bytes: 0,
            taken_pages: 0,
            peak_pages: 0,
            free: Holes::default(),
            next_fresh: 0,
            contents: Contents::default(),
        }
    }

    /// Bytes that nobody holds. Zero if others hold more than there is.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_after(0)
    }

    /// The same once so many of the bytes that are taken have been returned.
    fn free_after(&self, returned_bytes: u64) -> u64 {
        let used = self.used_bytes().saturating_sub(returned_bytes);
        let held = self.base_bytes.saturating_add(self.external_bytes).saturating_add(used);
        self.capacity_bytes.saturating_sub(held)
    }

    /// Bytes of the pages that are taken.
    pub(crate) fn used_bytes(&self) -> u64 {
        // `take` made sure that the product fits.
        self.taken_pages * PAGE_BYTES
    }

    /// The highest value that [`PhysicalMemory::used_bytes`] has had.
    pub(crate) fn peak_used_bytes(&self) -> u64 {
        self.peak_pages * PAGE_BYTES
    }

    /// Bytes that the driver's context holds.
    pub(crate) fn base_bytes(&self) -> u64 {
        self.base_bytes
    }

    /// Bytes of the whole device.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Changes the capacity. Pages already taken stay.
    pub(crate) fn set_capacity(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
    }

    /// Sets how much all other processes hold together, which may be more than there is.
    pub(crate) fn set_external(&mut self, external_bytes: u64) {
        self.external_bytes = external_bytes;
    }

    /// Bytes that are reported as free but cannot be taken.
    pub(crate) fn withheld_bytes(&self) -> u64 {
        self.withheld_bytes
    }

    /// Keeps the last `withheld_bytes` free bytes from being taken. They are still reported as free.
    pub(crate) fn set_withheld(&mut self, withheld_bytes: u64) {
        self.withheld_bytes = withheld_bytes;
    }

    /// Bytes that can be taken.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.free_bytes().saturating_sub(self.withheld_bytes)
    }

    /// Whether there will be room for `pages` pages once so many bytes have been returned.
    pub(crate) fn has_room_after(&self, returned_bytes: u64, pages: u64) -> bool {
        let room_bytes = self.free_after(returned_bytes).saturating_sub(self.withheld_bytes);
        pages.checked_mul(PAGE_BYTES).is_some_and(|bytes| bytes <= room_bytes)
    }

    /// Whether there is room for `pages` more pages.
    pub(crate) fn has_room(&self, pages: u64) -> bool {
        self.has_room_after(0, pages)
    }

    /// Takes pages, lowest numbers first. `None`, and no change, if there is not room for all of them.
    pub(crate) fn take(&mut self, pages: u64) -> Option<PageRuns> {
        if !self.has_room(pages) {
            return None;
        }
        let first = self.take_run(pages);
        let runs = if first.count == pages { PageRuns::One(first) } else { self.take_more(first, pages) };
        self.taken_pages += pages;
        self.peak_pages = self.peak_pages.max(self.taken_pages);
        Some(runs)
    }

    /// Takes some consecutive pages, at most `most`.
    fn take_run(&mut self, most: u64) -> PageRun {
        let (first, count) = self.free.take_lowest(most).unwrap_or_else(|| self.take_fresh(most));
        PageRun { first: PageId(first), count }
    }

    /// Takes more runs until there are `pages` pages together with the first run.
    fn take_more(&mut self, first: PageRun, pages: u64) -> PageRuns {
        let mut missing = pages - first.count;
        let mut runs = vec![first];
        while missing > 0 {
            let run = self.take_run(missing);
            missing -= run.count;
            runs.push(run);
        }
        PageRuns::Many(runs)
    }

    /// Returns pages and drops their contents. The caller must hold them, and returns them once.
    pub(crate) fn give_back(&mut self, runs: &[PageRun]) {
        for run in runs {
            self.free.insert(run.first.0, run.count);
            self.taken_pages = self.taken_pages.saturating_sub(run.count);
            let (start, bytes) = bytes_of(*run);
            self.contents.forget(start, bytes);
        }
    }

    /// The contents of all pages.
    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The contents of all pages, to write.
    pub(crate) fn contents_mut(&mut self) -> &mut Contents {
        &mut self.contents
    }

    fn take_fresh(&mut self, pages: u64) -> (u64, u64) {
        let first = self.next_fresh;
        // This does not overflow: pages in use fit into 64 bits of bytes, and the numbers of freed pages are
        // used first.
        self.next_fresh += pages;
        (first, pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_pages_are_handed_out_again_in_any_order() {
        let mut memory = PhysicalMemory::new(10 * PAGE_BYTES, 0);
        let a = memory.take(3).unwrap();
        let b = memory.take(3).unwrap();
        let c = memory.take(3).unwrap();
        memory.give_back(&a);
        memory.give_back(&c);
        assert_eq!(*b, [PageRun { first: PageId(3), count: 3 }]);
        let scattered = memory.take(7).expect("room need not be contiguous");
        assert_eq!(
            *scattered,
            [
                PageRun { first: PageId(0), count: 3 },
                PageRun { first: PageId(6), count: 3 },
                PageRun { first: PageId(9), count: 1 }
            ]
        );
        assert_eq!(memory.take(1), None);
        assert_eq!(memory.peak_used_bytes(), 10 * PAGE_BYTES);
    }

    #[test]
    fn free_bytes_never_fall_below_zero() {
        let mut memory = PhysicalMemory::new(5 * PAGE_BYTES + 77, PAGE_BYTES);
        assert_eq!(memory.free_bytes(), 4 * PAGE_BYTES + 77);
        memory.set_external(u64::MAX);
        assert_eq!(memory.free_bytes(), 0);
        assert_eq!(memory.take(1), None);
        memory.set_external(4 * PAGE_BYTES);
        assert_eq!(memory.free_bytes(), 77);
        assert_eq!(memory.take(1), None, "77 bytes are less than a page");
        memory.set_capacity(6 * PAGE_BYTES);
        assert!(memory.take(1).is_some());
    }

    #[test]
    fn a_request_beyond_64_bits_is_refused() {
        let mut memory = PhysicalMemory::new(u64::MAX, 0);
        assert_eq!(memory.take(u64::MAX / PAGE_BYTES + 1), None);
        assert!(memory.take(u64::MAX / PAGE_BYTES).is_some());
        assert_eq!(memory.take(1), None);
    }
}
