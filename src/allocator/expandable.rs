//! Memory for expandable segments: mapped page by page where a request needs it, and unmapped in whole pages
//! (spec section 4).
//!
//! The allocator either makes every call that the device may refuse before it changes the heap, or undoes the call.
//! Pages, blocks and statistics are therefore consistent after any error.
//!
//! The memory behind pages is handled in runs. A run has as many pages as the device accepts in one call, often only
//! one (spec 4.3, 4.5).

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;

use super::Allocator;
use crate::block::Block;
use crate::device::{BackendError, DeviceBackend};
use crate::error::AllocError;
use crate::heap::{GrowsFrom, PoolSlot};
use crate::policy::{Policy, Request};
use crate::reservation::{Pages, Run};
use crate::trace::{Observer, TraceAction, TraceEntry};
use crate::units::{Bytes, DeviceAddress, StreamId};

/// What happens to memory after it has been unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Freed {
    /// It is released to the device.
    Released,
    /// The allocator keeps it for the next mapping.
    Spare,
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Finds room for the request in an expandable segment of its pool and stream, and maps the missing bytes: as
    /// pages, or as handles whose size the policy chooses. Handles are checked against the limit here. Returns `None`
    /// if the device is out of memory; pages that are already mapped stay mapped, as free blocks (spec 4.4).
    pub(super) fn extend(
        &mut self,
        request: &Request,
        stream: u16,
        page: Bytes,
        has_handles: bool,
        from: GrowsFrom,
    ) -> Result<Option<u32>, AllocError> {
        let size = self.policy.growth(request).0;
        if size < request.size.0 {
            return Err(self.fault("maps less than the request needs").into());
        }
        if page == Bytes::ZERO {
            return Err(self.fault("chooses a page size of 0 bytes").into());
        }
        if self.policy.has_own_segments() {
            if has_handles {
                return Err(self.fault("chooses handle sizes for segments that do not grow").into());
            }
            return self.grow_apart(request, stream, page, size);
        }
        let found = if has_handles {
            self.heap.find_growth(request.pool, request.stream, size, from).map(|place| place.first)
        } else {
            self.heap.find_space(request.pool, request.stream, size, from)
        };
        let mut block = match found {
            Some(block) => block,
            None => match self.reserve(request, stream, page)? {
                Some(block) => block,
                None => return Ok(None),
            },
        };
        // Free memory before the block, which the search skipped, coalesces with the mapped memory; it does not count.
        let start = self.heap.arena.at(block).address;
        if self.heap.is_unmapped(block) && !self.map_block(request, block, size, has_handles)? {
            return Ok(None);
        }
        loop {
            let Block { address, size: bytes, next, .. } = *self.heap.arena.at(block);
            let missing = size.saturating_sub(address + bytes - start);
            if missing == 0 {
                break;
            }
            // A run found by the search is long enough; a new segment may be too short.
            if !self.heap.is_unmapped(next) {
                return Err(AllocError::TooLarge { requested: request.requested });
            }
            if !self.map_block(request, next, missing, has_handles)? {
                return Ok(None);
            }
            block = next;
        }
        Ok(Some(block))
    }

    /// Takes `size` bytes of memory and reserves a separate range of addresses for it. `None` if the device is out of
    /// memory.
    fn grow_apart(&mut self, request: &Request, stream: u16, page: Bytes, size: u64) -> Result<Option<u32>, AllocError> {
        let count = size.div_ceil(page.0);
        let Some(memory) = self.take_pages(count, page.0)? else { return Ok(None) };
        let block = match self.reserve(request, stream, page) {
            Ok(Some(block)) if self.heap.arena.at(block).size >= count * page.0 => block,
            other => {
                self.release_pages(memory)?;
                return match other? {
                    Some(_) => Err(self.fault("reserves fewer addresses than it maps").into()),
                    None => Ok(None),
                };
            }
        };
        let base = self.heap.arena.at(block).address;
        self.map_memory(block, memory, count, page.0, base)?;
        Ok(Some(block))
    }

    /// Reserves addresses for a new segment: as many as the policy says, in whole pages (spec 4.1). If they are too
    /// few for the request, some PyTorch releases free them again, and this returns `None`. Others, such as 2.11, try
    /// to map all of them, for which there is hardly ever enough memory.
    fn reserve(&mut self, request: &Request, stream: u16, page: Bytes) -> Result<Option<u32>, AllocError> {
        let too_large = AllocError::TooLarge { requested: request.requested };
        let size = self.policy.reservation(self.total_memory).checked_round_up(page).ok_or(too_large)?;
        if size == Bytes::ZERO {
            return Err(self.fault("reserves no addresses").into());
        }
        let address = self.device.reserve(size)?;
        self.note_taken("reserve", address, size)?;
        let is_short = size < request.size && self.profile.gives_short_ranges_back;
        let returned = if is_short { self.device.unreserve(address, size) } else { Ok(()) };
        if is_short && returned.is_ok() {
            self.device_ranges.remove(address.0);
            return Ok(None);
        }
        // If the device cannot free the range, the allocator keeps it.
        self.reservations.insert(address.0, size.0, page.0, (request.pool.0, request.stream));
        let block = self.heap.add_reservation(address, size, stream, request.pool);
        Ok(returned.map(|()| Some(block))?)
    }

    /// Maps the first `wanted` bytes of an unmapped block, in whole pages or with handles that may be larger, and
    /// coalesces them with free neighbours. Returns false if the device is out of memory (spec 4.3).
    fn map_block(&mut self, request: &Request, index: u32, wanted: u64, has_handles: bool) -> Result<bool, AllocError> {
        let block = self.heap.arena.at(index);
        let (address, wanted, room) = (block.address, wanted.min(block.size), block.size);
        let Some((base, range)) = self.reservations.holding(address) else {
            return Err(self.fault("grows a block outside the reserved ranges").into());
        };
        let page = range.page;
        let count = wanted.div_ceil(page);
        let taken =
            if has_handles { self.take_handles(request, count, page, room / page)? } else { self.take_pages(count, page)? };
        let Some(memory) = taken else { return Ok(false) };
        let count = memory.iter().map(|run| run.pages).sum();
        self.map_memory(index, memory, count, page, base)?;
        Ok(true)
    }

    /// Takes memory for `count` pages, all or none. First tries again to release memory that could not be released
    /// earlier. `None` if there is not enough memory.
    fn take_pages(&mut self, count: u64, page: u64) -> Result<Option<Vec<Run<D::Physical>>>, AllocError> {
        if self.reservations.has_leftovers() {
            self.release_leftovers()?;
        }
        // The statistics have 63 bits.
        let more = count.checked_mul(page).and_then(|bytes| self.heap.reserved().checked_add(Bytes(bytes)));
        if more.is_none_or(|reserved| reserved.0 > i64::MAX as u64) {
            return Ok(None);
        }
        self.create_pages(count, page)
    }

    /// Maps memory at the beginning of an unmapped block of the segment at `base`, and coalesces it with free neighbours.
    fn map_memory(
        &mut self,
        index: u32,
        memory: Vec<Run<D::Physical>>,
        count: u64,
        page: u64,
        base: u64,
    ) -> Result<(), AllocError> {
        let block = self.heap.arena.at(index);
        let (address, pool, bytes) = (block.address, PoolSlot(block.pool), count * page);
        let handles: Vec<(bool, u64)> = memory.iter().map(|run| (run.is_handle, run.pages * page)).collect();
        self.map_pages(Pages { address, page, count }, memory, base)?;
        self.heap.map_front(index, bytes);
        self.heap.note_handles(address, &handles);
        // The request needs one block.
        self.heap.put_back(index, self.policy.stamp(pool), |_| true, |_| {});
        self.count_reserved(pool, bytes as i64);
        self.stats.num_device_alloc += 1;
        self.tell(TraceAction::SegmentMap, index, address, bytes);
        Ok(())
    }

    /// Waits for the segment's stream and unmaps the whole pages inside a free block. Frees the addresses when the
    /// entire segment is unmapped (spec 4.6, 4.7). Leaves the pages mapped if they [must stay](Self::must_stay).
    pub(super) fn unmap_block(&mut self, index: u32, freed: Freed) -> Result<(), AllocError> {
        self.bring_home(index)?;
        if self.is_away(index) {
            return Ok(());
        }
        let block = self.heap.arena.at(index);
        let (address, size, pool) = (block.address, block.size, PoolSlot(block.pool));
        let Some((base, range)) = self.reservations.holding(address) else {
            return Err(self.fault("releases an expandable block outside the reserved ranges").into());
        };
        let (page, stream) = (range.page, range.stream);
        let begin = (address - base).div_ceil(page);
        let end = (address - base + size) / page;
        let Range { start: begin, end } = range.whole_handles(begin..end.max(begin));
        if begin >= end || self.must_stay(stream, freed) {
            return Ok(());
        }
        self.device.synchronize_stream(stream)?;
        let (done, outcome) = self.unmap_pages(base, page, begin..end, freed);
        if done > begin {
            self.account_unmapped(index, base + begin * page, (done - begin) * page, pool, base)?;
        }
        outcome
    }

    /// Whether pages must stay mapped because their stream takes part in a capture, or because the device does not know: the
    /// driver would refuse to wait for the stream, and the capture would become invalid (facts: Graph captures). PyTorch waits
    /// without asking, but it never keeps unmapped memory for the next mapping.
    fn must_stay(&mut self, stream: StreamId, freed: Freed) -> bool {
        let asks = freed == Freed::Spare || !self.policy.releases_during_captures();
        asks && !matches!(self.device.capture(stream), Ok(None))
    }

    /// Unmaps pages in order, up to the first failure. Returns the index of the page at which it stopped.
    pub(super) fn unmap_pages(
        &mut self,
        base: u64,
        page: u64,
        places: Range<u64>,
        freed: Freed,
    ) -> (u64, Result<(), AllocError>) {
        let mut at = places.start;
        while at < places.end {
            let run = match self.separate_first_run(base, at..places.end) {
                Ok(Some(run)) => run,
                Ok(None) => break,
                Err(error) => return (at, Err(error.into())),
            };
            if let Err(error) = self.unmap_mapped(base, run.clone(), page) {
                return (run.start, Err(error.into()));
            }
            at = run.end;
            let outcome = match (self.take_run(base, run.start), freed) {
                (Some(run), Freed::Released) => self.release_run(run.memory),
                (Some(run), Freed::Spare) => {
                    self.reservations.keep_spare(page, run);
                    Ok(())
                }
                (None, _) => Ok(()),
            };
            if let Err(error) = outcome {
                return (at, Err(error.into()));
            }
        }
        (places.end, Ok(()))
    }

    /// The first mapped pages among `places`, as many as the device accepts in one call.
    fn separate_first_run(&mut self, base: u64, places: Range<u64>) -> Result<Option<Range<u64>>, BackendError> {
        let Allocator { device, reservations, .. } = self;
        let Some((_, range)) = reservations.holding(base) else { return Ok(None) };
        let (page, most) = (Bytes(range.page), device.run_pages());
        range.separate_first_run(places, most, |memory, pages| device.split_run(memory, page, pages))
    }

    /// Unmaps a run of mapped pages, or a handle.
    fn unmap_mapped(&mut self, base: u64, places: Range<u64>, page: u64) -> Result<(), BackendError> {
        let address = base + places.start * page;
        let run =
            self.reservations.holding(base).and_then(|(_, range)| range.run_at(places.start).map(|run| run.at(address, page)));
        let Pages { address, page, count } = run.unwrap_or(Pages { address, page, count: places.end - places.start });
        self.device.unmap_run(DeviceAddress(address), Bytes(page), count)
    }

    fn take_run(&mut self, base: u64, first: u64) -> Option<Run<D::Physical>> {
        self.reservations.holding(base)?.1.take(first)
    }

    pub(super) fn account_unmapped(
        &mut self,
        index: u32,
        address: u64,
        bytes: u64,
        pool: PoolSlot,
        base: u64,
    ) -> Result<(), AllocError> {
        let block = self.heap.arena.at(index);
        let (offset, stream) = (address - block.address, self.heap.stream(block.stream));
        let is_chain = self.heap.unmap_middle(index, offset, bytes, self.policy.stamp(pool));
        // Parts of the segment may serve other pools.
        let is_empty =
            is_chain && self.reservations.holding(base).is_some_and(|(_, range)| range.size == self.heap.arena.at(index).size);
        self.heap.forget_handles(address, bytes);
        self.count_reserved(pool, -(bytes as i64));
        self.stats.num_device_free += 1;
        let id = self.heap.pool_id(pool.0);
        self.observer.observe(&TraceEntry { action: TraceAction::SegmentUnmap, address, size: bytes, stream, pool: id });
        if is_empty && let Some(size) = self.reservations.holding(base).map(|(_, range)| range.size) {
            // The device refuses to free addresses while anything is mapped there, including leftovers.
            self.release_leftovers()?;
            self.device.unreserve(DeviceAddress(base), Bytes(size))?;
            self.device_ranges.remove(base);
            self.reservations.remove(base);
            self.heap.remove_reservation(index);
        }
        Ok(())
    }

    /// Releases everything, and continues after errors. Unmapping does not wait for work (facts: Waiting for the
    /// device), and work that loses its memory destroys the context, so this first waits for all streams that may use
    /// the memory.
    pub(super) fn abandon_reservations(&mut self) {
        for stream in self.streams_of_reservations() {
            let _ = self.device.synchronize_stream(stream);
        }
        let _ = self.release_leftovers();
        let ranges: Vec<_> = self.reservations.iter().map(|(base, range)| (base, range.size, range.page)).collect();
        for (base, size, page) in ranges {
            while let Ok(Some(run)) = self.separate_first_run(base, 0..size / page) {
                let _ = self.unmap_mapped(base, run.clone(), page);
                if let Some(run) = self.take_run(base, run.start) {
                    let _ = self.release_run(run.memory);
                }
            }
            let _ = self.device.unreserve(DeviceAddress(base), Bytes(size));
            self.reservations.remove(base);
        }
        let _ = self.release_leftovers();
    }

    /// The streams that may use memory of expandable segments: the segments' own streams and those recorded on blocks,
    /// or all streams if blocks may belong to a different stream than their segment.
    fn streams_of_reservations(&self) -> BTreeSet<StreamId> {
        let own: BTreeSet<StreamId> = self.reservations.iter().map(|(_, range)| range.stream).collect();
        // This visits all blocks, so do it only if there is something to wait for.
        let others = (!own.is_empty()).then(|| self.pending.streams(&self.heap.arena)).into_iter().flatten();
        let is_mixed = self.heap.mixes_streams() || self.heap.has_parts_elsewhere();
        let moved_to = if is_mixed { self.heap.streams_seen() } else { &[] };
        own.iter().copied().chain(others).chain(moved_to.iter().copied()).collect()
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Takes memory for `count` pages, all or none (spec 4.5). `None` if there is not enough memory.
    fn create_pages(&mut self, count: u64, page: u64) -> Result<Option<Vec<Run<D::Physical>>>, AllocError> {
        let mut memory = Vec::new();
        let mut missing = count;
        while missing > 0 {
            let run = match self.reservations.take_spare_run(page) {
                Some(run) => self.cut_spare(run, page, missing),
                None => self.create_run(missing, page),
            };
            match run {
                Ok(run) => {
                    missing -= run.pages;
                    memory.push(run);
                }
                Err(error) => {
                    let is_refusal = matches!(error, BackendError::OutOfMemory { .. });
                    let looked = if is_refusal { self.look_after_refusal() } else { Ok(()) };
                    self.release_pages(memory)?;
                    looked?;
                    return if is_refusal { Ok(None) } else { Err(error.into()) };
                }
            }
        }
        Ok(Some(memory))
    }

    /// Creates some of the missing pages, at least one.
    fn create_run(&mut self, missing: u64, page: u64) -> Result<Run<D::Physical>, BackendError> {
        let most = self.device.run_pages().clamp(1, missing);
        let (memory, pages) = self.device.create_run(Bytes(page), most)?;
        Ok(Run { memory, pages: pages.clamp(1, most), is_handle: false })
    }

    /// Takes the first pages of the kept memory; keeps the rest.
    fn cut_spare(&mut self, mut run: Run<D::Physical>, page: u64, missing: u64) -> Result<Run<D::Physical>, BackendError> {
        if run.pages > missing {
            match self.device.split_run(&mut run.memory, Bytes(page), missing) {
                Ok(memory) => self.reservations.keep_spare(page, Run { memory, pages: run.pages - missing, is_handle: false }),
                Err(error) => {
                    self.reservations.keep_spare(page, run);
                    return Err(error);
                }
            }
            run.pages = missing;
        }
        Ok(run)
    }

    /// Releases all of the memory, and continues after an error. Returns the first error. Memory that could not be
    /// released is kept for a later attempt.
    pub(super) fn release_pages(&mut self, memory: Vec<Run<D::Physical>>) -> Result<(), BackendError> {
        memory.into_iter().map(|run| self.release_run(run.memory)).fold(Ok(()), Result::and)
    }

    pub(super) fn release_run(&mut self, memory: D::Physical) -> Result<(), BackendError> {
        self.device.release(memory).map_err(|(memory, error)| {
            self.reservations.keep_unreleased(memory);
            error
        })
    }

    /// Tries again to unmap and release the memory that the device failed to unmap or release earlier.
    pub(super) fn release_leftovers(&mut self) -> Result<(), BackendError> {
        let stuck = self.reservations.take_stuck();
        let cleared = stuck.into_iter().map(|pages| self.clear(pages)).fold(Ok(()), Result::and);
        let leftovers = self.reservations.take_unreleased();
        cleared.and(leftovers.into_iter().map(|memory| self.release_run(memory)).fold(Ok(()), Result::and))
    }

    /// Unmaps memory that no segment uses. Records a failure, so that it can be retried.
    fn clear(&mut self, pages: Pages) -> Result<(), BackendError> {
        let Pages { address, page, count } = pages;
        let unmapped = self.device.unmap_run(DeviceAddress(address), Bytes(page), count);
        unmapped.inspect_err(|_| self.reservations.keep_stuck(pages))
    }

    /// Maps each run of pages and then sets access for all of them. Undoes everything after an error.
    fn map_pages(&mut self, to: Pages, memory: Vec<Run<D::Physical>>, base: u64) -> Result<(), AllocError> {
        let Pages { address, page, .. } = to;
        let mut mapped = Vec::with_capacity(memory.len());
        let mut at = address;
        let mut outcome = Ok(());
        for run in &memory {
            outcome = self.device.map(DeviceAddress(at), Bytes(run.pages * page), &run.memory);
            if outcome.is_err() {
                break;
            }
            mapped.push(run.at(at, page));
            at += run.pages * page;
        }
        let outcome = outcome.and_then(|()| self.device.set_access(DeviceAddress(address), Bytes(at - address)));
        if let Err(error) = outcome {
            for pages in mapped {
                // A second error has no effect: the allocator retries this before it maps anything else.
                let _ = self.clear(pages);
            }
            let _ = self.release_pages(memory);
            return Err(error.into());
        }
        if let Some((_, range)) = self.reservations.holding(base) {
            let mut place = (address - base) / page;
            for run in memory {
                let next = place + run.pages;
                range.put(place, run);
                place = next;
            }
        }
        Ok(())
    }
}
