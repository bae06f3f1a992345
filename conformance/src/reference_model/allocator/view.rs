//! The state that callers see: segments, reserved ranges and sums. Also the comparison with what the tested allocator
//! shows (spec 5.7, 7.1, 7.3).

use parkade::CheckpointError;
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::stats::Stats;
use parkade::trace::TraceAction;
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};

use super::{Block, FreeBlock, Reference, Segment, State};

impl Reference {
    /// Returns all segments by address; for expandable ones, every mapped run.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let mut found = Vec::new();
        for segment in &self.segments {
            let runs = segment.blocks.split(|block| block.state == State::Unmapped);
            found.extend(runs.filter(|run| !run.is_empty()).map(|run| describe(segment, run)));
        }
        found.sort_by_key(|segment| segment.address);
        found
    }

    /// Returns the same as a snapshot, for one pool or for all pools.
    pub fn snapshot(&mut self, pool: Option<PoolId>) -> Vec<SegmentInfo> {
        let mut segments = self.segments();
        segments.retain(|segment| pool.is_none_or(|pool| segment.pool == pool));
        let active = segments.iter().map(|segment| segment.active.get()).sum();
        self.tell(TraceAction::Snapshot, 0, active, 0, pool.unwrap_or(PoolId::DEFAULT));
        segments
    }

    /// Returns the reserved ranges in the order in which they were made: stream, page and mapped
    /// bytes.
    pub fn ranges(&self) -> Vec<(StreamId, Bytes, Bytes)> {
        let mut ranges: Vec<&Segment> = self.segments.iter().filter(|segment| segment.is_expandable()).collect();
        ranges.sort_by_key(|segment| segment.number);
        ranges.iter().map(|range| (StreamId(range.stream), Bytes(range.page), Bytes(range.mapped()))).collect()
    }

    /// Returns the first byte and the size of the segment (or of the reserved range) that holds an allocation.
    pub fn segment_of(&self, address: u64) -> (DeviceAddress, Bytes) {
        let segment = self.segment_at(address);
        (DeviceAddress(segment.base), Bytes(segment.size))
    }

    /// Returns the pool that an allocation belongs to.
    pub fn pool_of(&self, address: u64) -> PoolId {
        self.segment_at(address).pool
    }

    /// Returns whether a private pool's allocated blocks are exactly these.
    pub fn live_are(&self, pool: PoolId, expected: &[u64]) -> Result<bool, CheckpointError> {
        if !self.has_pool(pool) {
            return Err(CheckpointError::UnknownPool(pool));
        }
        let own = self.segments.iter().filter(|segment| segment.pool == pool).flat_map(|segment| &segment.blocks);
        let mut live: Vec<u64> = own.filter(|block| block.state == State::Allocated).map(|block| block.address).collect();
        let mut expected = expected.to_vec();
        live.sort_unstable();
        expected.sort_unstable();
        Ok(live == expected)
    }

    /// Returns the free blocks of a pool's collection, in order.
    pub fn free_in_order(&self, pool: PoolId, class: PoolClass) -> Vec<FreeBlock> {
        self.free_blocks(pool, class)
    }

    /// Returns the number of bytes that garbage collection would release now (spec 2.7); `None` if it is off or nothing
    /// is due.
    pub fn collection_target(&self) -> Option<Bytes> {
        let threshold = self.settings.garbage_collection_threshold;
        let limit = self.limit.filter(|_| threshold > 0.0)?;
        let (kept, reserved) = ((threshold * limit as f64) as u64, self.reserved());
        (reserved > kept).then(|| Bytes(reserved - kept))
    }

    /// Returns the bytes that the default pool has taken from the device.
    pub fn reserved_by_default(&self) -> u64 {
        self.reserved_by(PoolId::DEFAULT)
    }

    /// Returns the bytes taken from the device.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved()
    }

    /// Returns the size of the largest free block.
    pub fn largest_free(&self) -> u64 {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == State::Free).map(|block| block.size).max().unwrap_or(0)
    }

    /// Sets every peak to its current value.
    pub fn reset_peaks(&mut self) {
        self.accounts.reset_peaks();
    }

    /// Sets every sum to 0.
    pub fn reset_sums(&mut self) {
        self.accounts.reset_sums();
    }

    /// Returns the first statistic that differs.
    pub fn difference_from(&self, stats: &Stats) -> Option<String> {
        self.accounts.difference(stats)
    }
}

fn describe(segment: &Segment, run: &[Block]) -> SegmentInfo {
    let info = |block: &Block| BlockInfo {
        address: DeviceAddress(block.address),
        size: Bytes(block.size),
        requested: Bytes(block.requested),
        state: match block.state {
            State::Allocated => BlockActivity::Allocated,
            State::Pending => BlockActivity::PendingFree,
            State::Free | State::Unmapped | State::Taken => BlockActivity::Inactive,
        },
    };
    let mut sums = [0; 4];
    for block in run {
        let is_active = matches!(block.state, State::Allocated | State::Pending);
        sums[0] += block.size;
        sums[1] += if block.state == State::Allocated { block.size } else { 0 };
        sums[2] += if is_active { block.size } else { 0 };
        sums[3] += if is_active { block.requested } else { 0 };
    }
    let [total, allocated, active, requested] = sums.map(Bytes);
    SegmentInfo {
        address: DeviceAddress(run[0].address),
        total,
        allocated,
        active,
        requested,
        stream: StreamId(segment.stream),
        pool: segment.pool,
        class: segment.class,
        rank: run[0].rank as u32,
        expandable: segment.is_expandable(),
        blocks: run.iter().map(info).collect(),
    }
}
