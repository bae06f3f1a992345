//! Reusing a free block, which most requests do: the policy's choice is checked, then the block or its low part
//! is handed out.

use super::{Allocation, Allocator, Cut, Part};
use crate::block::{BlockId, BlockState};
use crate::device::DeviceBackend;
use crate::error::AllocError;
use crate::policy::{Policy, PolicyFault, Request};
use crate::trace::Observer;
use crate::units::Bytes;

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Hands out the free block that the policy chose, or its low part, after checking the choice.
    #[inline(always)]
    pub(super) fn reuse(&mut self, id: BlockId, request: &Request, stream_slot: u16) -> Result<Allocation, AllocError> {
        // What may call other functions comes first: from here on the compiler knows what it has read.
        self.heap.arena.provide_vacant();
        let is_kept_whole = self.heap.private_pools().is_kept_whole(request.pool.pool_number());
        let Some((whole, was_split)) = self.check_choice(id, request, stream_slot) else {
            return Err(self.wrong_choice(id, *request).into());
        };
        if whole == request.size.0 || is_kept_whole || !self.policy.splits(Bytes(whole), request) {
            self.heap.detach(id.index);
            let part = Part::of(id.index, self.heap.arena.at_mut(id.index), request.requested);
            return Ok(self.account(&part, request, &Cut { whole, was_split, rests: 0 }));
        }
        if self.heap.has_buddies() || self.policy.cut(Bytes(whole), request) != request.size {
            self.heap.detach(id.index);
            // Rare ways get copies of the request: if they got its address, every request would have to be in memory.
            return self.hand_out_cut(id.index, Request { requested: request.requested, ..*request });
        }
        let stamp = self.policy.stamp(request.pool);
        match self.heap.cut(id.index, request.size.0, (request.pool, stream_slot), stamp) {
            Some((low, block)) => {
                let part = Part::of(low, block, request.requested);
                Ok(self.account(&part, request, &Cut { whole, was_split, rests: 1 }))
            }
            None => Ok(self.reuse_part(id.index, Request { requested: request.requested, ..*request })),
        }
    }

    /// Hands out the low part of the free block where free blocks are kept by address.
    #[cold]
    #[inline(never)]
    fn reuse_part(&mut self, index: u32, request: Request) -> Allocation {
        self.heap.detach(index);
        self.hand_out_part(index, &request, true)
    }

    /// Size and splitness of the free block that the policy chose; `None` if the choice is wrong.
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

    /// Takes the free block that the policy chose, after checking the choice.
    pub(super) fn take(&mut self, id: BlockId, request: &Request, stream_slot: u16) -> Result<u32, AllocError> {
        if self.check_choice(id, request, stream_slot).is_none() {
            return Err(self.wrong_choice(id, *request).into());
        }
        self.heap.detach(id.index);
        Ok(id.index)
    }

    /// What is wrong with the policy's choice.
    #[cold]
    fn wrong_choice(&self, id: BlockId, request: Request) -> PolicyFault {
        let problem = match self.heap.arena.resolve(id).map(|index| self.heap.arena.at(index)) {
            None => "reuses a block that does not exist",
            Some(block) if block.state != BlockState::Free => "reuses a block that is not free",
            Some(block) if block.size < request.size.0 => "reuses a block that is too small",
            Some(_) => "reuses a block of another pool or stream",
        };
        self.fault(problem)
    }
}
