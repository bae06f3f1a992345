//! Which private pool each request went to, and how one is sent there.
//!
//! PyTorch 2.11 does not record it. But a segment belongs to one pool as long as it lives, and the recording names the pools of
//! the segments that it lists at its end: so the pool of an entry is that of the segment in which it lies, at that time. Of a
//! segment that went back to the device before the end nothing names the pool; it is taken to be the default one.

use std::collections::{BTreeMap, BTreeSet};

use parkade::device::DeviceBackend;
use parkade::policy::Policy;
use parkade::trace::Observer;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, PoolFilter};
use rustc_hash::FxHashMap;

use super::rewind::EarlySegment;
use crate::recording::{Action, Entry, Segment};

/// What the backward walk found out about pools.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolMap {
    /// The private pools of segments that the trace makes, by entry.
    pub(super) made: FxHashMap<u32, PoolId>,
    /// The private pools of segments that exist before the first entry: first byte, end, pool.
    before: Vec<(u64, u64, PoolId)>,
    /// The pools of expandable segments, by the first address that the recording lists of each run.
    runs: BTreeMap<u64, PoolId>,
}

impl PoolMap {
    pub(super) fn new(recorded: &[Segment], early: &[EarlySegment], made: FxHashMap<u32, PoolId>) -> PoolMap {
        let expandable = recorded.iter().filter(|segment| segment.expandable);
        let runs = expandable.map(|segment| (segment.address, pool_of(segment))).collect();
        let private = early.iter().filter(|segment| !segment.expandable && segment.pool != PoolId::DEFAULT);
        let before = private.map(|segment| (segment.address, segment.address + segment.total, segment.pool)).collect();
        PoolMap { made, before, runs }
    }

    /// All private pools.
    pub(super) fn private(&self) -> BTreeSet<PoolId> {
        let mut all: BTreeSet<PoolId> = self.before.iter().map(|&(_, _, pool)| pool).collect();
        all.extend(self.runs.values().copied());
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
    has_private: bool,
}

impl<'a> PoolsNow<'a> {
    pub(super) fn new(map: &'a PoolMap) -> PoolsNow<'a> {
        let segments = map.before.iter().map(|&(address, end, pool)| (address, (end, pool))).collect();
        PoolsNow { map, segments, has_private: !map.private().is_empty() }
    }

    /// The pool of the request whose entries are these, the first of them being `at`.
    #[inline]
    pub(super) fn of_request(&self, at: usize, entries: &[Entry]) -> PoolId {
        if !self.has_private {
            return PoolId::DEFAULT;
        }
        let made = entries.iter().zip(at..).find(|(entry, _)| entry.action == Action::SegmentAlloc);
        if let Some((_, at)) = made {
            return self.map.made.get(&(at as u32)).copied().unwrap_or(PoolId::DEFAULT);
        }
        let served = entries.iter().rev().find(|entry| matches!(entry.action, Action::Alloc | Action::SegmentMap));
        served.map_or(PoolId::DEFAULT, |entry| self.at_address(entry.address))
    }

    fn at_address(&self, address: u64) -> PoolId {
        let whole =
            self.segments.range(..=address).next_back().filter(|(_, (end, _))| address < *end).map(|(_, &(_, pool))| pool);
        // A reserved range is larger than a device, so the nearest run below is of the same range.
        whole.or_else(|| self.map.runs.range(..=address).next_back().map(|(_, &pool)| pool)).unwrap_or(PoolId::DEFAULT)
    }

    /// The private pools that give memory back in these entries.
    pub(super) fn giving(&self, entries: &[Entry]) -> BTreeSet<PoolId> {
        if !self.has_private {
            return BTreeSet::new();
        }
        let giving = entries.iter().filter(|entry| matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap));
        let mut pools: BTreeSet<PoolId> = giving.map(|entry| self.at_address(entry.address)).collect();
        pools.remove(&PoolId::DEFAULT);
        pools
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
