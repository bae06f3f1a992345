//! Which blocks and segments a recorded run had, each from which moment to which.
//!
//! The entries say where blocks and segments were and when; how large a block was beyond what was asked for, and what was there before
//! the first entry, says the replay under the run's own settings.

use std::collections::BTreeMap;

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::Family;
use rustc_hash::FxHashMap;

use parkade_recording::{Action, BlockState, DeviceRecording, Entry, Segment, StackId};
use parkade_replay::{Moment, VerifyError, VerifyOptions, watch_device};

/// The moment of what did not happen before the recording's end.
pub const NEVER: u32 = u32::MAX;

/// A block, while it was in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLife {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// Where in the program it was asked for.
    pub stack: StackId,
    /// The first moment at which it was handed out.
    pub born: u32,
    /// The first moment at which its owner had given it back.
    pub freed: u32,
    /// The first moment at which it was free again; later than `freed` where other streams were still using it.
    pub gone: u32,
}

/// Memory of the device, while the allocator had it: a segment, or pages of an expandable one that were mapped at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentLife {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Handle of its stream.
    pub stream: u64,
    /// The private pool that it belonged to; `(0, 0)` is the default pool.
    pub pool: (u64, u64),
    /// Whether neighbours of the same stream and pool are one expandable segment with it.
    pub expandable: bool,
    /// The first moment at which it was there.
    pub born: u32,
    /// The first moment at which it was not there any more.
    pub gone: u32,
}

/// All of them, in the order of their births.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeapLog {
    /// Blocks in use.
    pub blocks: Vec<BlockLife>,
    /// Memory of the device.
    pub segments: Vec<SegmentLife>,
}

/// What PyTorch rounds a request up to where nothing else is known, in bytes (spec 2.2).
const ROUNDING: u64 = 512;

impl HeapLog {
    /// The log of a trace, and the moments after the requests in which the recorded allocator tried again after giving back what
    /// it had cached. `has_pools` says that there are private pools to tell apart.
    ///
    /// # Errors
    /// As for verifying the recording.
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
            writer.look_up_pools(entries, moment, has_pools);
            writer.operation(done as u32, entries, allocated.saturating_sub(before));
            done = moment.entries;
        })?;
        Ok((writer.finish(), retried))
    }

    /// The log of a file that has only segments.
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

/// Stacks of blocks that are in use at the end. The trace has no others for what was there before its first entry.
fn final_stacks(recording: &DeviceRecording) -> FxHashMap<u64, StackId> {
    let blocks = recording.segments.iter().flat_map(|segment| &segment.blocks);
    blocks.filter(|block| block.state != BlockState::Inactive).map(|block| (block.address, block.stack)).collect()
}

/// A log under way.
#[derive(Default)]
struct Writer {
    log: HeapLog,
    /// Blocks in use, by address: places in the log.
    live: FxHashMap<u64, usize>,
    /// Memory that is there, by address: places in the log.
    mapped: BTreeMap<u64, usize>,
    /// Pools of the segments that are about to come, by address.
    pools: FxHashMap<u64, (u64, u64)>,
    stacks: FxHashMap<u64, StackId>,
}

impl Writer {
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

    /// Which pools new memory belongs to: a trace does not say, the replayed heap does.
    fn look_up_pools(&mut self, entries: &[Entry], moment: &Moment<'_>, has_pools: bool) {
        let takes = |entry: &Entry| matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap);
        if !has_pools || !entries.iter().any(takes) {
            return;
        }
        let segments = moment.segments();
        for entry in entries.iter().filter(|entry| takes(entry)) {
            let behind = segments.partition_point(|segment| segment.address.get() <= entry.address);
            if let Some(segment) = behind.checked_sub(1).and_then(|place| segments.get(place)) {
                self.pools.insert(entry.address, (segment.pool.0, segment.pool.1));
            }
        }
    }

    /// The entries of one operation, the first of which is number `first`; it changed the bytes handed out by `grown_bytes`.
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

    /// Memory goes back. Pages go back in other pieces than they came: what is left of a piece lives on as a new one.
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

    /// What was in use from the beginning to the end has its stack in the final segments.
    fn finish(mut self) -> HeapLog {
        for block in self.log.blocks.iter_mut().take_while(|block| block.born == 0) {
            if block.gone == NEVER {
                block.stack = self.stacks.get(&block.address).copied().unwrap_or(StackId::NONE);
            }
        }
        self.log
    }
}
