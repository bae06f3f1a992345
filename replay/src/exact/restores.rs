//! Restored checkpoints of private pools, as trees of CUDA graphs make them (spec 5.8).
//!
//! No entry names a restore. It takes back what the pool has in use, which looks like other frees. Then it hands
//! out the blocks of one saved segment after the other, from its first byte on, the free ones too, and gives
//! these back. So a run of entries that has this form, at a point where nothing of the pool is in use, spells out
//! a checkpoint. If requests do not explain the run, the core restores that checkpoint, and its decisions are
//! compared as any others.

use std::collections::BTreeMap;

use parkade::PoolCheckpoint;
use parkade::checkpoint::{SavedBlock, SavedSegment, SavedState};
use parkade::snapshot::BlockActivity;
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade::{Allocation, PoolSlot};
use parkade_recording::{Action, Entry};
use rustc_hash::FxHashMap;

use super::runner::Runner;

/// Every block's size is a multiple of this (spec 1.1).
const SMALLEST_BLOCK: u64 = 512;

/// A segment of a pool that is free from its first byte on.
#[derive(Clone, Copy)]
struct Start {
    free_bytes: u64,
    stream: StreamId,
    is_expandable: bool,
}

impl Runner<'_> {
    /// Reads the entries from `at` on as a restored checkpoint, if they have its form and requests do not explain
    /// them. Returns false, with nothing changed, if they are not to be read in this way.
    pub(crate) fn try_restore(&mut self, at: usize) -> bool {
        let Some((checkpoint, end)) = self.checkpoint_at(at) else { return false };
        let (core, tally) = self.copy();
        let mut agrees = self.explain_as_requests(end);
        if !agrees {
            (self.core, self.tally) = (core.clone(), tally.clone());
            self.position.next.set(at);
            self.position.refusals.set(0);
            agrees = self.restore(&checkpoint, end);
        }
        if agrees {
            self.tally.decisions += (end - at) as u64;
        } else {
            (self.core, self.tally) = (core, tally);
            self.position.next.set(at);
        }
        agrees
    }

    fn restore(&mut self, checkpoint: &PoolCheckpoint, end: usize) -> bool {
        self.open(end, self.at());
        let Ok(restored) = self.core.restore_pool(checkpoint) else { return false };
        self.tally.restores += 1;
        let agrees = self.is_at(end);
        if agrees {
            self.live.extend(restored.allocations.into_iter().map(|allocation| (allocation.address().get(), allocation)));
        }
        agrees
    }

    /// Repeats the entries before `end` as requests and frees, as far as they agree.
    fn explain_as_requests(&mut self, end: usize) -> bool {
        let mut held: FxHashMap<u64, Allocation> = FxHashMap::default();
        while self.at() < end {
            let (at, entry) = (self.at(), &self.trace[self.at()]);
            let next = if entry.action == Action::Alloc { at + 1 } else { at + 2 };
            self.open(next, at);
            if entry.action == Action::Alloc {
                let Some(allocation) = self.request(at, at) else { return false };
                held.insert(entry.address, allocation);
            } else if let Some(allocation) = held.remove(&entry.address) {
                // Cannot fail: the recorded device refuses no event, and the allocation is this core's.
                let _ = self.core.free(allocation);
            }
            if !self.is_at(next) {
                return false;
            }
        }
        self.live.extend(held);
        true
    }

    fn is_at(&self, entry: usize) -> bool {
        self.at() == entry && self.core.observer().stray.is_none()
    }

    /// The checkpoint that the entries from `at` on spell out, and where they end.
    fn checkpoint_at(&self, at: usize) -> Option<(PoolCheckpoint, usize)> {
        let (first, next) = (self.trace.get(at)?, self.trace.get(at + 1)?);
        if next.action != Action::Alloc && !is_free_of(next, first.address) {
            return None;
        }
        let pool = self.pools.of_request(at, &self.trace[at..=at]);
        if pool == PoolId::DEFAULT || !self.begins_segment(first.address) {
            return None;
        }
        let mut starts = self.starts_of(pool)?;
        let (mut segments, mut end) = (Vec::new(), at);
        while let Some((segment, after)) = self.saved_segment_at(end, &mut starts) {
            segments.push(segment);
            end = after;
        }
        (end > at).then_some((PoolCheckpoint { pool, segments }, end))
    }

    /// Whether a free block of a private pool begins here that may be a whole segment.
    fn begins_segment(&self, address: u64) -> bool {
        let heap = self.core.heap();
        let is_default = |slot: PoolSlot| slot == PoolSlot::default_pool(slot.class());
        let mut free = heap.pool_slots().filter(|&slot| !is_default(slot)).flat_map(|slot| heap.free_blocks(slot));
        free.any(|block| block.address.get() == address && (block.is_expandable || !block.is_split))
    }

    /// Where the pool's segments begin; `None` if anything of it is in use.
    fn starts_of(&self, pool: PoolId) -> Option<BTreeMap<u64, Start>> {
        let mut starts = BTreeMap::new();
        for segment in self.core.segments().into_iter().filter(|segment| segment.pool == pool) {
            if segment.allocated != Bytes::ZERO {
                return None;
            }
            let first = segment.blocks.first().filter(|block| block.state == BlockActivity::Inactive);
            if let Some(first) = first.filter(|first| segment.expandable || first.size == segment.total) {
                let (stream, is_expandable) = (segment.stream, segment.expandable);
                starts.insert(segment.address.get(), Start { free_bytes: first.size.get(), stream, is_expandable });
            }
        }
        Some(starts)
    }

    /// The saved segment that the entries from `at` on spell out, and where they end: blocks without gaps from the
    /// first byte of one of these segments on, then frees of some of them in the same order.
    fn saved_segment_at(&self, at: usize, starts: &mut BTreeMap<u64, Start>) -> Option<(SavedSegment, usize)> {
        let address = self.trace.get(at)?.address;
        let Start { free_bytes, stream, is_expandable } = *starts.get(&address)?;
        let (mut blocks, mut rest, mut end) = (Vec::new(), free_bytes, at);
        while let Some(entry) = self.trace.get(end).filter(|entry| {
            let is_next = entry.action == Action::Alloc && entry.address == address + (free_bytes - rest);
            is_next && entry.stream == stream.get() && (SMALLEST_BLOCK..=rest).contains(&entry.size)
        }) {
            if !entry.size.is_multiple_of(SMALLEST_BLOCK) {
                return None;
            }
            blocks.push((entry.address, SavedBlock { size: Bytes(entry.size), state: SavedState::Allocated }));
            rest -= entry.size;
            end += 1;
        }
        // An expandable segment may have grown since it was saved.
        if blocks.is_empty() || (rest > 0 && !is_expandable) {
            return None;
        }
        for (address, block) in &mut blocks {
            let is_freed = self.trace.get(end).is_some_and(|entry| is_free_of(entry, *address));
            if is_freed && !self.deferred.contains_key(&(end as u32)) {
                block.state = SavedState::Free;
                end += 2;
            }
        }
        let unmapped = is_expandable.then_some(SavedBlock { size: Bytes(SMALLEST_BLOCK), state: SavedState::Unmapped });
        let blocks = blocks.into_iter().map(|(_, block)| block).chain(unmapped).collect();
        starts.remove(&address);
        Some((SavedSegment { address: DeviceAddress(address), stream, blocks }, end))
    }
}

fn is_free_of(entry: &Entry, address: u64) -> bool {
    entry.action == Action::FreeRequested && entry.address == address
}
