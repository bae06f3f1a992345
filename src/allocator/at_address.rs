//! Requests for an address: memory where it was before.

use super::{Allocation, Allocator};
use crate::device::DeviceBackend;
use crate::error::AllocError;
use crate::heap::BlockView;
use crate::policy::{Policy, Request};
use crate::trace::Observer;
use crate::units::{Bytes, DeviceAddress, StreamId};

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Serves a request at an address, a multiple of 512, from a free block of its pool and stream that reaches from there far enough
    /// (spec 2.16). `None` if there is none: the device is not asked. What is before the address is handed out first and taken back
    /// afterwards, which the observer is told.
    ///
    /// # Errors
    /// See [`AllocError`].
    pub fn allocate_at(
        &mut self,
        requested: Bytes,
        stream: StreamId,
        address: DeviceAddress,
    ) -> Result<Option<Allocation>, AllocError> {
        let request = match self.prepare(requested, stream) {
            Err(AllocError::TooLarge { .. }) => return Ok(None),
            prepared => prepared?.0,
        };
        let before = |start: DeviceAddress, size: Bytes| {
            let before = address.0.checked_sub(start.0).filter(|&before| before <= size.0)?;
            (size.0 - before >= request.size.0).then_some(before)
        };
        let may_hold = address.0.is_multiple_of(512);
        let holding = |block: BlockView| Some((block.id.index, before(block.address, block.size)?));
        let found = self.heap.free_blocks(request.pool).filter(|block| may_hold && block.stream == stream).find_map(holding);
        let Some((index, before)) = found else { return Ok(None) };
        self.heap.detach(index);
        let front = (before > 0).then(|| {
            let for_front = Request { requested: Bytes(before), size: Bytes(before), ..request };
            let allocation = self.hand_out_part(index, &for_front, true);
            self.heap.detach(index);
            allocation
        });
        let splits = self.splits(self.heap.arena.at(index).size, &request);
        let allocation = self.hand_out_part(index, &request, splits);
        if let Some(front) = front {
            self.give_back(front.id().index)?;
        }
        Ok(Some(allocation))
    }
}
