//! Blocks that are handed out, and the neighbours of a block, as policies see them.

use alloc::vec::Vec;
use core::fmt;

use super::{BlockView, Heap, PoolSlot};
use crate::block::{Block, BlockId, BlockState};
use crate::units::{Bytes, DeviceAddress, StreamId};

/// A block that is handed out, as policies see it. It reads from the heap only what a policy asks for, because the
/// allocator shows one to the policy for every request and every free
/// ([`Policy::allocated`](crate::policy::Policy::allocated), [`Policy::freed`](crate::policy::Policy::freed)).
#[derive(Clone, Copy)]
pub struct LiveBlock<'a> {
    heap: &'a Heap,
    index: u32,
}

/// A block directly before or after another one in the same segment ([`Heap::neighbours`]).
#[derive(Clone, Copy, Debug)]
pub enum Neighbour<'a> {
    /// A block that is handed out.
    Live(LiveBlock<'a>),
    /// A free block.
    Free(BlockView),
    /// A block of this size that the program has freed and that still waits for events.
    Pending(Bytes),
    /// This many bytes of addresses without memory, in an expandable segment.
    Unmapped(Bytes),
}

impl<'a> LiveBlock<'a> {
    /// The allocated block in a slot.
    #[inline(always)]
    pub(crate) fn new(heap: &'a Heap, index: u32) -> LiveBlock<'a> {
        LiveBlock { heap, index }
    }

    fn block(self) -> &'a Block {
        self.heap.arena.at(self.index)
    }

    /// The block's id, which stays the same until the block is freed.
    #[must_use]
    pub fn id(self) -> BlockId {
        self.heap.arena.id(self.index)
    }

    /// The block's first byte.
    #[must_use]
    pub fn address(self) -> DeviceAddress {
        DeviceAddress(self.block().address)
    }

    /// The block's size.
    #[must_use]
    pub fn size(self) -> Bytes {
        Bytes(self.block().size)
    }

    /// The bytes that the program requested.
    #[must_use]
    pub fn requested(self) -> Bytes {
        Bytes(self.block().requested)
    }

    /// The collection that the block belongs to.
    #[must_use]
    pub fn pool(self) -> PoolSlot {
        PoolSlot(self.block().pool)
    }

    /// The stream for which the block was handed out.
    #[must_use]
    pub fn stream(self) -> StreamId {
        self.heap.stream(self.block().stream)
    }

    /// Whether the block's segment is expandable.
    #[must_use]
    pub fn is_expandable(self) -> bool {
        self.block().is_expandable()
    }
}

impl fmt::Debug for LiveBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("LiveBlock");
        fields.field("id", &self.id()).field("address", &self.address()).field("size", &self.size());
        fields.field("requested", &self.requested()).field("pool", &self.pool()).field("stream", &self.stream()).finish()
    }
}

impl Heap {
    /// The collection's blocks that are handed out, by address. Visits every block of the heap and sorts those it
    /// returns.
    pub fn live_blocks(&self, pool: PoolSlot) -> impl Iterator<Item = LiveBlock<'_>> {
        let is_live = |block: &Block| block.state == BlockState::Allocated && block.pool == pool.0;
        let mut live: Vec<u32> = self.arena.occupied().filter(|&index| is_live(self.arena.at(index))).collect();
        live.sort_unstable_by_key(|&index| self.arena.at(index).address);
        live.into_iter().map(|index| LiveBlock::new(self, index))
    }

    /// The blocks directly before and after a block in its segment. `None` where the segment ends, where a part of the
    /// segment serves another pool, or if there is no block with this id.
    #[must_use]
    pub fn neighbours(&self, id: BlockId) -> [Option<Neighbour<'_>>; 2] {
        let block = self.arena.resolve(id).map(|index| self.arena.at(index));
        [block.map(|block| block.prev), block.map(|block| block.next)].map(|index| self.neighbour(index?))
    }

    fn neighbour(&self, index: u32) -> Option<Neighbour<'_>> {
        let block = self.arena.get(index)?;
        Some(match block.state {
            BlockState::Allocated => Neighbour::Live(LiveBlock::new(self, index)),
            BlockState::Free => Neighbour::Free(self.view(index)),
            BlockState::Pending | BlockState::Detached => Neighbour::Pending(Bytes(block.size)),
            BlockState::Unmapped => Neighbour::Unmapped(Bytes(block.size)),
        })
    }
}
