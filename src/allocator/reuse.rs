//! Reuse of a free block, which serves most requests: the allocator checks the policy's choice, then hands out the
//! block or its low part.
//!
//! Requests for memory at a given address are also served here.

use super::allocation::Hit;
use super::{Allocation, Allocator, Cut, Part, TOO_LARGE, count};
use crate::block::{BlockId, BlockState, Slots};
use crate::device::DeviceBackend;
use crate::error::AllocError;
use crate::heap::{BlockView, Candidate, PoolSlot};
use crate::policy::{Placement, Policy, PolicyFault, Request};
use crate::trace::Observer;
use crate::units::{Bytes, DeviceAddress, PoolClass, StreamId};

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Like [`Allocator::raw_allocate_at_once`], but with the size limit of [`Allocator::allocate`].
    #[inline]
    pub fn allocate_at_once(&mut self, requested: Bytes, stream: StreamId) -> Option<Allocation> {
        if requested.0 >= TOO_LARGE {
            return None;
        }
        self.raw_allocate_at_once(requested, stream)
    }

    /// Like [`Allocator::raw_allocate`], but only for the common case: the first free block serves the request, no
    /// events have to be checked, no requests are routed to a private pool, and the stream is the same as for the
    /// previous request. In any other case, returns `None` and changes nothing; call [`Allocator::raw_allocate`]
    /// instead.
    #[inline]
    pub fn raw_allocate_at_once(&mut self, requested: Bytes, stream: StreamId) -> Option<Allocation> {
        self.serve_at_once(requested, stream).made_by(self.identity.own())
    }

    /// See [`Allocator::raw_allocate_at_once`].
    // Out of line, so that callers do not have to keep registers for it.
    #[inline(never)]
    fn serve_at_once(&mut self, requested: Bytes, stream: StreamId) -> Hit {
        if requested.0 == 0 || !self.pending.is_idle() || self.heap.private_pools().is_routing() {
            return Hit::MISS;
        }
        let Some(size) = self.policy.round(requested).filter(|&size| size >= requested) else { return Hit::MISS };
        let Some(stream_slot) = self.heap.same_stream_slot(stream) else { return Hit::MISS };
        let pool = PoolSlot::of_pool(0, self.policy.classify(size));
        let request = Request { requested, size, pool, stream, is_expandable: self.policy.is_expandable(pool) };
        self.reuse_first(&request, stream_slot).map_or(Hit::MISS, |allocation| allocation.hit())
    }

    /// Hands out the first free block that is large enough, or its low part, if nothing else needs to be done; if not,
    /// returns `None` and changes nothing. Under PyTorch's rules, most requests take this path.
    #[inline(always)]
    pub(super) fn reuse_first(&mut self, request: &Request, stream_slot: u16) -> Option<Allocation> {
        let Request { requested, size, pool, .. } = *request;
        if !self.policy.looks_at_first(&self.heap) || !self.heap.cuts_plainly(pool) {
            return None;
        }
        debug_assert!(self.would_place_first(request, stream_slot), "the policy takes a block that it would not have chosen");
        // Everything that may call other functions comes first, so that the compiler can then keep the values that it
        // has read in registers.
        self.heap.arena.provide_vacant();
        let (blocks, slots, vacant) = self.heap.shelf_mut(pool, stream_slot)?;
        let index = blocks.first_at_least(slots, size.0)?;
        if !self.policy.takes_first(request, Candidate { slots, blocks, index }) {
            return None;
        }
        let block = slots.at_mut(index);
        let (whole, was_split) = (block.size, block.is_split());
        // Ask the policy before changing anything, because it may panic.
        if whole == size.0 || !self.policy.splits(Bytes(whole), request) {
            let is_oversize = self.policy.is_oversize(Bytes(whole));
            let part = Part::of(index, block, requested);
            count(&mut self.stats, &part, request, &Cut { whole, was_split, splits: false, is_oversize });
            blocks.remove(slots, index);
            return Some(self.tell_handed_out(&part, request));
        }
        let is_oversize = self.policy.is_oversize(size);
        block.stamp = self.policy.stamp(pool);
        let before = blocks.resize(slots, index, whole - size.0);
        let (low, block) = vacant.split(slots, index, size.0);
        let part = Part::of(low, block, requested);
        count(&mut self.stats, &part, request, &Cut { whole, was_split, splits: true, is_oversize });
        blocks.settle(slots, before);
        vacant.give_rank(slots, low);
        Some(self.tell_handed_out(&part, request))
    }

    /// Whether [`Policy::place`] would also choose the first free block, which the policy takes.
    fn would_place_first(&mut self, request: &Request, stream_slot: u16) -> bool {
        let Some((blocks, slots, _)) = self.heap.shelf_mut(request.pool, stream_slot) else { return true };
        let Some(index) = blocks.first_at_least(slots, request.size.0) else { return true };
        let takes_it = self.policy.takes_first(request, Candidate { slots, blocks, index });
        !takes_it || self.policy.place(&self.heap, request) == Placement::Reuse(self.heap.arena.id(index))
    }

    /// Checks the policy's choice, then hands out that free block or its low part.
    pub(super) fn reuse(&mut self, id: BlockId, request: &Request, stream_slot: u16) -> Result<Allocation, AllocError> {
        self.heap.arena.provide_vacant();
        let is_kept_whole = self.heap.private_pools().is_kept_whole(request.pool.pool_number());
        let Some((whole, was_split)) = self.check_choice(id, request, stream_slot) else {
            return Err(self.wrong_choice(id, *request).into());
        };
        if whole == request.size.0 || is_kept_whole || !self.policy.splits(Bytes(whole), request) {
            let is_oversize = self.policy.is_oversize(Bytes(whole));
            self.heap.detach(id.index);
            let part = Part::of(id.index, self.heap.arena.at_mut(id.index), request.requested);
            return Ok(self.account(&part, request, &Cut { whole, was_split, splits: false, is_oversize }));
        }
        if self.policy.takes_high_end(request) {
            self.heap.detach(id.index);
            return Ok(self.hand_out_high_end(id.index, request));
        }
        let (stamp, is_oversize) = (self.policy.stamp(request.pool), self.policy.is_oversize(request.size));
        match self.heap.cut(id.index, request.size.0, (request.pool, stream_slot), stamp) {
            Some((low, block)) => {
                let part = Part::of(low, block, request.requested);
                Ok(self.account(&part, request, &Cut { whole, was_split, splits: true, is_oversize }))
            }
            None => Ok(self.reuse_part(id.index, *request)),
        }
    }

    /// Hands out the low part of a free block, in a heap that keeps free blocks by address.
    #[cold]
    #[inline(never)]
    fn reuse_part(&mut self, index: u32, request: Request) -> Allocation {
        self.heap.detach(index);
        self.hand_out_part(index, &request, true)
    }

    /// Hands out the high end of the detached block.
    #[cold]
    #[inline(never)]
    pub(super) fn hand_out_high_end(&mut self, index: u32, request: &Request) -> Allocation {
        let block = self.heap.arena.at(index);
        let (front, was_split) = (block.size - request.size.0, block.is_split());
        self.leave_front(index, Bytes(front), was_split, request);
        let allocation = self.hand_out_part(index, request, false);
        // The block was temporarily counted as a free part, without raising the peaks.
        self.stats.raise_peaks_of_splits(request.pool.class(), 1, 1);
        allocation
    }

    /// The size of the free block that the policy chose, and whether it is only a part of its segment; `None` if the
    /// choice is invalid.
    #[inline(always)]
    fn check_choice(&self, id: BlockId, request: &Request, stream_slot: u16) -> Option<(u64, bool)> {
        let block = self.heap.arena.get(id.index)?;
        let is_there = block.generation == id.generation && block.state == BlockState::Free;
        if is_there && block.size >= request.size.0 && block.pool == request.pool.0 && block.stream == stream_slot {
            Some((block.size, block.is_split()))
        } else {
            None
        }
    }

    /// Checks the policy's choice, then takes that free block.
    pub(super) fn take(&mut self, id: BlockId, request: &Request, stream_slot: u16) -> Result<u32, AllocError> {
        if self.check_choice(id, request, stream_slot).is_none() {
            return Err(self.wrong_choice(id, *request).into());
        }
        self.heap.detach(id.index);
        Ok(id.index)
    }

    /// Takes the part of the free block from `offset`; the part before it stays free.
    #[cold]
    pub(super) fn take_at(&mut self, id: BlockId, offset: Bytes, request: &Request, stream_slot: u16) -> Result<u32, AllocError> {
        let Some((whole, was_split)) = self.check_choice(id, request, stream_slot) else {
            return Err(self.wrong_choice(id, *request).into());
        };
        if offset.0 > whole - request.size.0 {
            return Err(self.fault("reuses a block from an offset that leaves too little room").into());
        }
        self.heap.detach(id.index);
        if offset > Bytes::ZERO {
            self.leave_front(id.index, offset, was_split, request);
        }
        Ok(id.index)
    }

    /// Splits off the front of a detached block, which becomes free. The rest stays detached and is counted as free.
    fn leave_front(&mut self, index: u32, size: Bytes, was_split: bool, request: &Request) {
        let stamp = self.policy.stamp(request.pool);
        let front = self.heap.split(index, size.0, stamp);
        self.heap.attach(front, stamp);
        self.heap.detach(index);
        if !self.heap.arena.at(index).is_expandable() {
            let back = self.heap.arena.at(index).size as i64;
            self.count_parts(request.pool.class(), was_split, size.0 as i64, back);
        }
        // An earlier call may already have left a free block before this one.
        let before = self.heap.arena.at(front).prev;
        let is_free = self.heap.arena.get(before).is_some_and(|block| block.state == BlockState::Free);
        if is_free && self.heap.may_merge(before, front) {
            self.heap.detach(front);
            self.put_back_unused(front);
        }
    }

    /// Counts that a free block has become two parts: one of `stays` bytes, and one of `goes` bytes that is about to
    /// be handed out. Both count as free.
    pub(super) fn count_parts(&mut self, class: PoolClass, was_split: bool, stays: i64, goes: i64) {
        let (blocks, bytes) = if was_split { (0, -goes) } else { (1, stays) };
        self.stats.change_splits(class, blocks, bytes);
        self.stats.count_split_in_passing(class, goes);
    }

    /// The reason why the policy's choice is invalid.
    #[cold]
    fn wrong_choice(&self, id: BlockId, request: Request) -> PolicyFault {
        let problem = match self.heap.arena.resolve(id).map(|index| self.heap.arena.at(index)) {
            None => "reuses a block that does not exist",
            Some(block) if block.state != BlockState::Free => "reuses a block that is not free",
            Some(block) if block.size < request.size.0 => "reuses a block that is too small",
            Some(_) => "reuses a block of a different pool or stream",
        };
        self.fault(problem)
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Serves a request at an address (a multiple of 512) from a free block of its pool and stream that has enough
    /// bytes after the address (spec 2.16). Returns `None` if there is no such block, without asking the device. First
    /// hands out the memory before the address, and takes it back afterwards; the observer sees both.
    ///
    /// # Errors
    /// See [`AllocError`].
    pub fn allocate_at(
        &mut self,
        requested: Bytes,
        stream: StreamId,
        address: DeviceAddress,
    ) -> Result<Option<Allocation>, AllocError> {
        let request = match self.prepare(requested, stream) {
            Err(AllocError::TooLarge { .. }) => return Ok(None),
            prepared => prepared?.0,
        };
        let before = |start: DeviceAddress, size: Bytes| {
            let before = address.0.checked_sub(start.0).filter(|&before| before <= size.0)?;
            (size.0 - before >= request.size.0).then_some(before)
        };
        let may_hold = address.0.is_multiple_of(512);
        let holding = |block: BlockView| Some((block.id.index, before(block.address, block.size)?));
        let found = self.heap.free_blocks(request.pool).filter(|block| may_hold && block.stream == stream).find_map(holding);
        let Some((index, before)) = found else { return Ok(None) };
        self.heap.detach(index);
        let front = (before > 0).then(|| {
            let for_front = Request { requested: Bytes(before), size: Bytes(before), ..request };
            let allocation = self.hand_out_part(index, &for_front, true);
            self.heap.detach(index);
            allocation
        });
        let splits = self.splits(self.heap.arena.at(index).size, &request);
        let allocation = self.hand_out_part(index, &request, splits);
        self.heap.note_handed_out(allocation.id().index);
        if let Some(front) = front {
            self.give_back(front.id().index)?;
        }
        Ok(Some(allocation))
    }
}
