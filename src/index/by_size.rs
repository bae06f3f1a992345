//! The free blocks of one stream by size: the newest block on its own, and all others in bins.
//!
//! The block that was added last is usually removed first: the remainder of a split is split again, or a freed block
//! coalesces with it. The newest block therefore stays outside the bins, where adding and removing it costs only a few
//! instructions. It moves into its bin only when the next block is added. Every query takes it into account, so the
//! order is exact.

use super::bins::BinnedBlocks;
use crate::block::{Block, NIL, Slots};

/// The block outside the bins.
#[derive(Clone, Copy, Debug)]
struct Newest {
    /// Its size; 0 if there is no such block.
    size: u64,
    /// Its slot; [`NIL`] if there is no such block.
    index: u32,
}

impl Newest {
    const NONE: Newest = Newest { size: 0, index: NIL };

    /// Its slot, if the block exists and `has` accepts its size.
    #[inline]
    fn filter(self, has: impl Fn(u64) -> bool) -> Option<u32> {
        (self.index != NIL && has(self.size)).then_some(self.index)
    }
}

/// A block that is no longer the newest and not yet in its bin; [`NIL`] if there is none.
pub(crate) struct Displaced(u32);

/// Free blocks ordered by size, rank and address.
#[derive(Clone, Debug)]
pub(crate) struct BySize {
    newest: Newest,
    others: BinnedBlocks,
}

impl Default for BySize {
    fn default() -> BySize {
        BySize { newest: Newest::NONE, others: BinnedBlocks::default() }
    }
}

impl BySize {
    /// Adds a block. Its size, rank, address and links must not change until it is removed.
    #[inline(always)]
    pub(crate) fn insert(&mut self, slots: &mut [Block], index: u32) {
        let before = self.make_newest(index, slots.at(index).size);
        self.bin_displaced(slots, before);
    }

    /// Adds a block that has, or will have, `size` bytes. Returns the previous newest block, for
    /// [`BySize::bin_displaced`]. The caller calls that last, because it is a function call and all other steps are
    /// inlined.
    #[must_use]
    #[inline(always)]
    pub(crate) fn make_newest(&mut self, index: u32, size: u64) -> Displaced {
        let before = core::mem::replace(&mut self.newest, Newest { size, index });
        debug_assert!(before.index != index, "a block was added to the free index twice");
        Displaced(before.index)
    }

    /// Records that a block in the index will have `size` bytes. Must be called before the block's size, rank or
    /// address changes. Returns a block for [`BySize::bin_displaced`], as [`BySize::make_newest`] does.
    #[must_use]
    #[inline(always)]
    pub(crate) fn resize(&mut self, slots: &mut [Block], index: u32, size: u64) -> Displaced {
        if self.newest.index == index {
            self.newest.size = size;
            Displaced(NIL)
        } else {
            self.others.remove(slots, index);
            self.make_newest(index, size)
        }
    }

    /// Moves the previous newest block into its bin.
    #[inline(always)]
    pub(crate) fn bin_displaced(&mut self, slots: &mut [Block], Displaced(before): Displaced) {
        if before != NIL {
            self.others.insert(slots, before);
        }
    }

    /// Removes a block that is in the index.
    #[inline(always)]
    pub(crate) fn remove(&mut self, slots: &mut [Block], index: u32) {
        if self.newest.index == index {
            self.newest = Newest::NONE;
        } else {
            self.others.remove(slots, index);
        }
    }

    /// Whether the index is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.newest.index == NIL && self.others.is_empty()
    }

    /// The first block with at least `size` bytes.
    #[inline(always)]
    pub(crate) fn first_at_least(&self, slots: &[Block], size: u64) -> Option<u32> {
        let other = if self.others.is_empty() { None } else { self.others.first_at_least(slots, size) };
        // Copied by value, because a borrowed value would have to be in memory.
        let Newest { size: newest_size, index: newest } = self.newest;
        // If there is no newest block, its size is 0, which is less than any request.
        if newest_size < size.max(1) {
            return other;
        }
        let Some(other) = other else { return Some(newest) };
        let first = slots.at(other);
        let is_first =
            first.size < newest_size || first.size == newest_size && first.place_in_size() < slots.at(newest).place_in_size();
        Some(if is_first { other } else { newest })
    }

    /// The block that follows block `index` in the order.
    pub(crate) fn following(&self, slots: &[Block], index: u32) -> Option<u32> {
        let other = if self.others.is_empty() { None } else { self.others.first_behind(slots, index) };
        let is_behind = |newest: &u32| *newest != index && place_by_size(slots, *newest) > place_by_size(slots, index);
        let newest = self.newest.filter(|_| true).filter(is_behind);
        better(newest, other, |newest, other| first(slots, newest, other) == newest)
    }

    /// The blocks with fewer than `size` bytes, from the last to the first.
    pub(crate) fn below<'a>(&'a self, slots: &'a [Block], size: u64) -> impl Iterator<Item = u32> + 'a {
        let others = self.others.below(slots, size);
        merged(self.newest.filter(|own| own < size), others, move |newest, other| first(slots, newest, other) == other)
    }

    /// The blocks with at least `size` bytes, in order.
    pub(crate) fn at_least<'a>(&'a self, slots: &'a [Block], size: u64) -> impl Iterator<Item = u32> + 'a {
        let others = self.others.at_least(slots, size);
        merged(self.newest.filter(|own| own >= size), others, move |newest, other| first(slots, newest, other) == newest)
    }

    /// The first of the largest blocks.
    #[inline]
    pub(crate) fn largest(&self, slots: &[Block]) -> Option<u32> {
        better(self.newest.filter(|_| true), self.others.largest(slots), |newest, other| {
            let sizes = (self.newest.size, slots.at(other).size);
            if sizes.0 == sizes.1 { first(slots, newest, other) == newest } else { sizes.0 > sizes.1 }
        })
    }
}

/// The first block in the order.
#[inline]
fn first(slots: &[Block], one: u32, other: u32) -> u32 {
    if place_by_size(slots, one) < place_by_size(slots, other) { one } else { other }
}

/// The block that exists; if both do, `prefers` decides whether it is the newest one.
#[inline]
fn better(newest: Option<u32>, other: Option<u32>, prefers: impl Fn(u32, u32) -> bool) -> Option<u32> {
    match (newest, other) {
        (Some(newest), Some(other)) => Some(if prefers(newest, other) { newest } else { other }),
        (newest, other) => newest.or(other),
    }
}

/// The blocks in order: inserts the newest before the first block that it precedes.
fn merged(
    mut newest: Option<u32>,
    mut others: impl Iterator<Item = u32>,
    precedes: impl Fn(u32, u32) -> bool,
) -> impl Iterator<Item = u32> {
    let mut held = None;
    core::iter::from_fn(move || {
        let Some(waiting) = newest else { return held.take().or_else(|| others.next()) };
        match held.take().or_else(|| others.next()) {
            Some(other) if !precedes(waiting, other) => Some(other),
            other => {
                held = other;
                newest = None;
                Some(waiting)
            }
        }
    })
}

/// A block's key in the order by size.
#[inline]
fn place_by_size(slots: &[Block], index: u32) -> (u64, u32, u64) {
    let block = slots.at(index);
    (block.size, block.rank, block.address)
}
