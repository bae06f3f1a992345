//! A free block gives a request its high end, or the part from an offset; what is before it stays free. PyTorch always
//! hands out the low end.

use crate::allocator::allocate::Take;
use crate::allocator::{Allocation, Allocator};
use crate::block::{BlockId, BlockState};
use crate::device::DeviceBackend;
use crate::error::AllocError;
use crate::heap::{FreePair, PoolSlot};
use crate::policy::{Policy, Request};
use crate::trace::Observer;
use crate::units::{Bytes, PoolClass};

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Hands out the high end of a free block.
    #[cold]
    #[inline(never)]
    pub(in crate::allocator) fn hand_out_high_end(&mut self, index: u32, request: &Request) -> Allocation {
        let front = self.heap.arena.at(index).size - request.size.0;
        self.leave_front(index, Bytes(front), request);
        let allocation = self.hand_out(index, request, Take::Whole);
        // The high end was briefly counted as a free part, without raising the peaks.
        self.stats.raise_peaks_of_splits(request.pool.class(), 1, 1);
        allocation
    }

    /// Splits a free block in two. The front becomes a separate free block, which coalesces with a free block before it;
    /// the rest keeps the slot.
    fn leave_front(&mut self, index: u32, size: Bytes, request: &Request) {
        let (stamp, was_split) = (self.policy.stamp(request.pool), self.heap.arena.at(index).is_split());
        let front = self.heap.take_low_end(index, size.0, stamp);
        self.heap.attach(front, stamp);
        if !self.heap.arena.at(index).is_expandable() {
            let back = self.heap.arena.at(index).size as i64;
            self.count_parts(request.pool.class(), was_split, size.0 as i64, back);
        }
        // An earlier call may already have left a free block before this one.
        let before = self.heap.arena.at(front).prev;
        let is_free = self.heap.arena.get(before).is_some_and(|block| block.state == BlockState::Free);
        if is_free && self.heap.may_merge(before, front) {
            self.heap.detach(index);
            self.heap.detach(front);
            self.put_back_unused(front);
            self.heap.attach(index, stamp);
        }
    }

    /// Counts that a free block has become two parts: one of `stays` bytes, and one of `goes` bytes that is about to
    /// be handed out. Both count as free.
    pub(super) fn count_parts(&mut self, class: PoolClass, was_split: bool, stays: i64, goes: i64) {
        let (blocks, bytes) = if was_split { (0, -goes) } else { (1, stays) };
        self.stats.change_splits(class, blocks, bytes);
        self.stats.count_split_in_passing(class, goes);
    }

    /// Leaves the part of a free block before `offset` free, so that the request gets what follows.
    #[cold]
    pub(super) fn reuse_from(
        &mut self,
        id: BlockId,
        offset: Bytes,
        request: &Request,
        stream_slot: u16,
    ) -> Result<u32, AllocError> {
        let index = self.check_choice(id, request, stream_slot)?;
        if offset.0 > self.heap.arena.at(index).size - request.size.0 {
            return Err(self.fault("reuses a block from an offset that leaves too little room").into());
        }
        if offset > Bytes::ZERO {
            self.leave_front(index, offset, request);
        }
        Ok(index)
    }

    /// Puts back a detached block that the statistics still count as free. The policy decides whether it coalesces.
    pub(super) fn put_back_unused(&mut self, index: u32) {
        self.put_back_as(index, |policy, pair| policy.coalesces(pair));
    }

    /// The same, but the block coalesces with its free neighbours in any case.
    pub(super) fn put_back_joined(&mut self, index: u32) {
        self.put_back_as(index, |_, _| true);
    }

    fn put_back_as(&mut self, index: u32, joins: fn(&P, &FreePair) -> bool) {
        let block = self.heap.arena.at(index);
        let (pool, size, was_split) = (PoolSlot(block.pool), block.size as i64, block.is_split());
        let is_expandable = block.is_expandable();
        let (blocks, bytes) = if was_split { (1, size) } else { (0, 0) };
        let Allocator { heap, policy, stats, .. } = self;
        heap.put_back(
            index,
            policy.stamp(pool),
            |pair| joins(policy, pair),
            |merged| {
                if !is_expandable {
                    stats.change_splits(pool.class(), merged.splits - blocks, merged.bytes - bytes);
                }
            },
        );
    }
}
