//! The free blocks of one stream in a balanced tree: the plain model that the bins are tested against.

use alloc::collections::BTreeSet;

use crate::block::{Block, Slots};

/// Size, rank and address, which make the order; and the slot, to find the block.
type Key = (u64, u32, u64, u32);

/// Free blocks ordered by size, rank and address.
#[derive(Clone, Debug, Default)]
pub(crate) struct OrderedBlocks {
    keys: BTreeSet<Key>,
}

impl OrderedBlocks {
    fn key(slots: &[Block], index: u32) -> Key {
        let block = slots.at(index);
        (block.size, block.rank, block.address, index)
    }

    pub(crate) fn insert(&mut self, slots: &mut [Block], index: u32) {
        let fresh = self.keys.insert(Self::key(slots, index));
        debug_assert!(fresh, "a block entered the free index twice");
    }

    pub(crate) fn remove(&mut self, slots: &mut [Block], index: u32) {
        let found = self.keys.remove(&Self::key(slots, index));
        debug_assert!(found, "a block left the free index that was not in it");
    }

    pub(crate) fn first_at_least(&self, _: &[Block], size: u64) -> Option<u32> {
        self.keys.range((size, 0, 0, 0)..).next().map(|key| key.3)
    }

    pub(crate) fn below<'a>(&'a self, _: &'a [Block], size: u64) -> impl Iterator<Item = u32> + 'a {
        self.keys.range(..(size, 0, 0, 0)).rev().map(|key| key.3)
    }

    pub(crate) fn at_least<'a>(&'a self, _: &'a [Block], size: u64) -> impl Iterator<Item = u32> + 'a {
        self.keys.range((size, 0, 0, 0)..).map(|key| key.3)
    }

    pub(crate) fn largest(&self, slots: &[Block]) -> Option<u32> {
        self.first_at_least(slots, self.keys.last()?.0)
    }
}
