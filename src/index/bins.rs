//! The free blocks of one stream, in bins by size: the same order as a balanced tree's, mostly three times faster.
//!
//! Bins are monotone in size, and every bin is sorted by size, rank and address, so all bins one after the other are the whole
//! order. A bin with a few blocks is a doubly linked list through the arena, which costs no memory and mostly one step; a bin
//! with more is a [`Crowd`]. A search thus looks into the size's own bin and, if nothing there is large enough, takes the
//! head of the next occupied one.

mod crowd;
mod descending;
mod directory;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::iter::successors;

use crate::block::{Arena, NIL};
use crowd::{Crowd, Either};
use directory::{Bin, Directory, bin_of};

/// A list that would grow beyond this becomes a crowd: no walk is longer.
const LONGEST_LIST: u8 = 24;
/// A crowd that shrinks to this becomes a list. Well below the longest list, so that a bin does not turn at every step.
const SMALLEST_CROWD: usize = 8;
/// The count of a bin that is a crowd.
const CROWDED: u8 = u8::MAX;

/// Free blocks ordered by size, rank and address.
#[derive(Clone, Debug, Default)]
pub(crate) struct BinnedBlocks {
    /// For a bin that is a list, its length and first block; for one that is a crowd, [`CROWDED`] and the place in `crowds`.
    directory: Directory,
    /// With the bin of each.
    crowds: Vec<(usize, Crowd)>,
}

impl BinnedBlocks {
    /// Puts a block in. Its size, rank, address and links must not change while it is in.
    #[inline]
    pub(crate) fn insert(&mut self, arena: &mut Arena, index: u32) {
        let bin = bin_of(arena.at(index).size);
        let entry = self.directory.get(bin);
        if entry.count == 0 {
            let block = arena.at_mut(index);
            block.link_prev = NIL;
            block.link_next = NIL;
            self.directory.fill(bin, Bin { count: 1, head: index });
        } else if entry.count < LONGEST_LIST {
            let head = link(arena, entry.head, index);
            self.directory.set(bin, Bin { count: entry.count + 1, head });
        } else {
            self.insert_into_crowd(arena, index, bin);
        }
    }

    /// Takes a block out that is in.
    #[inline]
    pub(crate) fn remove(&mut self, arena: &mut Arena, index: u32) {
        let bin = bin_of(arena.at(index).size);
        let entry = self.directory.get(bin);
        debug_assert!(entry.count != 0, "a block left the free index that was not in it");
        if entry.count == CROWDED {
            return self.remove_from_crowd(arena, index, bin);
        }
        let head = unlink(arena, entry.head, index);
        if entry.count == 1 {
            self.directory.clear(bin);
        } else {
            self.directory.set(bin, Bin { count: entry.count - 1, head });
        }
    }

    /// The first block with at least `size` bytes.
    #[inline(always)]
    pub(crate) fn first_at_least(&self, arena: &Arena, size: u64) -> Option<u32> {
        let bin = self.directory.first_from(bin_of(size))?;
        self.first_in(arena, bin, size).or_else(|| self.first_in(arena, self.directory.first_after(bin)?, size))
    }

    /// The blocks with fewer than `size` bytes, the last first.
    pub(crate) fn below<'a>(&'a self, arena: &'a Arena, size: u64) -> impl Iterator<Item = u32> + 'a {
        let own = bin_of(size);
        let earlier = successors(self.directory.last_before(own), |&bin| self.directory.last_before(bin));
        core::iter::once(own).chain(earlier).flat_map(move |bin| self.below_in(arena, bin, size))
    }

    /// The blocks with at least `size` bytes, in order.
    pub(crate) fn at_least<'a>(&'a self, arena: &'a Arena, size: u64) -> impl Iterator<Item = u32> + 'a {
        let first = self.directory.first_from(bin_of(size));
        successors(first, |&bin| self.directory.first_after(bin)).flat_map(move |bin| self.at_least_in(arena, bin, size))
    }

    /// The last block of all.
    pub(crate) fn last(&self, arena: &Arena) -> Option<u32> {
        let bin = self.directory.last()?;
        match self.crowd(bin) {
            Some(crowd) => crowd.last(),
            None => list(arena, self.directory.get(bin).head).last(),
        }
    }

    /// The bin's crowd, if it is one.
    #[inline]
    fn crowd(&self, bin: usize) -> Option<&Crowd> {
        let entry = self.directory.get(bin);
        (entry.count == CROWDED).then(|| &self.crowds[entry.head as usize].1)
    }

    #[inline]
    fn first_in(&self, arena: &Arena, bin: usize, size: u64) -> Option<u32> {
        match self.crowd(bin) {
            Some(crowd) => crowd.first_at_least(size),
            None => list(arena, self.directory.get(bin).head).find(|&index| arena.at(index).size >= size),
        }
    }

    fn at_least_in<'a>(&'a self, arena: &'a Arena, bin: usize, size: u64) -> impl Iterator<Item = u32> + 'a {
        match self.crowd(bin) {
            Some(crowd) => Either::First(crowd.at_least(size)),
            None => {
                let all = list(arena, self.directory.get(bin).head);
                Either::Second(all.skip_while(move |&index| arena.at(index).size < size))
            }
        }
    }

    fn below_in<'a>(&'a self, arena: &'a Arena, bin: usize, size: u64) -> impl Iterator<Item = u32> + 'a {
        match self.crowd(bin) {
            Some(crowd) => Either::First(crowd.below(size)),
            None => {
                // A list is short: its end is found by walking it.
                let all = list(arena, self.directory.get(bin).head);
                let last = all.take_while(move |&index| arena.at(index).size < size).last();
                Either::Second(successors(last, |&index| Some(arena.at(index).link_prev).filter(|&before| before != NIL)))
            }
        }
    }

    /// Puts a block into a bin that is a crowd, or a list that must become one.
    #[inline(never)]
    fn insert_into_crowd(&mut self, arena: &Arena, index: u32, bin: usize) {
        let entry = self.directory.get(bin);
        let place = if entry.count == CROWDED {
            entry.head as usize
        } else {
            let mut blocks: Vec<u32> = list(arena, entry.head).collect();
            blocks.reverse();
            self.crowds.push((bin, Crowd::new(blocks.iter().map(|&index| (index, arena.at(index))))));
            let place = self.crowds.len() - 1;
            self.directory.set(bin, Bin { count: CROWDED, head: place as u32 });
            place
        };
        let fresh = self.crowds[place].1.insert(arena.at(index), index);
        debug_assert!(fresh, "a block entered the free index twice");
    }

    #[inline(never)]
    fn remove_from_crowd(&mut self, arena: &mut Arena, index: u32, bin: usize) {
        let place = self.directory.get(bin).head as usize;
        let crowd = &mut self.crowds[place].1;
        let found = crowd.remove(arena.at(index), index);
        debug_assert!(found, "a block left the free index that was not in it");
        if crowd.len() <= SMALLEST_CROWD {
            self.disband(arena, place);
        }
    }

    /// Makes a crowd a list again.
    #[cold]
    fn disband(&mut self, arena: &mut Arena, place: usize) {
        let (bin, crowd) = self.crowds.swap_remove(place);
        if let Some(&(moved, _)) = self.crowds.get(place) {
            self.directory.set(moved, Bin { count: CROWDED, head: place as u32 });
        }
        let mut head = NIL;
        for index in crowd.descending() {
            if let Some(after) = arena.get_mut(head) {
                after.link_prev = index;
            }
            let block = arena.at_mut(index);
            block.link_prev = NIL;
            block.link_next = head;
            head = index;
        }
        self.directory.set(bin, Bin { count: crowd.len() as u8, head });
    }
}

/// The blocks of a list.
#[inline]
fn list(arena: &Arena, head: u32) -> impl Iterator<Item = u32> + '_ {
    let mut next = head;
    core::iter::from_fn(move || {
        let index = next;
        next = arena.get(index)?.link_next;
        Some(index)
    })
}

/// Puts a block into its place in a list, whose new head is returned.
#[inline]
fn link(arena: &mut Arena, head: u32, index: u32) -> u32 {
    let block = arena.at(index);
    let key = (block.size, block.rank, block.address);
    let (mut before, mut after) = (NIL, head);
    while let Some(other) = arena.get(after)
        && (other.size, other.rank, other.address) < key
    {
        before = after;
        after = other.link_next;
    }
    debug_assert!(after != index, "a block entered the free index twice");
    let block = arena.at_mut(index);
    block.link_prev = before;
    block.link_next = after;
    if let Some(other) = arena.get_mut(after) {
        other.link_prev = index;
    }
    match arena.get_mut(before) {
        Some(other) => {
            other.link_next = index;
            head
        }
        None => index,
    }
}

/// Takes a block out of its list, whose new head is returned.
#[inline]
fn unlink(arena: &mut Arena, head: u32, index: u32) -> u32 {
    let block = arena.at(index);
    let (before, after) = (block.link_prev, block.link_next);
    if let Some(other) = arena.get_mut(after) {
        other.link_prev = before;
    }
    match arena.get_mut(before) {
        Some(other) => {
            other.link_next = after;
            head
        }
        None => after,
    }
}
