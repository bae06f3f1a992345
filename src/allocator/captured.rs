//! Reuse while a graph is captured, if the setting for it is on (spec 3.8): nothing can be waited for then, but the graph itself says when
//! a stream comes after all work of the others that use a block.

use alloc::vec::Vec;

use super::Allocator;
use crate::device::{DeviceBackend, GraphNode};
use crate::error::AllocError;
use crate::policy::Policy;
use crate::trace::Observer;
use crate::units::StreamId;

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Puts off recording the events of a block that is given back.
    #[cold]
    pub(super) fn defer(&mut self, index: u32) {
        self.pending.defer(index);
        if self.reuses_by_graph()
            && let Some(ends) = self.graph_ends(index)
        {
            self.pending.note_ends(index, ends);
        }
    }

    fn reuses_by_graph(&self) -> bool {
        self.profile.reuses_by_graph && self.policy.reuses_in_captures()
    }

    /// Where the captured graph ends now on all streams that use the block. `None` if one of them is not captured, or the device fails: then
    /// the block waits for the capture's end.
    fn graph_ends(&mut self, index: u32) -> Option<Vec<GraphNode>> {
        let mut ends = Vec::new();
        let own = self.heap.stream(self.heap.arena.at(index).stream);
        for stream in core::iter::once(own).chain(self.pending.uses(&self.heap.arena, index)) {
            ends.extend(self.device.capture(stream).ok()??.ends);
        }
        Some(ends).filter(|ends| !ends.is_empty())
    }

    /// Frees the blocks of the stream, which is captured, whose other streams' work the graph makes it wait for.
    #[cold]
    pub(super) fn free_passed(&mut self, stream: StreamId) -> Result<(), AllocError> {
        if !self.reuses_by_graph() {
            return Ok(());
        }
        let Some(capture) = self.device.capture(stream)?.filter(|capture| !capture.ends.is_empty()) else { return Ok(()) };
        let pool_number = self.heap.private_pools().number_for(stream);
        let awaited = self.pending.awaited(capture.id, pool_number, stream).ok_or(AllocError::NotCaptured)?;
        self.device.add_awaited(stream, awaited)?;
        let stream_slot = self.heap.stream_slot(stream)?;
        for index in self.pending.take_passed(&mut self.heap.arena, capture.id, stream, stream_slot) {
            self.free_waiting(index);
        }
        Ok(())
    }
}
