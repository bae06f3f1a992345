//! Restored checkpoints of private pools, as trees of CUDA graphs make them (spec 5.8).
//!
//! No entry names a restore. It takes back what the pool has in use, which looks like other frees. Then it hands
//! out the blocks of one saved segment after the other, from its first byte on, the free ones too, and gives
//! these back. So a run of entries that has this form, at a point where nothing of the pool is in use, spells out
//! a checkpoint. If requests do not explain the run, and the pool can have been in that state before, the core
//! restores that checkpoint, and its decisions are compared as any others.
//!
//! Requests explain most runs of that form, so these are looked for only once a replay without them has differed, and
//! only where they end behind its first difference.

use std::collections::BTreeMap;

use parkade::PoolCheckpoint;
use parkade::checkpoint::{SavedBlock, SavedSegment, SavedState};
use parkade::snapshot::{BlockActivity, PlacedBlock};
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade::{Allocation, PoolSlot};
use parkade_recording::{Action, Entry};
use rustc_hash::{FxHashMap, FxHashSet};

use super::runner::Runner;
use crate::entries::takes_memory;
use crate::initial_state::Start as InitialState;

/// Every block's size is a multiple of this (spec 1.1).
const SMALLEST_BLOCK: u64 = 512;

/// A segment of a pool that is free from its first byte on.
#[derive(Clone, Copy)]
struct Start {
    free_bytes: u64,
    stream: StreamId,
    is_expandable: bool,
}

/// What tells whether a pool can have been in a state.
pub(crate) struct Restores {
    /// Runs that end up to this entry are requests.
    from: usize,
    history: Option<History>,
}

/// All that there was before, if the recording has its beginning.
struct History {
    /// The blocks that were ever handed out, by address and size.
    handed_out: FxHashSet<(u64, u64)>,
    /// Where segments began, each with the entry that made it, in order.
    made: Vec<(u64, usize)>,
}

impl Restores {
    pub(crate) fn of(trace: &[Entry], start: &InitialState) -> Option<Restores> {
        let from = start.restores_from?;
        let made = || {
            let entries = trace.iter().zip(0..).filter(|(entry, _)| takes_memory(entry));
            let mut made: Vec<(u64, usize)> = entries.map(|(entry, at)| (entry.address, at)).collect();
            made.sort_unstable();
            made
        };
        let history = start.lost.is_none().then(|| History { handed_out: FxHashSet::default(), made: made() });
        Some(Restores { from, history })
    }

    /// Notes a block that was handed out.
    pub(crate) fn note(&mut self, placed: Option<PlacedBlock>) {
        if let (Some(history), Some(placed)) = (&mut self.history, placed) {
            history.handed_out.insert((placed.block.address.get(), placed.block.size.get()));
        }
    }
}

impl History {
    /// Whether a pool can have been in this state before the entry `at`, where it has these other segments, too: its blocks in use
    /// were handed out, and a checkpoint has all segments of its time, so the others are newer.
    fn allows(&self, checkpoint: &PoolCheckpoint, others: impl Iterator<Item = u64>, at: usize) -> bool {
        let saved = || checkpoint.segments.iter().map(|segment| segment.address.get());
        let newest = saved().filter_map(|address| self.made_at(address, at)).max();
        let oldest = others.filter_map(|address| self.made_at(address, at)).min();
        let was_in_use = |segment: &SavedSegment| {
            let mut end = segment.address.get();
            segment.blocks.iter().all(|block| {
                end += block.size.get();
                block.state != SavedState::Allocated || self.handed_out.contains(&(end - block.size.get(), block.size.get()))
            })
        };
        newest.zip(oldest).is_none_or(|(newest, oldest)| newest < oldest) && checkpoint.segments.iter().all(was_in_use)
    }

    /// The entry that made the segment there, before the entry `at`.
    fn made_at(&self, address: u64, at: usize) -> Option<usize> {
        let end = self.made.partition_point(|&made| made < (address, at));
        self.made[..end].last().filter(|made| made.0 == address).map(|made| made.1)
    }
}

impl Runner<'_> {
    /// Reads the entries from `at` on as a restored checkpoint, if they have its form and requests do not explain
    /// them. Returns false, with nothing changed, if they are not to be read in this way.
    pub(crate) fn try_restore(&mut self, at: usize) -> bool {
        let Some((checkpoint, end)) = self.checkpoint_at(at).filter(|&(_, end)| self.is_looked_for(end)) else { return false };
        let (core, tally) = self.copy();
        let mut agrees = self.explain_as_requests(end);
        if !agrees {
            self.core = core.clone();
            self.tally.return_to(&tally);
            self.position.next.set(at);
            self.position.refusals.set(0);
            agrees = self.was_possible(&checkpoint, at) && self.restore(&checkpoint, end);
        }
        if agrees {
            self.tally.decisions += (end - at) as u64;
        } else {
            self.core = core;
            self.tally.return_to(&tally);
            self.position.next.set(at);
        }
        agrees
    }

    /// Whether a restore that ends here is looked for.
    fn is_looked_for(&self, end: usize) -> bool {
        self.restores.as_ref().is_some_and(|restores| end > restores.from)
    }

    /// Whether the pool can have been in this state before.
    fn was_possible(&self, checkpoint: &PoolCheckpoint, at: usize) -> bool {
        let Some(history) = self.restores.as_ref().and_then(|restores| restores.history.as_ref()) else { return true };
        let saved: FxHashSet<u64> = checkpoint.segments.iter().map(|segment| segment.address.get()).collect();
        let segments = self.core.segments().into_iter().filter(|segment| segment.pool == checkpoint.pool);
        let others = segments.map(|segment| segment.address.get()).filter(|address| !saved.contains(address));
        history.allows(checkpoint, others, at)
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
