//! The addresses of expandable segments, and the pages among them that have memory.
//!
//! The heap manages blocks; this module manages pages. A segment is one reserved range of addresses, divided into
//! pages of the same size, each with or without memory (spec 4.1). Pages are stored as runs, because a recording may
//! name more pages than this machine could store individually.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use crate::units::StreamId;

/// One reserved range.
#[derive(Clone, Debug)]
pub(crate) struct Reservation<M> {
    /// The size of the range in bytes.
    pub(crate) size: u64,
    /// The size of a page in bytes.
    pub(crate) page: u64,
    /// The stream whose work must be done before the allocator unmaps a page.
    pub(crate) stream: StreamId,
    /// The pool that the segment belongs to.
    pub(crate) pool: u16,
    /// The range's number in order of creation.
    pub(crate) number: u64,
    /// The memory of mapped pages, by the first page of each run. Runs do not overlap.
    runs: BTreeMap<u64, Run<M>>,
    /// The number of pages that have memory.
    mapped: u64,
}

/// The memory of one or more pages.
#[derive(Clone, Debug)]
pub(crate) struct Run<M> {
    pub(crate) pages: u64,
    pub(crate) memory: M,
    /// Whether all of the memory is one device handle, which is mapped and unmapped as a whole.
    pub(crate) is_handle: bool,
}

impl<M> Run<M> {
    /// The addresses where the memory is mapped, in the units in which the device unmaps it: pages, or the entire
    /// handle.
    pub(crate) fn at(&self, address: u64, page: u64) -> Pages {
        if self.is_handle {
            Pages { address, page: page * self.pages, count: 1 }
        } else {
            Pages { address, page, count: self.pages }
        }
    }
}

impl<M> Reservation<M> {
    /// Records the memory of pages that had none, starting with `first`.
    pub(crate) fn put(&mut self, first: u64, run: Run<M>) {
        self.mapped += run.pages;
        self.runs.insert(first, run);
    }

    /// Takes the memory of the run that begins at a page.
    pub(crate) fn take(&mut self, first: u64) -> Option<Run<M>> {
        let run = self.runs.remove(&first)?;
        self.mapped -= run.pages;
        Some(run)
    }

    /// The mapped pages among `places`, without the handles that are only partly there.
    pub(crate) fn whole_handles(&self, places: Range<u64>) -> Range<u64> {
        let Range { mut start, mut end } = places;
        let straddles = |place: u64| {
            let (&first, run) = self.runs.range(..place).next_back()?;
            (run.is_handle && first + run.pages > place).then_some(first..first + run.pages)
        };
        if let Some(handle) = straddles(start) {
            start = handle.end;
        }
        if let Some(handle) = straddles(end) {
            end = handle.start;
        }
        start..end
    }

    /// Makes the first pages among `places` that have memory, at most `most` pages or an entire handle, a separate run.
    /// Returns their places. `split` keeps a given number of pages of a run's memory and returns the rest. A handle must be entirely in
    /// `places` or not at all.
    ///
    /// # Errors
    /// The error of `split`. Nothing has changed.
    pub(crate) fn separate_first_run<E>(
        &mut self,
        places: Range<u64>,
        most: u64,
        mut split: impl FnMut(&mut M, u64) -> Result<M, E>,
    ) -> Result<Option<Range<u64>>, E> {
        if let Some((&first, run)) = self.runs.range_mut(..places.start).next_back()
            && first + run.pages > places.start
        {
            let kept = places.start - first;
            let rest = Run { memory: split(&mut run.memory, kept)?, pages: run.pages - kept, is_handle: false };
            run.pages = kept;
            self.runs.insert(places.start, rest);
        }
        let Some((&first, run)) = self.runs.range_mut(places.clone()).next() else { return Ok(None) };
        let pages = if run.is_handle { run.pages } else { run.pages.min(places.end - first).min(most.max(1)) };
        if pages < run.pages {
            let rest = Run { memory: split(&mut run.memory, pages)?, pages: run.pages - pages, is_handle: false };
            run.pages = pages;
            self.runs.insert(first + pages, rest);
        }
        Ok(Some(first..first + pages))
    }

    /// Divides the runs so that each has one page or is a handle. `split` is the same as for
    /// [`Reservation::separate_first_run`].
    ///
    /// # Errors
    /// The error of `split`. Some runs may already have been divided.
    pub(crate) fn separate_pages<E>(&mut self, mut split: impl FnMut(&mut M, u64) -> Result<M, E>) -> Result<(), E> {
        let pages = self.size / self.page;
        let mut at = 0;
        while let Some(run) = self.separate_first_run(at..pages, 1, &mut split)? {
            at = run.end;
        }
        Ok(())
    }

    /// Divides the pages into pages of `page` bytes, which must divide the old size. Every run (one old page or a
    /// handle) becomes a handle. Returns the first page and the size of each handle.
    pub(crate) fn refine(&mut self, page: u64) -> Vec<(u64, u64)> {
        let parts = self.page / page;
        let runs = core::mem::take(&mut self.runs).into_iter();
        self.runs = runs.map(|(first, run)| (first * parts, Run { pages: run.pages * parts, is_handle: true, ..run })).collect();
        self.mapped *= parts;
        self.page = page;
        self.runs.iter().map(|(&first, run)| (first, run.pages * page)).collect()
    }

    /// The run that begins at a page.
    pub(crate) fn run_at(&self, first: u64) -> Option<&Run<M>> {
        self.runs.get(&first)
    }

    /// The number of bytes that have memory.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.mapped * self.page
    }
}

/// Consecutive pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages {
    /// The first byte.
    pub(crate) address: u64,
    /// The size of a page in bytes.
    pub(crate) page: u64,
    pub(crate) count: u64,
}

/// All reserved ranges, by address.
#[derive(Clone, Debug)]
pub(crate) struct Reservations<M> {
    by_base: BTreeMap<u64, Reservation<M>>,
    made: u64,
    /// Unmapped memory that the device failed to release. The allocator tries again before it takes pages, when the cache
    /// is emptied, and before it frees a range of addresses.
    unreleased: Vec<M>,
    /// Pages that the device failed to unmap although no segment uses them. The allocator also tries these again.
    stuck: Vec<Pages>,
    /// Memory that was unmapped so that it can be mapped elsewhere, with its page size. Empty between operations.
    spare: Vec<(u64, Run<M>)>,
}

impl<M> Reservations<M> {
    pub(crate) fn new() -> Reservations<M> {
        Reservations { by_base: BTreeMap::new(), made: 0, unreleased: Vec::new(), stuck: Vec::new(), spare: Vec::new() }
    }

    pub(crate) fn insert(&mut self, base: u64, size: u64, page: u64, (pool, stream): (u16, StreamId)) {
        let number = self.made;
        self.made += 1;
        self.by_base.insert(base, Reservation { size, page, stream, pool, number, runs: BTreeMap::new(), mapped: 0 });
    }

    /// Keeps memory that the device failed to release.
    pub(crate) fn keep_unreleased(&mut self, memory: M) {
        self.unreleased.push(memory);
    }

    pub(crate) fn take_unreleased(&mut self) -> Vec<M> {
        core::mem::take(&mut self.unreleased)
    }

    /// Keeps the unmapped memory of pages of `page` bytes for the next mapping.
    pub(crate) fn keep_spare(&mut self, page: u64, run: Run<M>) {
        self.spare.push((page, run));
    }

    /// Takes a kept run of this page size, if there is one.
    pub(crate) fn take_spare_run(&mut self, page: u64) -> Option<Run<M>> {
        let place = self.spare.iter().rposition(|(bytes, run)| *bytes == page && !run.is_handle)?;
        Some(self.spare.swap_remove(place).1)
    }

    /// Takes the first kept handle that has at most `most` pages of this size.
    pub(crate) fn take_spare_handle(&mut self, page: u64, most: u64) -> Option<Run<M>> {
        let place = self.spare.iter().position(|(bytes, run)| *bytes == page && run.is_handle && run.pages <= most)?;
        Some(self.spare.remove(place).1)
    }

    /// Takes the most recently kept memory.
    pub(crate) fn take_last_spare(&mut self) -> Option<Run<M>> {
        self.spare.pop().map(|(_, run)| run)
    }

    /// The bytes of all kept memory.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.spare.iter().map(|(page, run)| page * run.pages).sum()
    }

    /// Takes all kept memory.
    pub(crate) fn take_spare(&mut self) -> Vec<Run<M>> {
        core::mem::take(&mut self.spare).into_iter().map(|(_, run)| run).collect()
    }

    /// Records pages that the device failed to unmap.
    pub(crate) fn keep_stuck(&mut self, pages: Pages) {
        self.stuck.push(pages);
    }

    pub(crate) fn take_stuck(&mut self) -> Vec<Pages> {
        core::mem::take(&mut self.stuck)
    }

    /// Whether any memory still has to be released or unmapped.
    pub(crate) fn has_leftovers(&self) -> bool {
        !self.unreleased.is_empty() || !self.stuck.is_empty()
    }

    /// The range that contains an address, with the range's first byte.
    pub(crate) fn holding(&mut self, address: u64) -> Option<(u64, &mut Reservation<M>)> {
        let (&base, range) = self.by_base.range_mut(..=address).next_back()?;
        (address - base < range.size).then_some((base, range))
    }

    /// Whether a range begins at an address.
    pub(crate) fn begins_at(&self, address: u64) -> bool {
        self.by_base.contains_key(&address)
    }

    pub(crate) fn remove(&mut self, base: u64) -> Option<Reservation<M>> {
        self.by_base.remove(&base)
    }

    /// All ranges, by address.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Reservation<M>)> {
        self.by_base.iter_mut().map(|(&base, range)| (base, range))
    }

    /// All ranges, by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Reservation<M>)> {
        self.by_base.iter().map(|(&base, range)| (base, range))
    }
}
