//! Coalescing: how a block is put back, and which free neighbours it absorbs.
//!
//! PyTorch's rule, all of them, is the fast path. Other rules of [`Coalescing`], and segments with blocks of
//! several streams, take a separate one.

use alloc::vec::Vec;

use super::{Coalescing, Heap};
use crate::block::{Arena, Block, BlockState, NIL, Slots};

/// What became of a block that was put back. Two words, so that it is returned in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Coalesced {
    /// The coalesced block's size in bytes.
    pub(crate) size: u64,
    /// The number of free neighbours absorbed.
    pub(crate) absorbed: u32,
    /// Whether the coalesced block is only a part of its segment.
    pub(crate) is_split: bool,
}

impl Heap {
    /// Puts a block back into the free index, coalesced with its free neighbours (spec 3.4). The block keeps
    /// its slot, whichever neighbours it absorbs.
    #[inline]
    pub(crate) fn put_back(&mut self, index: u32, stamp: u64) -> Coalesced {
        let merges_all = self.coalescing == Coalescing::Neighbours && !self.mixes_streams;
        let (slots, vacant) = self.arena.parts_mut();
        let Block { pool, stream, mut prev, mut next, mut address, mut size, .. } = *slots.at(index);
        let Some(free) = self.free[usize::from(pool)].by_size_mut(stream).filter(|_| merges_all) else {
            return self.put_back_by_rule(index, stamp);
        };
        let mut absorbed = 0;
        // The neighbours are of the same pool and stream.
        if let Some(before) = slots.linked(prev).filter(|block| block.state == BlockState::Free) {
            let low = prev;
            (prev, address) = (before.prev, before.address);
            size += before.size;
            absorbed += 1;
            free.remove(slots, low);
            vacant.add(slots, low);
            if let Some(before) = slots.linked_mut(prev) {
                before.next = index;
            }
        }
        if let Some(after) = slots.linked(next).filter(|block| block.state == BlockState::Free) {
            let high = next;
            next = after.next;
            size += after.size;
            absorbed += 1;
            free.remove(slots, high);
            vacant.add(slots, high);
            if let Some(after) = slots.linked_mut(next) {
                after.prev = index;
            }
        }
        let block = slots.at_mut(index);
        (block.prev, block.next, block.address, block.size) = (prev, next, address, size);
        block.state = BlockState::Free;
        block.stamp = stamp;
        free.insert_sized(slots, index, size);
        Coalesced { size, absorbed, is_split: prev != NIL || next != NIL }
    }

    /// The same where neighbours coalesce by another rule, or the free blocks have another order, or there are
    /// none of the stream yet.
    #[cold]
    #[inline(never)]
    fn put_back_by_rule(&mut self, index: u32, stamp: u64) -> Coalesced {
        let mut merged = Coalesced::default();
        self.absorb_by_rule(index, &mut merged);
        let block = self.arena.at_mut(index);
        block.state = BlockState::Detached;
        merged.is_split = block.is_split();
        merged.size = block.size;
        self.attach(index, stamp);
        merged
    }

    /// Absorbs neighbours as long as the rule allows.
    fn absorb_by_rule(&mut self, index: u32, merged: &mut Coalesced) {
        loop {
            let block = self.arena.at(index);
            let (prev, next) = (block.prev, block.next);
            if is_free(&self.arena, prev) && self.may_merge(prev, index) {
                self.detach(prev);
                absorb_before(&mut self.arena, index, prev, merged);
            } else if is_free(&self.arena, next) && self.may_merge(index, next) {
                self.detach(next);
                absorb_after(&mut self.arena, index, next, merged);
            } else {
                return;
            }
        }
    }

    /// Whether two neighbours coalesce once both are free.
    pub(crate) fn may_merge(&self, low: u32, high: u32) -> bool {
        let (before, after) = (self.arena.at(low), self.arena.at(high));
        before.stream == after.stream
            && match self.coalescing {
                Coalescing::Neighbours => true,
                Coalescing::Never => false,
                Coalescing::Buddies => {
                    let offset = before.address - self.segment_base(low);
                    before.size == after.size && before.size.checked_mul(2).is_some_and(|both| offset.is_multiple_of(both))
                }
            }
    }

    /// The first byte of the block's segment.
    pub(crate) fn segment_base(&self, index: u32) -> u64 {
        let mut first = self.arena.at(index);
        while let Some(before) = self.arena.get(first.prev) {
            first = before;
        }
        first.address
    }

    /// Whether all free neighbours coalesce.
    pub(crate) fn merges_neighbours(&self) -> bool {
        self.coalescing == Coalescing::Neighbours
    }

    /// Whether only buddies coalesce. Then the remainder of a split may coalesce with the free block behind it.
    #[inline]
    pub(crate) fn has_buddies(&self) -> bool {
        self.coalescing == Coalescing::Buddies
    }

    /// Whether blocks of one segment may belong to different streams.
    pub(crate) fn mixes_streams(&self) -> bool {
        self.mixes_streams
    }

    /// Moves a detached block to another stream.
    pub(crate) fn change_stream(&mut self, index: u32, stream: u16) {
        let block = self.arena.at_mut(index);
        self.mixes_streams |= block.stream != stream;
        block.stream = stream;
    }

    /// Free blocks, not of expandable segments, whose stream differs from that of the first free block of
    /// their segment; each with that stream's slot.
    pub(crate) fn parted_by_stream(&self) -> Vec<(u32, u16)> {
        let mut parted = Vec::new();
        for head in self.arena.live() {
            let first = self.arena.at(head);
            if first.prev != NIL || first.is_expandable() {
                continue;
            }
            let (mut index, mut stream) = (head, None);
            while let Some(block) = self.arena.get(index) {
                if block.state == BlockState::Free && *stream.get_or_insert(block.stream) != block.stream {
                    parted.extend(stream.map(|stream| (index, stream)));
                }
                index = block.next;
            }
        }
        parted
    }
}

#[inline]
fn is_free(arena: &Arena, index: u32) -> bool {
    arena.get(index).is_some_and(|block| block.state == BlockState::Free)
}

/// Extends a block by the one before it, which has left the free index.
#[inline]
fn absorb_before(arena: &mut Arena, index: u32, prev: u32, merged: &mut Coalesced) {
    let Block { address, size, prev: before, .. } = *arena.at(prev);
    arena.remove(prev);
    merged.absorbed += 1;
    let block = arena.at_mut(index);
    block.prev = before;
    block.address = address;
    block.size += size;
    if let Some(before) = arena.get_mut(before) {
        before.next = index;
    }
}

/// Extends a block by the one behind it, which has left the free index.
#[inline]
fn absorb_after(arena: &mut Arena, index: u32, next: u32, merged: &mut Coalesced) {
    let Block { size, next: after, .. } = *arena.at(next);
    arena.remove(next);
    merged.absorbed += 1;
    let block = arena.at_mut(index);
    block.next = after;
    block.size += size;
    if let Some(after) = arena.get_mut(after) {
        after.prev = index;
    }
}
