//! Segments: taking them from the device within the limit, and releasing them (spec 2.8, 2.12).

use super::Allocator;
use super::expandable::Freed;
use crate::block::{BlockId, BlockState};
use crate::device::{BackendError, DeviceBackend};
use crate::device_ranges::{AnswerProblem, WrongAnswer};
use crate::error::AllocError;
use crate::heap::{GrowsFrom, PoolSlot};
use crate::policy::{Policy, Request};
use crate::stats::Family;
use crate::trace::{Observer, TraceAction};
use crate::units::{Bytes, DeviceAddress};

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Asks the device for a segment, within the limit (spec 2.8). Returns its free block, or `None` if there is no room.
    pub(super) fn take_segment(&mut self, request: &Request, stream: u16, size: Bytes) -> Result<Option<u32>, AllocError> {
        // Without a limit, only 64 bits limit the size.
        let limit = self.heap.limit().unwrap_or(Bytes::MAX);
        // Handles are checked one by one: if a free block covers the beginning of a request, the request takes less
        // than the segment.
        let is_private = request.pool.pool_number() != 0;
        let is_expandable = request.is_expandable && (self.profile.expands_private_pools || !is_private);
        let has_handles = is_expandable && self.policy.handle(&self.heap, request, size).is_some();
        if !has_handles && self.heap.reserved().checked_add(size).is_none_or(|reserved| reserved > limit) {
            return Ok(None);
        }
        // Like the limit, this rule looks at an entire segment, of which a request with handles may need only a part.
        if !has_handles && self.policy.rejects(self.heap.reserved(), size, self.total_memory) {
            self.stats.num_oom_rejections += 1;
            return Err(AllocError::Rejected { requested: request.requested });
        }
        if is_expandable {
            let page = self.policy.page(request.pool);
            if is_private && self.policy.lends_to_pools() {
                return self.grow_and_lend(request, stream, page, has_handles);
            }
            return self.extend(request, stream, page, has_handles, GrowsFrom::default());
        }
        let address = match self.device.malloc(size) {
            Ok(address) => address,
            Err(BackendError::OutOfMemory { .. }) => {
                self.look_after_refusal()?;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let reserved = self.heap.reserved().checked_add(size);
        if reserved.is_none_or(|reserved| reserved.0 > i64::MAX as u64) {
            return Err(WrongAnswer { call: "malloc", address, bytes: size, problem: AnswerProblem::TooMuch }.into());
        }
        self.note_taken("malloc", address, size)?;
        let class = request.pool.class();
        let block = self.heap.add_segment(address, size, stream, request.pool);
        self.heap.attach(block, self.policy.stamp(request.pool));
        self.stats.increase(Family::Segment, class, 1);
        self.count_reserved(request.pool, size.0 as i64);
        if self.policy.is_oversize(size) {
            self.stats.oversize_segments.increase(1);
        }
        self.stats.num_device_alloc += 1;
        self.tell(TraceAction::SegmentAlloc, block, address.0, size.0);
        Ok(Some(block))
    }

    /// Counts the bytes that a pool took from the device; negative if the pool released them.
    pub(super) fn count_reserved(&mut self, pool: PoolSlot, bytes: i64) {
        self.stats.change(Family::ReservedBytes, pool.class(), bytes);
        self.count_reserved_by_pool(pool, bytes);
    }

    /// Counts the bytes only in the statistics of the private pool, if the pool is private.
    pub(super) fn count_reserved_by_pool(&mut self, pool: PoolSlot, bytes: i64) {
        if self.profile.counts_private_pools && pool.pool_number() != 0 {
            let id = self.heap.pool_id(pool.0);
            self.stats.change_reserved_by(id, pool.class(), bytes);
        }
    }

    /// Asks for the device's free memory after a refusal. Some PyTorch releases do this for a line in their log.
    pub(super) fn look_after_refusal(&mut self) -> Result<(), BackendError> {
        if self.profile.asks_after_refusal { self.device.memory_info().map(|_| ()) } else { Ok(()) }
    }

    /// Refuses to release memory during a capture, or memory of a private pool in use, because graphs may need it,
    /// unless the policy's rules allow the release.
    pub(super) fn check_release(&self, blocks: &[BlockId]) -> Result<(), AllocError> {
        if self.policy.releases_during_captures() {
            return Ok(());
        }
        let freeable = self.heap.private_pools().freeable();
        for index in blocks.iter().filter_map(|&id| self.heap.arena.resolve(id)) {
            let pool_number = PoolSlot(self.heap.arena.at(index).pool).pool_number();
            let may_go = if pool_number == 0 { !self.heap.is_deferring() } else { freeable.contains(&pool_number) };
            if !may_go {
                return Err(self.fault("releases memory while a graph is captured, or memory of a private pool in use").into());
            }
        }
        Ok(())
    }

    /// Releases whole segments, and the pages of expandable segments, in order, up to the first failure (spec 2.12).
    pub(super) fn release_segments(&mut self, blocks: &[BlockId]) -> Result<(), AllocError> {
        let missing = "releases a block that does not exist";
        self.check_exist(blocks, missing)?;
        for &id in blocks {
            let Some(index) = self.heap.arena.resolve(id) else {
                // The block may have coalesced with one before it.
                if self.heap.mixes_streams() {
                    continue;
                }
                return Err(self.fault(missing).into());
            };
            let block = self.heap.arena.at(index);
            if block.state != BlockState::Free {
                return Err(self.fault("releases a block that is not free").into());
            }
            if block.is_expandable() {
                self.unmap_block(index, Freed::Released)?;
                continue;
            }
            if block.is_split() {
                return Err(self.fault("releases a part of a segment").into());
            }
            let (address, size, pool) = (block.address, block.size, PoolSlot(block.pool));
            self.device.free(DeviceAddress(address))?;
            self.device_ranges.remove(address);
            self.tell(TraceAction::SegmentFree, index, address, size);
            self.heap.detach(index);
            self.heap.remove_segment(index);
            self.stats.num_device_free += 1;
            self.stats.decrease(Family::Segment, pool.class(), 1);
            self.count_reserved(pool, -(size as i64));
            if self.policy.is_oversize(Bytes(size)) {
                self.stats.oversize_segments.decrease(1);
            }
        }
        Ok(())
    }

    /// Checks that the blocks exist before the first one is released, because a release may coalesce others.
    pub(super) fn check_exist(&self, blocks: &[BlockId], problem: &'static str) -> Result<(), AllocError> {
        let all_exist = blocks.iter().all(|&id| self.heap.arena.resolve(id).is_some());
        if all_exist { Ok(()) } else { Err(self.fault(problem).into()) }
    }
}
