//! The free blocks of one stream, in bins by size. The order is the same as in a balanced tree, but the bins are
//! usually three times as fast.
//!
//! Bins are monotone in size, and each bin is sorted by size, rank and address, so all blocks are in order across the
//! bins. A bin with few blocks is a doubly linked list through the slots, which needs no extra memory and usually
//! takes one step; a bin with more blocks is a [`CrowdedBin`]. A search looks in the bin of the size and, if no
//! block there is large enough, takes the head of the next occupied bin, which the [`Directory`] finds with two bit scans.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::iter::successors;

use super::crowded::{CrowdedBin, Either};
use crate::block::{Block, NIL, Slots};

/// The maximum length of a list. A bin with more blocks becomes crowded, which limits the number of steps in a
/// search.
const LONGEST_LIST: u32 = 32;
/// A crowded bin that shrinks to this many blocks becomes a list again. It is well below [`LONGEST_LIST`], so that
/// a bin does not switch back and forth.
const SMALLEST_CROWDED: usize = 8;
/// The count that marks a crowded bin.
const CROWDED: u32 = u32::MAX;

/// Free blocks ordered by size, rank and address.
#[derive(Clone, Debug, Default)]
pub(crate) struct BinnedBlocks {
    /// For a list, its length and first block; for a crowded bin, [`CROWDED`] and its index in
    /// `crowded`.
    directory: Directory,
    /// The crowded bins, each with the number of its bin.
    crowded: Vec<(usize, CrowdedBin)>,
}

impl BinnedBlocks {
    /// Adds a block. Its size, rank, address and links must not change until it is removed.
    // There are two functions because most calls return from the first, which needs few registers and cannot panic.
    #[inline(never)]
    pub(crate) fn insert(&mut self, slots: &mut [Block], index: u32) {
        // If the slot does not exist, the other function panics.
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

    /// Adds a block to a bin that has other blocks, or that the directory does not reach yet.
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
            self.insert_into_crowded(slots, index, bin);
        }
    }

    /// Adds a block to a bin that the directory does not reach yet, or to the last bin.
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
        debug_assert!(entry.count > 1, "a block that is not in the free index was removed");
        if entry.count == CROWDED {
            return self.remove_from_crowded(slots, index, bin);
        }
        entry.count -= 1;
        entry.head = unlink(slots, entry.head, index);
    }

    /// Whether the index is empty.
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
        if count != CROWDED && (bin != own || slots.linked(head).is_some_and(|first| first.size >= size)) {
            return Some(head);
        }
        self.first_among(slots, bin, size)
    }

    /// The first block with at least `size` bytes in `bin` or a later bin. The first block of `bin` may be too small.
    #[inline(never)]
    fn first_among(&self, slots: &[Block], bin: usize, size: u64) -> Option<u32> {
        match self.first_in(slots, bin, size) {
            None => self.first_of(self.directory.first_after(bin)?),
            found => found,
        }
    }

    /// The first block that comes after block `index` in the order. Block `index` itself need not be in this index.
    pub(crate) fn first_behind(&self, slots: &[Block], index: u32) -> Option<u32> {
        let block = slots.at(index);
        let own = bin_of(block.size);
        let bin = self.directory.first_from(own)?;
        if bin != own {
            return self.first_of(bin);
        }
        let in_own = match self.crowded(own) {
            Some(crowded) => crowded.first_behind(block, index),
            None => {
                let key = |index: u32| (slots.at(index).size, slots.at(index).place_in_size());
                list(slots, self.directory.get(own).head).find(|&other| key(other) > key(index))
            }
        };
        in_own.or_else(|| self.first_of(self.directory.first_after(own)?))
    }

    /// The blocks with fewer than `size` bytes, from the last to the first.
    pub(crate) fn below<'a>(&'a self, slots: &'a [Block], size: u64) -> impl Iterator<Item = u32> + 'a {
        let own = bin_of(size);
        let earlier = successors(self.directory.last_before(own), |&bin| self.directory.last_before(bin));
        core::iter::once(own).chain(earlier).flat_map(move |bin| self.below_in(slots, bin, size))
    }

    /// The blocks with at least `size` bytes, in order.
    pub(crate) fn at_least<'a>(&'a self, slots: &'a [Block], size: u64) -> impl Iterator<Item = u32> + 'a {
        let mut bin = self.directory.first_from(bin_of(size));
        let (mut crowded, mut next) = (None, NIL);
        core::iter::from_fn(move || {
            loop {
                if let Some(index) = crowded.as_mut().and_then(Iterator::next) {
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
                crowded = self.crowded(own).map(|crowded| crowded.at_least(size));
                next = if crowded.is_some() { NIL } else { self.directory.get(own).head };
            }
        })
    }

    /// The first of the largest blocks.
    #[inline]
    pub(crate) fn largest(&self, slots: &[Block]) -> Option<u32> {
        let bin = self.directory.last()?;
        match self.crowded(bin) {
            Some(crowded) => crowded.first_at_least(slots.at(crowded.last()?).size),
            None => list(slots, self.directory.get(bin).head)
                .reduce(|first, index| if slots.at(index).size > slots.at(first).size { index } else { first }),
        }
    }

    /// The bin's keys, if it is crowded.
    #[inline]
    fn crowded(&self, bin: usize) -> Option<&CrowdedBin> {
        let entry = self.directory.get(bin);
        (entry.count == CROWDED).then(|| &self.crowded[entry.head as usize].1)
    }

    /// The first block of an occupied bin.
    #[inline]
    fn first_of(&self, bin: usize) -> Option<u32> {
        let entry = self.directory.get(bin);
        if entry.count == CROWDED { self.crowded[entry.head as usize].1.first() } else { Some(entry.head) }
    }

    #[inline]
    fn first_in(&self, slots: &[Block], bin: usize, size: u64) -> Option<u32> {
        match self.crowded(bin) {
            Some(crowded) => crowded.first_at_least(size),
            None => list(slots, self.directory.get(bin).head).find(|&index| slots.at(index).size >= size),
        }
    }

    fn below_in<'a>(&'a self, slots: &'a [Block], bin: usize, size: u64) -> impl Iterator<Item = u32> + 'a {
        match self.crowded(bin) {
            Some(crowded) => Either::First(crowded.below(size)),
            None => {
                // A list is short enough to walk to its end.
                let all = list(slots, self.directory.get(bin).head);
                let last = all.take_while(move |&index| slots.at(index).size < size).last();
                Either::Second(successors(last, |&index| Some(slots.at(index).link_prev).filter(|&before| before != NIL)))
            }
        }
    }

    /// Adds a block to a crowded bin, or to a full list, which then becomes crowded.
    #[inline(never)]
    fn insert_into_crowded(&mut self, slots: &[Block], index: u32, bin: usize) {
        let entry = self.directory.get(bin);
        let place = if entry.count == CROWDED {
            entry.head as usize
        } else {
            let mut blocks: Vec<u32> = list(slots, entry.head).collect();
            blocks.reverse();
            self.crowded.push((bin, CrowdedBin::new(blocks.iter().map(|&index| (index, slots.at(index))))));
            let place = self.crowded.len() - 1;
            *self.directory.at_mut(bin) = Bin { count: CROWDED, head: place as u32 };
            place
        };
        let fresh = self.crowded[place].1.insert(slots.at(index), index);
        debug_assert!(fresh, "a block was added to the free index twice");
    }

    #[inline(never)]
    fn remove_from_crowded(&mut self, slots: &mut [Block], index: u32, bin: usize) {
        let place = self.directory.get(bin).head as usize;
        let crowded = &mut self.crowded[place].1;
        let found = crowded.remove(slots.at(index), index);
        debug_assert!(found, "a block that is not in the free index was removed");
        if crowded.len() <= SMALLEST_CROWDED {
            self.disband(slots, place);
        }
    }

    /// Turns a crowded bin back into a list.
    #[cold]
    fn disband(&mut self, slots: &mut [Block], place: usize) {
        let (bin, crowded) = self.crowded.swap_remove(place);
        if let Some(&(moved, _)) = self.crowded.get(place) {
            *self.directory.at_mut(moved) = Bin { count: CROWDED, head: place as u32 };
        }
        let mut head = NIL;
        for index in crowded.descending() {
            if let Some(after) = slots.linked_mut(head) {
                after.link_prev = index;
            }
            let block = slots.at_mut(index);
            block.link_prev = NIL;
            block.link_next = head;
            head = index;
        }
        *self.directory.at_mut(bin) = Bin { count: crowded.len() as u32, head };
    }
}

/// The blocks of a list.
#[inline]
fn list(slots: &[Block], head: u32) -> impl Iterator<Item = u32> + '_ {
    let mut next = head;
    core::iter::from_fn(move || {
        let index = next;
        next = slots.linked(index)?.link_next;
        Some(index)
    })
}

/// Links a block into a sorted list. Returns the list's new head.
#[inline]
fn link(slots: &mut [Block], head: u32, index: u32) -> u32 {
    let block = slots.at(index);
    let (size, place) = (block.size, block.place_in_size());
    let (mut before, mut after) = (NIL, head);
    while let Some(other) = slots.linked(after)
        && (other.size, other.place_in_size()) < (size, place)
    {
        before = after;
        after = other.link_next;
    }
    debug_assert!(after != index, "a block was added to the free index twice");
    let block = slots.at_mut(index);
    block.link_prev = before;
    block.link_next = after;
    if let Some(other) = slots.linked_mut(after) {
        other.link_prev = index;
    }
    match slots.linked_mut(before) {
        Some(other) => {
            other.link_next = index;
            head
        }
        None => index,
    }
}

/// Unlinks a block from its list. Returns the list's new head.
#[inline]
fn unlink(slots: &mut [Block], head: u32, index: u32) -> u32 {
    let block = slots.at(index);
    let (before, after) = (block.link_prev, block.link_next);
    if let Some(other) = slots.linked_mut(after) {
        other.link_prev = before;
    }
    match slots.linked_mut(before) {
        Some(other) => {
            other.link_next = after;
            head
        }
        None => after,
    }
}

const GROUP: usize = 64;
/// The bin for all sizes of 127.5 TiB or more.
const LAST_BIN: usize = 64 * GROUP - 1;
const UNIT_SHIFT: u32 = 9;
const MANTISSA_BITS: u32 = 7;

/// The bin for a size. Below 128 KiB, a bin is 512 bytes wide; above that, its width is between 1/256 and 1/128 of the
/// size.
#[inline]
fn bin_of(size: u64) -> usize {
    unlimited_bin_of(size).min(LAST_BIN)
}

/// The bin for a size, possibly beyond the last bin. No directory has bins beyond the last one, so a failed lookup
/// must be repeated with the last bin.
#[inline(always)]
fn unlimited_bin_of(size: u64) -> usize {
    let units = size >> UNIT_SHIFT;
    let shift = (units | 1 << MANTISSA_BITS).ilog2() - MANTISSA_BITS;
    // The mantissa's top bit adds 1 to the exponent field, so small sizes map to themselves.
    ((u64::from(shift) << MANTISSA_BITS) + (units >> shift)) as usize
}

/// A bin's entry: the number of its blocks, and where they begin. Only the empty bin has a fixed representation here:
/// count 0 and head [`NIL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bin {
    head: u32,
    count: u32,
}

impl Bin {
    const EMPTY: Bin = Bin { head: NIL, count: 0 };
}

/// The directory of the bins: which ones have blocks, and where each one begins.
///
/// Each size maps to one of 4,096 bins: its number of 512-byte units as a float with seven mantissa bits. A larger size
/// never maps to a lower bin, so the next occupied bin contains the next larger size; a two-level bitmap finds that bin
/// with two bit scans. Bins are stored in groups of 64, up to the highest bin ever used, because many streams never have
/// a large block.
#[derive(Clone, Debug, Default)]
struct Directory {
    /// One bit per group: whether the group has an occupied bin.
    groups: u64,
    /// For each group, one bit per bin: whether the bin is occupied.
    occupied: Box<[u64]>,
    /// The entries of all bins in these groups.
    bins: Box<[Bin]>,
}

impl Directory {
    /// Whether no bin is occupied.
    #[inline]
    fn is_empty(&self) -> bool {
        self.groups == 0
    }

    /// A bin's entry.
    #[inline]
    fn get(&self, bin: usize) -> Bin {
        self.bins.get(bin).copied().unwrap_or(Bin::EMPTY)
    }

    /// A mutable reference to the entry of an occupied bin, which must stay occupied.
    #[inline]
    fn at_mut(&mut self, bin: usize) -> &mut Bin {
        debug_assert!(self.get(bin).count != 0, "an empty bin was changed as if it had blocks");
        &mut self.bins[bin]
    }

    /// Adds the first block to a bin. Returns false and does nothing if the bin already has blocks or is beyond the
    /// last group.
    #[inline(always)]
    fn fill_empty(&mut self, bin: usize, head: u32) -> bool {
        let Some(entry) = self.bins.get_mut(bin).filter(|entry| entry.count == 0) else { return false };
        let Some(group) = self.occupied.get_mut(bin / GROUP) else { return false };
        *entry = Bin { head, count: 1 };
        *group |= 1 << (bin % GROUP);
        self.groups |= 1 << (bin / GROUP);
        true
    }

    /// Removes the only block from a bin. Returns false and does nothing if the bin has other blocks.
    #[inline(always)]
    fn clear_single(&mut self, bin: usize) -> bool {
        let Some(entry) = self.bins.get_mut(bin).filter(|entry| entry.count == 1) else { return false };
        let Some(group) = self.occupied.get_mut(bin / GROUP) else { return false };
        *entry = Bin::EMPTY;
        *group &= !(1 << (bin % GROUP));
        if *group == 0 {
            self.groups &= !(1 << (bin / GROUP));
        }
        true
    }

    /// Whether there is an entry for the bin.
    #[inline]
    fn reaches(&self, bin: usize) -> bool {
        bin < self.bins.len()
    }

    /// The first occupied bin at or after `bin`.
    #[inline(always)]
    fn first_from(&self, bin: usize) -> Option<usize> {
        self.first_in(bin / GROUP, u64::MAX << (bin % GROUP))
    }

    /// The first occupied bin after `bin`.
    #[inline]
    fn first_after(&self, bin: usize) -> Option<usize> {
        self.first_in(bin / GROUP, (u64::MAX << 1) << (bin % GROUP))
    }

    /// The last occupied bin before `bin`.
    fn last_before(&self, bin: usize) -> Option<usize> {
        self.last_in(bin / GROUP, (1 << (bin % GROUP)) - 1)
    }

    /// The last occupied bin.
    fn last(&self) -> Option<usize> {
        self.last_in(LAST_BIN / GROUP, u64::MAX)
    }

    /// The first occupied bin among a group's bins that the mask allows and the bins of all later groups.
    #[inline(always)]
    fn first_in(&self, own: usize, mask: u64) -> Option<usize> {
        let here = self.occupied.get(own)? & mask;
        if here != 0 {
            return Some(own * GROUP + here.trailing_zeros() as usize);
        }
        let later = self.groups & ((u64::MAX << 1) << own);
        let group = later.trailing_zeros() as usize;
        // If there is no later group, this is 64, and no group has that index.
        let bits = self.occupied.get(group)?;
        Some(group * GROUP + bits.trailing_zeros() as usize)
    }

    fn last_in(&self, own: usize, mask: u64) -> Option<usize> {
        let here = self.occupied.get(own).map_or(0, |occupied| occupied & mask);
        if here != 0 {
            return Some(own * GROUP + here.ilog2() as usize);
        }
        let group = (self.groups & ((1 << own) - 1)).checked_ilog2()? as usize;
        Some(group * GROUP + self.occupied[group].ilog2() as usize)
    }

    /// Adds entries up to and including the bin's.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, bin: usize) {
        let wanted = bin / GROUP + 1;
        self.occupied = longer(&self.occupied, wanted, 0);
        self.bins = longer(&self.bins, wanted * GROUP, Bin::EMPTY);
    }
}

/// Extends a boxed slice to `len` elements. A boxed slice takes less space than a vector, and there are many
/// directories.
fn longer<T: Copy>(short: &[T], len: usize, more: T) -> Box<[T]> {
    short.iter().copied().chain(core::iter::repeat(more)).take(len).collect()
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::{BinnedBlocks, CROWDED, LONGEST_LIST, bin_of};
    use crate::block::{Arena, Block, BlockState, NIL, Slots};

    /// Size, rank and address define the order; the slot identifies the block.
    type Key = (u64, u32, u64, u32);

    /// The free blocks of one stream in a balanced tree: the simple model that tests compare the bins with.
    #[derive(Clone, Debug, Default)]
    struct OrderedBlocks {
        keys: BTreeSet<Key>,
    }

    impl OrderedBlocks {
        fn key(slots: &[Block], index: u32) -> Key {
            let block = slots.at(index);
            (block.size, block.rank, block.address, index)
        }

        fn insert(&mut self, slots: &mut [Block], index: u32) {
            let fresh = self.keys.insert(Self::key(slots, index));
            debug_assert!(fresh, "a block was added to the free index twice");
        }

        fn remove(&mut self, slots: &mut [Block], index: u32) {
            let found = self.keys.remove(&Self::key(slots, index));
            debug_assert!(found, "a block that is not in the free index was removed");
        }

        fn first_at_least(&self, _: &[Block], size: u64) -> Option<u32> {
            self.keys.range((size, 0, 0, 0)..).next().map(|key| key.3)
        }

        fn below<'a>(&'a self, _: &'a [Block], size: u64) -> impl Iterator<Item = u32> + 'a {
            self.keys.range(..(size, 0, 0, 0)).rev().map(|key| key.3)
        }

        fn at_least<'a>(&'a self, _: &'a [Block], size: u64) -> impl Iterator<Item = u32> + 'a {
            self.keys.range((size, 0, 0, 0)..).map(|key| key.3)
        }

        fn largest(&self, slots: &[Block]) -> Option<u32> {
            self.first_at_least(slots, self.keys.last()?.0)
        }
    }

    /// Both indexes over the same blocks.
    struct Both {
        /// The arena that the bins write to.
        arena: Arena,
        bins: BinnedBlocks,
        tree: OrderedBlocks,
        inside: Vec<u32>,
        ever: u64,
    }

    impl Default for Both {
        fn default() -> Both {
            let (bins, tree) = (BinnedBlocks::default(), OrderedBlocks::default());
            Both { arena: Arena::new(false), bins, tree, inside: Vec::new(), ever: 0 }
        }
    }

    impl Both {
        /// Adds a block at a new address. Successive addresses are far apart and unordered.
        fn insert(&mut self, size: u64, rank: u32) {
            self.ever += 1;
            let address = self.ever.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let index = self.arena.insert(Block {
                address,
                size,
                stamp: self.ever * 5 % 7,
                link_prev: 7,
                link_next: 7,
                rank,
                state: BlockState::Free,
                ..Block::VACANT
            });
            self.bins.insert(&mut self.arena, index);
            self.tree.insert(&mut self.arena, index);
            self.inside.push(index);
        }

        fn remove(&mut self, place: usize) {
            let index = self.inside.swap_remove(place % self.inside.len());
            self.bins.remove(&mut self.arena, index);
            self.tree.remove(&mut self.arena, index);
            self.arena.remove(index);
        }

        fn same_first(&self, size: u64) {
            let arena = &self.arena;
            assert_eq!(self.bins.first_at_least(arena, size), self.tree.first_at_least(arena, size), "first of at least {size}");
            assert_eq!(self.bins.largest(arena), self.tree.largest(arena));
        }

        fn same_walks(&self, size: u64) {
            let arena = &self.arena;
            assert!(self.bins.at_least(arena, size).eq(self.tree.at_least(arena, size)), "at least {size}");
            if let Some(first) = self.tree.first_at_least(arena, size) {
                assert_eq!(self.bins.first_behind(arena, first), self.tree.at_least(arena, size).nth(1), "behind {size}");
            }
            assert!(self.bins.below(arena, size).eq(self.tree.below(arena, size)), "below {size}");
        }

        /// Compares the answers to every query, for each block's size and the adjacent sizes.
        fn same_everywhere(&self) {
            for &index in &self.inside {
                let size = self.arena.at(index).size;
                for wanted in [size - 1, size, size.saturating_add(1)] {
                    self.same_first(wanted);
                }
            }
            for size in [0, 1, 512, 1 << 20, 1 << 40, u64::MAX] {
                self.same_walks(size);
            }
            self.well_formed();
        }

        /// Checks that lists are short, that links are consistent, and that the directory knows the crowded bins.
        fn well_formed(&self) {
            let mut crowded = 0;
            let mut next = self.bins.directory.first_from(0);
            while let Some(bin) = next {
                let entry = self.bins.directory.get(bin);
                if entry.count == CROWDED {
                    assert_eq!(self.bins.crowded[entry.head as usize].0, bin);
                    crowded += 1;
                } else {
                    assert!((1..=LONGEST_LIST).contains(&entry.count));
                    let mut before = NIL;
                    let mut count = 0;
                    for index in super::list(&self.arena, entry.head) {
                        assert_eq!(self.arena.at(index).link_prev, before);
                        assert_eq!(bin_of(self.arena.at(index).size), bin);
                        before = index;
                        count += 1;
                    }
                    assert_eq!(count, entry.count);
                }
                next = self.bins.directory.first_after(bin);
            }
            assert_eq!(crowded, self.bins.crowded.len());
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Insert { size: u64, rank: u32 },
        Remove(usize),
        First(u64),
        Walk(u64),
    }

    fn size() -> impl Strategy<Value = u64> {
        prop_oneof![
            // A few sizes, many times each: exact bins, a wide bin and the last bin.
            8 => prop::sample::select(alloc::vec![512, 1024, 2 << 20, 20 << 20, 1 << 47, u64::MAX]),
            // Crowded bins with different sizes.
            8 => (0..2_000_u64).prop_map(|step| (64 << 20) + step * 512),
            4 => (0..1_000_u64).prop_map(|step| (1 << 41) + step),
            // Sizes that are not multiples of a unit.
            4 => 1..5_000_u64,
            // Any size, spread evenly over the magnitudes.
            6 => (0..64_u32, any::<u64>()).prop_map(|(shift, bits)| (bits >> shift).max(1)),
        ]
    }

    fn step(insertions: u32) -> impl Strategy<Value = Step> {
        let rank = prop_oneof![6 => Just(0), 1 => 0..3_u32, 1 => any::<u32>()];
        prop_oneof![
            insertions => (size(), rank).prop_map(|(size, rank)| Step::Insert { size, rank }),
            4 => any::<usize>().prop_map(Step::Remove),
            4 => size().prop_map(Step::First),
            1 => size().prop_map(Step::Walk),
        ]
    }

    fn perform(both: &mut Both, step: Step) {
        match step {
            Step::Insert { size, rank } => both.insert(size, rank),
            Step::Remove(_) if both.inside.is_empty() => {}
            Step::Remove(place) => both.remove(place),
            Step::First(size) => both.same_first(size),
            Step::Walk(size) => both.same_walks(size),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Runs phases that mostly grow the index, mostly shrink it, and then empty it: bins become crowded and then
        /// lists again.
        #[test]
        fn bins_answer_as_the_tree_does(up in vec(step(8), 0..600), down in vec(step(2), 0..600)) {
            let mut both = Both::default();
            for step in up {
                perform(&mut both, step);
            }
            both.same_everywhere();
            for step in down {
                perform(&mut both, step);
            }
            both.same_everywhere();
            while !both.inside.is_empty() {
                both.remove(0);
                both.same_first(1);
            }
            prop_assert!(both.bins.crowded.is_empty() && both.bins.directory.first_from(0).is_none());
        }

        /// A larger size never has a smaller bin.
        #[test]
        fn bins_are_monotone(a in size(), b in size()) {
            prop_assert!(bin_of(a.min(b)) <= bin_of(a.max(b)));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(6))]

        /// With thousands of blocks, crowded bins have many chunks, which split and join.
        #[test]
        fn thousands_of_blocks_keep_their_order(blocks in vec((size(), 0..2_u32), 5_000), places in vec(any::<usize>(), 4_900)) {
            let mut both = Both::default();
            for &(size, rank) in &blocks {
                both.insert(size, rank);
            }
            both.same_everywhere();
            for (number, &place) in places.iter().enumerate() {
                both.remove(place);
                both.same_first(blocks[number].0);
                if number.is_multiple_of(500) {
                    both.same_walks(blocks[number].0);
                    both.well_formed();
                }
            }
            both.same_everywhere();
        }
    }

    /// Tests every bin of one size, and both edges of every wider bin.
    #[test]
    fn bins_have_the_promised_widths() {
        for units in 0..256 {
            assert_eq!(bin_of(units * 512), units as usize);
            assert_eq!(bin_of(units * 512 + 511), units as usize);
        }
        for shift in 1..31 {
            for mantissa in 128..256_u64 {
                let first = (mantissa << shift) * 512;
                let bin = 128 * shift as usize + mantissa as usize;
                assert_eq!((bin_of(first - 1), bin_of(first)), (bin - 1, bin));
            }
        }
        assert_eq!((bin_of(1 << 47), bin_of(u64::MAX)), (4_095, 4_095));
    }

    /// Emptying a crowded bin joins chunks along the way, both from the low end, as allocation does, and from the
    /// high end.
    #[test]
    fn oversized_bins_drain_from_either_end() {
        for low in [true, false] {
            let mut both = Both::default();
            for number in 0..3_000 {
                both.insert((2 << 20) + number % 2 * 512, 0);
            }
            let end = |both: &Both| both.bins.below(&both.arena, u64::MAX).next();
            while let Some(index) = if low { both.bins.first_at_least(&both.arena, 0) } else { end(&both) } {
                let place =
                    both.inside.iter().position(|&other| other == index).expect("the index contains every inserted block");
                both.remove(place);
                both.same_first(2 << 20);
            }
            assert!(both.inside.is_empty());
        }
    }

    /// A block of a smaller or larger size can be added to a crowded bin of one size, and removed again.
    #[test]
    fn an_oversized_bin_of_one_size_takes_other_sizes() {
        let usual = (64 << 20) + 1_024;
        for other in [usual - 512, usual + 512, usual - 1, usual + 1] {
            assert_eq!(bin_of(usual), bin_of(other));
            let mut both = Both::default();
            for _ in 0..40 {
                both.insert(usual, 0);
            }
            both.insert(other, 0);
            both.same_everywhere();
            both.remove(40);
            both.same_everywhere();
        }
    }

    /// Many streams never have a free block, and most of the others only have small ones.
    #[test]
    fn an_empty_index_is_small() {
        assert!(size_of::<BinnedBlocks>() <= 64);
    }
}
