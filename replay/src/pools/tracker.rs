//! The pool of each entry, while the trace is followed from its beginning.

use std::collections::BTreeMap;

use parkade::units::PoolId;
use parkade_recording::{Action, Entry};

use super::recorded::RecordedPools;
use crate::entries::{gives_memory, takes_memory};

/// The segments of private pools that exist at one point of the trace.
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

    /// The pool of the request that has these entries, the first of which is number `at`.
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

    /// The pool of the memory at an entry's address.
    fn of_entry(&self, entry: &Entry) -> PoolId {
        let whole = self.segments.range(..=entry.address).next_back().filter(|(_, (end, _))| entry.address < *end);
        // A reserved range is larger than any device, so the nearest run below belongs to the
        // same range, if its stream is the same.
        let run = || self.runs.range(..=entry.address).next_back().filter(|(_, (stream, _))| *stream == entry.stream);
        whole.map(|(_, &(_, pool))| pool).or_else(|| run().map(|(_, &(_, pool))| pool)).unwrap_or(PoolId::DEFAULT)
    }

    /// The pool in which the request at an entry failed, if the recording says so.
    pub(crate) fn of_failure(&self, at: usize) -> Option<PoolId> {
        self.map.failed.get(&(at as u32)).copied()
    }

    /// The private pools that give memory back in these entries, in the order in which they first do.
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

    /// The pool of the first memory that these entries give back.
    pub(crate) fn first_giving(&self, entries: &[Entry]) -> PoolId {
        let first = entries.iter().find(|entry| self.has_private() && gives_memory(entry));
        first.map_or(PoolId::DEFAULT, |entry| self.of_entry(entry))
    }

    /// Whether the default pool gives memory back in these entries.
    pub(crate) fn default_gives(&self, entries: &[Entry]) -> bool {
        let mut gives = entries.iter().filter(|entry| gives_memory(entry));
        gives.any(|entry| !self.has_private() || self.of_entry(entry) == PoolId::DEFAULT)
    }

    pub(crate) fn has_private(&self) -> bool {
        self.private_pools > 0
    }

    /// How many private pools there are in the whole recording.
    pub(crate) fn private_pools(&self) -> usize {
        self.private_pools
    }

    /// Moves past these entries, the first of which is number `at`.
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
