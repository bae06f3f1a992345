//! Handles of several sizes. As the policy decides, the allocator takes handles from the device, moves them to where a
//! request needs them, and breaks those that are partly in use. PyTorch does none of this.
//!
//! All memory that is unmapped for a request is either mapped for that request or released to the device. When a
//! handle is broken, the blocks in use keep their addresses and contents in new memory, and the free pages are
//! released. When memory is short, a large handle, which is cheap to map, therefore strands no more memory than single
//! pages would.

use alloc::vec::Vec;
use core::ops::Range;

use crate::allocator::Allocator;
use crate::allocator::expandable::Freed;
use crate::device::{BackendError, Capture, DeviceBackend};
use crate::error::AllocError;
use crate::heap::{BlockView, Heap, PoolSlot, whole_pages};
use crate::policy::{Policy, Request};
use crate::reservation::Run;
use crate::trace::Observer;
use crate::units::{Bytes, DeviceAddress};

/// A handle to move.
struct Moved {
    address: u64,
    bytes: u64,
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Takes handles with at least `wanted` and at most `room` pages in total: first kept handles, then new ones.
    /// `None` if there is not enough memory.
    pub(in crate::allocator) fn take_handles(
        &mut self,
        request: &Request,
        wanted: u64,
        page: u64,
        room: u64,
    ) -> Result<Option<Vec<Run<D::Physical>>>, AllocError> {
        if self.reservations.has_leftovers() {
            self.release_leftovers()?;
        }
        let (mut memory, mut pages) = (Vec::new(), 0);
        while let Some(run) = self.reservations.take_spare_handle(page, room - pages) {
            pages += run.pages;
            memory.push(run);
        }
        while pages < wanted {
            match self.new_handle(request, wanted - pages, page, room - pages, pages * page) {
                Ok(Some(run)) => {
                    pages += run.pages;
                    memory.push(run);
                }
                refused => {
                    self.release_pages(memory)?;
                    return refused.map(|_| None);
                }
            }
        }
        Ok(Some(memory))
    }

    /// Creates the next handle. `held` is the number of bytes that have been taken but not counted yet. `None` if
    /// there is no memory for the missing bytes.
    fn new_handle(
        &mut self,
        request: &Request,
        missing: u64,
        page: u64,
        room: u64,
        held: u64,
    ) -> Result<Option<Run<D::Physical>>, AllocError> {
        let size = self.policy.handle(&self.heap, request, Bytes(missing * page)).map_or(0, Bytes::get);
        if size == 0 || !size.is_multiple_of(page) {
            return Err(self.fault("takes a handle that does not consist of whole pages").into());
        }
        // The statistics have 63 bits.
        let limit = self.heap.limit().map_or(i64::MAX as u64, |limit| limit.0.min(i64::MAX as u64));
        // Kept handles that are too large for this place do not appear in any statistic, but still occupy device
        // memory.
        let left = loop {
            let counted = self.heap.reserved().0.saturating_add(held).saturating_add(self.reservations.spare_bytes());
            let left = limit.saturating_sub(counted) / page;
            if left >= missing || !self.give_spare_back()? {
                break left;
            }
        };
        let mut pages = (size / page).min(room).min(left);
        if pages == 0 {
            return Ok(None);
        }
        loop {
            match self.device.create(Bytes(pages * page)) {
                Ok(memory) => return Ok(Some(Run { pages, memory, is_handle: true })),
                Err(BackendError::OutOfMemory { .. }) if pages > missing => pages = missing,
                Err(BackendError::OutOfMemory { .. }) => {
                    if !self.give_spare_back()? {
                        self.look_after_refusal()?;
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Releases the last of the kept handles. Returns false if there are none.
    fn give_spare_back(&mut self) -> Result<bool, BackendError> {
        let Some(run) = self.reservations.take_last_spare() else { return Ok(false) };
        self.release_run(run.memory).map(|()| true)
    }

    /// Unmaps handles and grows the request's segment with them, or releases them and grows it with new handles. While
    /// a graph is captured, skips handles whose stream cannot be waited for.
    pub(super) fn move_handles(
        &mut self,
        request: &Request,
        stream_slot: u16,
        segment: Bytes,
        handles: &[DeviceAddress],
        keeps: bool,
    ) -> Result<Option<u32>, AllocError> {
        let handles = self.check_moves(handles)?;
        let unmapped = handles.iter().try_for_each(|handle| self.unmap_handle(handle));
        let gone = if keeps || unmapped.is_err() { Ok(()) } else { self.release_spare() };
        let asked = unmapped.and_then(|()| self.take_segment(request, stream_slot, segment));
        let released = gone.and(self.release_spare());
        match asked {
            // If the device failed to release memory, the allocator tries again later; the request is served anyway.
            Ok(Some(block)) => Ok(Some(block)),
            Ok(None) => Ok(released.map(|()| None)?),
            Err(error) => Err(error),
        }
    }

    fn release_spare(&mut self) -> Result<(), BackendError> {
        let spare = self.reservations.take_spare();
        self.release_pages(spare)
    }

    /// Checks the handles that the policy chose, before anything is unmapped.
    fn check_moves(&self, addresses: &[DeviceAddress]) -> Result<Vec<Moved>, AllocError> {
        let mut handles = Vec::with_capacity(addresses.len());
        for &DeviceAddress(address) in addresses {
            let bytes = self.heap.handle_at(address).ok_or_else(|| self.fault("moves a handle that does not exist"))?;
            let index = self.heap.free_block_at(address);
            let block = index.map(|index| self.heap.arena.at(index));
            let holds = |spare: Range<u64>| spare.start <= address && address + bytes <= spare.end;
            if block.is_none_or(|block| !holds(self.heap.dispensable(block))) {
                return Err(self
                    .fault("moves a handle that is not entirely free, or that a private pool in use has handed out")
                    .into());
            }
            if handles.iter().any(|other: &Moved| other.address == address) {
                return Err(self.fault("moves a handle twice").into());
            }
            handles.push(Moved { address, bytes });
        }
        Ok(handles)
    }

    /// Unmaps a handle in a free block and keeps its memory. Does nothing if pending work that cannot be waited for
    /// may use the handle.
    fn unmap_handle(&mut self, handle: &Moved) -> Result<(), AllocError> {
        let Some(index) = self.heap.free_block_at(handle.address) else { return Ok(()) };
        self.bring_home(index)?;
        if self.is_away(index) {
            return Ok(());
        }
        let pool = PoolSlot(self.heap.arena.at(index).pool);
        let Some((base, range)) = self.reservations.holding(handle.address) else {
            return Err(self.fault("moves a handle outside the reserved ranges").into());
        };
        let (page, stream) = (range.page, range.stream);
        // No pending work uses memory that was never handed out.
        if !self.heap.may_serve_graphs(pool.pool_number()) {
            if !self.may_wait_for(stream) {
                return Ok(());
            }
            self.device.synchronize_stream(stream)?;
        }
        let first = (handle.address - base) / page;
        let (done, outcome) = self.unmap_pages(base, page, first..first + handle.bytes / page, Freed::Spare);
        if done > first {
            self.account_unmapped(index, handle.address, handle.bytes, pool, base)?;
        }
        outcome
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Divides the pages of all expandable segments into pages of `page` bytes, and makes each page that has memory a
    /// handle of its old size. Does nothing if too many pages have memory, or if some page size is not a multiple of
    /// the new one.
    pub(super) fn refine(&mut self, page: Bytes) -> Result<(), AllocError> {
        if page == Bytes::ZERO {
            return Err(self.fault("divides pages into pages of 0 bytes").into());
        }
        // Since the last refinement, every range has been reserved with these pages, and all memory has been taken in
        // handles.
        if self.heap.refined_page() == Some(page) {
            return Ok(());
        }
        let mapped: u64 = self.reservations.iter().map(|(_, range)| range.mapped_bytes() / range.page).sum();
        let divides = self.reservations.iter().all(|(_, range)| range.page.is_multiple_of(page.0));
        if mapped > Heap::MOST_REFINED || !divides {
            return Ok(());
        }
        let Allocator { device, reservations, heap, .. } = self;
        for (base, range) in reservations.iter_mut() {
            let old = Bytes(range.page);
            range.separate_pages(|memory, pages| device.split_run(memory, old, pages))?;
            for (first, bytes) in range.refine(page.0) {
                heap.note_handles(base + first * page.0, &[(true, bytes)]);
            }
        }
        self.heap.set_refined_page(page);
        Ok(())
    }

    /// Breaks the handles in order, but none while a graph is captured, unless the device can wait during captures.
    /// Handles for which the device has no room are tried again after other handles have freed memory; if there is
    /// still no room, they stay unchanged. Returns the number of broken handles.
    pub(super) fn break_handles(&mut self, handles: &[DeviceAddress]) -> Result<u64, AllocError> {
        for (place, &DeviceAddress(address)) in handles.iter().enumerate() {
            if self.heap.handle_at(address).is_none() || handles[..place].contains(&DeviceAddress(address)) {
                return Err(self.fault("breaks a handle that does not exist, or breaks one twice").into());
            }
        }
        if self.heap.is_deferring() && !self.device.waits_in_captures() {
            return Ok(0);
        }
        // The device may not know these streams yet, and has to know which ones to wait for and which ones not.
        let routed = self.heap.private_pools().routed_streams();
        for stream in self.heap.streams_seen().iter().copied().chain(routed).collect::<Vec<_>>() {
            // An error shows again when the device waits.
            let _: Result<Option<Capture>, BackendError> = self.device.capture(stream);
        }
        let (mut left, mut before, mut broken) = (handles.to_vec(), usize::MAX, 0);
        while left.len() < before {
            before = left.len();
            for handle in core::mem::take(&mut left) {
                // The device may find out at this point that it cannot break handles.
                if !self.device.breaks_handles() {
                    return Ok(broken);
                }
                match self.break_handle(handle.0) {
                    Err(AllocError::Device(BackendError::OutOfMemory { .. })) => left.push(handle),
                    outcome => broken += u64::from(outcome?),
                }
            }
        }
        Ok(broken)
    }

    /// Breaks a handle. Returns false if none of its pages can be freed.
    fn break_handle(&mut self, address: u64) -> Result<bool, AllocError> {
        let Some(bytes) = self.heap.handle_at(address) else { return Ok(false) };
        let Some((base, range)) = self.reservations.holding(address) else {
            return Err(self.fault("breaks a handle outside the reserved ranges").into());
        };
        let (page, pool) = (range.page, range.pool);
        let free = self.free_pages(address..address + bytes, page, pool);
        let used = between(&free, address..address + bytes);
        if free.is_empty() || used.is_empty() {
            return Ok(false);
        }
        let parts: Vec<(Bytes, Bytes)> =
            used.iter().map(|part| (Bytes(part.start - address), Bytes(part.end - part.start))).collect();
        let Some(run) = self.reservations.holding(base).and_then(|(_, range)| range.take((address - base) / page)) else {
            return Err(self.fault("breaks a handle that is not mapped").into());
        };
        let broken = self.device.break_handle(DeviceAddress(address), Bytes(bytes), run.memory, &parts);
        let Some((_, range)) = self.reservations.holding(base) else { return Ok(false) };
        match broken {
            Ok(pieces) => {
                for (part, memory) in used.iter().zip(pieces) {
                    let pages = (part.end - part.start) / page;
                    range.put((part.start - base) / page, Run { pages, memory, is_handle: true });
                }
            }
            Err((memory, error)) => {
                range.put((address - base) / page, Run { memory, ..run });
                return Err(error.into());
            }
        }
        self.heap.forget_handles(address, bytes);
        used.iter().for_each(|part| self.heap.note_handles(part.start, &[(true, part.end - part.start)]));
        self.stats.copied_bytes += used.iter().map(|part| (part.end - part.start) as i64).sum::<i64>();
        for part in free {
            if let Some(index) = self.heap.free_block_at(part.start) {
                self.account_unmapped(index, part.start, part.end - part.start, PoolSlot(pool), base)?;
            }
        }
        Ok(true)
    }

    /// The whole pages in free blocks of a range, by address, except in blocks that belong to a different pool or
    /// stream than their segment.
    fn free_pages(&mut self, range: Range<u64>, page: u64, pool: u16) -> Vec<Range<u64>> {
        let touches = |block: &BlockView| block.address.0 < range.end && block.address.0 + block.size.0 > range.start;
        let blocks: Vec<u32> = self.heap.free_blocks(PoolSlot(pool)).filter(touches).map(|block| block.id.index).collect();
        let mut pages = Vec::new();
        for index in blocks {
            let block = self.heap.arena.at(index);
            let spare = self.heap.dispensable(block);
            let inside = whole_pages(spare.start.max(range.start)..spare.end.min(range.end), range.start, page);
            if !inside.is_empty() && !self.is_away(index) {
                pages.push(inside);
            }
        }
        pages.sort_unstable_by_key(|part| part.start);
        pages
    }
}

/// The gaps in `range` between `parts`, which are in order.
fn between(parts: &[Range<u64>], range: Range<u64>) -> Vec<Range<u64>> {
    let ends = parts.iter().map(|part| part.end);
    let starts = parts.iter().map(|part| part.start).chain([range.end]);
    let gaps = core::iter::once(range.start).chain(ends).zip(starts).map(|(from, to)| from..to);
    gaps.filter(|gap| !gap.is_empty()).collect()
}
