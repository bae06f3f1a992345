//! The private pools that a recording names, by the segments that belong to them.

use std::collections::{BTreeMap, BTreeSet};

use parkade::AdoptedSegment;
use parkade::units::PoolId;
use parkade_recording::Segment;
use rustc_hash::FxHashMap;

/// What the backward walk found out about pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordedPools {
    /// The private pools of segments that the trace makes, by entry.
    pub(crate) made: FxHashMap<u32, PoolId>,
    /// The private pools of segments that exist before the first entry: first byte, end, pool.
    pub(super) before: Vec<(u64, u64, PoolId)>,
    /// Streams and pools of expandable segments, by the first address that the recording lists of each run.
    pub(super) runs: BTreeMap<u64, (u64, PoolId)>,
    /// Where ranges of expandable memory end, if their pools were worked out: entry, and the range's first address.
    pub(super) range_ends: FxHashMap<u32, u64>,
}

impl RecordedPools {
    pub(crate) fn new(recorded: &[Segment], before: Vec<(u64, u64, PoolId)>, made: FxHashMap<u32, PoolId>) -> RecordedPools {
        let expandable = recorded.iter().filter(|segment| segment.expandable);
        let runs = expandable.map(|segment| (segment.address, (segment.stream, pool_of(segment)))).collect();
        RecordedPools { made, before, runs, range_ends: FxHashMap::default() }
    }

    /// Takes pools that were worked out for those of the map.
    pub(crate) fn assume(&mut self, early: &[AdoptedSegment], assumption: &AssumedPools) {
        self.made.clone_from(&assumption.made);
        self.range_ends.clone_from(&assumption.range_ends);
        let length = |segment: &AdoptedSegment| segment.blocks.iter().map(|block| block.size.get()).sum::<u64>();
        let whole = early.iter().filter(|segment| segment.page.is_none() && segment.pool != PoolId::DEFAULT);
        self.before = whole.map(|s| (s.address.get(), s.address.get() + length(s), s.pool)).collect();
        let ranges = early.iter().filter(|segment| segment.page.is_some());
        self.runs = ranges.map(|segment| (segment.address.get(), (segment.stream.get(), segment.pool))).collect();
    }

    /// All private pools.
    pub(crate) fn private(&self) -> BTreeSet<PoolId> {
        let mut all: BTreeSet<PoolId> = self.before.iter().map(|&(_, _, pool)| pool).collect();
        all.extend(self.runs.values().map(|&(_, pool)| pool));
        all.extend(self.made.values().copied());
        all.remove(&PoolId::DEFAULT);
        all
    }
}

/// What to take for granted about the pools of a recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct AssumedPools {
    /// The private pools of the segments that the trace makes, by entry; of ranges, by the entry that maps their first page.
    pub(crate) made: FxHashMap<u32, PoolId>,
    /// The pools of what was there before the first entry, by address.
    pub(crate) before: FxHashMap<u64, PoolId>,
    /// Where ranges end: the entry that unmaps their last page, and the range's first address.
    pub(crate) range_ends: FxHashMap<u32, u64>,
}

/// The pool that a recording names for a segment.
pub(crate) fn pool_of(segment: &Segment) -> PoolId {
    segment.pool.map_or(PoolId::DEFAULT, |(first, second)| PoolId(first, second))
}
