//! What our own policies do and PyTorch does not: memory moves between streams, pools and addresses.
//!
//! PyTorch's allocator fails although memory is free when that memory is on the wrong stream, in the wrong pool, or in
//! pages that are partly in use. The mechanisms here make such memory usable. A policy names them as steps of its ladder
//! ([`Rung::Own`](crate::policy::Rung::Own), [`Relief`]). Under PyTorch's rules, nothing here ever does anything: the path
//! of a request only passes a few checks, such as whether blocks are on another stream than their segment.
//! - `transfer.rs`: free blocks move to another stream when its work is ordered after theirs; the pages of free blocks
//!   move to other addresses.
//! - `handles.rs`: handles of several sizes, which move as a whole or are broken, so that the free part serves requests.
//! - `lending.rs`: private pools take idle memory of the default pool.
//! - here: free blocks that the policy has kept apart ([`Policy::coalesces`]) coalesce after all, when the policy says so or
//!   where the allocator needs one block; and a request gets the high end of a block, or a part from an offset, and what is
//!   before it stays free. In PyTorch, adjacent free blocks of a stream coalesce at once, and requests get the low end.
//!
//! All of them keep the rule of the core: every answer of the policy is checked before anything changes, and after an
//! error nothing is lost. Memory that a captured graph may write to never moves.

mod handles;
mod lending;
mod transfer;

use alloc::vec::Vec;

use super::allocate::{Found, Take};
use super::{Allocation, Allocator};
use crate::block::{BlockId, BlockState};
use crate::device::DeviceBackend;
use crate::error::AllocError;
use crate::heap::{FreePair, PoolSlot};
use crate::policy::{Policy, Relief, Request};
use crate::texts::RescueTried;
use crate::trace::Observer;
use crate::units::{Bytes, PoolClass};

/// More steps than any sensible policy takes for one request, not counting a step for each stream. A policy that exceeds
/// this number never ends, which is a fault.
const MOST_STEPS: u32 = 512;

/// The policy's own steps for one request.
#[derive(Default)]
pub(super) struct OwnSteps {
    /// The number of steps for which the policy was asked.
    turn: u32,
    /// The steps of a rescue, if one has begun.
    rescue: Option<RescueTried>,
}

impl OwnSteps {
    pub(super) fn rescue(&self) -> Option<RescueTried> {
        self.rescue
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Takes the policy's own steps until one yields a block or the policy has no further step.
    pub(super) fn take_own_steps(
        &mut self,
        request: &Request,
        stream_slot: u16,
        segment: Bytes,
        steps: &mut OwnSteps,
    ) -> Result<Option<Found>, AllocError> {
        let most_steps = MOST_STEPS + self.heap.streams_seen().len() as u32;
        while steps.turn < most_steps {
            let relief = self.policy.relieve(&self.heap, request, steps.turn);
            steps.turn += 1;
            if relief == Relief::Done {
                return Ok(None);
            }
            if let Some(found) = self.take_own_step(request, stream_slot, segment, relief, &mut steps.rescue)? {
                return Ok(Some(found));
            }
        }
        Err(self.fault("never gives up").into())
    }

    /// Carries out a step.
    fn take_own_step(
        &mut self,
        request: &Request,
        stream_slot: u16,
        segment: Bytes,
        step: Relief,
        rescue: &mut Option<RescueTried>,
    ) -> Result<Option<Found>, AllocError> {
        let index = match step {
            Relief::Release { blocks, attempt } => {
                return self.release_and_ask(request, stream_slot, segment, &blocks, attempt);
            }
            Relief::Borrow => return self.borrow_from_pools(request, stream_slot),
            Relief::TransferPart { block } => {
                let moved = self.transfer_part(request, stream_slot, block)?;
                // The part has not coalesced, so it is handed out as it is.
                return Ok(moved.map(|index| Found { take: Some(Take::Whole), ..Found::new(index, request) }));
            }
            Relief::Lend => self.lend(request, stream_slot),
            Relief::Transfer { block, waits } => self.transfer(request, stream_slot, block, waits)?,
            Relief::TransferAll { from } => self.transfer_all(request, stream_slot, from).map(|()| None)?,
            Relief::Provide { bytes, stream } => self.provide(request, bytes, stream).map(|()| None)?,
            Relief::Remap { blocks } => self.remap(request, stream_slot, segment, &blocks)?,
            Relief::Move { handles } => {
                rescue.iter_mut().for_each(|tried| tried.moved_handles += handles.len() as u64);
                self.move_handles(request, stream_slot, segment, &handles, true)?
            }
            Relief::Replace { handles } => {
                rescue.iter_mut().for_each(|tried| tried.moved_handles += handles.len() as u64);
                self.move_handles(request, stream_slot, segment, &handles, false)?
            }
            Relief::Break { handles } => {
                let copied_before = self.stats.copied_bytes;
                let broken = self.break_handles(&handles)?;
                if let Some(tried) = rescue {
                    tried.broken_handles += broken;
                    tried.copied_bytes += self.stats.copied_bytes.abs_diff(copied_before);
                }
                None
            }
            Relief::Rescue { page } => {
                if rescue.is_none() {
                    let free = self.device.memory_info()?.free;
                    self.observe_failure(request, free);
                    *rescue = Some(RescueTried::default());
                }
                self.refine(page).map(|()| None)?
            }
            Relief::Coalesce => {
                self.coalesce_all(None);
                None
            }
            // Waiting would break the capture, and the stream uses recorded during it would be lost.
            Relief::ReleaseAll | Relief::Wait if self.heap.is_deferring() => None,
            Relief::ReleaseAll => self.release_all().map(|()| None)?,
            Relief::Wait => self.synchronize().map(|()| None)?,
            Relief::Reuse(id) => Some(self.check_choice(id, request, stream_slot)?),
            Relief::ReuseAt { block, offset } => Some(self.reuse_from(block, offset, request, stream_slot)?),
            Relief::Done => None,
        };
        Ok(index.map(|index| Found::new(index, request)))
    }

    /// Counts and reports a rescue of the request, unless the request still ran out of memory.
    pub(super) fn count_rescue(&mut self, request: &Request, found: &Result<Found, AllocError>, steps: &OwnSteps) {
        let is_refused = matches!(found, Err(AllocError::OutOfMemory(_)));
        if let Some(tried) = steps.rescue().filter(|_| !is_refused) {
            self.stats.num_rescues += 1;
            if found.is_ok() {
                self.observer.rescued(request.size, &tried);
            }
        }
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Coalesces all adjacent free blocks, of all pools or of one.
    pub(super) fn coalesce_all(&mut self, pool_number: Option<u16>) {
        if self.heap.keeps_apart() {
            self.coalesce(self.heap.apart(pool_number));
        }
    }

    /// Coalesces the free blocks of segments in which nothing is in use, before the cache is released.
    pub(super) fn coalesce_idle_segments(&mut self) {
        if self.heap.keeps_apart() {
            self.coalesce(self.heap.apart_in_idle_segments());
        }
    }

    /// Coalesces each of these free blocks with its free neighbours. One of them may have absorbed the next.
    fn coalesce(&mut self, apart: Vec<u32>) {
        for index in apart {
            if self.heap.arena.at(index).state == BlockState::Free {
                self.heap.detach(index);
                self.put_back_joined(index);
            }
        }
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Hands out the high end of a free block.
    #[cold]
    #[inline(never)]
    pub(super) fn hand_out_high_end(&mut self, index: u32, request: &Request) -> Allocation {
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
    fn count_parts(&mut self, class: PoolClass, was_split: bool, stays: i64, goes: i64) {
        let (blocks, bytes) = if was_split { (0, -goes) } else { (1, stays) };
        self.stats.change_splits(class, blocks, bytes);
        self.stats.count_split_in_passing(class, goes);
    }

    /// Leaves the part of a free block before `offset` free, so that the request gets what follows.
    #[cold]
    fn reuse_from(&mut self, id: BlockId, offset: Bytes, request: &Request, stream_slot: u16) -> Result<u32, AllocError> {
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
    fn put_back_unused(&mut self, index: u32) {
        self.put_back_as(index, |policy, pair| policy.coalesces(pair));
    }

    /// The same, but the block coalesces with its free neighbours in any case.
    fn put_back_joined(&mut self, index: u32) {
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
