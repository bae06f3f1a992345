//! Private pools, as callers use them (spec section 5).

use alloc::vec::Vec;

use super::Allocator;
use super::allocate::Found;
use crate::device::DeviceBackend;
use crate::error::AllocError;
use crate::heap::{PoolError, PoolFilter, PoolSlot};
use crate::policy::{Policy, Request};
use crate::snapshot::SegmentInfo;
use crate::trace::{Observer, TraceAction, TraceEntry};
use crate::units::{Bytes, DeviceAddress, PoolId, StreamId};

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Creates a private pool, or adds a use to it (spec 5.3, createOrIncref).
    ///
    /// # Errors
    /// The pool has no uses left, or there are too many pools.
    pub fn create_pool(&mut self, id: PoolId) -> Result<(), PoolError> {
        self.heap.create_pool(id)
    }

    /// Calls [`Allocator::create_pool`], then starts routing requests to the pool (spec 5.3).
    ///
    /// # Errors
    /// Requests are already routed to the pool, or [`Allocator::create_pool`] fails.
    pub fn begin_pool(&mut self, id: PoolId, filter: PoolFilter) -> Result<(), PoolError> {
        self.prepare_lending();
        self.route_to(id, filter)
    }

    fn route_to(&mut self, id: PoolId, filter: PoolFilter) -> Result<(), PoolError> {
        let created = self.heap.create_pool(id);
        let decides_first = !self.profile.oldest_routing_decides;
        let begun = created.and_then(|()| self.heap.private_pools_mut().begin(id, filter, decides_first));
        if begun.is_err() && self.profile.counts_failed_routings {
            self.heap.private_pools_mut().note_failure();
        }
        begun
    }

    /// Stops routing requests to a pool. Does not remove a use.
    ///
    /// # Errors
    /// No requests are routed to the pool, or its graph is still being captured.
    pub fn end_pool(&mut self, id: PoolId) -> Result<(), PoolError> {
        self.forget_capture(id)?;
        self.heap.private_pools_mut().end(id)?;
        if self.profile.flushes_at_pool_end && self.policy.reuses_in_captures() {
            self.flush_deferred_of(id);
        }
        Ok(())
    }

    /// Chooses the pool for the following requests, among the pools with the filter [`PoolFilter::Chosen`].
    pub fn choose_pool(&mut self, id: Option<PoolId>) {
        self.heap.private_pools_mut().choose(id);
    }

    /// Removes a use. The memory of a pool without uses is released at the next opportunity.
    ///
    /// # Errors
    /// There is no such pool, or it has no uses.
    pub fn release_pool(&mut self, id: PoolId) -> Result<(), PoolError> {
        self.heap.private_pools_mut().release(id)
    }

    /// Sets whether the caller's current stream is being captured into a graph. PyTorch releases that check this
    /// postpone all waiting during a capture ([`crate::profile::Deferral`]).
    pub fn set_capturing(&mut self, is_capturing: bool) {
        self.heap.private_pools_mut().is_capturing = is_capturing;
    }

    /// The number of uses of a pool.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn pool_use_count(&self, id: PoolId) -> Result<i64, PoolError> {
        self.heap.private_pools().use_count(id)
    }

    /// Sets whether a pool's free blocks may serve requests to the default pool when the device is out of memory (spec
    /// 5.6).
    pub fn set_pool_use_on_oom(&mut self, id: PoolId, serves: bool) {
        self.heap.private_pools_mut().set_serves_when_out(id, serves);
    }

    /// Stops splitting a pool's blocks. A later pool with the same id may inherit this
    /// ([`crate::profile::Profile::forgets_no_split`]).
    pub fn set_pool_no_split(&mut self, id: PoolId) {
        self.heap.private_pools_mut().set_no_split(id);
    }

    /// Waits for the events of a pool without uses, then releases the pool's cached memory. Does nothing for a pool
    /// in use or an unknown one (spec 2.10).
    ///
    /// # Errors
    /// Any error from the device; [`AllocError::Capturing`]; or the pool has been released more often than used.
    pub fn release_cached_pool(&mut self, id: PoolId) -> Result<(), AllocError> {
        let Some(pool_number) =
            self.heap.private_pools().number_of(id).filter(|&pool_number| self.heap.private_pools().is_abandoned(pool_number))
        else {
            return Ok(());
        };
        if self.heap.is_deferring() {
            return Err(self.refuse_to_wait());
        }
        self.synchronize_pool(pool_number)?;
        self.heap.private_pools().check_uses(pool_number)?;
        self.coalesce_idle_segments();
        let blocks = self.heap.releasable_of(pool_number);
        self.release_segments(&blocks)?;
        self.forget_if_empty(pool_number)
    }

    /// The segments of one pool, by address. Tells the observer that a snapshot was taken (spec 5.7).
    pub fn snapshot_pool(&mut self, id: PoolId) -> Vec<SegmentInfo> {
        let mut segments = self.segments();
        segments.retain(|segment| segment.pool == id);
        let size = segments.iter().map(|segment| segment.active.0).sum();
        let stream = StreamId::DEFAULT;
        self.observer.observe(&TraceEntry { action: TraceAction::Snapshot, address: 0, size, stream, pool: id });
        segments
    }

    /// Searches the pools that may serve requests when the device is out of memory for a free block. Returns the
    /// block, and the request, changed to that pool (spec 5.6).
    pub(super) fn borrow_from_pools(&mut self, request: &Request, stream_slot: u16) -> Result<Option<Found>, AllocError> {
        if request.pool.pool_number() != 0 {
            return Ok(None);
        }
        for id in self.heap.private_pools().serving_when_out() {
            self.route_to(id, PoolFilter::All)?;
            let found = self.search_pool(id, request, stream_slot);
            let address = found.as_ref().ok().and_then(Option::as_ref).map(|found| self.heap.arena.at(found.index).address);
            self.end_pool(id)?;
            self.release_pool(id)?;
            if let Some(found) = found? {
                // The end of the routing may have freed a neighbour, which then absorbed the block.
                let index = address.and_then(|address| self.heap.free_block_at(address)).unwrap_or(found.index);
                return Ok(Some(Found { index, ..found }));
            }
        }
        Ok(None)
    }

    fn search_pool(&mut self, id: PoolId, request: &Request, stream_slot: u16) -> Result<Option<Found>, AllocError> {
        let Some(pool_number) = self.heap.private_pools().number_of(id) else { return Ok(None) };
        let is_expandable = request.is_expandable && self.profile.borrows_expandable;
        let request = Request { pool: PoolSlot::of_pool(pool_number, request.pool.class()), is_expandable, ..*request };
        self.place_again(&request, stream_slot)
    }

    /// Forgets pools that have neither uses nor memory, and frees the addresses that they still reserve. Fails at the
    /// first pool that has been released more often than used.
    pub(super) fn forget_empty_pools(&mut self) -> Result<(), AllocError> {
        for pool_number in self.heap.private_pools().freeable() {
            self.heap.private_pools().check_uses(pool_number)?;
            self.forget_if_empty(pool_number)?;
        }
        Ok(())
    }

    /// Forgets a pool if it has no uses and no memory.
    fn forget_if_empty(&mut self, pool_number: u16) -> Result<(), AllocError> {
        let pools = self.heap.private_pools();
        let is_awaited = pools.is_routed(pool_number) || pools.is_serving(pool_number);
        if self.heap.reserved_by(pool_number) != Bytes::ZERO || is_awaited {
            return Ok(());
        }
        while let Some(index) = self.heap.bare_reservation_of(pool_number) {
            let (base, size) = (self.heap.arena.at(index).address, self.heap.arena.at(index).size);
            self.release_leftovers()?;
            self.device.unreserve(DeviceAddress(base), Bytes(size))?;
            self.device_ranges.remove(base);
            self.reservations.remove(base);
            self.heap.remove_reservation(index);
        }
        self.heap.private_pools_mut().forget(pool_number, self.profile.forgets_no_split);
        Ok(())
    }
}
