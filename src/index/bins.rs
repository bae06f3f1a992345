//! The free blocks of one stream, in bins by size: the order of a balanced tree, usually three times as fast.
//!
//! Bins are monotone in size and each is sorted by size, rank and address, so the bins in sequence are the
//! whole order. A bin with few blocks is a doubly linked list through the slots, which costs no memory and
//! usually one step; a bin with more is an [`OversizedBin`]. A search looks into the bin of the size and, if
//! nothing there is large enough, takes the head of the next occupied one.

mod descending;
mod directory;
mod list;
mod oversized;
#[cfg(test)]
#[path = "../../tests/unit/bins.rs"]
mod tests;

use alloc::vec::Vec;
use core::iter::successors;

use crate::block::{Block, NIL, Slots};
use directory::{Bin, Directory, LAST_BIN, bin_of, unlimited_bin_of};
use list::{link, list, unlink};
use oversized::OversizedBin;

use super::either::Either;

/// The longest list: a bin with more blocks becomes oversized, so that no walk is longer.
const LONGEST_LIST: u32 = 32;
/// An oversized bin that shrinks to this becomes a list again. Well below [`LONGEST_LIST`], so that a bin
/// does not flip back and forth.
const SMALLEST_OVERSIZED: usize = 8;
/// The count that marks an oversized bin.
const OVERSIZED: u32 = u32::MAX;

/// Free blocks ordered by size, rank and address.
#[derive(Clone, Debug, Default)]
pub(crate) struct BinnedBlocks {
    /// For a list, its length and first block; for an oversized bin, [`OVERSIZED`] and its index in
    /// `oversized`.
    directory: Directory,
    /// Each with its bin.
    oversized: Vec<(usize, OversizedBin)>,
}

impl BinnedBlocks {
    /// Adds a block. Its size, rank, address and links must not change until it is removed.
    // Two functions, so that the first, in which most blocks end, needs few registers and cannot panic.
    #[inline(never)]
    pub(crate) fn insert(&mut self, slots: &mut [Block], index: u32) {
        // Without such a slot the other function panics.
        let Some(block) = slots.linked_mut(index) else { return self.insert_beyond(slots, index, 0) };
        let bin = unlimited_bin_of(block.size);
        block.bin = bin as u16;
        if self.directory.fill_empty(bin, index) {
            block.link_prev = NIL;
            block.link_next = NIL;
        } else {
            self.insert_among(slots, index, bin);
        }
    }

    /// Adds a block to a bin that has others, or that the directory does not reach yet.
    #[inline(never)]
    fn insert_among(&mut self, slots: &mut [Block], index: u32, bin: usize) {
        if !self.directory.reaches(bin) {
            return self.insert_beyond(slots, index, bin.min(LAST_BIN));
        }
        let entry = self.directory.at_mut(bin);
        if entry.count < LONGEST_LIST {
            entry.count += 1;
            entry.head = link(slots, entry.head, index);
        } else {
            self.insert_into_oversized(slots, index, bin);
        }
    }

    /// Adds a block to a bin that the directory does not reach yet, or to the last one.
    #[cold]
    #[inline(never)]
    fn insert_beyond(&mut self, slots: &mut [Block], index: u32, bin: usize) {
        let block = slots.at_mut(index);
        block.bin = bin as u16;
        if !self.directory.reaches(bin) {
            self.directory.grow(bin);
        }
        if self.directory.fill_empty(bin, index) {
            block.link_prev = NIL;
            block.link_next = NIL;
        } else {
            self.insert_among(slots, index, bin);
        }
    }

    /// Removes a block that is in a bin.
    #[inline(never)]
    pub(crate) fn remove(&mut self, slots: &mut [Block], index: u32) {
        let bin = usize::from(slots.at(index).bin);
        if self.directory.clear_single(bin) {
            return;
        }
        let entry = self.directory.at_mut(bin);
        debug_assert!(entry.count > 1, "a block left the free index that was not in it");
        if entry.count == OVERSIZED {
            return self.remove_from_oversized(slots, index, bin);
        }
        entry.count -= 1;
        entry.head = unlink(slots, entry.head, index);
    }

    /// Whether there is no block.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.directory.is_empty()
    }

    /// The first block with at least `size` bytes.
    #[inline(always)]
    pub(crate) fn first_at_least(&self, slots: &[Block], size: u64) -> Option<u32> {
        let own = unlimited_bin_of(size);
        let Some(bin) = self.directory.first_from(own) else {
            return if own > LAST_BIN { self.first_among(slots, LAST_BIN, size) } else { None };
        };
        let Bin { head, count } = self.directory.get(bin);
        // All blocks of later bins are large enough.
        if count != OVERSIZED && (bin != own || slots.linked(head).is_some_and(|first| first.size >= size)) {
            return Some(head);
        }
        self.first_among(slots, bin, size)
    }

    /// The same from a bin on, where its first block may be too small.
    #[inline(never)]
    fn first_among(&self, slots: &[Block], bin: usize, size: u64) -> Option<u32> {
        match self.first_in(slots, bin, size) {
            None => self.first_of(self.directory.first_after(bin)?),
            found => found,
        }
    }

    /// The first block behind the place in the order of block `index`, which may be here or not.
    pub(crate) fn first_behind(&self, slots: &[Block], index: u32) -> Option<u32> {
        let block = slots.at(index);
        let own = bin_of(block.size);
        let bin = self.directory.first_from(own)?;
        if bin != own {
            return self.first_of(bin);
        }
        let in_own = match self.oversized(own) {
            Some(oversized) => oversized.first_behind(block, index),
            None => {
                let key = |index: u32| (slots.at(index).size, slots.at(index).place_in_size());
                list(slots, self.directory.get(own).head).find(|&other| key(other) > key(index))
            }
        };
        in_own.or_else(|| self.first_of(self.directory.first_after(own)?))
    }

    /// The blocks with fewer than `size` bytes, the last first.
    pub(crate) fn below<'a>(&'a self, slots: &'a [Block], size: u64) -> impl Iterator<Item = u32> + 'a {
        let own = bin_of(size);
        let earlier = successors(self.directory.last_before(own), |&bin| self.directory.last_before(bin));
        core::iter::once(own).chain(earlier).flat_map(move |bin| self.below_in(slots, bin, size))
    }

    /// The blocks with at least `size` bytes, in order.
    pub(crate) fn at_least<'a>(&'a self, slots: &'a [Block], size: u64) -> impl Iterator<Item = u32> + 'a {
        let mut bin = self.directory.first_from(bin_of(size));
        let (mut oversized, mut next) = (None, NIL);
        core::iter::from_fn(move || {
            loop {
                if let Some(index) = oversized.as_mut().and_then(Iterator::next) {
                    return Some(index);
                }
                while let Some(block) = slots.linked(next) {
                    let index = core::mem::replace(&mut next, block.link_next);
                    if block.size >= size {
                        return Some(index);
                    }
                }
                let own = bin?;
                bin = self.directory.first_after(own);
                oversized = self.oversized(own).map(|oversized| oversized.at_least(size));
                next = if oversized.is_some() { NIL } else { self.directory.get(own).head };
            }
        })
    }

    /// The first of the largest blocks.
    #[inline]
    pub(crate) fn largest(&self, slots: &[Block]) -> Option<u32> {
        let bin = self.directory.last()?;
        match self.oversized(bin) {
            Some(oversized) => oversized.first_at_least(slots.at(oversized.last()?).size),
            None => list(slots, self.directory.get(bin).head)
                .reduce(|first, index| if slots.at(index).size > slots.at(first).size { index } else { first }),
        }
    }

    /// The bin's keys, if it is oversized.
    #[inline]
    fn oversized(&self, bin: usize) -> Option<&OversizedBin> {
        let entry = self.directory.get(bin);
        (entry.count == OVERSIZED).then(|| &self.oversized[entry.head as usize].1)
    }

    /// The first block of an occupied bin.
    #[inline]
    fn first_of(&self, bin: usize) -> Option<u32> {
        let entry = self.directory.get(bin);
        if entry.count == OVERSIZED { self.oversized[entry.head as usize].1.first() } else { Some(entry.head) }
    }

    #[inline]
    fn first_in(&self, slots: &[Block], bin: usize, size: u64) -> Option<u32> {
        match self.oversized(bin) {
            Some(oversized) => oversized.first_at_least(size),
            None => list(slots, self.directory.get(bin).head).find(|&index| slots.at(index).size >= size),
        }
    }

    fn below_in<'a>(&'a self, slots: &'a [Block], bin: usize, size: u64) -> impl Iterator<Item = u32> + 'a {
        match self.oversized(bin) {
            Some(oversized) => Either::First(oversized.below(size)),
            None => {
                // A list is short enough to walk to its end.
                let all = list(slots, self.directory.get(bin).head);
                let last = all.take_while(move |&index| slots.at(index).size < size).last();
                Either::Second(successors(last, |&index| Some(slots.at(index).link_prev).filter(|&before| before != NIL)))
            }
        }
    }

    /// Adds a block to an oversized bin, or to a full list, which becomes one.
    #[inline(never)]
    fn insert_into_oversized(&mut self, slots: &[Block], index: u32, bin: usize) {
        let entry = self.directory.get(bin);
        let place = if entry.count == OVERSIZED {
            entry.head as usize
        } else {
            let mut blocks: Vec<u32> = list(slots, entry.head).collect();
            blocks.reverse();
            self.oversized.push((bin, OversizedBin::new(blocks.iter().map(|&index| (index, slots.at(index))))));
            let place = self.oversized.len() - 1;
            *self.directory.at_mut(bin) = Bin { count: OVERSIZED, head: place as u32 };
            place
        };
        let fresh = self.oversized[place].1.insert(slots.at(index), index);
        debug_assert!(fresh, "a block entered the free index twice");
    }

    #[inline(never)]
    fn remove_from_oversized(&mut self, slots: &mut [Block], index: u32, bin: usize) {
        let place = self.directory.get(bin).head as usize;
        let oversized = &mut self.oversized[place].1;
        let found = oversized.remove(slots.at(index), index);
        debug_assert!(found, "a block left the free index that was not in it");
        if oversized.len() <= SMALLEST_OVERSIZED {
            self.disband(slots, place);
        }
    }

    /// Turns an oversized bin back into a list.
    #[cold]
    fn disband(&mut self, slots: &mut [Block], place: usize) {
        let (bin, oversized) = self.oversized.swap_remove(place);
        if let Some(&(moved, _)) = self.oversized.get(place) {
            *self.directory.at_mut(moved) = Bin { count: OVERSIZED, head: place as u32 };
        }
        let mut head = NIL;
        for index in oversized.descending() {
            if let Some(after) = slots.linked_mut(head) {
                after.link_prev = index;
            }
            let block = slots.at_mut(index);
            block.link_prev = NIL;
            block.link_next = head;
            head = index;
        }
        *self.directory.at_mut(bin) = Bin { count: oversized.len() as u32, head };
    }
}
