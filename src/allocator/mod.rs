//! The allocator: the path of a request from top to bottom.
//!
//! The allocator rounds a request, finds a free block, and splits the block to size. If no free block fits, callbacks
//! may free memory, and then the retry ladder begins ([`ladder`]). Blocks are freed in [`release`], immediately or
//! after the events of other streams. The policy decides each step, the device carries it out, and the observer
//! receives every entry, in PyTorch's order (spec 2.4, 7.4).

mod adopt;
mod allocation;
mod annex;
mod checkpoint;
mod expandable;
mod handles;
pub mod heap_check;
mod ladder;
mod pools;
mod release;
mod reuse;
mod transfer;
mod view;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::block::{Block, BlockId, BlockState, NIL};
use crate::device::{BackendError, DeviceBackend};
use crate::error::AllocError;
use crate::heap::{Heap, PoolSlot, TooManyStreams};
use crate::pending::{Pending, StreamOrder};
use crate::policy::{Placement, Policy, PolicyFault, Request};
use crate::profile::Profile;
use crate::reservation::Reservations;
use crate::stats::Stats;
use crate::taken::{TakenRanges, WrongAnswer};
use crate::trace::{Observer, TraceAction, TraceEntry};
use crate::units::{Bytes, DeviceAddress, StreamId};

pub use adopt::{AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment};
pub use allocation::Allocation;
use allocation::Identity;
pub use checkpoint::Restored;
pub use view::InvalidFraction;

/// [`Allocator::allocate`] refuses requests of this many bytes or more (spec 1.1, `ONE_EXA`).
const TOO_LARGE: u64 = 1 << 60;

/// A block that is handed out.
struct Part {
    id: BlockId,
    address: u64,
    size: u64,
    is_expandable: bool,
}

impl Part {
    /// The detached block, which is now allocated.
    #[inline(always)]
    fn of(index: u32, block: &mut Block, requested: Bytes) -> Part {
        block.state = BlockState::Allocated;
        block.requested = requested.0;
        let Block { address, size, generation, .. } = *block;
        Part { id: BlockId { index, generation }, address, size, is_expandable: block.is_expandable() }
    }
}

/// How a block was split before it was handed out.
struct Cut {
    /// The block's size before the split, in bytes.
    whole: u64,
    /// Whether the block was already only a part of its segment.
    was_split: bool,
    /// Whether a free block was split off.
    splits: bool,
    /// Whether the remainder is oversize.
    is_oversize: bool,
}

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
    taken: TakenRanges,
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
        let heap = Heap::new(profile, policy.free_order(), total_memory);
        let (taken, callbacks, identity) = (TakenRanges::default(), Vec::new(), Identity::new());
        Allocator {
            device,
            policy,
            profile,
            observer,
            heap,
            pending,
            reservations,
            taken,
            stats,
            total_memory,
            callbacks,
            identity,
        }
    }

    /// Serves a request of `requested` bytes for `stream`, as PyTorch's tensor path does.
    ///
    /// # Errors
    /// See [`AllocError`]. Memory that the retry ladder has released stays released; nothing else has changed.
    #[inline]
    pub fn allocate(&mut self, requested: Bytes, stream: StreamId) -> Result<Allocation, AllocError> {
        if requested.0 >= TOO_LARGE {
            return Err(AllocError::TooLarge { requested });
        }
        self.raw_allocate(requested, stream)
    }

    /// Like [`Allocator::allocate`], but without the limit of 2^60 bytes (PyTorch's `raw_alloc`).
    ///
    /// # Errors
    /// See [`AllocError`].
    #[inline]
    pub fn raw_allocate(&mut self, requested: Bytes, stream: StreamId) -> Result<Allocation, AllocError> {
        match self.raw_allocate_at_once(requested, stream) {
            Some(allocation) => Ok(allocation),
            None => self.serve(requested, stream),
        }
    }

    /// Serves any request, including those for which reusing a free block is not enough.
    fn serve(&mut self, requested: Bytes, stream: StreamId) -> Result<Allocation, AllocError> {
        let (request, stream_slot) = self.prepare(requested, stream)?;
        let served = match self.reuse_first(&request, stream_slot) {
            Some(allocation) => Ok(allocation),
            // Copy the request here, so that the other arm can keep it in registers.
            None => self.place(Request { requested, ..request }, stream_slot),
        };
        // Requests to private pools never take the shortcut of `raw_allocate_at_once`.
        if let Ok(allocation) = &served {
            self.heap.note_handed_out(allocation.id().index);
        }
        served
    }

    /// Rounds a request and chooses its pool, after checking the pending blocks.
    #[inline(always)]
    fn prepare(&mut self, requested: Bytes, stream: StreamId) -> Result<(Request, u16), AllocError> {
        if requested.0 == 0 {
            return Err(AllocError::ZeroSize);
        }
        let size = self.policy.round(requested).filter(|&size| size >= requested).ok_or(AllocError::TooLarge { requested })?;
        if self.heap.is_deferring() {
            self.free_passed(stream)?
        } else {
            self.process_events()?
        }
        let stream_slot = self.heap.stream_slot(stream)?;
        let pool = PoolSlot::of_pool(self.heap.private_pools().number_for(stream), self.policy.classify(size));
        let is_expandable = self.policy.is_expandable(pool);
        Ok((Request { requested, size, pool, stream, is_expandable }, stream_slot))
    }

    /// Serves a request from the block that the policy chooses.
    // Out of line, because under PyTorch's rules, the chosen block is almost always the first.
    #[inline(never)]
    fn place(&mut self, request: Request, stream_slot: u16) -> Result<Allocation, AllocError> {
        if self.heap.needs_capture() && self.policy.reuses_in_captures() && !self.heap.is_capturing() {
            return Err(AllocError::NotCaptured);
        }
        match self.policy.place(&self.heap, &request) {
            Placement::Reuse(id) => self.reuse(id, &request, stream_slot),
            Placement::Segment(segment) => self.obtain_and_hand_out(request, stream_slot, segment),
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

    /// Whether the policy splits a block of `whole` bytes for the request.
    fn splits(&self, whole: u64, request: &Request) -> bool {
        let is_kept_whole = self.heap.private_pools().is_kept_whole(request.pool.pool_number());
        whole > request.size.0 && !is_kept_whole && self.policy.splits(Bytes(whole), request)
    }

    /// Splits the detached block if the policy says so, and hands it out (spec 3.2).
    fn hand_out(&mut self, index: u32, request: &Request) -> Allocation {
        let whole = self.heap.arena.at(index).size;
        let splits = self.splits(whole, request);
        if splits && self.policy.takes_high_end(request) {
            return self.hand_out_high_end(index, request);
        }
        self.hand_out_part(index, request, splits)
    }

    /// Hands out the detached block or, if it `splits`, only as many of its first bytes as the request's size.
    fn hand_out_part(&mut self, index: u32, request: &Request, splits: bool) -> Allocation {
        let block = self.heap.arena.at(index);
        let (whole, was_split) = (block.size, block.is_split());
        let index = if splits { self.heap.split(index, request.size.0, self.policy.stamp(request.pool)) } else { index };
        let part = Part::of(index, self.heap.arena.at_mut(index), request.requested);
        let is_oversize = self.policy.is_oversize(Bytes(part.size));
        self.account(&part, request, &Cut { whole, was_split, splits, is_oversize })
    }

    /// Counts and reports the handed-out block; `cut` states how it was split.
    fn account(&mut self, part: &Part, request: &Request, cut: &Cut) -> Allocation {
        count(&mut self.stats, part, request, cut);
        self.tell_handed_out(part, request)
    }

    /// Records that the block is handed out and counted.
    #[inline(always)]
    fn tell_handed_out(&mut self, part: &Part, request: &Request) -> Allocation {
        self.tell(TraceAction::Alloc, part.id.index, part.address, request.requested.0);
        Allocation::new(DeviceAddress(part.address), part.id, self.identity.own())
    }

    /// Checks a range that the device handed out, and records it.
    fn note_taken(&mut self, call: &'static str, address: DeviceAddress, bytes: Bytes) -> Result<(), WrongAnswer> {
        if !self.device.answers_are_checked() {
            return Ok(());
        }
        self.taken.add(address.0, bytes.0).map_err(|problem| WrongAnswer { call, address, bytes, problem })
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

/// Counts a block that is handed out.
#[inline(always)]
fn count(stats: &mut Stats, part: &Part, request: &Request, cut: &Cut) {
    let class = request.pool.class();
    let &Part { size, is_expandable, .. } = part;
    if !is_expandable {
        match (cut.splits, cut.was_split) {
            (true, true) => stats.count_split_again(class, size as i64),
            (true, false) => stats.count_split_off(class, (cut.whole - size) as i64),
            (false, true) => stats.count_split_taken(class, size as i64),
            (false, false) => {}
        }
    }
    stats.count_handed_out(class, size as i64, request.requested.0 as i64);
    if cut.is_oversize {
        stats.oversize_allocations.increase(1);
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
            taken: self.taken.clone(),
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
        let heads: Vec<u32> = self.heap.arena.live().filter(|&index| is_whole(self.heap.arena.at(index))).collect();
        for head in heads {
            // There is no caller to report an error to, and freeing the next segment may still succeed.
            let _: Result<(), BackendError> = self.device.free(DeviceAddress(self.heap.arena.at(head).address));
        }
        for event in self.pending.drain_events() {
            self.device.destroy_event(event);
        }
    }
}
