//! What the heap keeps for the mechanisms that PyTorch does not have (`allocator/own`): handles, blocks on other streams
//! than their segment, and parts of segments in other pools.

pub(super) mod handles;
mod lending;
mod untouched;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::block::{Block, BlockState, NIL};
use crate::heap::{Heap, PoolSlot};
use crate::units::Bytes;
use untouched::Untouched;

/// The number of times that a policy may wait before requests are routed to private pools. The count is reset whenever
/// a pool has no free block for a request, so a program that only reuses its pools stops waiting
/// ([`Policy::waits_for_pools`](crate::policy::Policy::waits_for_pools)).
const MOST_WAITS: u32 = 16;

/// The state of these mechanisms. Under PyTorch's rules, it never changes.
#[derive(Clone, Debug)]
pub(super) struct OwnState {
    /// Whether blocks of one segment may belong to different streams.
    pub(super) mixes_streams: bool,
    /// Whether any part of an expandable segment has ever served another pool.
    has_parts_elsewhere: bool,
    /// How many more times the policy may wait before requests are routed to private pools.
    waits_left: u32,
    /// The handles that were mapped as a whole: first byte and bytes.
    handles: BTreeMap<u64, u64>,
    /// The memory that private pools have never handed out.
    pub(super) untouched: Untouched,
    /// The page size to which all expandable segments were refined.
    refined_page: Option<Bytes>,
}

impl Default for OwnState {
    fn default() -> OwnState {
        OwnState {
            mixes_streams: false,
            has_parts_elsewhere: false,
            waits_left: MOST_WAITS,
            handles: BTreeMap::new(),
            untouched: Untouched::default(),
            refined_page: None,
        }
    }
}

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
        self.arena.live().filter(|&index| is_one(self.arena.at(index))).collect()
    }

    /// Free blocks outside expandable segments whose stream differs from that of the first free block of their
    /// segment, each with that stream's slot.
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
