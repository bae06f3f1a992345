//! The path of a request: round it, find a free block, and hand out the block or one end of it.
//!
//! The policy is asked for the block once ([`Policy::place`]). Whatever yields the block, [`Allocator::hand_out`] is the
//! only way to the program: it takes a free block and the part of it that the request gets, and the rest stays free. If
//! no free block serves the request, the retry ladder makes one free first (`ladder.rs`).

use alloc::boxed::Box;

use super::allocation::PackedId;
use super::{Allocation, Allocator};
use crate::block::{BlockId, BlockState};
use crate::device::DeviceBackend;
use crate::error::AllocError;
use crate::heap::{BlockView, LiveBlock, PoolSlot};
use crate::policy::{Placement, Policy, PolicyFault, Request};
use crate::trace::{Observer, TraceAction};
use crate::units::{Bytes, DeviceAddress, StreamId};

/// [`Allocator::allocate`] refuses requests of this many bytes or more (spec 1.1, `ONE_EXA`).
const TOO_LARGE: u64 = 1 << 60;

/// The part of a free block that a request gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Take {
    Whole,
    LowEnd,
    HighEnd,
}

/// A free block that a rung has yielded, and the pool that serves the request with it.
pub(super) struct Found {
    pub(super) index: u32,
    pub(super) request: Request,
    /// The part that the request gets, unless the policy still has to decide that.
    pub(super) take: Option<Take>,
}

impl Found {
    pub(super) fn new(index: u32, request: &Request) -> Found {
        Found { index, request: *request, take: None }
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Serves a request of `requested` bytes for `stream`, as PyTorch's tensor path does.
    ///
    /// # Errors
    /// See [`AllocError`]. Memory that the retry ladder has released stays released; nothing else has changed.
    #[inline]
    pub fn allocate(&mut self, requested: Bytes, stream: StreamId) -> Result<Allocation, AllocError> {
        if requested.0 >= TOO_LARGE {
            return Err(AllocError::TooLarge { requested });
        }
        self.raw_allocate(requested, stream)
    }

    /// Like [`Allocator::allocate`], but without the limit of 2^60 bytes (PyTorch's `raw_alloc`).
    ///
    /// # Errors
    /// See [`AllocError`].
    #[inline(always)]
    pub fn raw_allocate(&mut self, requested: Bytes, stream: StreamId) -> Result<Allocation, AllocError> {
        let id = self.serve(requested, stream).map_err(|error| *error)?;
        let address = self.heap.arena.at(id.slot()).address;
        Ok(Allocation::new(DeviceAddress(address), id, self.identity.own()))
    }

    /// Serves a request. The result is small, so that it is returned in registers: a program that moves an allocation
    /// right after it was returned in memory stalls until all of its fields reach the cache.
    #[inline(never)]
    fn serve(&mut self, requested: Bytes, stream: StreamId) -> Result<PackedId, Box<AllocError>> {
        self.find_and_hand_out(requested, stream).map(|allocation| allocation.id).map_err(Box::new)
    }

    /// Finds or makes a free block for a request and hands it out.
    #[inline(always)]
    fn find_and_hand_out(&mut self, requested: Bytes, stream: StreamId) -> Result<Allocation, AllocError> {
        let (request, stream_slot) = self.prepare(requested, stream)?;
        // Only PyTorch 2.9 has this rule.
        if self.heap.private_pools().needs_capture() && self.policy.reuses_in_captures() {
            return Err(AllocError::NotCaptured);
        }
        match self.policy.place(&self.heap, &request) {
            Placement::Reuse(id) => {
                let index = self.check_choice(id, &request, stream_slot)?;
                let take = self.part_for(index, &request);
                let allocation = self.hand_out(index, &request, take);
                self.note_allocated(&allocation);
                Ok(allocation)
            }
            // Copy the request here, so that the other arm can keep it in registers.
            Placement::Segment(segment) => self.obtain(Request { requested, ..request }, stream_slot, segment),
        }
    }

    /// Rounds a request and chooses its pool, after checking the pending blocks.
    #[inline(always)]
    fn prepare(&mut self, requested: Bytes, stream: StreamId) -> Result<(Request, u16), AllocError> {
        if requested.0 == 0 {
            return Err(AllocError::ZeroSize);
        }
        let size = self.policy.round(requested).filter(|&size| size >= requested).ok_or(AllocError::TooLarge { requested })?;
        if self.heap.is_deferring() {
            self.free_ordered(stream)?
        } else {
            self.process_events()?
        }
        let stream_slot = self.heap.stream_slot(stream)?;
        let pool = PoolSlot::of_pool(self.heap.private_pools().number_for(stream), self.policy.classify(size));
        let is_expandable = self.policy.is_expandable(pool);
        Ok((Request { requested, size, pool, stream, is_expandable }, stream_slot))
    }

    /// Checks that the block which the policy chose is free, large enough, and in the request's pool and stream.
    /// Returns its slot.
    #[inline(always)]
    pub(super) fn check_choice(&self, id: BlockId, request: &Request, stream_slot: u16) -> Result<u32, PolicyFault> {
        let is_right = self.heap.arena.get(id.index).is_some_and(|block| {
            let is_there = block.generation == id.generation && block.state == BlockState::Free;
            is_there && block.size >= request.size.0 && block.pool == request.pool.0 && block.stream == stream_slot
        });
        if is_right { Ok(id.index) } else { Err(self.wrong_choice(id, *request)) }
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

    /// Whether the policy splits the free block for the request.
    #[inline(always)]
    pub(super) fn splits(&self, index: u32, request: &Request) -> bool {
        let whole = self.heap.arena.at(index).size;
        let is_no_split = self.heap.private_pools().is_no_split(request.pool.pool_number());
        whole != request.size.0 && !is_no_split && self.policy.splits(Bytes(whole), request)
    }

    /// The part of a free block that the request gets: the entire block, unless the policy splits it.
    #[inline(always)]
    pub(super) fn part_for(&self, index: u32, request: &Request) -> Take {
        if !self.splits(index, request) {
            Take::Whole
        } else if self.policy.takes_high_end(request) {
            Take::HighEnd
        } else {
            Take::LowEnd
        }
    }

    /// Tells the policy that the program gets the allocation.
    #[inline(always)]
    pub(super) fn note_allocated(&mut self, allocation: &Allocation) {
        self.policy.allocated(&self.heap, LiveBlock::new(&self.heap, allocation.id().index));
    }

    /// Hands out a free block, or one end of it; the rest stays free (spec 3.2).
    #[inline(always)]
    pub(super) fn hand_out(&mut self, index: u32, request: &Request, take: Take) -> Allocation {
        if take == Take::HighEnd {
            return self.hand_out_high_end(index, request);
        }
        let block = self.heap.arena.at(index);
        let (whole, was_split, is_expandable) = (block.size, block.is_split(), block.is_expandable());
        let splits = take == Take::LowEnd;
        // Ask the policy before anything changes.
        let (part, size, is_oversize) = if splits {
            let (stamp, is_oversize) = (self.policy.stamp(request.pool), self.policy.is_oversize(request.size));
            (self.heap.take_low_end(index, request.size.0, stamp), request.size.0, is_oversize)
        } else {
            let is_oversize = self.policy.is_oversize(Bytes(whole));
            self.heap.detach(index);
            (index, whole, is_oversize)
        };
        let block = self.heap.arena.at_mut(part);
        block.state = BlockState::Allocated;
        block.requested = request.requested.0;
        let (address, id) = (block.address, BlockId { index: part, generation: block.generation });
        if request.pool.pool_number() != 0 {
            self.heap.note_handed_out(part);
        }
        let class = request.pool.class();
        if !is_expandable {
            match (splits, was_split) {
                (false, false) => {}
                (false, true) => self.stats.count_split_taken(class, size as i64),
                (true, true) => self.stats.count_split_again(class, size as i64),
                (true, false) => self.stats.count_split_off(class, (whole - size) as i64),
            }
        }
        self.stats.count_handed_out(class, size as i64, request.requested.0 as i64);
        if is_oversize {
            self.stats.oversize_allocations.increase(1);
        }
        self.tell(TraceAction::Alloc, part, address, request.requested.0);
        Allocation::new(DeviceAddress(address), PackedId::of(id), self.identity.own())
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
        let front = (before > 0).then(|| {
            let for_front = Request { requested: Bytes(before), size: Bytes(before), ..request };
            self.hand_out(index, &for_front, Take::LowEnd)
        });
        // The block now begins at the address.
        let take = if self.splits(index, &request) { Take::LowEnd } else { Take::Whole };
        let allocation = self.hand_out(index, &request, take);
        if let Some(front) = front {
            self.give_back(front.id().index)?;
        }
        self.note_allocated(&allocation);
        Ok(Some(allocation))
    }
}
