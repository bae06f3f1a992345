//! The first free block that is large enough, for a policy that takes it without looking at others.
//!
//! It is shown on the path of nearly every request, so a candidate is no more than where the block is: what a policy
//! does not ask is not read.

use super::{Heap, PoolSlot};
use crate::block::{Block, BlockState, Slots, Vacant};
use crate::index::BySize;
use crate::units::Bytes;

/// A free block among those of its pool and stream, by size, then address.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub(crate) slots: &'a [Block],
    pub(crate) blocks: &'a BySize,
    pub(crate) index: u32,
}

impl Candidate<'_> {
    /// The block's size.
    #[must_use]
    #[inline(always)]
    pub fn size(&self) -> Bytes {
        Bytes(self.slots.at(self.index).size)
    }

    /// Whether its segment is expandable.
    #[must_use]
    #[inline(always)]
    pub fn is_expandable(&self) -> bool {
        self.slots.at(self.index).is_expandable()
    }

    /// Unmapped bytes directly behind it, into which it could grow.
    #[must_use]
    #[inline(always)]
    pub fn unmapped_after(&self) -> Bytes {
        let after = self.slots.linked(self.slots.at(self.index).next);
        after.filter(|block| block.state == BlockState::Unmapped).map_or(Bytes::ZERO, |block| Bytes(block.size))
    }

    /// The block that follows it in the order.
    #[must_use]
    #[inline(always)]
    pub fn following(&self) -> Option<Self> {
        Some(Candidate { index: self.blocks.following(self.slots, self.index)?, ..*self })
    }
}

impl Heap {
    /// The free blocks of a pool and stream, all blocks, and the vacant slots; `None` where free blocks are kept by
    /// address, or there never were any of the stream.
    #[inline(always)]
    pub(crate) fn shelf_mut(&mut self, pool: PoolSlot, stream_slot: u16) -> Option<(&mut BySize, &mut [Block], &mut Vacant)> {
        let blocks = self.free[usize::from(pool.0)].by_size_mut(stream_slot)?;
        let (slots, vacant) = self.arena.parts_mut();
        Some((blocks, slots, vacant))
    }

    /// True if a block of the pool may be cut without a look at captures or at pools whose blocks are kept whole.
    #[inline(always)]
    pub(crate) fn cuts_plainly(&self, pool: PoolSlot) -> bool {
        !self.looks_twice && !self.private_pools.is_kept_whole(pool.pool_number())
    }
}
