//! The heap as policies see it, read-only: free blocks, blocks that are handed out, and the neighbours of a block.

use alloc::vec::Vec;
use core::fmt;

use super::{Heap, PoolSlot};
use crate::block::{Block, BlockId, BlockState, NIL};
use crate::units::{Bytes, DeviceAddress, PoolClass, StreamId};

/// A free block as policies see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockView {
    /// The block's id, for the policy's answer.
    pub id: BlockId,
    /// The block's first byte.
    pub address: DeviceAddress,
    /// The block's size.
    pub size: Bytes,
    /// Whether the block is only a part of its segment.
    pub is_split: bool,
    /// Whether the block's segment is expandable.
    pub is_expandable: bool,
    /// The stream that the block belongs to.
    pub stream: StreamId,
    /// The stamp that the policy gave the block when it became free.
    pub stamp: u64,
}

/// Two adjacent free blocks of one segment and stream ([`Policy::coalesces`](crate::policy::Policy::coalesces)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreePair {
    /// The collection of both blocks.
    pub pool: PoolSlot,
    /// The first byte of the low block.
    pub address: DeviceAddress,
    /// The size of the low block.
    pub low: Bytes,
    /// The size of the high block, which begins where the low one ends.
    pub high: Bytes,
}

impl Heap {
    /// Bytes taken from the device.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        Bytes(self.reserved)
    }

    /// The maximum number of bytes that may be taken from the device, if there is a limit.
    #[must_use]
    #[inline]
    pub fn limit(&self) -> Option<Bytes> {
        self.limit.map(Bytes)
    }

    /// The device's total memory.
    #[must_use]
    pub fn device_total(&self) -> Bytes {
        Bytes(self.device_total)
    }

    /// Bytes taken from the device by the pool that the collection belongs to.
    #[must_use]
    pub fn reserved_in(&self, pool: PoolSlot) -> Bytes {
        self.reserved_by(pool.pool_number())
    }

    /// The free block with the lowest address in the pool and stream, among those that have at least `size` bytes and
    /// end after `from`. Checks every block that is large enough, unless
    /// [`Policy::searches_by_address`](crate::policy::Policy::searches_by_address) is true.
    #[must_use]
    pub fn lowest_at_least(&self, pool: PoolSlot, stream: StreamId, size: Bytes, from: DeviceAddress) -> Option<BlockView> {
        let slot = self.known_stream_slot(stream)?;
        let lowest = self.free[usize::from(pool.0)].lowest_at_least(&self.arena, slot, size.0, from.0);
        lowest.map(|index| self.view(index))
    }

    /// For each other stream, the pool's first free block with at least `size` bytes, in the order of the index.
    /// The results are ordered by stream handle.
    pub fn first_at_least_elsewhere(
        &self,
        pool: PoolSlot,
        stream: StreamId,
        size: Bytes,
    ) -> impl Iterator<Item = BlockView> + '_ {
        let others = self.streams.order.iter().filter(move |&&slot| self.stream(slot) != stream);
        others
            .filter_map(move |&slot| self.free[usize::from(pool.0)].first_at_least(&self.arena, slot, size.0))
            .map(|index| self.view(index))
    }

    /// The first free block of the pool and stream with at least `size` bytes, in the order of the index:
    /// by size, then age in releases with such a rule, then address (spec 2.3).
    // Always inlined: every request calls this, and the compiler would stop inlining it when more policies call it.
    #[must_use]
    #[inline(always)]
    pub fn first_at_least(&self, pool: PoolSlot, stream: StreamId, size: Bytes) -> Option<BlockView> {
        let slot = self.known_stream_slot(stream)?;
        self.free[usize::from(pool.0)].first_at_least(&self.arena, slot, size.0).map(|index| self.view(index))
    }

    /// The largest free block of the pool and stream; if several are equally large, the first one in the order of the
    /// index.
    #[must_use]
    #[inline]
    pub fn largest(&self, pool: PoolSlot, stream: StreamId) -> Option<BlockView> {
        let slot = self.known_stream_slot(stream)?;
        self.free[usize::from(pool.0)].largest_of(&self.arena, slot).map(|index| self.view(index))
    }

    /// The free blocks of the pool and stream with at least `size` bytes, in the order of the index.
    pub fn at_least(&self, pool: PoolSlot, stream: StreamId, size: Bytes) -> impl Iterator<Item = BlockView> + '_ {
        let slot = self.known_stream_slot(stream);
        let mut blocks = slot.map(|slot| self.free[usize::from(pool.0)].at_least(&self.arena, slot, size.0));
        core::iter::from_fn(move || blocks.as_mut()?.next()).map(|index| self.view(index))
    }

    /// The next free block after `id` in its pool and stream, in the order of the index; `None` if there is none
    /// or `id` is not a free block.
    #[must_use]
    #[inline]
    pub fn following(&self, id: BlockId) -> Option<BlockView> {
        let index = self.arena.resolve(id)?;
        let block = self.arena.at(index);
        let pool = &self.free[usize::from(block.pool)];
        let next = if block.state == BlockState::Free { pool.following(&self.arena, index)? } else { return None };
        Some(self.view(next))
    }

    /// The free blocks of the pool and stream with fewer than `size` bytes, in the reverse order of the
    /// index.
    pub fn below(&self, pool: PoolSlot, stream: StreamId, size: Bytes) -> impl Iterator<Item = BlockView> + '_ {
        self.known_stream_slot(stream)
            .into_iter()
            .flat_map(move |slot| self.free[usize::from(pool.0)].below(&self.arena, slot, size.0))
            .map(|index| self.view(index))
    }

    /// All free blocks of the collection, by stream handle, each stream's in the order of the index.
    pub fn free_blocks(&self, pool: PoolSlot) -> impl Iterator<Item = BlockView> + '_ {
        let free = &self.free[usize::from(pool.0)];
        // There may be many pools and streams, and most pools never have a free block for most streams.
        let order = if free.is_unused() { &[][..] } else { &self.streams.order };
        let occupied = order.iter().filter(move |&&slot| free.is_occupied(slot));
        occupied.flat_map(move |&slot| free.at_least(&self.arena, slot, 0)).map(|index| self.view(index))
    }

    /// Whether a graph is being captured, as defined by the PyTorch release
    /// ([`Deferral`](crate::profile::Deferral)). During a capture, nothing
    /// waits for events, and the default pool releases nothing (spec 2.10, 3.8).
    #[must_use]
    pub fn is_deferring(&self) -> bool {
        self.private_pools.is_deferring()
    }

    /// Everything that can be released, in PyTorch's order (spec 2.10): large and then small blocks of the default
    /// pool, unless [`Heap::is_deferring`]; then small and large blocks of each private pool without uses. The list
    /// stops at a pool that has been released more often than used.
    #[must_use]
    pub fn releasable(&self) -> Vec<BlockId> {
        let mut blocks = Vec::new();
        if !self.is_deferring() {
            for class in [PoolClass::Large, PoolClass::Small] {
                self.add_releasable(PoolSlot::default_pool(class), &mut blocks);
            }
        }
        let freeable = self.private_pools.freeable().into_iter();
        let may_go = freeable.take_while(|&pool_number| self.private_pools.check_uses(pool_number).is_ok());
        blocks.extend(may_go.flat_map(|pool_number| self.releasable_of(pool_number)));
        blocks
    }

    /// The blocks that a private pool can release.
    pub(crate) fn releasable_of(&self, pool_number: u16) -> Vec<BlockId> {
        let mut blocks = Vec::new();
        for class in [PoolClass::Small, PoolClass::Large] {
            self.add_releasable(PoolSlot::of_pool(pool_number, class), &mut blocks);
        }
        blocks
    }

    /// Adds entirely free segments first, then free blocks of expandable segments, whose whole pages can be unmapped
    /// (spec 2.10.1).
    fn add_releasable(&self, pool: PoolSlot, blocks: &mut Vec<BlockId>) {
        let whole = self.free_blocks(pool).filter(|block| !block.is_expandable && !block.is_split);
        blocks.extend(whole.map(|block| block.id));
        blocks.extend(self.free_blocks(pool).filter(|block| block.is_expandable).map(|block| block.id));
    }

    /// The free bytes cached by private pools.
    #[must_use]
    pub(crate) fn cached_by_private_pools(&self) -> Bytes {
        let private = self.pool_slots().filter(|pool| pool.pool_number() != 0);
        Bytes(private.flat_map(|pool| self.free_blocks(pool)).map(|block| block.size.0).sum())
    }

    /// Whether no part of the block's segment is in use: each of its blocks is free or, in expandable segments,
    /// unmapped. False if there is no block with this id. The time is proportional to the number of blocks.
    #[must_use]
    pub fn is_idle(&self, id: BlockId) -> bool {
        let idle = |index| self.arena.get(index).filter(|block| matches!(block.state, BlockState::Free | BlockState::Unmapped));
        let Some(block) = self.arena.resolve(id).and_then(idle) else { return false };
        let (mut before, mut after) = (block.prev, block.next);
        while let Some(block) = idle(before) {
            before = block.prev;
        }
        while let Some(block) = idle(after) {
            after = block.next;
        }
        before == NIL && after == NIL
    }

    /// The size of the largest free block, or 0.
    #[must_use]
    pub fn largest_free(&self) -> Bytes {
        let largest = self.free.iter().filter_map(|pool| pool.largest(&self.arena));
        Bytes(largest.map(|index| self.arena.at(index).size).max().unwrap_or(0))
    }

    pub(crate) fn view(&self, index: u32) -> BlockView {
        let block = self.arena.at(index);
        BlockView {
            id: self.arena.id(index),
            address: DeviceAddress(block.address),
            size: Bytes(block.size),
            is_split: block.is_split(),
            is_expandable: block.is_expandable(),
            // This access never panics, so the compiler removes it where the caller does not read the stream.
            stream: self.streams.handles.get(usize::from(block.stream)).copied().unwrap_or(StreamId::DEFAULT),
            stamp: block.stamp,
        }
    }
}

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
