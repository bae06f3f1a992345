//! The retry ladder: what happens when no free block can serve a request (spec 2.4, steps 5 and 6).
//!
//! Free-memory callbacks run first. Then the allocator climbs the policy's rungs in order ([`Policy::ladder`]): each rung
//! is one method here, and PyTorch's two orders are in `policy/pytorch.rs`. The first rung that yields a free block ends
//! the climb, and the request is served from that block like any other. After the last rung, the request fails with
//! PyTorch's message.
//!
//! Free blocks have no incomplete events on other streams. Their own stream may still use them: `cudaFree` waits for that
//! itself, and before unmapping, the allocator waits (`expandable.rs`).

use alloc::boxed::Box;

use super::allocate::Found;
use super::own::OwnSteps;
use super::{Allocation, Allocator};
use crate::block::BlockId;
use crate::device::DeviceBackend;
use crate::error::AllocError;
use crate::policy::{Attempt, Placement, Policy, Request, Rung};
use crate::profile::ExpandableHint;
use crate::stats::Family;
use crate::texts::{Hint, OutOfMemory, RescueTried};
use crate::trace::{Observer, TraceAction, TraceEntry};
use crate::units::Bytes;

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Serves a request for which there is no free block. `segment` is the size of a new segment for it.
    ///
    /// The request's pool is not forgotten before the request ends, even if a callback abandons it and creates other
    /// pools; none of these serves the request. In PyTorch, the request holds a pointer to the pool, which dangles if the
    /// callback releases the pool's cache.
    #[cold]
    #[inline(never)]
    pub(super) fn obtain(&mut self, request: Request, stream_slot: u16, segment: Bytes) -> Result<Allocation, AllocError> {
        let pool_number = request.pool.pool_number();
        if pool_number != 0 {
            self.heap.renew_waits();
        }
        self.heap.private_pools_mut().begin_serving(pool_number);
        let mut own_steps = OwnSteps::default();
        let found = self.climb(&request, stream_slot, segment, &mut own_steps);
        self.heap.private_pools_mut().end_serving(pool_number);
        self.count_rescue(&request, &found, &own_steps);
        let Found { index, request, take } = found?;
        let take = take.unwrap_or_else(|| self.part_for(index, &request));
        let allocation = self.hand_out(index, &request, take);
        // A rung may have counted the block as a free part of its segment without raising the peaks.
        self.stats.raise_peaks_of_splits(request.pool.class(), 1, 1);
        self.note_allocated(&allocation);
        Ok(allocation)
    }

    /// Climbs the ladder, from top to bottom.
    fn climb(
        &mut self,
        request: &Request,
        stream_slot: u16,
        mut segment: Bytes,
        own_steps: &mut OwnSteps,
    ) -> Result<Found, AllocError> {
        if self.run_free_memory_callbacks() {
            match self.policy.place(&self.heap, request) {
                Placement::Reuse(id) => return Ok(Found::new(self.check_choice(id, request, stream_slot)?, request)),
                Placement::Segment(bytes) => segment = bytes,
            }
        }
        if segment < request.size {
            return Err(self.fault("asks for a segment that is smaller than the block").into());
        }
        for &rung in self.policy.ladder() {
            let found = match rung {
                Rung::CollectGarbage => self.collect_garbage().map(|()| None)?,
                Rung::Grow => self.grow(request, stream_slot, segment)?,
                Rung::BorrowFromPools => self.borrow_from_pools(request, stream_slot)?,
                Rung::ReleaseOversize => self.release_oversize(request, stream_slot, segment)?,
                Rung::Own => self.take_own_steps(request, stream_slot, segment, own_steps)?,
                // While deferring, nothing may wait, and the cache is kept.
                Rung::WaitForEvents | Rung::ReuseFreed | Rung::ReleaseAll | Rung::GrowAgain if self.heap.is_deferring() => None,
                Rung::WaitForEvents => self.wait_for_events().map(|()| None)?,
                Rung::ReuseFreed => self.place_again(request, stream_slot)?,
                Rung::ReleaseAll => self.release_all().map(|()| None)?,
                Rung::GrowAgain => self.grow_again(request, stream_slot, segment)?,
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(self.fail(request, segment, own_steps.rescue()))
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

    /// Releases the blocks that the policy's garbage collection chooses (spec 2.7).
    fn collect_garbage(&mut self) -> Result<(), AllocError> {
        let blocks = self.policy.garbage(&self.heap);
        self.check_release(&blocks)?;
        self.release_segments(&blocks)
    }

    /// Takes memory from the device (spec 2.8).
    fn grow(&mut self, request: &Request, stream_slot: u16, segment: Bytes) -> Result<Option<Found>, AllocError> {
        Ok(self.take_segment(request, stream_slot, segment)?.map(|index| Found::new(index, request)))
    }

    /// Like [`Allocator::grow`], but counted as a retry, even if the limit then refuses it (spec 2.8, step 2).
    fn grow_again(&mut self, request: &Request, stream_slot: u16, segment: Bytes) -> Result<Option<Found>, AllocError> {
        self.stats.num_alloc_retries += 1;
        self.grow(request, stream_slot, segment)
    }

    /// Releases the blocks that are oversize for the policy and, if they are enough, asks the device again (spec 2.9).
    fn release_oversize(&mut self, request: &Request, stream_slot: u16, segment: Bytes) -> Result<Option<Found>, AllocError> {
        let (blocks, attempt) = self.policy.oversize(&self.heap, request);
        self.release_and_ask(request, stream_slot, segment, &blocks, attempt)
    }

    /// Waits for all events, which frees all pending blocks (spec 3.7).
    fn wait_for_events(&mut self) -> Result<(), AllocError> {
        Ok(self.synchronize()?)
    }

    /// Asks the policy again for a free block of the request's pool.
    pub(super) fn place_again(&mut self, request: &Request, stream_slot: u16) -> Result<Option<Found>, AllocError> {
        match self.policy.place(&self.heap, request) {
            Placement::Reuse(id) => Ok(Some(Found::new(self.check_choice(id, request, stream_slot)?, request))),
            Placement::Segment(_) => Ok(None),
        }
    }

    /// Releases everything that can be released, and forgets empty private pools without uses (spec 2.10).
    pub(super) fn release_all(&mut self) -> Result<(), AllocError> {
        self.coalesce_idle_segments();
        let blocks = self.policy.releasable(&self.heap);
        self.check_release(&blocks)?;
        self.release_segments(&blocks)?;
        self.forget_empty_pools()
    }

    /// Releases blocks, then asks the device for a segment, as `attempt` says.
    pub(super) fn release_and_ask(
        &mut self,
        request: &Request,
        stream_slot: u16,
        segment: Bytes,
        blocks: &[BlockId],
        attempt: Attempt,
    ) -> Result<Option<Found>, AllocError> {
        self.check_release(blocks)?;
        self.release_segments(blocks)?;
        match attempt {
            Attempt::No => Ok(None),
            Attempt::Fail => Err(AllocError::ExpandableRelease),
            Attempt::Ask => self.grow(request, stream_slot, segment),
            Attempt::AskAgain => {
                self.forget_empty_pools()?;
                self.grow_again(request, stream_slot, segment)
            }
            Attempt::AskFor(other) if other < request.size => {
                Err(self.fault("asks for a segment that is smaller than the block").into())
            }
            Attempt::AskFor(other) => self.grow(request, stream_slot, other),
        }
    }

    /// Counts the failure, informs the observer unless a rescue has already done so, and builds the error (spec 2.13).
    fn fail(&mut self, request: &Request, segment: Bytes, rescue: Option<RescueTried>) -> AllocError {
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
    pub(super) fn observe_failure(&mut self, request: &Request, free: Bytes) {
        let pool = self.heap.pool_id(request.pool.0);
        let Request { size, stream, .. } = *request;
        self.observer.observe(&TraceEntry { action: TraceAction::Oom, address: free.0, size: size.0, stream, pool });
    }
}
