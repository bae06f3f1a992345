//! Freed blocks while a graph is captured (spec 3.8).
//!
//! The allocator cannot wait for events then, so it postpones the events of freed blocks until the capture has ended.
//! With the setting graph_capture_record_stream_reuse, it can still reuse such a block: the graph itself shows when a
//! stream is ordered after all work of the other streams that use it.

use alloc::vec::Vec;

use super::Allocator;
use crate::device::{DeviceBackend, GraphNode};
use crate::error::AllocError;
use crate::heap::PoolError;
use crate::policy::Policy;
use crate::trace::Observer;
use crate::units::{PoolId, StreamId};

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
