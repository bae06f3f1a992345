//! Memory for expandable segments: mapped page by page where a request needs it, unmapped in whole pages
//! (spec section 4).
//!
//! Every call that the device may refuse comes before the first change of the heap, or is undone: after any
//! error pages, blocks and statistics agree.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;

use super::Allocator;
use crate::device::{BackendError, DeviceBackend};
use crate::error::AllocError;
use crate::heap::PoolSlot;
use crate::policy::{Policy, Request};
use crate::trace::{Observer, TraceAction, TraceEntry};
use crate::units::{Bytes, DeviceAddress, StreamId};

/// The most pages to make room for in advance.
const MOST_EXPECTED_PAGES: u64 = 64;

/// What happens to unmapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Freed {
    /// It is released to the device.
    Released,
    /// It is kept for the mapping that follows.
    Spare,
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Finds room for the request in an expandable segment of its pool and stream and maps what is missing.
    /// `None` if the device is out of memory; what was mapped so far stays, as free blocks (spec 4.4).
    pub(super) fn grow(&mut self, request: &Request, stream: u16, page: Bytes) -> Result<Option<u32>, AllocError> {
        let size = request.size.0;
        if !self.heap.merges_neighbours() {
            return Err(self.fault("grows segments in which free neighbours do not all become one block").into());
        }
        if page == Bytes::ZERO {
            return Err(self.fault("names pages of no bytes").into());
        }
        let mut block = match self.heap.find_space(request.pool, request.stream, size) {
            Some(block) => block,
            None => match self.reserve(request, stream, page)? {
                Some(block) => block,
                None => return Ok(None),
            },
        };
        if self.heap.is_unmapped(block) && !self.map_block(block, size)? {
            return Ok(None);
        }
        while self.heap.arena.at(block).size < size {
            let next = self.heap.arena.at(block).next;
            // A run that was found is long enough; a new segment may be too short.
            if !self.heap.is_unmapped(next) {
                return Err(AllocError::TooLarge { requested: request.requested });
            }
            let missing = size - self.heap.arena.at(block).size;
            if !self.map_block(next, missing)? {
                return Ok(None);
            }
            block = next;
        }
        self.heap.detach(block);
        Ok(Some(block))
    }

    /// Reserves addresses for a new segment, as many as the policy says, in whole pages (spec 4.1). If they
    /// are too few for the request, `None`, or the segment all the same: PyTorch 2.11 goes on to map all of
    /// it, for which there is hardly ever enough memory.
    fn reserve(&mut self, request: &Request, stream: u16, page: Bytes) -> Result<Option<u32>, AllocError> {
        let too_large = AllocError::TooLarge { requested: request.requested };
        let size = self.policy.reservation(self.total_memory).checked_round_up(page).ok_or(too_large)?;
        if size == Bytes::ZERO {
            return Err(self.fault("reserves no addresses").into());
        }
        let address = self.device.reserve(size)?;
        let is_short = size < request.size && self.profile.gives_short_ranges_back;
        let returned = if is_short { self.device.unreserve(address, size) } else { Ok(()) };
        if is_short && returned.is_ok() {
            return Ok(None);
        }
        // A range that the device failed to free stays the allocator's.
        self.reservations.insert(address.0, size.0, page.0, request.stream);
        let block = self.heap.add_reservation(address, size, stream, request.pool);
        Ok(returned.map(|()| Some(block))?)
    }

    /// Maps the first `wanted` bytes of an unmapped block, in whole pages, and coalesces them with free
    /// neighbours. False if the device is out of memory (spec 4.3).
    fn map_block(&mut self, index: u32, wanted: u64) -> Result<bool, AllocError> {
        let block = self.heap.arena.at(index);
        let (address, wanted, pool) = (block.address, wanted.min(block.size), PoolSlot(block.pool));
        let Some((base, range)) = self.reservations.holding(address) else {
            return Err(self.fault("grows a block that is in no reserved range").into());
        };
        let page = range.page;
        if self.reservations.has_leftovers() {
            self.release_leftovers()?;
        }
        let first = (address - base) / page;
        let count = wanted.div_ceil(page);
        let bytes = count * page;
        let Some(memory) = self.create_pages(count, page)? else { return Ok(false) };
        self.map_pages(address, page, memory, base, first)?;
        self.heap.map_front(index, bytes);
        self.heap.put_back(index, self.policy.stamp(pool));
        self.count_reserved(pool, bytes as i64);
        self.stats.num_device_alloc += 1;
        self.tell(TraceAction::SegmentMap, index, address, bytes);
        Ok(true)
    }

    /// Takes memory for `count` pages, all or none (spec 4.5). `None` if there is not enough.
    fn create_pages(&mut self, count: u64, page: u64) -> Result<Option<Vec<D::Physical>>, AllocError> {
        // The program chooses `count`, so it must not decide how much to allocate here.
        let mut memory = Vec::with_capacity(count.min(MOST_EXPECTED_PAGES) as usize);
        for _ in 0..count {
            if let Some(piece) = self.reservations.take_spare_page(page) {
                memory.push(piece);
                continue;
            }
            match self.device.create(Bytes(page)) {
                Ok(piece) => memory.push(piece),
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

    /// Releases all of it, even after an error. Returns the first error; what could not be released is kept
    /// and retried later.
    pub(super) fn release_pages(&mut self, memory: Vec<D::Physical>) -> Result<(), BackendError> {
        memory.into_iter().map(|piece| self.release_page(piece)).fold(Ok(()), Result::and)
    }

    fn release_page(&mut self, memory: D::Physical) -> Result<(), BackendError> {
        self.device.release(memory).map_err(|(memory, error)| {
            self.reservations.keep_unreleased(memory);
            error
        })
    }

    /// Retries to unmap and release what the device failed to.
    pub(super) fn release_leftovers(&mut self) -> Result<(), BackendError> {
        let stuck = self.reservations.take_stuck();
        let cleared = stuck.into_iter().map(|(address, bytes)| self.clear(address, bytes)).fold(Ok(()), Result::and);
        let leftovers = self.reservations.take_unreleased();
        cleared.and(self.release_pages(leftovers))
    }

    /// Unmaps memory that no segment uses. A failure is remembered and retried.
    fn clear(&mut self, address: u64, bytes: u64) -> Result<(), BackendError> {
        self.device.unmap(DeviceAddress(address), Bytes(bytes)).inspect_err(|_| self.reservations.keep_stuck(address, bytes))
    }

    /// Maps each page and then sets access for all of them. Undone after an error.
    fn map_pages(&mut self, address: u64, page: u64, memory: Vec<D::Physical>, base: u64, first: u64) -> Result<(), AllocError> {
        let mut mapped = 0;
        let mut outcome = Ok(());
        for piece in &memory {
            outcome = self.device.map(DeviceAddress(address + mapped * page), Bytes(page), piece);
            if outcome.is_err() {
                break;
            }
            mapped += 1;
        }
        let outcome = outcome.and_then(|()| self.device.set_access(DeviceAddress(address), Bytes(mapped * page)));
        if let Err(error) = outcome {
            for place in 0..mapped {
                // Another error changes nothing: it is retried before anything else is mapped.
                let _ = self.clear(address + place * page, page);
            }
            let _ = self.release_pages(memory);
            return Err(error.into());
        }
        if let Some((_, range)) = self.reservations.holding(base) {
            for (piece, place) in memory.into_iter().zip(first..) {
                range.put(place, piece);
            }
        }
        Ok(())
    }

    /// Unmaps the whole pages inside a free block, after waiting for the segment's stream, and frees the
    /// addresses once the whole segment is unmapped (spec 4.6, 4.7).
    pub(super) fn unmap_block(&mut self, index: u32, freed: Freed) -> Result<(), AllocError> {
        let block = self.heap.arena.at(index);
        let (address, size, pool) = (block.address, block.size, PoolSlot(block.pool));
        let Some((base, range)) = self.reservations.holding(address) else {
            return Err(self.fault("releases an expandable block that is in no reserved range").into());
        };
        let (page, stream) = (range.page, range.stream);
        let begin = (address - base).div_ceil(page);
        let end = (address - base + size) / page;
        if begin >= end {
            return Ok(());
        }
        self.device.synchronize_stream(stream)?;
        let (done, outcome) = self.unmap_pages(base, page, begin..end, freed);
        if done > begin {
            self.account_unmapped(index, base + begin * page, (done - begin) * page, pool, base)?;
        }
        outcome
    }

    /// Unmaps pages in order, up to the first that fails. Returns where it stopped.
    fn unmap_pages(&mut self, base: u64, page: u64, places: Range<u64>, freed: Freed) -> (u64, Result<(), AllocError>) {
        for place in places.clone() {
            if let Err(error) = self.device.unmap(DeviceAddress(base + place * page), Bytes(page)) {
                return (place, Err(error.into()));
            }
            let piece = self.reservations.holding(base).and_then(|(_, range)| range.take(place));
            let outcome = match (piece, freed) {
                (Some(piece), Freed::Released) => self.release_page(piece),
                (Some(piece), Freed::Spare) => {
                    self.reservations.keep_spare(page, piece);
                    Ok(())
                }
                (None, _) => Ok(()),
            };
            if let Err(error) = outcome {
                return (place + 1, Err(error.into()));
            }
        }
        (places.end, Ok(()))
    }

    fn account_unmapped(&mut self, index: u32, address: u64, bytes: u64, pool: PoolSlot, base: u64) -> Result<(), AllocError> {
        let block = self.heap.arena.at(index);
        let (offset, stream) = (address - block.address, self.heap.stream(block.stream));
        let is_empty = self.heap.unmap_middle(index, offset, bytes, self.policy.stamp(pool));
        self.count_reserved(pool, -(bytes as i64));
        self.stats.num_device_free += 1;
        let id = self.heap.pool_id(pool.0);
        self.observer.observe(&TraceEntry { action: TraceAction::SegmentUnmap, address, size: bytes, stream, pool: id });
        if is_empty && let Some(size) = self.reservations.holding(base).map(|(_, range)| range.size) {
            // The device does not free addresses while anything is mapped there, even leftovers.
            self.release_leftovers()?;
            self.device.unreserve(DeviceAddress(base), Bytes(size))?;
            self.reservations.remove(base);
            self.heap.remove_reservation(index);
        }
        Ok(())
    }

    /// Releases everything, even after errors. Unmapping does not wait for work (facts: Waiting for the
    /// device), and work whose memory is gone destroys the context, so all streams that may use it are waited
    /// for first.
    pub(super) fn abandon_reservations(&mut self) {
        for stream in self.streams_of_reservations() {
            let _ = self.device.synchronize_stream(stream);
        }
        let _ = self.release_leftovers();
        while let Some(base) = self.reservations.first() {
            let Some(mut range) = self.reservations.remove(base) else { return };
            let pages: Vec<u64> = range.mapped_pages().collect();
            for place in pages {
                let _ = self.device.unmap(DeviceAddress(base + place * range.page), Bytes(range.page));
                if let Some(piece) = range.take(place) {
                    let _ = self.release_page(piece);
                }
            }
            let _ = self.device.unreserve(DeviceAddress(base), Bytes(range.size));
        }
        let _ = self.release_leftovers();
    }

    /// The streams that may use memory of expandable segments. If there are any, also the streams that use
    /// other blocks.
    fn streams_of_reservations(&self) -> BTreeSet<StreamId> {
        let own: BTreeSet<StreamId> = self.reservations.iter().map(|(_, range)| range.stream).collect();
        let others = self.pending.streams().filter(|_| !own.is_empty());
        own.iter().copied().chain(others).collect()
    }
}
