//! The path of a free: a block becomes free immediately or, if other streams use it, when their events are complete
//! (spec 3.3 to 3.7).
//!
//! A block may serve a new request of its own stream at once: the GPU carries out a stream's work in order, so whatever
//! used the block before is done when the new work begins. Work of a different stream is not ordered like that, so the
//! block waits. The events are recorded when the program frees the block, and checked at the beginning of every request.
//!
//! While a graph counts as being captured, nothing is recorded or checked (spec 3.8): the allocator cannot wait for events
//! then, so it postpones the events of freed blocks until the capture has ended.
//! With the setting graph_capture_record_stream_reuse, it can still reuse such a block: the graph itself shows when a
//! stream is ordered after all work of the other streams that use it.

use alloc::vec::Vec;

use super::{Allocation, Allocator};
use crate::block::BlockState;
use crate::device::{BackendError, DeviceBackend, GraphNode};
use crate::error::{AllocError, FreeError};
use crate::heap::{FreePair, LiveBlock, PoolError, PoolSlot};
use crate::policy::Policy;
use crate::trace::{Observer, TraceAction};
use crate::units::{Bytes, PoolId, StreamId};

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Records that work on `stream` uses the block: once freed, the block stays pending until that work is done.
    /// Ignores the block's own stream and allocations from a different allocator (spec 3.5).
    pub fn record_stream(&mut self, allocation: &Allocation, stream: StreamId) {
        let Some(index) = self.resolve(allocation) else { return };
        if self.heap.stream(self.heap.arena.at(index).stream) != stream {
            let is_deferring = self.heap.is_deferring() && self.profile.forgets_captured_uses;
            self.pending.add_use(&mut self.heap.arena, index, stream, is_deferring);
        }
    }

    /// Frees an allocation. The block becomes free immediately or, if other streams use it, when the work submitted to
    /// them so far is done.
    ///
    /// # Errors
    /// [`FreeError::NotAllocated`] for a different allocator's allocation, which the error returns; [`FreeError::Device`]
    /// if an event could not be recorded, in which case the block stays pending and the next request tries again.
    #[inline(always)]
    pub fn free(&mut self, allocation: Allocation) -> Result<(), FreeError> {
        let Some(index) = self.resolve(&allocation) else { return Err(FreeError::NotAllocated(allocation)) };
        self.note_freed(index);
        self.give_back(index).map_err(FreeError::Device)
    }

    /// Tells the policy that the program frees a block.
    #[inline(always)]
    pub(super) fn note_freed(&mut self, index: u32) {
        self.policy.freed(&self.heap, LiveBlock::new(&self.heap, index));
    }

    /// Frees an allocated block (spec 3.3). After an error, it stays pending.
    #[inline(never)]
    pub(super) fn give_back(&mut self, index: u32) -> Result<(), BackendError> {
        let block = self.heap.arena.at(index);
        if block.has_uses() {
            return self.give_back_used(index);
        }
        let (address, size, requested, pool) = (block.address, block.size, block.requested, PoolSlot(block.pool));
        self.tell(TraceAction::FreeRequested, index, address, requested);
        if self.policy.is_oversize(Bytes(size)) {
            self.stats.oversize_allocations.decrease(1);
        }
        self.stats.count_freed(pool.class(), size as i64, requested as i64);
        self.free_block(index);
        Ok(())
    }

    /// Frees an allocated block that other streams use.
    #[inline(never)]
    fn give_back_used(&mut self, index: u32) -> Result<(), BackendError> {
        let block = self.heap.arena.at_mut(index);
        block.state = BlockState::Pending;
        block.set_events(0);
        let (address, size, requested, pool) = (block.address, block.size, block.requested, PoolSlot(block.pool));
        self.tell(TraceAction::FreeRequested, index, address, requested);
        if self.policy.is_oversize(Bytes(size)) {
            self.stats.oversize_allocations.decrease(1);
        }
        self.stats.count_waiting(pool.class(), size as i64);
        if self.heap.is_deferring() {
            self.defer(index);
            return Ok(());
        }
        self.pending.keep_captured_uses(index);
        self.insert_events(index).inspect_err(|_| self.pending.defer(index))
    }

    /// Waits for all events, then releases every cached segment (`empty_cache`, spec 2.10).
    ///
    /// # Errors
    /// Any error from the device; [`AllocError::Capturing`]; or a private pool has been released more often than used.
    /// Segments released before the error stay released.
    pub fn release_cached(&mut self) -> Result<(), AllocError> {
        if !self.heap.is_deferring() {
            self.synchronize()?;
        } else if self.profile.keeps_cache_in_captures {
            return Err(self.refuse_to_wait());
        }
        self.release_leftovers()?;
        self.release_all()
    }

    /// The error of a wait during a capture, which PyTorch counts before it fails.
    #[cold]
    pub(super) fn refuse_to_wait(&mut self) -> AllocError {
        self.stats.num_sync_all_streams += 1;
        AllocError::Capturing
    }

    /// Frees blocks whose events are complete, without waiting. Checks each stream's events in order, up to the first
    /// incomplete one (spec 3.6). Every request begins with this.
    ///
    /// # Errors
    /// Any error from the device.
    #[inline]
    pub fn process_events(&mut self) -> Result<(), BackendError> {
        if self.pending.is_idle() || self.heap.is_deferring() { Ok(()) } else { self.poll_queues() }
    }

    // Out of line, because most requests have no events to check.
    #[inline(never)]
    fn poll_queues(&mut self) -> Result<(), BackendError> {
        self.flush_deferred()?;
        let polled = self.poll_each_queue();
        if !matches!(polled, Ok(false)) {
            self.pending.forget_empty_queues();
        }
        polled.map(|_| ())
    }

    /// Returns whether it checked every queue.
    fn poll_each_queue(&mut self) -> Result<bool, BackendError> {
        let mut from = Some(0);
        while let Some(queue) = from.and_then(|from| self.pending.queue_from(from)) {
            while let Some(event) = self.pending.front(queue) {
                if !self.device.is_complete(event)? {
                    if self.device.completes_by_handle() {
                        return Ok(false);
                    }
                    break;
                }
                self.complete_front(queue);
            }
            from = queue.checked_add(1);
        }
        Ok(true)
    }

    /// Waits for all events and frees their blocks (spec 3.7).
    pub(super) fn synchronize(&mut self) -> Result<(), BackendError> {
        self.stats.num_sync_all_streams += 1;
        self.flush_deferred()?;
        let waited = self.wait_for_each_queue();
        self.pending.forget_empty_queues();
        waited?;
        self.reunite()
    }

    fn wait_for_each_queue(&mut self) -> Result<(), BackendError> {
        let mut from = Some(0);
        while let Some(queue) = from.and_then(|from| self.pending.queue_from(from)) {
            while let Some(event) = self.pending.front(queue) {
                self.device.wait(event)?;
                self.complete_front(queue);
            }
            from = queue.checked_add(1);
        }
        Ok(())
    }

    /// Waits for the events of one pool's blocks and frees them.
    pub(super) fn synchronize_pool(&mut self, pool_number: u16) -> Result<(), BackendError> {
        self.stats.num_sync_all_streams += 1;
        self.flush_deferred()?;
        let waited = self.wait_for_events_of(pool_number);
        self.pending.forget_empty_queues();
        waited
    }

    fn wait_for_events_of(&mut self, pool_number: u16) -> Result<(), BackendError> {
        let mut from = (0, 0);
        loop {
            let arena = &self.heap.arena;
            let of_pool = |block: u32| PoolSlot(arena.at(block).pool).pool_number() == pool_number;
            let Some(place) = self.pending.first_where(from, of_pool) else { return Ok(()) };
            if let Some(event) = self.pending.event_at(place) {
                self.device.wait(event)?;
            }
            if let Some(block) = self.pending.take_at(&mut self.heap.arena, place) {
                self.complete(block);
            }
            from = place;
        }
    }

    /// Records that the oldest event of the queue is complete.
    fn complete_front(&mut self, queue: u64) {
        if let Some(index) = self.pending.pop(&mut self.heap.arena, queue) {
            self.complete(index);
        }
    }

    /// Frees the block if this was the last event that it was waiting for.
    fn complete(&mut self, index: u32) {
        let block = self.heap.arena.at(index);
        if block.events() == 0 && !block.has_uses() {
            self.free_waiting(index);
        }
    }

    /// Records an event on each stream that uses the block (spec 3.5). Events recorded before an error stay recorded.
    fn insert_events(&mut self, index: u32) -> Result<(), BackendError> {
        while let Some(stream) = self.pending.next_use(&self.heap.arena, index) {
            let mut event = match self.pending.take_spare_event() {
                Some(event) => event,
                None => self.device.create_event()?,
            };
            if let Err(error) = self.device.record_event(&mut event, stream) {
                self.pending.return_spare_event(event);
                return Err(error);
            }
            self.pending.remove_use(&mut self.heap.arena, index, stream);
            self.pending.push(&mut self.heap.arena, stream, event, index);
        }
        Ok(())
    }

    /// Records the events of deferred blocks.
    pub(super) fn flush_deferred(&mut self) -> Result<(), BackendError> {
        while let Some(index) = self.pending.first_deferred() {
            self.pending.remove_captured_uses(&mut self.heap.arena, index);
            self.insert_events(index)?;
            self.pending.drop_first_deferred();
            if self.heap.arena.at(index).events() == 0 {
                self.free_waiting(index);
            }
        }
        Ok(())
    }

    /// Records the events of one pool's deferred blocks. If the device fails to record an event, its block stays
    /// deferred.
    #[cold]
    pub(super) fn flush_deferred_of(&mut self, id: PoolId) {
        let arena = &self.heap.arena;
        let of_pool = |index: u32| self.heap.pool_id(arena.at(index).pool) == id;
        for index in self.pending.take_deferred(of_pool) {
            self.pending.remove_captured_uses(&mut self.heap.arena, index);
            if self.insert_events(index).is_err() {
                self.pending.defer(index);
            } else if self.heap.arena.at(index).events() == 0 {
                self.free_waiting(index);
            }
        }
    }

    /// Frees a block that was waiting for events.
    pub(super) fn free_waiting(&mut self, index: u32) {
        let block = self.heap.arena.at(index);
        self.stats.count_waited(PoolSlot(block.pool).class(), block.size as i64, block.requested as i64);
        self.free_block(index);
    }

    /// Makes the block free (spec 3.4). The split statistics change only once, by the net effect of coalescing.
    #[inline(always)]
    fn free_block(&mut self, index: u32) {
        let block = self.heap.arena.at(index);
        let (address, requested, pool) = (block.address, block.requested, PoolSlot(block.pool));
        let is_expandable = block.is_expandable();
        self.tell(TraceAction::FreeCompleted, index, address, requested);
        let Allocator { heap, policy, stats, .. } = self;
        let joins = |pair: &FreePair| policy.coalesces(pair);
        heap.put_back(index, policy.stamp(pool), joins, |merged| {
            if !is_expandable {
                stats.change_splits(pool.class(), merged.splits, merged.bytes);
            }
        });
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Postpones recording the events of a freed block.
    #[cold]
    pub(super) fn defer(&mut self, index: u32) {
        let ends = self.graph_ends(index);
        self.pending.defer(index);
        self.pending.ends.extend(ends.map(|ends| (index, ends)));
    }

    fn reuses_by_graph(&self) -> bool {
        self.profile.reuses_by_graph && self.policy.reuses_in_captures()
    }

    /// Forgets the newest capture whose requests are routed to the pool, because the routing is about to end. Fails
    /// while one of the capture's streams is still being captured.
    pub(super) fn forget_capture(&mut self, id: PoolId) -> Result<(), PoolError> {
        let number = self.heap.private_pools().number_of(id).filter(|_| self.reuses_by_graph());
        let Some((capture, streams)) = number.and_then(|number| self.pending.newest_capture(number)) else { return Ok(()) };
        if streams.into_iter().any(|stream| !matches!(self.device.capture(stream), Ok(None))) {
            return Err(PoolError::Captured(id));
        }
        self.pending.captures.remove(&capture);
        Ok(())
    }

    /// The nodes at which the captured graph currently ends, on all streams that use the block. `None` if one of these
    /// streams is not captured or the device fails; in that case, the block waits for the end of the capture.
    fn graph_ends(&mut self, index: u32) -> Option<Vec<GraphNode>> {
        self.reuses_by_graph().then_some(())?;
        let mut ends = Vec::new();
        let own = self.heap.stream(self.heap.arena.at(index).stream);
        for stream in core::iter::once(own).chain(self.pending.uses(&self.heap.arena, index)) {
            ends.extend(self.device.capture(stream).ok()??.ends);
        }
        Some(ends).filter(|ends| !ends.is_empty())
    }

    /// Frees blocks of the captured stream whose uses by other streams are over, because the graph makes the stream
    /// wait for that work.
    #[cold]
    pub(super) fn free_ordered(&mut self, stream: StreamId) -> Result<(), AllocError> {
        if !self.reuses_by_graph() {
            return Ok(());
        }
        let Some(capture) = self.device.capture(stream)?.filter(|capture| !capture.ends.is_empty()) else { return Ok(()) };
        let pool_number = self.heap.private_pools().number_for(stream);
        let awaited = self.pending.awaited(capture.id, pool_number, stream).ok_or(AllocError::NotCaptured)?;
        self.device.add_awaited(stream, awaited)?;
        let stream_slot = self.heap.stream_slot(stream)?;
        for index in self.pending.take_ordered(&mut self.heap.arena, capture.id, stream, stream_slot) {
            self.free_waiting(index);
        }
        Ok(())
    }
}
