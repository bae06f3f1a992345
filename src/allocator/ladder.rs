//! The retry ladder: what happens when no free block can serve a request (spec 2.4, steps 5 and 6).
//!
//! Free-memory callbacks run first. Then the policy names one rung after another ([`Relief`]), and this module carries
//! out each of them: ask the device for a segment, release cached segments and ask again, borrow from private pools,
//! wait for events, and so on, until a rung yields a block or the policy gives up, which means "out of memory". The
//! allocator does not have to wait before it releases a segment, because free blocks have no incomplete events.

use alloc::boxed::Box;

use super::allocate::Take;
use super::expandable::Freed;
use super::{Allocation, Allocator};
use crate::block::{BlockId, BlockState};
use crate::device::{BackendError, DeviceBackend};
use crate::error::AllocError;
use crate::heap::PoolSlot;
use crate::policy::{Attempt, Placement, Policy, Relief, Request};
use crate::profile::ExpandableHint;
use crate::stats::Family;
use crate::taken::{AnswerProblem, WrongAnswer};
use crate::texts::{Hint, OutOfMemory, RescueTried};
use crate::trace::{Observer, TraceAction, TraceEntry};
use crate::units::{Bytes, DeviceAddress};

/// More rungs than any sensible ladder has, not counting the rungs for each stream. A policy that exceeds this number
/// never gives up, which is a fault.
const MOST_RUNGS: u32 = 512;

/// A free block that a rung of the ladder has yielded.
pub(super) enum Obtained {
    /// The policy still has to decide whether to split it.
    ToSplit(u32),
    /// The request gets the entire block, which has not coalesced with its neighbours.
    Whole(u32),
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Serves a request for which there is no free block.
    #[cold]
    #[inline(never)]
    pub(super) fn obtain(&mut self, request: Request, stream_slot: u16, segment: Bytes) -> Result<Allocation, AllocError> {
        let (obtained, request) = self.find_room(&request, stream_slot, segment)?;
        let (index, take) = match obtained {
            Obtained::ToSplit(index) => (index, self.part_for(index, &request)),
            Obtained::Whole(index) => (index, Take::Whole),
        };
        let handed_out = self.hand_out(index, &request, take);
        // A rung may have counted the block as a free part of its segment without raising the peaks.
        self.stats.raise_peaks_of_splits(request.pool.class(), 1, 1);
        Ok(handed_out)
    }

    /// Climbs the ladder for a request that no free block can serve. `segment` is the size of a new segment for it.
    /// Returns a block, and the request with the pool that serves it.
    ///
    /// The pool is kept until then, even if a callback abandons it and creates other pools; none of these serves the
    /// request. In PyTorch, the request holds a pointer to the pool, which dangles if the callback releases the pool's
    /// cache.
    #[cold]
    fn find_room(&mut self, request: &Request, stream_slot: u16, segment: Bytes) -> Result<(Obtained, Request), AllocError> {
        let pool_number = request.pool.pool_number();
        if pool_number != 0 {
            self.heap.note_growing_pool();
        }
        self.heap.private_pools_mut().keep(pool_number);
        let mut tried = None;
        let obtained = self.climb(request, stream_slot, segment, &mut tried);
        self.heap.private_pools_mut().keep_no_longer(pool_number);
        let is_refused = matches!(obtained, Err(AllocError::OutOfMemory(_)));
        if let Some(tried) = tried.filter(|_| !is_refused) {
            self.stats.num_rescues += 1;
            if obtained.is_ok() {
                self.observer.rescued(request.size, &tried);
            }
        }
        obtained
    }

    /// Asks for one rung after another. Sets `tried` to the steps of a rescue, if there is one.
    fn climb(
        &mut self,
        request: &Request,
        stream_slot: u16,
        mut segment: Bytes,
        tried: &mut Option<RescueTried>,
    ) -> Result<(Obtained, Request), AllocError> {
        if self.run_free_memory_callbacks() {
            match self.policy.place(&self.heap, request) {
                Placement::Reuse(id) => return Ok((Obtained::ToSplit(self.check_choice(id, request, stream_slot)?), *request)),
                Placement::Segment(bytes) => segment = bytes,
            }
        }
        if segment < request.size {
            return Err(self.fault("asks for a segment that is smaller than the block").into());
        }
        // A ladder may have a rung for each stream.
        let most_rungs = MOST_RUNGS + self.heap.streams_seen().len() as u32;
        for rung in 0..most_rungs {
            let block = match self.policy.relieve(&self.heap, request, rung) {
                Relief::Release { blocks, attempt } => {
                    self.check_release(&blocks)?;
                    self.release_segments(&blocks)?;
                    // Garbage collection and the release of oversize blocks do not check for empty pools.
                    if attempt == Attempt::AskAgain {
                        self.forget_empty_pools()?;
                    }
                    self.ask_device(request, stream_slot, segment, attempt)?
                }
                Relief::Annex => self.annex(request, stream_slot),
                Relief::Borrow => match self.borrow(request, stream_slot)? {
                    Some((block, request)) => return Ok((Obtained::ToSplit(block), request)),
                    None => None,
                },
                Relief::Transfer { block, waits } => self.transfer(request, stream_slot, block, waits)?,
                Relief::TransferPart { block } => match self.transfer_part(request, stream_slot, block)? {
                    Some(index) => return Ok((Obtained::Whole(index), *request)),
                    None => None,
                },
                Relief::TransferAll { from } => self.transfer_all(request, stream_slot, from).map(|()| None)?,
                Relief::Provide { bytes, stream } => self.provide(request, bytes, stream).map(|()| None)?,
                Relief::Remap { blocks } => self.remap(request, stream_slot, segment, &blocks)?,
                Relief::Move { handles } => {
                    tried.iter_mut().for_each(|tried| tried.moved_handles += handles.len() as u64);
                    self.move_handles(request, stream_slot, segment, &handles, true)?
                }
                Relief::Replace { handles } => {
                    tried.iter_mut().for_each(|tried| tried.moved_handles += handles.len() as u64);
                    self.move_handles(request, stream_slot, segment, &handles, false)?
                }
                Relief::Break { handles } => {
                    let copied_before = self.stats.copied_bytes;
                    let broken = self.break_handles(&handles)?;
                    if let Some(tried) = tried {
                        tried.broken_handles += broken;
                        tried.copied_bytes += self.stats.copied_bytes.abs_diff(copied_before);
                    }
                    None
                }
                Relief::Rescue { page } => {
                    if tried.is_none() {
                        let free = self.device.memory_info()?.free;
                        self.observe_failure(request, free);
                        *tried = Some(RescueTried::default());
                    }
                    self.refine(page).map(|()| None)?
                }
                // Waiting would break the capture, and the stream uses recorded during it would be lost.
                Relief::Wait if self.heap.is_deferring() => None,
                Relief::Wait => self.synchronize().map(|()| None)?,
                Relief::Reuse(id) => Some(self.check_choice(id, request, stream_slot)?),
                Relief::ReuseAt { block, offset } => Some(self.reuse_from(block, offset, request, stream_slot)?),
                Relief::GiveUp => return Err(self.out_of_memory(request, segment, *tried)),
            };
            if let Some(block) = block {
                return Ok((Obtained::ToSplit(block), *request));
            }
        }
        Err(self.fault("never gives up").into())
    }

    /// Leaves the part of a free block before `offset` free, so that the request gets what follows.
    #[cold]
    fn reuse_from(&mut self, id: BlockId, offset: Bytes, request: &Request, stream_slot: u16) -> Result<u32, AllocError> {
        let index = self.check_choice(id, request, stream_slot)?;
        if offset.0 > self.heap.arena.at(index).size - request.size.0 {
            return Err(self.fault("reuses a block from an offset that leaves too little room").into());
        }
        if offset > Bytes::ZERO {
            self.leave_front(index, offset, request);
        }
        Ok(index)
    }

    /// Runs all callbacks. Returns whether any of them freed memory.
    fn run_free_memory_callbacks(&mut self) -> bool {
        let mut callbacks = core::mem::take(&mut self.callbacks);
        let mut freed = false;
        for callback in &mut callbacks {
            freed |= callback(self);
        }
        // Callbacks may register more callbacks.
        callbacks.append(&mut self.callbacks);
        self.callbacks = callbacks;
        freed
    }

    /// Asks the device for a segment, within the limit (spec 2.8). `None` if there is no room.
    pub(super) fn ask_device(
        &mut self,
        request: &Request,
        stream: u16,
        size: Bytes,
        attempt: Attempt,
    ) -> Result<Option<u32>, AllocError> {
        let size = match attempt {
            Attempt::No => return Ok(None),
            Attempt::Fail => return Err(AllocError::ExpandableRelease),
            Attempt::Ask => size,
            // PyTorch counts the attempt even if the limit then refuses it (spec 2.8, step 2).
            Attempt::AskAgain => {
                self.stats.num_alloc_retries += 1;
                size
            }
            Attempt::AskFor(other) if other < request.size => {
                return Err(self.fault("asks for a segment that is smaller than the block").into());
            }
            Attempt::AskFor(other) => other,
        };
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
            if is_private && self.policy.annexes() {
                return self.grow_and_annex(request, stream, page, has_handles);
            }
            return self.grow(request, stream, page, has_handles);
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
            self.taken.remove(address);
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

    fn hint(&self, request: &Request, segment: Bytes) -> Hint {
        match self.profile.expandable_hint {
            _ if !request.is_expandable => return Hint::ExpandableSegments,
            ExpandableHint::Settings => return Hint::ExpandableSegments,
            ExpandableHint::Nothing => return Hint::None,
            ExpandableHint::Addresses => {}
        }
        let reserve = self.policy.reservation(self.total_memory);
        // PyTorch reserves nine eighths by default. It suggests a larger reserve only if the reserve has been reduced.
        let is_reduced = reserve < self.total_memory.checked_add(Bytes(self.total_memory.0 / 8)).unwrap_or(Bytes::MAX);
        if is_reduced && segment > reserve { Hint::LargerReserve(reserve) } else { Hint::Addresses }
    }

    /// Informs the observer that the request fails while the device has this many free bytes.
    fn observe_failure(&mut self, request: &Request, free: Bytes) {
        let pool = self.heap.pool_id(request.pool.0);
        let Request { size, stream, .. } = *request;
        self.observer.observe(&TraceEntry { action: TraceAction::Oom, address: free.0, size: size.0, stream, pool });
    }

    /// Counts the failure, informs the observer unless a rescue has already done so, and builds the error (spec 2.13).
    fn out_of_memory(&mut self, request: &Request, segment: Bytes, rescue: Option<RescueTried>) -> AllocError {
        let memory = match self.device.memory_info() {
            Ok(memory) => memory,
            Err(error) => return error.into(),
        };
        let processes = self.device.processes();
        if rescue.is_none() {
            self.observe_failure(request, memory.free);
        }
        self.stats.num_ooms += 1;
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            words: self.profile.oom_words,
            segment_bytes: segment,
            device: self.device.index(),
            device_total: memory.total,
            device_free: memory.free,
            processes,
            limit: self.heap.limit(),
            allocated_bytes: self.stats.family(Family::AllocatedBytes).all.current,
            reserved_bytes: self.stats.family(Family::ReservedBytes).all.current,
            private_cached_bytes: self.heap.cached_by_private_pools(),
            hint: self.hint(request, segment),
            rescue,
        }))
    }
}
