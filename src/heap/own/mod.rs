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
        self.own.mixes_streams
    }

    /// Moves a detached block to another stream.
    pub(crate) fn change_stream(&mut self, index: u32, stream: u16) {
        let block = self.arena.at_mut(index);
        self.own.mixes_streams |= block.stream != stream;
        block.stream = stream;
    }

    /// A stream's free blocks outside expandable segments.
    pub(crate) fn movable_blocks(&self, pool: PoolSlot, stream: u16) -> Vec<u32> {
        let blocks = self.free[usize::from(pool.0)].at_least(&self.arena, stream, 0);
        blocks.filter(|&index| !self.arena.at(index).is_expandable()).collect()
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
