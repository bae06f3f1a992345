//! The private pools that a recording names, and which segments are theirs.

use std::collections::{BTreeMap, BTreeSet};

use parkade::AdoptedSegment;
use parkade::units::PoolId;
use parkade_recording::Segment;
use rustc_hash::FxHashMap;

/// The pools of segments, as far as the recording names them or they were guessed.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordedPools {
    /// The private pools of segments that are allocated within the trace, by entry.
    pub(crate) made: FxHashMap<u32, PoolId>,
    /// The private pools of segments from before the first entry: address, end, pool.
    pub(super) before: Vec<(u64, u64, PoolId)>,
    /// Streams and pools of expandable segments, by the lowest address of each run in the recording.
    pub(super) runs: BTreeMap<u64, (u64, PoolId)>,
    /// Where guessed expandable segments end: the lowest address of each, by the entry that unmaps its last page.
    pub(super) range_ends: FxHashMap<u32, u64>,
    /// The pools in which requests failed, by entry, where the recording says so.
    pub(super) failed: FxHashMap<u32, PoolId>,
}

impl RecordedPools {
    /// The pools of the recorded segments at the end, of private segments from before the first entry (address,
    /// end, pool), and of private segments that the trace allocates, by entry.
    pub(crate) fn new(recorded: &[Segment], before: Vec<(u64, u64, PoolId)>, made: FxHashMap<u32, PoolId>) -> RecordedPools {
        let expandable = recorded.iter().filter(|segment| segment.expandable);
        let runs = expandable.map(|segment| (segment.address, (segment.stream, pool_of(segment)))).collect();
        RecordedPools { made, before, runs, range_ends: FxHashMap::default(), failed: FxHashMap::default() }
    }

    /// Replaces the pools by assumed ones. `early` are the segments before the first entry, with their assumed pools.
    pub(crate) fn assume(&mut self, early: &[AdoptedSegment], assumption: &AssumedPools) {
        self.made.clone_from(&assumption.made);
        self.range_ends.clone_from(&assumption.range_ends);
        self.failed.clone_from(&assumption.failed);
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

/// The pools of segments: a guess, or what the entries of the trace name.
#[derive(Clone, Debug, Default)]
pub(crate) struct AssumedPools {
    /// The pools of segments that are allocated within the trace, by the entry that
    /// allocates them or maps their first page.
    pub(crate) made: FxHashMap<u32, PoolId>,
    /// The pools of segments from before the first entry, by address.
    pub(crate) before: FxHashMap<u64, PoolId>,
    /// The lowest address of each expandable segment, by the entry that unmaps its last page.
    pub(crate) range_ends: FxHashMap<u32, u64>,
    /// The pools in which requests failed, by entry.
    pub(crate) failed: FxHashMap<u32, PoolId>,
}

/// The pool that the recording names for a segment.
pub(crate) fn pool_of(segment: &Segment) -> PoolId {
    segment.pool.map_or(PoolId::DEFAULT, |(first, second)| PoolId(first, second))
}
