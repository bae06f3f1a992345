//! Ranks of blocks, where each has one of its own: the order in which blocks came into being.

use alloc::vec::Vec;

use super::{Block, NIL, Slots, Vacant};

impl Vacant {
    /// The rank of a new block, where each has its own; else `inherited`.
    #[inline(always)]
    pub(super) fn rank(&mut self, slots: &mut [Block], inherited: u32) -> u32 {
        if self.next_rank == NIL { inherited } else { self.own_rank(slots) }
    }

    /// The rank after the last one. When they are used up, those of the live blocks are closed up, in their order.
    #[inline(never)]
    fn own_rank(&mut self, slots: &mut [Block]) -> u32 {
        if self.next_rank == NIL - 1 {
            self.next_rank = close_up_ranks(slots);
        }
        self.next_rank += 1;
        self.next_rank - 1
    }

    /// Gives a part that was cut off ([`Vacant::split`]) a rank of its own, where each block has one.
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

/// Gives the live blocks the lowest ranks, in the order that they have. Returns how many there are.
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
    use crate::block::Arena;

    /// However many blocks there have been, each new one comes after all that are live.
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
        let low = arena.split(first, 512);
        let ranks = [first, second, low].map(|index| arena.at(index).rank);
        assert!(ranks[0] < ranks[1] && ranks[1] < ranks[2] && ranks[2] < 10, "{ranks:?}");
    }
}
