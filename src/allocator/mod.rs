//! The allocator: the way of one request from top to bottom.
//!
//! A request is rounded, looked for among the free blocks, and cut to size. When no free block serves it, callbacks may free
//! something; then the ladder is climbed ([`ladder`]). Blocks come back in [`release`], at once or after the events of other
//! streams. What to decide at each step is the policy's business, what it costs is the device's, and everything that
//! happens is told to the observer, in PyTorch's order (spec 2.4 and 7.4).

mod adopt;
mod checkpoint;
mod expandable;
mod ladder;
mod pools;
mod release;
#[cfg(test)]
mod tests;
mod transfer;
mod view;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::block::{Block, BlockId, BlockState, NIL};
use crate::device::{BackendError, DeviceBackend};
use crate::error::AllocError;
use crate::heap::{Heap, PoolSlot, TooManyStreams};
use crate::pending::Pending;
use crate::policy::{Placement, Policy, PolicyFault, Request};
use crate::profile::Profile;
use crate::reservation::Reservations;
use crate::stats::{Family, Stats};
use crate::trace::{Observer, TraceAction, TraceEntry};
use crate::units::{Bytes, DeviceAddress, StreamId};

pub use adopt::{AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment};
pub use checkpoint::Restored;
pub use view::InvalidFraction;

/// From this many bytes on, [`Allocator::allocate`] refuses (spec 1.1, `ONE_EXA`).
const TOO_LARGE: u64 = 1 << 60;

/// More cuts than this do not make a block of one byte out of one of 2^64.
const MOST_CUTS: usize = 64;

/// A block handed out. It is given back through [`Allocator::free`], once: it cannot be copied.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "memory that is not given back stays allocated"]
pub struct Allocation {
    address: DeviceAddress,
    id: BlockId,
}

impl Allocation {
    /// Its first byte.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// The same block in a clone of its allocator. One allocator takes only one of the two back: the other is void there.
    pub fn in_a_clone(&self) -> Allocation {
        Allocation { address: self.address, id: self.id }
    }
}

/// How a block was cut before it was handed out.
struct Cut {
    /// Its size before.
    whole: u64,
    /// Whether it was a part of its segment before.
    was_split: bool,
    /// Free blocks that were left over.
    rests: i64,
}

/// Called on every miss before the device is asked. Returns true if it freed anything (spec 2.6).
pub type FreeMemoryCallback<D, P, O> = Box<dyn FnMut(&mut Allocator<D, P, O>) -> bool + Send>;

/// A caching allocator over a device, by the rules of a policy, watched by an observer.
pub struct Allocator<D: DeviceBackend, P: Policy, O: Observer = ()> {
    device: D,
    policy: P,
    profile: &'static Profile,
    observer: O,
    heap: Heap,
    pending: Pending<D::Event>,
    reservations: Reservations<D::Physical>,
    stats: Stats,
    total_memory: Bytes,
    callbacks: Vec<FreeMemoryCallback<D, P, O>>,
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// An allocator that holds nothing yet.
    pub fn new(device: D, policy: P, observer: O) -> Allocator<D, P, O> {
        let mut stats = Stats::default();
        stats.max_split_size = policy.max_split_size();
        let total_memory = device.total_memory();
        let profile = policy.profile();
        let (pending, reservations) = (Pending::new(), Reservations::new());
        let heap = Heap::new(profile, policy.free_order(), policy.coalescing(), total_memory);
        let callbacks = Vec::new();
        Allocator { device, policy, profile, observer, heap, pending, reservations, stats, total_memory, callbacks }
    }

    /// Serves a request of `requested` bytes for `stream`, as PyTorch's tensor path does.
    ///
    /// # Errors
    /// See [`AllocError`]. After an error everything that the ladder released stays released, and nothing else has changed.
    #[inline]
    pub fn allocate(&mut self, requested: Bytes, stream: StreamId) -> Result<Allocation, AllocError> {
        if requested.0 >= TOO_LARGE {
            return Err(AllocError::TooLarge { requested });
        }
        self.raw_allocate(requested, stream)
    }

    /// As [`Allocator::allocate`], without the bound of 2^60 bytes (PyTorch's `raw_alloc`).
    ///
    /// # Errors
    /// See [`AllocError`].
    pub fn raw_allocate(&mut self, requested: Bytes, stream: StreamId) -> Result<Allocation, AllocError> {
        if requested.0 == 0 {
            return Err(AllocError::ZeroSize);
        }
        let size = self.policy.round(requested).filter(|&size| size >= requested).ok_or(AllocError::TooLarge { requested })?;
        let stream_slot = self.heap.stream_slot(stream)?;
        self.process_events()?;
        let pool = PoolSlot::of_pool(self.heap.private_pools().number_for(stream), self.policy.classify(size));
        let request = Request { requested, size, pool, stream, is_expandable: self.policy.is_expandable(pool) };
        let (block, request) = match self.policy.place(&self.heap, &request) {
            Placement::Reuse(id) => (self.take(id, &request)?, request),
            Placement::Segment(segment) => self.obtain(&request, stream_slot, segment)?,
        };
        self.hand_out(block, &request)
    }

    /// Notes that work on `stream` uses the block: once given back, it stays pending until that work is done. The block's own stream is
    /// ignored (spec 3.5).
    pub fn record_stream(&mut self, allocation: &Allocation, stream: StreamId) {
        let Some(index) = self.resolve(allocation) else { return };
        if self.heap.stream(self.heap.arena.at(index).stream) != stream {
            self.heap.arena.at_mut(index).set_has_uses(true);
            self.pending.add_use(index, stream, self.heap.is_deferring());
        }
    }

    /// Registers something that may free memory when a request finds no free block. All of them are called, in the order of their
    /// registration, on every miss (spec 2.6).
    pub fn register_free_memory_callback(&mut self, callback: FreeMemoryCallback<D, P, O>) {
        self.callbacks.push(callback);
    }

    /// The slot of an allocation that is out.
    #[inline]
    fn resolve(&self, allocation: &Allocation) -> Option<u32> {
        self.heap.arena.resolve(allocation.id).filter(|&index| self.heap.arena.at(index).state == BlockState::Allocated)
    }

    /// Takes the free block that the policy chose, after a look at whether it can be taken.
    #[inline]
    fn take(&mut self, id: BlockId, request: &Request) -> Result<u32, AllocError> {
        let index = self.heap.arena.resolve(id).ok_or_else(|| self.fault("reuses a block that does not exist"))?;
        let block = self.heap.arena.at(index);
        if block.state != BlockState::Free {
            return Err(self.fault("reuses a block that is not free").into());
        }
        if block.size < request.size.0 {
            return Err(self.fault("reuses a block that is too small").into());
        }
        if block.pool != request.pool.0 || self.heap.stream(block.stream) != request.stream {
            return Err(self.fault("reuses a block of another pool or stream").into());
        }
        self.heap.detach(index);
        Ok(index)
    }

    #[cold]
    fn fault(&self, problem: &'static str) -> PolicyFault {
        PolicyFault { policy: self.policy.name(), problem }
    }

    /// Cuts the detached block to size if the policy says so, and hands it out (spec 3.2).
    #[inline]
    fn hand_out(&mut self, index: u32, request: &Request) -> Result<Allocation, AllocError> {
        let whole = self.heap.arena.at(index).size;
        let splits = whole > request.size.0
            && !self.heap.private_pools().is_kept_whole(request.pool.pool_number())
            && self.policy.splits(Bytes(whole), request);
        let part = if splits { self.policy.cut(Bytes(whole), request) } else { Bytes(whole) };
        if splits && (part != request.size || self.heap.has_buddies()) {
            return self.hand_out_cut(index, request, part);
        }
        Ok(self.hand_out_part(index, request, splits))
    }

    /// Hands out the detached block, or its first bytes, as many as the request's size.
    #[inline]
    fn hand_out_part(&mut self, index: u32, request: &Request, splits: bool) -> Allocation {
        let block = self.heap.arena.at(index);
        let (whole, was_split) = (block.size, block.is_split());
        let index = if splits { self.heap.split(index, request.size.0, self.policy.stamp(request.pool)) } else { index };
        self.hand_out_whole(index, request, Cut { whole, was_split, rests: i64::from(splits) })
    }

    /// As [`Allocator::hand_out_part`], by several cuts or one that leaves more than the request's size, the first of them to `part` bytes.
    #[cold]
    fn hand_out_cut(&mut self, index: u32, request: &Request, part: Bytes) -> Result<Allocation, AllocError> {
        let block = self.heap.arena.at(index);
        let (whole, was_split) = (block.size, block.is_split());
        let mut parts = alloc::vec![part];
        let mut size = Bytes(whole);
        // All answers are looked at before the first cut.
        while let Some(&last) = parts.last() {
            if last < request.size || last >= size {
                self.put_back_unused(index);
                return Err(self.fault("cuts a block to fewer bytes than were asked for, or to as many as it has").into());
            }
            if last == request.size || !self.policy.splits(last, request) {
                break;
            }
            if parts.len() == MOST_CUTS {
                self.put_back_unused(index);
                return Err(self.fault("cuts a block without an end").into());
            }
            size = last;
            parts.push(self.policy.cut(last, request));
        }
        let stamp = self.policy.stamp(request.pool);
        let mut rests = Vec::new();
        let low = parts.iter().fold(index, |index, part| {
            let low = self.heap.split(index, part.0, stamp);
            rests.push(self.heap.arena.id(index));
            low
        });
        let allocation = self.hand_out_whole(low, request, Cut { whole, was_split, rests: parts.len() as i64 });
        // What is left may be one block with what was left before, or with what was free behind it, by the rule.
        for rest in rests.into_iter().rev() {
            if let Some(rest) = self.heap.arena.resolve(rest) {
                self.heap.detach(rest);
                self.put_back_unused(rest);
            }
        }
        Ok(allocation)
    }

    /// Hands out the detached block, which was cut like this.
    #[inline]
    fn hand_out_whole(&mut self, index: u32, request: &Request, cut: Cut) -> Allocation {
        let class = request.pool.class();
        let block = self.heap.arena.at_mut(index);
        block.state = BlockState::Allocated;
        block.requested = request.requested.0;
        let (address, size, is_expandable) = (DeviceAddress(block.address), block.size, block.is_expandable());
        match (cut.rests != 0, cut.was_split) {
            _ if is_expandable => {}
            (true, true) => {
                if cut.rests != 1 {
                    self.stats.increase(Family::InactiveSplit, class, cut.rests - 1);
                }
                self.stats.decrease(Family::InactiveSplitBytes, class, size as i64);
            }
            (true, false) => {
                self.stats.increase(Family::InactiveSplit, class, cut.rests);
                self.stats.increase(Family::InactiveSplitBytes, class, (cut.whole - size) as i64);
            }
            (false, true) => {
                self.stats.decrease(Family::InactiveSplit, class, 1);
                self.stats.decrease(Family::InactiveSplitBytes, class, size as i64);
            }
            (false, false) => {}
        }
        self.tell(TraceAction::Alloc, index, address.0, request.requested.0);
        self.stats.increase(Family::Allocation, class, 1);
        self.stats.increase(Family::AllocatedBytes, class, size as i64);
        self.stats.increase(Family::Active, class, 1);
        self.stats.increase(Family::ActiveBytes, class, size as i64);
        self.stats.increase(Family::RequestedBytes, class, request.requested.0 as i64);
        if self.policy.is_oversize(Bytes(size)) {
            self.stats.oversize_allocations.increase(1);
        }
        Allocation { address, id: self.heap.arena.id(index) }
    }

    /// Tells the observer what happened to a block; stream and pool are the block's.
    #[inline]
    fn tell(&mut self, action: TraceAction, index: u32, address: u64, size: u64) {
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
    /// A second allocator in the same state. Free-memory callbacks are not cloned: they belong to whoever registered them.
    fn clone(&self) -> Self {
        Allocator {
            device: self.device.clone(),
            policy: self.policy.clone(),
            profile: self.profile,
            observer: self.observer.clone(),
            heap: self.heap.clone(),
            pending: self.pending.clone(),
            reservations: self.reservations.clone(),
            stats: self.stats.clone(),
            total_memory: self.total_memory,
            callbacks: Vec::new(),
        }
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Drop for Allocator<D, P, O> {
    /// Gives every segment and event back to the device.
    fn drop(&mut self) {
        self.abandon_reservations();
        let is_whole = |block: &Block| block.prev == NIL && !block.is_expandable();
        let heads: Vec<u32> = self.heap.arena.live().filter(|&index| is_whole(self.heap.arena.at(index))).collect();
        for head in heads {
            // Nobody is left to tell of an error, and the next segment may still go back.
            let _: Result<(), BackendError> = self.device.free(DeviceAddress(self.heap.arena.at(head).address));
        }
        for event in self.pending.drain_events() {
            self.device.destroy_event(event);
        }
    }
}
