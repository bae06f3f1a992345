//! Blocks and the arena that contains them.
//!
//! A block is a contiguous part of one segment. Blocks are stored in one `Vec` and refer to each other by slot, so a
//! block has only 64 bytes, cloning the heap clones a few vectors, and pointers cannot dangle. A generation in every
//! slot distinguishes a block from later ones in the same slot.

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

use crate::units::StreamId;

/// "No block". As a slot, it fails the bounds check of every lookup.
pub(crate) const NIL: u32 = u32::MAX;

/// The state of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum BlockState {
    /// Cached: in its pool's free index.
    Free = 0,
    /// Handed out.
    Allocated = 1,
    /// Freed, but still waiting for events of other streams.
    Pending = 2,
    /// Taken out of the free index and not yet in another state. Never seen between operations.
    Detached = 3,
    /// Addresses of an expandable segment that have no memory.
    Unmapped = 4,
}

/// Identifies a block: its slot in the arena, and the slot's generation. Later blocks in the same slot have other
/// ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A part of a segment. All numbers are bytes unless named otherwise.
// The fields are ordered so that most of those read by a neighbour or the free index are in one cache line: with many
// blocks, a request mostly waits for cache lines. The C library's large vectors begin 16 bytes into a line.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// The neighbours in the segment. In a vacant slot, `next` is the slot that became vacant previously.
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// Links for the free index. In a pending block, `link_next` is [`Block::events`].
    pub(crate) link_prev: u32,
    pub(crate) link_next: u32,
    /// Orders blocks of equal size and takes precedence over the address; 0 for every block under rules that do not
    /// use ranks.
    pub(crate) rank: u32,
    pub(crate) generation: u32,
    /// The block's bin in the free index; stale while the block is not in a bin.
    pub(crate) bin: u16,
    pub(crate) state: BlockState,
    pub(crate) marks: Marks,
    /// The stream's slot in the heap's table.
    pub(crate) stream: u16,
    /// The pool's collection ([`PoolSlot`](crate::PoolSlot)).
    pub(crate) pool: u16,
    /// The size that the last caller requested; stale while the block is free (spec 7.3).
    pub(crate) requested: u64,
    /// The stamp that the policy gave the block when it became free. In a block with [`Block::first_use`], the handle
    /// of that stream.
    pub(crate) stamp: u64,
}

/// Flags that few blocks have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marks(u8);

impl Marks {
    /// The block is part of an expandable segment.
    pub(crate) const EXPANDABLE: Marks = Marks(1);
    /// Streams other than the block's own were recorded on it.
    const USES: Marks = Marks(2);
    /// The policy decided that the block does not coalesce with the free block before it. Stale while one of the two is
    /// not free.
    const APART: Marks = Marks(4);
}

const _: () = assert!(size_of::<Block>() == 64);

impl Block {
    /// A slot that holds no block.
    pub(crate) const VACANT: Block = Block {
        address: 0,
        size: 0,
        requested: 0,
        stamp: 0,
        prev: NIL,
        next: NIL,
        link_prev: NIL,
        link_next: NIL,
        generation: 0,
        rank: 0,
        stream: 0,
        pool: 0,
        bin: 0,
        state: BlockState::Detached,
        marks: Marks(0),
    };

    /// Whether streams other than the block's own were recorded on it and have no event yet.
    #[inline]
    pub(crate) fn has_uses(&self) -> bool {
        self.marks.0 & Marks::USES.0 != 0
    }

    /// The stream that is stored in the block itself, out of those that were recorded on the block and have no event
    /// yet.
    #[inline]
    pub(crate) fn first_use(&self) -> Option<StreamId> {
        self.has_uses().then_some(StreamId(self.stamp))
    }

    /// Changes [`Block::first_use`] of an allocated or pending block.
    pub(crate) fn set_first_use(&mut self, stream: Option<StreamId>) {
        let others = self.marks.0 & !Marks::USES.0;
        match stream {
            Some(stream) => (self.marks, self.stamp) = (Marks(others | Marks::USES.0), stream.0),
            None => self.marks = Marks(others),
        }
    }

    /// The number of events that a pending block waits for; 0 for other blocks.
    #[inline]
    pub(crate) fn events(&self) -> u32 {
        if self.state == BlockState::Pending { self.link_next } else { 0 }
    }

    /// Changes [`Block::events`]; does nothing to other blocks.
    #[inline]
    pub(crate) fn set_events(&mut self, events: u32) {
        if self.state == BlockState::Pending {
            self.link_next = events;
        }
    }

    /// Whether the block is part of an expandable segment.
    #[inline]
    pub(crate) fn is_expandable(&self) -> bool {
        self.marks.0 & Marks::EXPANDABLE.0 != 0
    }

    /// Whether the policy has kept the block apart from the free block before it; stale while one of them is not free.
    #[inline]
    pub(crate) fn is_kept_apart(&self) -> bool {
        self.marks.0 & Marks::APART.0 != 0
    }

    /// Changes [`Block::is_kept_apart`].
    pub(crate) fn set_kept_apart(&mut self, is_apart: bool) {
        let others = self.marks.0 & !Marks::APART.0;
        self.marks = Marks(if is_apart { others | Marks::APART.0 } else { others });
    }

    /// The block's order among free blocks of its size, by rank and address, as one number, which can be compared
    /// without a branch.
    #[inline]
    pub(crate) fn place_in_size(&self) -> u128 {
        u128::from(self.rank) << 64 | u128::from(self.address)
    }

    /// Whether the block is only a part of its segment.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        self.prev != NIL || self.next != NIL
    }
}

/// Access to blocks by slot, for functions that have the slice of blocks itself. The compiler then knows that the
/// blocks do not move while a function changes several of them.
pub(crate) trait Slots {
    /// The block in slot `index`.
    ///
    /// # Panics
    /// The slot does not exist, so the heap's own links are wrong.
    fn at(&self, index: u32) -> &Block;

    /// Like [`Slots::at`], but mutable.
    fn at_mut(&mut self, index: u32) -> &mut Block;

    /// The block that a link names; `None` for [`NIL`].
    fn linked(&self, index: u32) -> Option<&Block>;

    /// Like [`Slots::linked`], but mutable.
    fn linked_mut(&mut self, index: u32) -> Option<&mut Block>;
}

impl Slots for [Block] {
    #[inline(always)]
    fn at(&self, index: u32) -> &Block {
        &self[index as usize]
    }

    #[inline(always)]
    fn at_mut(&mut self, index: u32) -> &mut Block {
        &mut self[index as usize]
    }

    #[inline(always)]
    fn linked(&self, index: u32) -> Option<&Block> {
        self.get(index as usize)
    }

    #[inline(always)]
    fn linked_mut(&mut self, index: u32) -> Option<&mut Block> {
        self.get_mut(index as usize)
    }
}

/// All blocks of a heap.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    slots: Vec<Block>,
    vacant: Vacant,
}

/// The slots without a block, the most recently vacated first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vacant {
    /// [`NIL`] if no slot is vacant.
    first: u32,
    /// The rank of the next block, if every block has its own rank; [`NIL`] if a part inherits the rank of the block
    /// that was split.
    next_rank: u32,
}

impl Vacant {
    /// Vacates a slot. Ids of its block become invalid.
    #[inline(always)]
    pub(crate) fn add(&mut self, slots: &mut [Block], index: u32) {
        let slot = slots.at_mut(index);
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = BlockState::Detached;
        slot.size = 0;
        slot.next = core::mem::replace(&mut self.first, index);
    }

    /// Splits the low `size` bytes off a block. They become a new, detached block before the old one in the same
    /// segment. Returns the new block's slot, which was vacant. The new block inherits the rank
    /// ([`Vacant::give_rank`]). The fields are written one by one, because most requests take this path.
    ///
    /// # Panics
    /// No slot is vacant ([`Arena::provide_vacant`]).
    #[inline(always)]
    pub(crate) fn split(&mut self, slots: &mut [Block], index: u32, size: u64) -> u32 {
        let low = self.first;
        let whole = slots.at_mut(index);
        debug_assert!(size < whole.size);
        let Block { address, prev, rank, stream, pool, marks, .. } = *whole;
        whole.address = address + size;
        whole.size -= size;
        whole.prev = low;
        if let Some(before) = slots.linked_mut(prev) {
            before.next = low;
        }
        let part = slots.at_mut(low);
        self.first = part.next;
        part.address = address;
        part.size = size;
        part.prev = prev;
        part.next = index;
        part.rank = rank;
        part.stream = stream;
        part.pool = pool;
        part.state = BlockState::Detached;
        part.marks = marks;
        low
    }

    /// The rank of a new block if each block has its own, or `inherited`.
    #[inline(always)]
    fn rank(&mut self, slots: &mut [Block], inherited: u32) -> u32 {
        if self.next_rank == NIL { inherited } else { self.own_rank(slots) }
    }

    /// The rank after the last one. When the ranks are used up, the live blocks are renumbered from 0, in order.
    #[inline(never)]
    fn own_rank(&mut self, slots: &mut [Block]) -> u32 {
        if self.next_rank == NIL - 1 {
            self.next_rank = close_up_ranks(slots);
        }
        self.next_rank += 1;
        self.next_rank - 1
    }

    /// Gives a part that was split off ([`Vacant::split`]) its own rank, if every block has one.
    #[inline(always)]
    pub(crate) fn give_rank(&mut self, slots: &mut [Block], part: u32) {
        if self.next_rank != NIL {
            self.give_own_rank(slots, part);
        }
    }

    #[cold]
    #[inline(never)]
    fn give_own_rank(&mut self, slots: &mut [Block], part: u32) {
        let rank = self.own_rank(slots);
        slots.at_mut(part).rank = rank;
    }
}

/// An arena dereferences to its slots, for functions that neither take nor vacate a slot.
impl Deref for Arena {
    type Target = [Block];

    #[inline]
    fn deref(&self) -> &[Block] {
        &self.slots
    }
}

impl DerefMut for Arena {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Block] {
        &mut self.slots
    }
}

impl Arena {
    /// Creates an empty arena. If `ranks_each` is true, every block gets its own rank, in order of creation.
    pub(crate) fn new(ranks_each: bool) -> Arena {
        Arena { slots: Vec::new(), vacant: Vacant { first: NIL, next_rank: if ranks_each { 0 } else { NIL } } }
    }

    /// See [`Slots::at`].
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &Block {
        self.slots.at(index)
    }

    /// See [`Slots::at_mut`].
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut Block {
        self.slots.at_mut(index)
    }

    /// See [`Slots::linked`].
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Block> {
        self.slots.linked(index)
    }

    /// See [`Slots::linked_mut`].
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Block> {
        self.slots.linked_mut(index)
    }

    /// Adds a block in a vacant slot. Ignores `block.generation`, because the slot has its own. Uses `block.rank`
    /// only if blocks do not get their own ranks.
    pub(crate) fn insert(&mut self, block: Block) -> u32 {
        let rank = self.vacant.rank(&mut self.slots, block.rank);
        self.insert_slot(Block { rank, ..block })
    }

    fn insert_slot(&mut self, block: Block) -> u32 {
        let index = self.vacant.first;
        match self.slots.linked_mut(index) {
            Some(slot) => {
                self.vacant.first = slot.next;
                *slot = Block { generation: slot.generation, ..block };
                index
            }
            None => {
                // The maximum is 2^32 - 1 blocks of at least 512 bytes: two tebibytes of device memory.
                let index = u32::try_from(self.slots.len()).ok().filter(|&i| i != NIL).expect("fewer than 2^32 - 1 blocks");
                self.slots.push(Block { generation: 0, ..block });
                index
            }
        }
    }

    /// Ensures that a slot is vacant.
    #[inline(always)]
    pub(crate) fn provide_vacant(&mut self) {
        if self.vacant.first == NIL {
            self.add_vacant();
        }
    }

    #[cold]
    #[inline(never)]
    fn add_vacant(&mut self) {
        let index = self.insert_slot(Block::VACANT);
        self.vacant.first = index;
    }

    /// The slots, and which of them are vacant.
    #[inline(always)]
    pub(crate) fn parts_mut(&mut self) -> (&mut [Block], &mut Vacant) {
        (&mut self.slots, &mut self.vacant)
    }

    /// See [`Vacant::add`].
    pub(crate) fn remove(&mut self, index: u32) {
        self.vacant.add(&mut self.slots, index);
    }

    /// Gives a live block a new id and invalidates the old one.
    pub(crate) fn rename(&mut self, index: u32) {
        let slot = self.at_mut(index);
        slot.generation = slot.generation.wrapping_add(1);
    }

    /// The id of the block in slot `index`.
    #[inline]
    pub(crate) fn id(&self, index: u32) -> BlockId {
        BlockId { index, generation: self.at(index).generation }
    }

    /// The slot of a live block, or `None` if the id is stale.
    #[inline]
    pub(crate) fn resolve(&self, id: BlockId) -> Option<u32> {
        self.get(id.index).filter(|block| block.generation == id.generation && block.size != 0).map(|_| id.index)
    }

    /// The slots of all live blocks, in slot order.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().enumerate().filter(|(_, block)| block.size != 0).map(|(index, _)| index as u32)
    }
}

/// Gives the live blocks the lowest ranks, in their current order. Returns how many there are.
#[cold]
#[inline(never)]
fn close_up_ranks(slots: &mut [Block]) -> u32 {
    let mut live: Vec<&mut Block> = slots.iter_mut().filter(|block| block.size != 0).collect();
    live.sort_unstable_by_key(|block| block.rank);
    let ranks = 0..live.len() as u32;
    live.into_iter().zip(ranks.clone()).for_each(|(block, rank)| block.rank = rank);
    ranks.end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each new block ranks after all live ones, regardless of how many blocks there have been.
    #[test]
    fn ranks_that_are_used_up_are_closed_up_in_order() {
        let mut arena = Arena::new(true);
        arena.add_vacant();
        let block = Block { size: 1024, ..arena.at(0).clone() };
        let first = arena.insert(block.clone());
        let gone = arena.insert(block.clone());
        let second = arena.insert(block.clone());
        arena.remove(gone);
        arena.vacant.next_rank = NIL - 1;
        arena.provide_vacant();
        let (slots, vacant) = arena.parts_mut();
        let low = vacant.split(slots, first, 512);
        vacant.give_rank(slots, low);
        let ranks = [first, second, low].map(|index| arena.at(index).rank);
        assert!(ranks[0] < ranks[1] && ranks[1] < ranks[2] && ranks[2] < 10, "{ranks:?}");
    }
}
