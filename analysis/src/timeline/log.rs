//! Records the lifetime of every block and segment in a recorded run, as its first and last moments. The heap at any moment,
//! and what holds its memory, follow from the log.
//!
//! The trace entries contain addresses and moments. The replay under the run's own settings adds what the entries lack: the
//! sizes of blocks after rounding, and the heap before the first entry.

use std::collections::BTreeMap;

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::Family;
use parkade_recording::{Action, BlockState, DeviceRecording, Entry, Segment, StackId};
use parkade_replay::{VerifyError, VerifyOptions, watch_device};
use rustc_hash::FxHashMap;

use super::served::Served;

/// A moment after the recording's end.
pub const NEVER: u32 = u32::MAX;

/// A block, over the time it was in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLife {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Requested bytes.
    pub requested: u64,
    /// The stack that allocated it.
    pub stack: StackId,
    /// The first moment at which it was allocated.
    pub born: u32,
    /// The first moment at which the program had freed it.
    pub freed: u32,
    /// The first moment at which it was free again; later than `freed` if other streams were still using it.
    pub gone: u32,
}

/// A range of device memory, over the time it was reserved: a segment, or pages of an expandable segment that were mapped
/// together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentLife {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Handle of its stream.
    pub stream: u64,
    /// Its pool; `(0, 0)` is the default pool.
    pub pool: (u64, u64),
    /// Whether it is part of an expandable segment, which also includes neighbours on the same stream and in the same pool.
    pub expandable: bool,
    /// The first moment at which it was reserved.
    pub born: u32,
    /// The first moment at which it was no longer reserved.
    pub gone: u32,
}

/// The lifetimes of all blocks and segments, with each list in order of first moments.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeapLog {
    /// Blocks in use.
    pub blocks: Vec<BlockLife>,
    /// Reserved memory.
    pub segments: Vec<SegmentLife>,
}

/// PyTorch rounds requests up to a multiple of this many bytes (spec 1.2).
const ROUNDING: u64 = 512;

impl HeapLog {
    /// Returns the log of a trace, and the moments after those requests for which the recorded allocator released its cache
    /// and retried. `has_pools` means that the recording has private pools to distinguish.
    ///
    /// # Errors
    /// Fails if the recording cannot be replayed.
    pub(super) fn of_trace(
        recording: &DeviceRecording,
        own: &VerifyOptions,
        has_pools: bool,
    ) -> Result<(HeapLog, Vec<u32>), VerifyError> {
        let mut writer = Writer { stacks: final_stacks(recording), ..Writer::default() };
        let (mut done, mut allocated, mut retries, mut retried) = (0, 0, 0, Vec::new());
        watch_device(recording, own, &mut |moment| {
            let stats = moment.stats();
            let before = std::mem::replace(&mut allocated, stats.family(Family::AllocatedBytes).all.current);
            if stats.num_alloc_retries > retries {
                retries = stats.num_alloc_retries;
                retried.push(moment.entries as u32);
            }
            if moment.entries == 0 {
                return writer.begin(&moment.segments());
            }
            let entries = &recording.trace[done..moment.entries];
            if has_pools {
                // A trace does not contain the pools of new memory, but the replay does.
                writer.pools.extend(moment.taken().iter().map(|&(address, pool)| (address, (pool.0, pool.1))));
            }
            writer.operation(done as u32, entries, allocated.saturating_sub(before));
            done = moment.entries;
        })?;
        Ok((writer.finish(), retried))
    }

    /// Returns the log of a run that a simulation recorded.
    pub(super) fn of_served(recording: &DeviceRecording, operations: &[Served]) -> HeapLog {
        let mut writer = Writer::default();
        let (mut first, mut allocated) = (0, 0_u64);
        for operation in operations {
            let entries = recording.trace.get(first..operation.entries).unwrap_or(&[]);
            let taken = entries.iter().filter(|entry| matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap));
            writer.pools.extend(taken.filter_map(|entry| Some((entry.address, recording.pools.get(entry.pool)?))));
            let grown = i64::try_from(operation.allocated_bytes.saturating_sub(allocated)).unwrap_or(i64::MAX);
            writer.operation(first as u32, entries, grown);
            (first, allocated) = (operation.entries, operation.allocated_bytes);
        }
        writer.finish()
    }

    /// Returns the log of a file without a trace: its final segments at moment 0.
    pub(super) fn of_segments(segments: &[Segment]) -> HeapLog {
        let mut log = HeapLog::default();
        for segment in segments {
            let (address, size, stream) = (segment.address, segment.total_bytes, segment.stream);
            let (pool, expandable) = (segment.pool.unwrap_or_default(), segment.expandable);
            log.segments.push(SegmentLife { address, size, stream, pool, expandable, born: 0, gone: NEVER });
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
                let freed = if block.state == BlockState::ActivePendingFree { 0 } else { NEVER };
                let requested = block.requested.unwrap_or(block.size);
                let (address, size, stack) = (block.address, block.size, block.stack);
                log.blocks.push(BlockLife { address, size, requested, stack, born: 0, freed, gone: NEVER });
            }
        }
        log
    }
}

/// Returns the stacks of the blocks in use at the end. For blocks from before the first entry, the file has no other stacks.
fn final_stacks(recording: &DeviceRecording) -> FxHashMap<u64, StackId> {
    let blocks = recording.segments.iter().flat_map(|segment| &segment.blocks);
    blocks.filter(|block| block.state != BlockState::Inactive).map(|block| (block.address, block.stack)).collect()
}

/// A log being written.
#[derive(Default)]
struct Writer {
    log: HeapLog,
    /// Blocks in use, as a map from address to index in the log.
    live: FxHashMap<u64, usize>,
    /// Reserved memory, as a map from address to index in the log.
    mapped: BTreeMap<u64, usize>,
    /// Pools of the segments about to be reserved, by address.
    pools: FxHashMap<u64, (u64, u64)>,
    stacks: FxHashMap<u64, StackId>,
}

impl Writer {
    /// Adds the heap before the first entry.
    fn begin(&mut self, segments: &[SegmentInfo]) {
        for segment in segments {
            let (address, stream) = (segment.address.get(), segment.stream.get());
            let pool = (segment.pool.0, segment.pool.1);
            self.map(SegmentLife {
                address,
                size: segment.total.get(),
                stream,
                pool,
                expandable: segment.expandable,
                born: 0,
                gone: NEVER,
            });
            for block in segment.blocks.iter().filter(|block| block.state != BlockActivity::Inactive) {
                let freed = if block.state == BlockActivity::PendingFree { 0 } else { NEVER };
                let (address, size, requested) = (block.address.get(), block.size.get(), block.requested.get());
                let block = BlockLife { address, size, requested, stack: StackId::NONE, born: 0, freed, gone: NEVER };
                self.hand_out(block);
            }
        }
    }

    /// Adds the entries of one operation. The first of them is entry `first`; `grown_bytes` is the operation's change of allocated
    /// bytes.
    fn operation(&mut self, first: u32, entries: &[Entry], grown_bytes: i64) {
        let count = |action| entries.iter().filter(|entry| entry.action == action).count();
        let is_one_request = count(Action::Alloc) == 1 && count(Action::FreeRequested) == 0;
        for (moment, entry) in (first + 1..).zip(entries) {
            match entry.action {
                Action::Alloc => {
                    let grown = u64::try_from(grown_bytes).ok().filter(|&grown| is_one_request && grown >= entry.size);
                    let rounded = || entry.size.max(1).checked_next_multiple_of(ROUNDING).unwrap_or(entry.size);
                    let (address, requested, stack) = (entry.address, entry.size, entry.stack);
                    let size = grown.unwrap_or_else(rounded);
                    self.hand_out(BlockLife { address, size, requested, stack, born: moment, freed: NEVER, gone: NEVER });
                }
                Action::FreeRequested => {
                    if let Some(&place) = self.live.get(&entry.address) {
                        self.log.blocks[place].freed = moment;
                    }
                }
                Action::FreeCompleted => {
                    if let Some(place) = self.live.remove(&entry.address) {
                        let block = &mut self.log.blocks[place];
                        block.gone = moment;
                        block.freed = block.freed.min(moment);
                    }
                }
                Action::SegmentAlloc | Action::SegmentMap => {
                    let (address, size, stream) = (entry.address, entry.size, entry.stream);
                    let pool = self.pools.remove(&address).unwrap_or_default();
                    let expandable = entry.action == Action::SegmentMap;
                    self.map(SegmentLife { address, size, stream, pool, expandable, born: moment, gone: NEVER });
                }
                Action::SegmentFree | Action::SegmentUnmap => self.unmap(entry.address, entry.size, moment),
                Action::Oom | Action::Snapshot => {}
            }
        }
    }

    fn hand_out(&mut self, block: BlockLife) {
        self.live.insert(block.address, self.log.blocks.len());
        self.log.blocks.push(block);
    }

    fn map(&mut self, segment: SegmentLife) {
        self.mapped.insert(segment.address, self.log.segments.len());
        self.log.segments.push(segment);
    }

    /// Releases memory. Pages may be unmapped in different pieces from those in which they were mapped; the rest of a piece
    /// continues as a new piece.
    fn unmap(&mut self, address: u64, size: u64, moment: u32) {
        let end = address.saturating_add(size);
        let end_of = |segment: &SegmentLife| segment.address.saturating_add(segment.size);
        let first = self.mapped.range(..=address).next_back().map_or(address, |(&first, _)| first);
        let places: Vec<(u64, usize)> = self.mapped.range(first..end.max(first)).map(|(&at, &place)| (at, place)).collect();
        for (at, place) in places {
            let piece = self.log.segments[place];
            if end_of(&piece) <= address {
                continue;
            }
            self.log.segments[place].gone = moment;
            self.mapped.remove(&at);
            if at < address {
                self.map(SegmentLife { size: address - at, born: moment, ..piece });
            }
            if end_of(&piece) > end {
                self.map(SegmentLife { address: end, size: end_of(&piece) - end, born: moment, ..piece });
            }
        }
    }

    /// Completes the log. Blocks in use from before the first entry until the end get their stacks from the final segments.
    fn finish(mut self) -> HeapLog {
        for block in self.log.blocks.iter_mut().take_while(|block| block.born == 0) {
            if block.gone == NEVER {
                block.stack = self.stacks.get(&block.address).copied().unwrap_or(StackId::NONE);
            }
        }
        self.log
    }
}

/// A segment at a given moment; for an expandable segment, a mapped run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentNow {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Handle of its stream.
    pub stream: u64,
    /// Its pool; `(0, 0)` is the default pool.
    pub pool: (u64, u64),
    /// Whether it is a run of an expandable segment.
    pub expandable: bool,
    /// Its blocks in use, by address; everything between them is free.
    pub blocks: Vec<BlockNow>,
}

/// A block that is in use at a given moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockNow {
    /// Its index in [`HeapLog::blocks`].
    pub place: usize,
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Whether the program has freed it while other streams still use it.
    pub is_pending: bool,
}

impl HeapLog {
    /// Returns the heap at a given moment: its segments with their blocks in use, by address.
    #[must_use]
    pub fn at(&self, moment: u32) -> Vec<SegmentNow> {
        let mut pieces: Vec<&SegmentLife> = self.segments.iter().filter(|s| s.born <= moment && moment < s.gone).collect();
        pieces.sort_unstable_by_key(|piece| piece.address);
        let mut segments: Vec<SegmentNow> = Vec::new();
        for piece in pieces {
            match segments.last_mut() {
                Some(last) if continues(last, piece) => last.size = last.size.saturating_add(piece.size),
                _ => segments.push(SegmentNow {
                    address: piece.address,
                    size: piece.size,
                    stream: piece.stream,
                    pool: piece.pool,
                    expandable: piece.expandable,
                    blocks: Vec::new(),
                }),
            }
        }
        let blocks = self.blocks.iter().enumerate().filter(|(_, block)| block.born <= moment && moment < block.gone);
        for (place, block) in blocks {
            let behind = segments.partition_point(|segment| segment.address <= block.address);
            // Every block lies in a segment: the replay refuses a trace that contradicts itself.
            if let Some(segment) = behind.checked_sub(1).and_then(|place| segments.get_mut(place)) {
                let (address, size, is_pending) = (block.address, block.size, block.freed <= moment);
                segment.blocks.push(BlockNow { place, address, size, is_pending });
            }
        }
        for segment in &mut segments {
            segment.blocks.sort_unstable_by_key(|block| block.address);
        }
        segments
    }
}

fn continues(last: &SegmentNow, piece: &SegmentLife) -> bool {
    let is_next = last.address.checked_add(last.size) == Some(piece.address);
    last.expandable && piece.expandable && is_next && (last.stream, last.pool) == (piece.stream, piece.pool)
}

/// The common property of a group of blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HolderKey {
    /// The stack that allocated them.
    Stack(StackId),
    /// The size of each block, in bytes.
    Size(u64),
}

/// A group of live blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The common property of these blocks.
    pub key: HolderKey,
    /// Their bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// Returns the groups that hold the live blocks at a given moment, the largest first. They are grouped by stack if any
/// block of the run has one, and by size if none has.
#[must_use]
pub fn holders(log: &HeapLog, moment: u32) -> Vec<Holder> {
    let has_stacks = log.blocks.iter().any(|block| block.stack != StackId::NONE);
    let mut sums: BTreeMap<HolderKey, (u64, u64)> = BTreeMap::new();
    for block in log.blocks.iter().filter(|block| block.born <= moment && moment < block.freed) {
        let key = if has_stacks { HolderKey::Stack(block.stack) } else { HolderKey::Size(block.size) };
        let (bytes, blocks) = sums.entry(key).or_default();
        *bytes = bytes.saturating_add(block.size);
        *blocks += 1;
    }
    let mut holders: Vec<Holder> = sums.into_iter().map(|(key, (bytes, blocks))| Holder { key, bytes, blocks }).collect();
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.key));
    holders
}
