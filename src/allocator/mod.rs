//! The allocator: it owns the heap, the device, the policy and the statistics, and orders the calls between them.
//!
//! A request is served in `allocate.rs`, from a free block or, if there is none, by the retry ladder in `ladder.rs`.
//! Blocks become free in `free.rs`. The policy decides each step, the device carries it out, and the observer receives
//! every entry, in PyTorch's order (spec 2.4, 7.4). Nothing else changes the heap, and no other module calls the device.

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
mod view;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::block::{Block, BlockId, BlockState, NIL};
use crate::device::{BackendError, DeviceBackend};
use crate::device_ranges::{DeviceRanges, WrongAnswer};
use crate::error::AllocError;
use crate::heap::{Heap, TooManyStreams};
use crate::pending::{Pending, StreamOrder};
use crate::policy::{Policy, PolicyFault};
use crate::profile::Profile;
use crate::reservation::Reservations;
use crate::stats::Stats;
use crate::trace::{Observer, TraceAction, TraceEntry};
use crate::units::{Bytes, DeviceAddress};

pub use adopt::{AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment};
pub use allocation::Allocation;
use allocation::Identity;
pub use checkpoint::Restored;
pub use view::InvalidFraction;

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
