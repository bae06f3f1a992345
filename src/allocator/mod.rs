//! The allocator: it owns the heap, the device, the policy and the statistics, and orders the calls between them.
//!
//! A request is served in `allocate.rs`, from a free block or, if there is none, by the retry ladder in `ladder.rs`.
//! Blocks become free in `free.rs`. The policy decides each step, the device carries it out, and the observer receives
//! every entry, in PyTorch's order (spec 2.4, 7.4). Nothing else changes the heap, and no other module calls the device.
//! What callers can see of an allocator is here: its state, limit and snapshots.

mod adopt;
mod allocate;
mod allocation;
pub mod checkpoint;
mod expandable;
mod free;
pub mod heap_check;
mod ladder;
mod own;
mod pools;
mod segments;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::block::{Block, BlockId, BlockState, NIL};
use crate::device::{BackendError, DeviceBackend};
use crate::device_ranges::{DeviceRanges, WrongAnswer};
use crate::error::AllocError;
use crate::heap::{Heap, PoolSlot, TooManyStreams};
use crate::pending::{Pending, StreamOrder};
use crate::policy::{Policy, PolicyFault};
use crate::profile::Profile;
use crate::reservation::Reservations;
use crate::snapshot::{BlockActivity, BlockInfo, PlacedBlock, SegmentInfo};
use crate::stats::Stats;
use crate::texts::format_double;
use crate::trace::{Observer, TraceAction, TraceEntry};
use crate::units::{Bytes, DeviceAddress, PoolId, StreamId};
pub use adopt::{AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment};
pub use allocation::Allocation;
use allocation::Identity;
pub use checkpoint::Restored;

/// A function that is called whenever no free block can serve a request, before the device is asked. Returns whether
/// it freed anything (spec 2.6).
pub type FreeMemoryCallback<D, P, O> = Box<dyn FnMut(&mut Allocator<D, P, O>) -> bool + Send>;

/// A caching allocator on a device, with a policy that makes the decisions and an observer that receives the trace
/// entries.
pub struct Allocator<D: DeviceBackend, P: Policy, O: Observer = ()> {
    device: D,
    policy: P,
    profile: &'static Profile,
    observer: O,
    heap: Heap,
    pending: Pending<D::Event>,
    reservations: Reservations<D::Physical>,
    device_ranges: DeviceRanges,
    stats: Stats,
    total_memory: Bytes,
    callbacks: Vec<FreeMemoryCallback<D, P, O>>,
    identity: Identity,
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Creates an allocator without memory.
    pub fn new(device: D, policy: P, observer: O) -> Allocator<D, P, O> {
        let mut stats = Stats::default();
        stats.max_split_size = policy.max_split_size();
        let total_memory = device.total_memory();
        let profile = policy.profile();
        let order = if device.completes_by_handle() { StreamOrder::ByHandle } else { StreamOrder::Hashed(device.index()) };
        let (pending, reservations) = (Pending::new(order), Reservations::new());
        let heap = Heap::new(profile, policy.searches_by_address(), total_memory);
        let (device_ranges, callbacks, identity) = (DeviceRanges::default(), Vec::new(), Identity::new());
        Allocator {
            device,
            policy,
            profile,
            observer,
            heap,
            pending,
            reservations,
            device_ranges,
            stats,
            total_memory,
            callbacks,
            identity,
        }
    }

    /// Registers a callback that may free memory when no free block serves a request. The allocator calls all
    /// callbacks each time, in order of registration (spec 2.6).
    pub fn register_free_memory_callback(&mut self, callback: FreeMemoryCallback<D, P, O>) {
        self.callbacks.push(callback);
    }

    /// The slot of an allocated block; `None` if another allocator made it.
    #[inline]
    fn resolve(&self, allocation: &Allocation) -> Option<u32> {
        if !self.identity.accepts(allocation.maker) {
            return None;
        }
        // An allocated block is live.
        let BlockId { index, generation } = allocation.id();
        let block = self.heap.arena.get(index).filter(|block| block.generation == generation);
        block.filter(|block| block.state == BlockState::Allocated).map(|_| index)
    }

    #[cold]
    fn fault(&self, problem: &'static str) -> PolicyFault {
        PolicyFault { policy: self.policy.name(), problem }
    }

    /// Checks a range that the device handed out, and records it.
    fn note_taken(&mut self, call: &'static str, address: DeviceAddress, bytes: Bytes) -> Result<(), WrongAnswer> {
        if !self.device.answers_are_checked() {
            return Ok(());
        }
        self.device_ranges.add(address.0, bytes.0).map_err(|problem| WrongAnswer { call, address, bytes, problem })
    }

    /// Tells the observer what happened to a block.
    #[inline]
    fn tell(&mut self, action: TraceAction, index: u32, address: u64, size: u64) {
        if !O::WATCHES {
            return;
        }
        let block = self.heap.arena.at(index);
        let (stream, pool) = (self.heap.stream(block.stream), self.heap.pool_id(block.pool));
        self.observer.observe(&TraceEntry { action, address, size, stream, pool });
    }
}

impl From<TooManyStreams> for AllocError {
    fn from(_: TooManyStreams) -> AllocError {
        AllocError::TooManyStreams
    }
}

impl<D, P, O> Clone for Allocator<D, P, O>
where
    D: DeviceBackend + Clone,
    D::Event: Clone,
    D::Physical: Clone,
    P: Policy + Clone,
    O: Observer + Clone,
{
    /// Returns a second allocator in the same state, but without free-memory callbacks. It accepts the original's
    /// allocations through [`Allocation::in_a_clone`]; the original does not accept the clone's own.
    fn clone(&self) -> Self {
        Allocator {
            device: self.device.clone(),
            policy: self.policy.clone(),
            profile: self.profile,
            observer: self.observer.clone(),
            heap: self.heap.clone(),
            pending: self.pending.clone(),
            reservations: self.reservations.clone(),
            device_ranges: self.device_ranges.clone(),
            stats: self.stats.clone(),
            total_memory: self.total_memory,
            callbacks: Vec::new(),
            identity: self.identity.of_clone(),
        }
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Drop for Allocator<D, P, O> {
    /// Releases every segment and event.
    fn drop(&mut self) {
        self.abandon_reservations();
        let is_whole = |block: &Block| block.prev == NIL && !block.is_expandable();
        let heads: Vec<u32> = self.heap.arena.occupied().filter(|&index| is_whole(self.heap.arena.at(index))).collect();
        for head in heads {
            // There is no caller to report an error to, and freeing the next segment may still succeed.
            let _: Result<(), BackendError> = self.device.free(DeviceAddress(self.heap.arena.at(head).address));
        }
        for event in self.pending.drain_events() {
            self.device.destroy_event(event);
        }
    }
}

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
