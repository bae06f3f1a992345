//! Which private pool each request went to, and how one is sent there.
//!
//! PyTorch 2.11 does not record it. But a segment belongs to one pool as long as it lives, and the recording names the pools of
//! the segments that it lists at its end: so the pool of an entry is that of the segment in which it lies, at that time. Of a
//! segment that went back to the device before the end nothing names the pool; it is taken to be the default one, unless that does not
//! explain the trace ([`super::hidden`]).

use std::collections::{BTreeMap, BTreeSet};

use parkade::device::DeviceBackend;
use parkade::policy::Policy;
use parkade::trace::Observer;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AdoptedSegment, AllocError, Allocation, Allocator, PoolFilter};
use rustc_hash::FxHashMap;

use super::hidden::Assumption;
use super::rewind::EarlySegment;
use super::run::{gives_memory, takes_memory};
use parkade_recording::{Action, Entry, Segment};

/// What the backward walk found out about pools.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolMap {
    /// The private pools of segments that the trace makes, by entry.
    pub(super) made: FxHashMap<u32, PoolId>,
    /// The private pools of segments that exist before the first entry: first byte, end, pool.
    before: Vec<(u64, u64, PoolId)>,
    /// Streams and pools of expandable segments, by the first address that the recording lists of each run.
    runs: BTreeMap<u64, (u64, PoolId)>,
    /// Where ranges of expandable memory end, if their pools were worked out: entry, and the range's first address.
    range_ends: FxHashMap<u32, u64>,
}

impl PoolMap {
    pub(super) fn new(recorded: &[Segment], early: &[EarlySegment], made: FxHashMap<u32, PoolId>) -> PoolMap {
        let expandable = recorded.iter().filter(|segment| segment.expandable);
        let runs = expandable.map(|segment| (segment.address, (segment.stream, pool_of(segment)))).collect();
        let private = early.iter().filter(|segment| !segment.expandable && segment.pool != PoolId::DEFAULT);
        let before = private.map(|segment| (segment.address, segment.address + segment.total, segment.pool)).collect();
        PoolMap { made, before, runs, range_ends: FxHashMap::default() }
    }

    /// Takes pools that were worked out for those of the map.
    pub(super) fn assume(&mut self, early: &[AdoptedSegment], assumption: &Assumption) {
        self.made.clone_from(&assumption.made);
        self.range_ends.clone_from(&assumption.range_ends);
        let length = |segment: &AdoptedSegment| segment.blocks.iter().map(|block| block.size.get()).sum::<u64>();
        let whole = early.iter().filter(|segment| segment.page.is_none() && segment.pool != PoolId::DEFAULT);
        self.before = whole.map(|s| (s.address.get(), s.address.get() + length(s), s.pool)).collect();
        let ranges = early.iter().filter(|segment| segment.page.is_some());
        self.runs = ranges.map(|segment| (segment.address.get(), (segment.stream.get(), segment.pool))).collect();
    }

    /// All private pools.
    pub(super) fn private(&self) -> BTreeSet<PoolId> {
        let mut all: BTreeSet<PoolId> = self.before.iter().map(|&(_, _, pool)| pool).collect();
        all.extend(self.runs.values().map(|&(_, pool)| pool));
        all.extend(self.made.values().copied());
        all.remove(&PoolId::DEFAULT);
        all
    }
}

/// The pool that a recording names for a segment.
pub(super) fn pool_of(segment: &Segment) -> PoolId {
    segment.pool.map_or(PoolId::DEFAULT, |(first, second)| PoolId(first, second))
}

/// The private segments that live at one moment of the trace.
#[derive(Clone, Debug)]
pub(super) struct PoolsNow<'a> {
    map: &'a PoolMap,
    segments: BTreeMap<u64, (u64, PoolId)>,
    runs: BTreeMap<u64, (u64, PoolId)>,
    has_private: bool,
}

impl<'a> PoolsNow<'a> {
    pub(super) fn new(map: &'a PoolMap) -> PoolsNow<'a> {
        let segments = map.before.iter().map(|&(address, end, pool)| (address, (end, pool))).collect();
        PoolsNow { map, segments, runs: map.runs.clone(), has_private: !map.private().is_empty() }
    }

    /// The pool of the request whose entries are these, the first of them being `at`.
    #[inline]
    pub(super) fn of_request(&self, at: usize, entries: &[Entry]) -> PoolId {
        if !self.has_private {
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

    /// The pool of the memory that an entry is about.
    fn of_entry(&self, entry: &Entry) -> PoolId {
        let whole = self.segments.range(..=entry.address).next_back().filter(|(_, (end, _))| entry.address < *end);
        // A reserved range is larger than a device, so the nearest run below is of the same range; unless it is another stream's.
        let run = || self.runs.range(..=entry.address).next_back().filter(|(_, (stream, _))| *stream == entry.stream);
        whole.map(|(_, &(_, pool))| pool).or_else(|| run().map(|(_, &(_, pool))| pool)).unwrap_or(PoolId::DEFAULT)
    }

    /// The private pools that give memory back in these entries.
    pub(super) fn giving(&self, entries: &[Entry]) -> BTreeSet<PoolId> {
        if !self.has_private {
            return BTreeSet::new();
        }
        let mut pools: BTreeSet<PoolId> =
            entries.iter().filter(|entry| gives_memory(entry)).map(|entry| self.of_entry(entry)).collect();
        pools.remove(&PoolId::DEFAULT);
        pools
    }

    /// The pool of the first memory that goes back in these entries.
    pub(super) fn first_giving(&self, entries: &[Entry]) -> PoolId {
        let first = entries.iter().find(|entry| self.has_private && gives_memory(entry));
        first.map_or(PoolId::DEFAULT, |entry| self.of_entry(entry))
    }

    /// Whether the default pool gives memory back in these entries.
    pub(super) fn default_gives(&self, entries: &[Entry]) -> bool {
        let mut gives = entries.iter().filter(|entry| gives_memory(entry));
        gives.any(|entry| !self.has_private || self.of_entry(entry) == PoolId::DEFAULT)
    }

    pub(super) fn has_private(&self) -> bool {
        self.has_private
    }

    /// These entries are done; the first of them is `at`.
    #[inline]
    pub(super) fn pass(&mut self, at: usize, entries: &[Entry]) {
        if !self.has_private {
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
pub(super) fn request_from<D: DeviceBackend, P: Policy, O: Observer>(
    core: &mut Allocator<D, P, O>,
    pool: PoolId,
    bytes: Bytes,
    stream: StreamId,
) -> Result<Allocation, AllocError> {
    // While a pool is routed to nothing is polled; what the recording completes here was so before.
    core.process_events()?;
    core.begin_pool(pool, PoolFilter::All)?;
    let served = core.raw_allocate(bytes, stream);
    core.end_pool(pool)?;
    core.release_pool(pool)?;
    served
}
