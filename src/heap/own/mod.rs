//! What the heap keeps for the mechanisms that PyTorch does not have (`allocator/own`): handles, blocks on other streams
//! than their segment, and parts of segments in other pools.

pub(super) mod handles;
mod lending;
pub(super) mod state;
mod untouched;

use alloc::vec::Vec;

use crate::block::{Block, BlockState, NIL};
use crate::heap::{Heap, PoolSlot};

impl Heap {
    /// Whether blocks of one segment may belong to different streams.
    pub(crate) fn mixes_streams(&self) -> bool {
        self.own.mixes_streams()
    }

    /// Whether the policy has ever kept two adjacent free blocks apart.
    pub(crate) fn keeps_apart(&self) -> bool {
        self.own.keeps_apart()
    }

    /// Moves a detached block to another stream.
    pub(crate) fn change_stream(&mut self, index: u32, stream: u16) {
        if self.arena.at(index).stream != stream {
            self.own.note_mixed_streams();
        }
        self.arena.at_mut(index).stream = stream;
    }

    /// A stream's free blocks outside expandable segments.
    pub(crate) fn movable_blocks(&self, pool: PoolSlot, stream: u16) -> Vec<u32> {
        let blocks = self.free[usize::from(pool.0)].at_least(&self.arena, stream, 0);
        blocks.filter(|&index| !self.arena.at(index).is_expandable()).collect()
    }

    /// Whether a block and the one before it are free, and the policy has kept them apart.
    fn is_apart(&self, index: u32) -> bool {
        let block = self.arena.at(index);
        let before = self.arena.get(block.prev).filter(|before| before.state == BlockState::Free);
        block.state == BlockState::Free && block.is_kept_apart() && before.is_some_and(|before| before.stream == block.stream)
    }

    /// The free blocks that the policy has kept apart from the free block before them, in all pools or in one.
    pub(crate) fn apart(&self, pool_number: Option<u16>) -> Vec<u32> {
        let is_wanted = |index: u32| pool_number.is_none_or(|number| PoolSlot(self.arena.at(index).pool).pool_number() == number);
        self.arena.occupied().filter(|&index| is_wanted(index) && self.is_apart(index)).collect()
    }

    /// The same for all segments in which nothing is in use.
    pub(crate) fn apart_in_idle_segments(&self) -> Vec<u32> {
        let mut apart = Vec::new();
        for head in self.arena.occupied().filter(|&index| self.arena.at(index).prev == NIL) {
            let links = core::iter::successors(Some(head), |&index| Some(self.arena.at(index).next).filter(|&next| next != NIL));
            let is_idle = |index: u32| matches!(self.arena.at(index).state, BlockState::Free | BlockState::Unmapped);
            if links.clone().all(is_idle) {
                apart.extend(links.filter(|&index| self.is_apart(index)));
            }
        }
        apart
    }

    /// All free blocks of expandable segments.
    pub(crate) fn free_expandable(&self) -> Vec<u32> {
        let is_one = |block: &Block| block.state == BlockState::Free && block.is_expandable();
        self.arena.occupied().filter(|&index| is_one(self.arena.at(index))).collect()
    }

    /// Free blocks outside expandable segments whose stream differs from that of the first free block of their
    /// segment, each with that stream's slot.
    pub(crate) fn parted_by_stream(&self) -> Vec<(u32, u16)> {
        let mut parted = Vec::new();
        for head in self.arena.occupied() {
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
