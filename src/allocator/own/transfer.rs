//! Memory that moves: free blocks move to another stream, and pages to other addresses. PyTorch does neither.
//!
//! A block may change streams when the work of its old stream is ordered before future work of the new one, either
//! because the device makes the new stream wait or because the work is done. The segment then has blocks of different
//! streams, which do not coalesce until the allocator has waited for all streams, or until a policy moves them to one
//! stream.

use crate::allocator::Allocator;
use crate::allocator::expandable::Freed;
use crate::block::{BlockId, BlockState};
use crate::device::{BackendError, DeviceBackend};
use crate::error::AllocError;
use crate::policy::{Policy, Request};
use crate::trace::Observer;
use crate::units::{Bytes, StreamId};

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Moves a free block from another stream. `None` if the streams cannot be ordered, or
    /// if the other stream still has work and the request's stream is not allowed to wait.
    pub(super) fn transfer(
        &mut self,
        request: &Request,
        stream_slot: u16,
        id: BlockId,
        waits: bool,
    ) -> Result<Option<u32>, AllocError> {
        let Some(index) = self.ordered_block(request, stream_slot, id, waits)? else { return Ok(None) };
        // Coalesce the block with free neighbours of the request's stream. A remainder split off later could not
        // coalesce with them.
        self.regroup(index, stream_slot);
        Ok(Some(index))
    }

    /// Moves a free block from another stream, or only the part that is split off for the request. The rest stays with
    /// its stream. `None` if the streams cannot be ordered. The moved part does not coalesce.
    pub(super) fn transfer_part(&mut self, request: &Request, stream_slot: u16, id: BlockId) -> Result<Option<u32>, AllocError> {
        let Some(index) = self.ordered_block(request, stream_slot, id, true)? else { return Ok(None) };
        let stamp = self.policy.stamp(request.pool);
        let moved = if self.splits(index, request) {
            let block = self.heap.arena.at(index);
            let (whole, was_split, is_expandable) = (block.size, block.is_split(), block.is_expandable());
            let low = self.heap.take_low_end(index, request.size.0, stamp);
            if !is_expandable {
                self.count_parts(request.pool.class(), was_split, (whole - request.size.0) as i64, request.size.0 as i64);
            }
            low
        } else {
            self.heap.detach(index);
            index
        };
        self.heap.change_stream(moved, stream_slot);
        self.heap.attach(moved, stamp);
        Ok(Some(moved))
    }

    /// Moves all free blocks of the pool from another stream to the request's stream.
    pub(super) fn transfer_all(&mut self, request: &Request, stream_slot: u16, from: StreamId) -> Result<(), AllocError> {
        let slot = self.heap.known_stream_slot(from).filter(|&slot| slot != stream_slot);
        let slot = slot.ok_or_else(|| self.fault("transfers the blocks of an unknown stream, or of the request's own stream"))?;
        if self.heap.is_deferring() || !self.order(from, request.stream, true)? {
            return Ok(());
        }
        for index in self.heap.movable_blocks(request.pool, slot) {
            self.regroup(index, stream_slot);
        }
        Ok(())
    }

    /// Takes a segment from the device and makes it a free block of a stream.
    pub(super) fn provide(&mut self, request: &Request, bytes: Bytes, stream: StreamId) -> Result<(), AllocError> {
        if bytes == Bytes::ZERO {
            return Err(self.fault("provides a segment of 0 bytes").into());
        }
        if request.is_expandable {
            return Err(self.fault("provides a segment although segments are expandable").into());
        }
        let slot = self.heap.known_stream_slot(stream).ok_or_else(|| self.fault("provides a segment for an unknown stream"))?;
        self.take_segment(request, slot, bytes).map(|_| ())
    }

    /// Checks a block of another stream that the policy chose, and orders that stream's work before the request's.
    /// Returns the block's slot; `None` if the work cannot be ordered, as while a stream is captured.
    fn ordered_block(
        &mut self,
        request: &Request,
        stream_slot: u16,
        id: BlockId,
        waits: bool,
    ) -> Result<Option<u32>, AllocError> {
        let index = self.heap.arena.resolve(id).ok_or_else(|| self.fault("transfers a block that does not exist"))?;
        let block = self.heap.arena.at(index);
        if block.state != BlockState::Free {
            return Err(self.fault("transfers a block that is not free").into());
        }
        if block.size < request.size.0 {
            return Err(self.fault("transfers a block that is too small").into());
        }
        if block.pool != request.pool.0 || block.stream == stream_slot {
            return Err(self.fault("transfers a block of a different pool, or of the request's own stream").into());
        }
        let from = self.heap.stream(block.stream);
        Ok(self.order(from, request.stream, waits)?.then_some(index))
    }

    /// Orders all work submitted to `from` so far before future work of `to`. If `waits` is false, only checks whether
    /// that work is done. Returns whether the work is ordered. A captured stream cannot wait for work outside its capture,
    /// and other streams cannot wait for its work.
    fn order(&mut self, from: StreamId, to: StreamId, waits: bool) -> Result<bool, BackendError> {
        if !(self.may_wait_for(from) && self.may_wait_for(to)) {
            return Ok(false);
        }
        let mut event = match self.pending.take_spare_event() {
            Some(event) => event,
            None => self.device.create_event()?,
        };
        let recorded = self.device.record_event(&mut event, from);
        let ordered = recorded.and_then(|()| {
            if waits { self.device.stream_wait(to, &event).map(|()| true) } else { self.device.is_complete(&event) }
        });
        self.pending.return_spare_event(event);
        ordered
    }

    /// If blocks have changed streams, waits for all streams and then moves the free blocks of each segment to one
    /// stream, so that they can coalesce. For an expandable segment, this is its own stream.
    pub(in crate::allocator) fn reunite(&mut self) -> Result<(), BackendError> {
        if self.heap.is_deferring() || !(self.heap.mixes_streams() || self.heap.has_parts_elsewhere()) {
            return Ok(());
        }
        let mut parted = self.heap.parted_by_stream();
        let free = self.heap.free_expandable();
        parted.extend(free.into_iter().filter_map(|index| self.home_of(index).map(|home| (index, home))));
        if parted.is_empty() && !self.has_parts_to_return() {
            return Ok(());
        }
        let streams = self.heap.streams_seen().to_vec();
        if !streams.iter().all(|&stream| self.may_wait_for(stream)) {
            return Ok(());
        }
        for stream in streams {
            self.device.synchronize_stream(stream)?;
        }
        for (index, stream) in parted {
            self.regroup(index, stream);
        }
        self.take_parts_back();
        Ok(())
    }

    /// Whether the device may wait for the stream's work now. A device that can wait during captures says whether the
    /// stream takes part in one; [`Heap::is_deferring`] may not know of captures on other streams than the caller's. A
    /// stream about which the device does not answer is left alone. For other devices, no graph may be captured.
    pub(super) fn may_wait_for(&mut self, stream: StreamId) -> bool {
        if self.device.waits_in_captures() { matches!(self.device.capture(stream), Ok(None)) } else { !self.heap.is_deferring() }
    }

    /// The stream of the block's expandable segment, if the block belongs to another stream.
    fn home_of(&mut self, index: u32) -> Option<u16> {
        let block = self.heap.arena.at(index);
        let (_, range) = self.reservations.holding(block.address).filter(|(_, range)| range.pool == block.pool)?;
        self.heap.known_stream_slot(range.stream).filter(|&home| home != block.stream)
    }

    /// If a free block of an expandable segment belongs to a different stream than the segment, waits for that stream
    /// and returns the block to the segment's stream, where it coalesces. The block keeps its slot. Does nothing while
    /// a graph is captured.
    pub(in crate::allocator) fn bring_home(&mut self, index: u32) -> Result<(), BackendError> {
        if self.heap.is_deferring() {
            return Ok(());
        }
        self.bring_part_home(index)?;
        if !self.heap.mixes_streams() {
            return Ok(());
        }
        let Some(home) = self.home_of(index) else { return Ok(()) };
        if !self.may_wait_for(self.heap.stream(self.heap.arena.at(index).stream)) {
            return Ok(());
        }
        self.device.synchronize_stream(self.heap.stream(self.heap.arena.at(index).stream))?;
        self.regroup(index, home);
        Ok(())
    }

    /// Whether a block of an expandable segment belongs to a different pool or stream than the segment, in which case
    /// it cannot be unmapped.
    pub(in crate::allocator) fn is_away(&mut self, index: u32) -> bool {
        self.is_part(index) || self.heap.mixes_streams() && self.home_of(index).is_some()
    }

    /// Moves a free block to another stream and coalesces it with its free neighbours there.
    fn regroup(&mut self, index: u32, stream: u16) {
        self.heap.detach(index);
        self.heap.change_stream(index, stream);
        self.put_back_unused(index);
    }

    /// Unmaps the whole pages in free blocks, maps their memory for the request, with new memory from the device if
    /// necessary, and releases the rest. Does nothing while a graph is captured, because unmapping waits for work.
    pub(super) fn remap(
        &mut self,
        request: &Request,
        stream_slot: u16,
        segment: Bytes,
        blocks: &[BlockId],
    ) -> Result<Option<u32>, AllocError> {
        if self.heap.is_deferring() {
            return Ok(None);
        }
        self.check_release(blocks)?;
        self.check_exist(blocks, "remaps a block that does not exist")?;
        let unmapped = blocks.iter().try_for_each(|&id| self.unmap_for_reuse(id));
        let asked = unmapped.and_then(|()| self.take_segment(request, stream_slot, segment));
        let left = self.reservations.take_spare();
        let released = self.release_pages(left);
        match asked {
            // If the device failed to release memory, the allocator tries again later; the request is served anyway.
            Ok(Some(block)) => Ok(Some(block)),
            Ok(None) => Ok(released.map(|()| None)?),
            Err(error) => Err(error),
        }
    }

    fn unmap_for_reuse(&mut self, id: BlockId) -> Result<(), AllocError> {
        // A block that no longer exists has coalesced with the one before it.
        let Some(index) = self.heap.arena.resolve(id) else { return Ok(()) };
        let block = self.heap.arena.at(index);
        if block.state != BlockState::Free {
            return Err(self.fault("remaps a block that is not free").into());
        }
        if !block.is_expandable() {
            return Err(self.fault("remaps a block that is not in an expandable segment").into());
        }
        self.unmap_block(index, Freed::Spare)
    }
}
