//! Determines the private pool of each request and sends requests to pools.
//!
//! PyTorch 2.11 does not record the pool of a request. However, a segment belongs to one pool for as long as it exists, and
//! the recording names the pools of the segments that exist at its end. An entry's pool is therefore the pool of the segment
//! that contains its address at that time. No entry names the pool of a segment that was freed before the end. It is assumed
//! to be in the default pool, unless that does not explain the trace ([`crate::hidden_pools`]).

use std::collections::{BTreeMap, BTreeSet};

use parkade::device::DeviceBackend;
use parkade::policy::Policy;
use parkade::trace::Observer;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AdoptedSegment, AllocError, Allocation, Allocator, PoolFilter};
use parkade_recording::{Action, Entry, Segment};
use rustc_hash::FxHashMap;

use crate::entries::{gives_memory, takes_memory};

/// The pools of segments, if the recording names them or if they were guessed.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordedPools {
    /// The private pools of segments that are allocated within the trace, by entry.
    pub(crate) made: FxHashMap<u32, PoolId>,
    /// The private pools of segments from before the first entry: address, end, pool.
    pub(super) before: Vec<(u64, u64, PoolId)>,
    /// The streams and pools of expandable segments, by the lowest address of each run in the recording.
    runs: BTreeMap<u64, (u64, PoolId)>,
    /// The lowest address of each guessed expandable segment, by the entry that unmaps its last page.
    pub(super) range_ends: FxHashMap<u32, u64>,
    /// The pools in which requests failed, by entry, if the recording names them.
    pub(super) failed: FxHashMap<u32, PoolId>,
}

impl RecordedPools {
    /// Creates the pools from the recorded segments at the end, the private segments from before the first entry (address,
    /// end, pool), and the pools of private segments that the trace allocates, by entry.
    pub(crate) fn new(recorded: &[Segment], before: Vec<(u64, u64, PoolId)>, made: FxHashMap<u32, PoolId>) -> RecordedPools {
        let expandable = recorded.iter().filter(|segment| segment.expandable);
        let runs = expandable.map(|segment| (segment.address, (segment.stream, pool_of(segment)))).collect();
        RecordedPools { made, before, runs, range_ends: FxHashMap::default(), failed: FxHashMap::default() }
    }

    /// Replaces the pools with assumed ones. `early` are the segments before the first entry, with their assumed pools.
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

    /// Returns all private pools.
    pub(crate) fn private(&self) -> BTreeSet<PoolId> {
        let mut all: BTreeSet<PoolId> = self.before.iter().map(|&(_, _, pool)| pool).collect();
        all.extend(self.runs.values().map(|&(_, pool)| pool));
        all.extend(self.made.values().copied());
        all.extend(self.failed.values().copied());
        all.remove(&PoolId::DEFAULT);
        all
    }
}

/// The pools of segments: a guess, or those named in the trace's entries.
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

/// Returns the pool that the recording names for each segment.
pub(crate) fn pool_of(segment: &Segment) -> PoolId {
    segment.pool.map_or(PoolId::DEFAULT, |(first, second)| PoolId(first, second))
}

/// The segments of private pools that exist at one point in the trace.
#[derive(Clone, Debug)]
pub(crate) struct PoolTracker<'a> {
    map: &'a RecordedPools,
    segments: BTreeMap<u64, (u64, PoolId)>,
    runs: BTreeMap<u64, (u64, PoolId)>,
    private_pools: usize,
}

impl<'a> PoolTracker<'a> {
    pub(crate) fn new(map: &'a RecordedPools) -> PoolTracker<'a> {
        let segments = map.before.iter().map(|&(address, end, pool)| (address, (end, pool))).collect();
        PoolTracker { map, segments, runs: map.runs.clone(), private_pools: map.private().len() }
    }

    /// Returns the pool of the request that has these entries, the first of which is number `at`.
    #[inline]
    pub(crate) fn of_request(&self, at: usize, entries: &[Entry]) -> PoolId {
        if !self.has_private() {
            return PoolId::DEFAULT;
        }
        let mut made = entries.iter().zip(at..).filter(|(entry, _)| takes_memory(entry));
        let named = made.find_map(|(entry, at)| match self.map.made.get(&(at as u32)) {
            None if entry.action == Action::SegmentAlloc => Some(PoolId::DEFAULT),
            pool => pool.copied(),
        });
        if let Some(pool) = named {
            return pool;
        }
        let served = entries.iter().rev().find(|entry| matches!(entry.action, Action::Alloc | Action::SegmentMap));
        served.map_or(PoolId::DEFAULT, |entry| self.of_entry(entry))
    }

    /// Returns the pool of the memory at an entry's address.
    fn of_entry(&self, entry: &Entry) -> PoolId {
        let whole = self.segments.range(..=entry.address).next_back().filter(|(_, (end, _))| entry.address < *end);
        // A reserved range is larger than any device's memory, so the nearest run below belongs to the same range if
        // its stream is the same.
        let run = || self.runs.range(..=entry.address).next_back().filter(|(_, (stream, _))| *stream == entry.stream);
        whole.map(|(_, &(_, pool))| pool).or_else(|| run().map(|(_, &(_, pool))| pool)).unwrap_or(PoolId::DEFAULT)
    }

    /// Returns the pool in which the request at an entry failed, if the recording names it.
    pub(crate) fn of_failure(&self, at: usize) -> Option<PoolId> {
        self.map.failed.get(&(at as u32)).copied()
    }

    /// Returns the private pools that release memory in these entries, in order of their first release.
    pub(crate) fn giving(&self, entries: &[Entry]) -> Vec<PoolId> {
        let mut pools = Vec::new();
        for entry in entries.iter().filter(|entry| self.has_private() && gives_memory(entry)) {
            let pool = self.of_entry(entry);
            if pool != PoolId::DEFAULT && !pools.contains(&pool) {
                pools.push(pool);
            }
        }
        pools
    }

    /// Returns the pool of the first memory that is released in these entries.
    pub(crate) fn first_giving(&self, entries: &[Entry]) -> PoolId {
        let first = entries.iter().find(|entry| self.has_private() && gives_memory(entry));
        first.map_or(PoolId::DEFAULT, |entry| self.of_entry(entry))
    }

    /// Returns whether the default pool releases memory in these entries.
    pub(crate) fn default_gives(&self, entries: &[Entry]) -> bool {
        let mut gives = entries.iter().filter(|entry| gives_memory(entry));
        gives.any(|entry| !self.has_private() || self.of_entry(entry) == PoolId::DEFAULT)
    }

    pub(crate) fn has_private(&self) -> bool {
        self.private_pools > 0
    }

    /// Returns the number of private pools in the entire recording.
    pub(crate) fn private_pools(&self) -> usize {
        self.private_pools
    }

    /// Advances past these entries, the first of which is number `at`.
    #[inline]
    pub(crate) fn pass(&mut self, at: usize, entries: &[Entry]) {
        if !self.has_private() {
            return;
        }
        for (entry, at) in entries.iter().zip(at..) {
            match entry.action {
                Action::SegmentAlloc => {
                    if let Some(&pool) = self.map.made.get(&(at as u32)) {
                        self.segments.insert(entry.address, (entry.address.saturating_add(entry.size), pool));
                    }
                }
                Action::SegmentFree => {
                    self.segments.remove(&entry.address);
                }
                Action::SegmentMap => {
                    if let Some(&pool) = self.map.made.get(&(at as u32)) {
                        self.runs.insert(entry.address, (entry.stream, pool));
                    }
                }
                Action::SegmentUnmap => {
                    if let Some(base) = self.map.range_ends.get(&(at as u32)) {
                        self.runs.remove(base);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Sends one request to a private pool.
///
/// # Errors
/// Fails if the core returns an error for the request, or if the pool does not exist.
pub(crate) fn request_from<D: DeviceBackend, P: Policy, O: Observer>(
    core: &mut Allocator<D, P, O>,
    pool: PoolId,
    bytes: Bytes,
    stream: StreamId,
) -> Result<Allocation, AllocError> {
    // The core polls no events while requests are routed to a pool. Events that the recording completes here must have
    // completed earlier.
    core.process_events()?;
    core.begin_pool(pool, PoolFilter::All)?;
    let served = core.raw_allocate(bytes, stream);
    core.end_pool(pool)?;
    core.release_pool(pool)?;
    served
}
