//! The parts of an allocator that callers can see: its state, limit and snapshots.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::{Allocation, Allocator};
use crate::block::{Block, BlockState};
use crate::device::DeviceBackend;
use crate::heap::{Heap, PoolSlot};
use crate::pending::Pending;
use crate::policy::Policy;
use crate::profile::Profile;
use crate::snapshot::{BlockActivity, BlockInfo, PlacedBlock, SegmentInfo};
use crate::stats::Stats;
use crate::texts::format_double;
use crate::trace::{Observer, TraceAction, TraceEntry};
use crate::units::{Bytes, DeviceAddress, PoolId, StreamId};

/// A memory fraction outside 0 to 1. Displays PyTorch's message (spec 2.15).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct InvalidFraction(pub f64);

impl InvalidFraction {
    /// The message in a given release of PyTorch.
    #[must_use]
    pub fn message(&self, profile: &Profile) -> String {
        let Some(line) = profile.asserts.fraction else { return self.to_string() };
        format!(
            "0 <= fraction && fraction <= 1 INTERNAL ASSERT FAILED at \"{}\":{line}, please report a bug to PyTorch. invalid \
             fraction:{}. Please set within (0, 1).",
            profile.asserts.file,
            format_double(self.0)
        )
    }
}

impl fmt::Display for InvalidFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::texts::invalid_fraction_message(self.0))
    }
}

impl core::error::Error for InvalidFraction {}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Whether the allocation's block is allocated. False if a different allocator made the allocation, or if
    /// restoring a pool has invalidated it.
    #[must_use]
    pub fn is_allocated(&self, allocation: &Allocation) -> bool {
        self.resolve(allocation).is_some()
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, mutable, so that callers can change what the allocator does not control: time, other processes and
    /// faults.
    #[must_use]
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The policy, mutable, so that callers can change its settings, which apply from the next decision.
    #[must_use]
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// The observer.
    #[must_use]
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// The observer, mutable, so that callers can empty or replace it.
    #[must_use]
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// The statistics.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The heap, read-only, as policies see it.
    #[must_use]
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    pub(crate) fn pending(&self) -> &Pending<D::Event> {
        &self.pending
    }

    /// Sets every peak to its current value.
    pub fn reset_peak_stats(&mut self) {
        self.stats.reset_peaks();
    }

    /// Sets every sum and counter to 0.
    pub fn reset_accumulated_stats(&mut self) {
        self.stats.reset_accumulated();
    }

    /// Limits the memory taken from the device to a fraction of its total, rounded as in the profile. The profile also
    /// decides whether 1 removes the limit or sets one. Memory already taken is kept (spec 2.15).
    ///
    /// # Errors
    /// The fraction is not between 0 and 1.
    pub fn set_memory_fraction(&mut self, fraction: f64) -> Result<(), InvalidFraction> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(InvalidFraction(fraction));
        }
        let mut total = self.total_memory;
        if self.profile.asks_for_total
            && let Ok(memory) = self.device.memory_info()
        {
            total = memory.total;
        }
        let limit = self.profile.limit_rounding.limit(fraction, total.0);
        self.heap.set_limit((fraction < 1.0 || self.profile.limits_whole_memory).then_some(limit));
        Ok(())
    }

    /// The limit as a fraction of the device's total memory; 1 without a limit.
    #[must_use]
    pub fn memory_fraction(&self) -> f64 {
        self.heap.limit().map_or(1.0, |limit| limit.0 as f64 / self.total_memory.0 as f64)
    }

    /// Sets or removes the limit on memory taken from the device.
    pub fn set_limit(&mut self, limit: Option<Bytes>) {
        self.heap.set_limit(limit.map(Bytes::get));
    }

    /// The first byte and the size of an allocation's segment; `None` if a different allocator made the allocation.
    #[must_use]
    pub fn segment_of(&self, allocation: &Allocation) -> Option<(DeviceAddress, Bytes)> {
        let mut head = self.heap.arena.at(self.resolve(allocation)?);
        while let Some(before) = self.heap.arena.get(head.prev) {
            head = before;
        }
        let size = self.heap.chain(head).map(|block| block.size).sum();
        Some((DeviceAddress(head.address), Bytes(size)))
    }

    /// An allocation's block and its position; `None` if a different allocator made the allocation.
    #[must_use]
    pub fn block_of(&self, allocation: &Allocation) -> Option<PlacedBlock> {
        let block = self.heap.arena.at(self.resolve(allocation)?);
        let (segment, segment_size) = self.segment_of(allocation)?;
        let Block { address, size, requested, .. } = *block;
        let state = BlockActivity::Allocated;
        let info = BlockInfo { address: DeviceAddress(address), size: Bytes(size), requested: Bytes(requested), state };
        let (is_expandable, stream) = (block.is_expandable(), self.heap.stream(block.stream));
        Some(PlacedBlock { block: info, segment, segment_size, is_expandable, stream })
    }

    /// All segments with their blocks, by address; for expandable ones, every mapped run (spec 7.3).
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let heads = self.heap.arena.occupied().map(|index| self.heap.arena.at(index)).filter(|block| {
            let before = self.heap.arena.get(block.prev);
            block.state != BlockState::Unmapped && before.is_none_or(|before| before.state == BlockState::Unmapped)
        });
        let mut segments: Vec<SegmentInfo> = heads.map(|head| self.describe(head)).collect();
        segments.sort_unstable_by_key(|segment| segment.address);
        segments
    }

    /// Stream, page size and mapped bytes of the expandable segments, in order of creation.
    #[must_use]
    pub fn expandable_segments(&self) -> Vec<(StreamId, Bytes, Bytes)> {
        let mut ranges: Vec<_> = self.reservations.iter().map(|(_, range)| range).collect();
        ranges.sort_unstable_by_key(|range| range.number);
        ranges.iter().map(|range| (range.stream, Bytes(range.page), Bytes(range.mapped_bytes()))).collect()
    }

    /// Like [`Allocator::segments`], but tells the observer that a snapshot was taken (spec 7.1).
    pub fn snapshot(&mut self) -> Vec<SegmentInfo> {
        let segments = self.segments();
        let size = segments.iter().map(|segment| segment.active.0).sum();
        let stream = StreamId::DEFAULT;
        self.observer.observe(&TraceEntry { action: TraceAction::Snapshot, address: 0, size, stream, pool: PoolId::DEFAULT });
        segments
    }

    fn describe(&self, head: &Block) -> SegmentInfo {
        let blocks: Vec<BlockInfo> = self
            .heap
            .chain(head)
            .take_while(|block| block.state != BlockState::Unmapped)
            .map(|block| BlockInfo {
                address: DeviceAddress(block.address),
                size: Bytes(block.size),
                requested: Bytes(block.requested),
                state: match block.state {
                    BlockState::Allocated => BlockActivity::Allocated,
                    BlockState::Pending => BlockActivity::PendingFree,
                    BlockState::Free | BlockState::Detached | BlockState::Unmapped => BlockActivity::Inactive,
                },
            })
            .collect();
        let sum = |counts: fn(&BlockInfo) -> Option<Bytes>| Bytes(blocks.iter().filter_map(counts).map(Bytes::get).sum());
        let active = |block: &&BlockInfo| block.state != BlockActivity::Inactive;
        SegmentInfo {
            address: DeviceAddress(head.address),
            total: sum(|block| Some(block.size)),
            allocated: sum(|block| (block.state == BlockActivity::Allocated).then_some(block.size)),
            active: Bytes(blocks.iter().filter(active).map(|block| block.size.0).sum()),
            // The blocks of an adopted segment may have any number of requested bytes.
            requested: Bytes(blocks.iter().filter(active).fold(0, |sum, block| sum.saturating_add(block.requested.0))),
            stream: self.heap.stream(head.stream),
            pool: self.heap.pool_id(head.pool),
            class: PoolSlot(head.pool).class(),
            rank: head.rank,
            expandable: head.is_expandable(),
            blocks,
        }
    }
}
