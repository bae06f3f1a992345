//! Private pools that take their memory, cached or new, from the default pool's expandable segments
//! ([`Policy::lends_to_pools`]). In PyTorch, private pools have separate segments.
//!
//! A program may replay a graph on any stream at any time, and the allocator cannot wait while the graph is captured.
//! A private pool therefore only takes memory that no pending work uses: newly mapped memory, and memory that was free
//! on an idle stream when routing to the pool began and has not been used since. Handing over the memory needs no
//! driver call. It is returned when the pool has no uses and all streams are idle.

use alloc::vec::Vec;

use crate::allocator::Allocator;
use crate::block::{Block, BlockState};
use crate::device::{BackendError, DeviceBackend};
use crate::error::AllocError;
use crate::heap::{GrowsFrom, LENDABLE, PoolSlot};
use crate::policy::{Policy, Request};
use crate::trace::Observer;
use crate::units::Bytes;

/// The place where the default pool's segment grows to serve a private pool's request.
struct Growth {
    /// The default pool's request that maps the memory.
    home: Request,
    /// The slot of that request's stream.
    slot: u16,
    /// If set, the only address to grow from.
    from: Option<u64>,
    /// The bytes to map, if known.
    missing: Option<u64>,
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Prepares for routing requests to a private pool, and must be called before that. If all streams are idle, takes
    /// back the free memory of pools without uses. Then marks the memory that the new pool may take. A stream counts
    /// as busy unless the device reports that it is idle. The allocator waits for a busy stream only if the policy
    /// says so ([`Policy::waits_for_pools`]).
    pub(in crate::allocator) fn prepare_lending(&mut self) {
        // If requests are already being routed, a stream may be in a capture, which a query would invalidate.
        let may_capture = self.heap.is_deferring() || self.heap.private_pools().is_recording();
        if !self.policy.lends_to_pools() || may_capture {
            return;
        }
        let waits = self.heap.may_wait_for_pools() && self.policy.waits_for_pools(&self.heap);
        let mut has_waited = false;
        let mut is_idle = Vec::new();
        for stream in self.heap.streams_seen().to_vec() {
            if !self.may_wait_for(stream) {
                is_idle.push(false);
                continue;
            }
            // After an error the stream may still have work. If the device is lost, the next request reports it.
            let mut answer = self.device.is_idle(stream);
            if waits && answer == Ok(false) {
                answer = self.device.synchronize_stream(stream).map(|()| true);
                has_waited = true;
            }
            is_idle.push(answer == Ok(true));
        }
        if is_idle.iter().all(|&is_idle| is_idle) {
            self.take_parts_back();
            has_waited |= waits && self.make_room();
        }
        if has_waited {
            self.heap.note_waited_for_pools();
        }
        self.heap.mark_lendable(&is_idle);
    }

    /// Frees all pending blocks, because all streams are idle, and breaks the handles that the policy names. Returns
    /// whether there were any handles to break. Ignores errors: they will recur at the next request.
    fn make_room(&mut self) -> bool {
        self.synchronize().unwrap_or_default();
        let handles = self.policy.breaks_for_pools(&self.heap);
        self.break_handles(&handles).unwrap_or_default();
        !handles.is_empty()
    }

    /// Takes back the free blocks of pools without uses that are parts of other pools' segments. No pending work uses
    /// these blocks.
    pub(super) fn take_parts_back(&mut self) {
        if self.heap.has_parts_elsewhere() {
            for index in self.heap.free_expandable() {
                // The block may have coalesced with one before it.
                if self.heap.arena.at(index).state == BlockState::Free && self.is_part_to_return(index) {
                    self.take_part_back(index);
                }
            }
        }
    }

    /// Whether a pool without uses has a free block that is part of a different pool's segment.
    pub(super) fn has_parts_to_return(&mut self) -> bool {
        self.heap.has_parts_elsewhere() && self.heap.free_expandable().into_iter().any(|index| self.is_part_to_return(index))
    }

    /// Whether the block belongs to a private pool without uses, but its segment belongs to a different pool.
    fn is_part_to_return(&mut self, index: u32) -> bool {
        self.is_part(index) && {
            let pool_number = PoolSlot(self.heap.arena.at(index).pool).pool_number();
            self.heap.private_pools().is_abandoned(pool_number)
        }
    }

    /// Whether the block's segment belongs to a different pool.
    pub(super) fn is_part(&mut self, index: u32) -> bool {
        let (address, pool) = (self.heap.arena.at(index).address, self.heap.arena.at(index).pool);
        self.heap.has_parts_elsewhere() && self.reservations.holding(address).is_some_and(|(_, range)| range.pool != pool)
    }

    /// Returns a free block to the pool and stream of its segment, where it coalesces. No pending work uses the block.
    fn take_part_back(&mut self, index: u32) {
        let address = self.heap.arena.at(index).address;
        let Some((base, range)) = self.reservations.holding(address) else { return };
        let (pool, stream, addresses) = (PoolSlot(range.pool), range.stream, base..base + range.size);
        let Some(home) = self.heap.known_stream_slot(stream) else { return };
        self.heap.detach(index);
        self.heap.unlink(index);
        self.hand_over(index, pool, home);
        self.heap.relink(index, &addresses, true);
        self.put_back_unused(index);
    }

    /// Changes the pool and stream of a detached block without neighbours.
    fn hand_over(&mut self, index: u32, pool: PoolSlot, stream: u16) {
        let (from, bytes) = (PoolSlot(self.heap.arena.at(index).pool), self.heap.arena.at(index).size as i64);
        self.heap.change_owner(index, pool, stream);
        for (pool, bytes) in [(from, -bytes), (pool, bytes)] {
            self.count_reserved_by_pool(pool, bytes);
        }
    }

    /// Serves a private pool's request from lendable memory: grows the pool's segment that needs the fewest bytes at
    /// its end, or starts a new segment in the largest lendable block. Returns a free block.
    pub(super) fn lend(&mut self, request: &Request, stream_slot: u16) -> Option<u32> {
        if request.pool.pool_number() == 0 || !self.policy.lends_to_pools() {
            return None;
        }
        let begins_range = |address| self.reservations.begins_at(address);
        let (index, bytes) = self.heap.find_lendable(request, stream_slot, begins_range)?;
        Some(self.cut_out(index, bytes, LENDABLE, request, stream_slot))
    }

    /// Splits the low `bytes` bytes from a free block for the request's pool, and coalesces them with the free memory
    /// that precedes them at the end of the pool's segment. Returns the free block. The remainder gets the stamp.
    fn cut_out(&mut self, index: u32, bytes: u64, stamp: u64, request: &Request, stream_slot: u16) -> u32 {
        let part = if bytes < self.heap.arena.at(index).size {
            self.heap.take_low_end(index, bytes, stamp)
        } else {
            self.heap.detach(index);
            index
        };
        self.heap.unlink(part);
        self.hand_over(part, request.pool, stream_slot);
        let address = self.heap.arena.at(part).address;
        if let Some((base, range)) = self.reservations.holding(address) {
            let addresses = base..base + range.size;
            self.heap.relink(part, &addresses, false);
        }
        // The request needs one block.
        self.put_back_joined(part);
        part
    }

    /// Maps new memory where the default pool's segment grows, and serves the request from it.
    pub(in crate::allocator) fn grow_and_lend(
        &mut self,
        request: &Request,
        stream: u16,
        page: Bytes,
        has_handles: bool,
    ) -> Result<Option<u32>, AllocError> {
        let Growth { home, slot, from, missing } = self.choose_growth(request, stream, has_handles);
        let size = self.policy.growth(&home).0;
        // Mapping only part of the missing bytes would be useless.
        let left = self.heap.limit().map_or(u64::MAX, |limit| limit.0.saturating_sub(self.heap.reserved().0));
        if has_handles && missing.unwrap_or(size) > left {
            return Ok(None);
        }
        let from = GrowsFrom { lendable_only: true, address: from };
        let run = self.heap.lendable_growth(home.pool, home.stream, size, has_handles, from);
        let Some(index) = self.extend(&home, slot, page, has_handles, from)? else { return Ok(None) };
        // The new memory has coalesced with adjacent free memory, which pending work may still use.
        let Block { address, size, .. } = *self.heap.arena.at(index);
        let run = run.filter(|run| (address..address + size).contains(&run.start)).unwrap_or(address..u64::MAX);
        let (before, end) = (run.start - address, run.end.min(address + size));
        if end - run.start < home.size.0 {
            return Err(self.fault("maps less than the request needs").into());
        }
        let stamp = self.policy.stamp(home.pool);
        if before > 0 {
            let low = self.heap.take_low_end(index, before, stamp);
            self.heap.attach(low, stamp);
        }
        let rest = if end == address + size { LENDABLE } else { stamp };
        // Do this immediately: at this point, adjacent blocks are free.
        let part = self.cut_out(index, home.size.0, rest, request, stream);
        if self.heap.arena.at(part).size < request.size.0 {
            return Err(self.fault("grows by different sizes for the same request").into());
        }
        Ok(Some(part))
    }

    /// Chooses where to map memory for a private pool's request. With handles, this is the place that needs the fewest
    /// bytes: after the free memory at the end of one of the private pool's segments, or anywhere.
    fn choose_growth(&mut self, request: &Request, stream: u16, has_handles: bool) -> Growth {
        let home = Request { pool: PoolSlot::default_pool(request.pool.class()), ..*request };
        if !has_handles {
            return Growth { home, slot: stream, from: None, missing: None };
        }
        let mut chosen = Growth { home, slot: stream, from: None, missing: self.missing_from(&home, None) };
        for (end, free) in self.heap.free_ends(request.pool, stream, request.size.0) {
            let Some((base, range)) = self.reservations.holding(end) else { continue };
            let size = Bytes(request.size.0 - free);
            let behind = Request { size, requested: size.min(request.requested), stream: range.stream, ..home };
            let Some(slot) = self.heap.known_stream_slot(behind.stream).filter(|_| base < end) else { continue };
            let missing = self.missing_from(&behind, Some(end));
            if missing.is_some_and(|missing| chosen.missing.is_none_or(|least| missing < least)) {
                chosen = Growth { home: behind, slot, from: Some(end), missing };
            }
        }
        chosen
    }

    /// The number of bytes to map for a request to the default pool if its segment grows from this address, or from
    /// any address if this is `None`. Returns `None` if the segment cannot grow there, or if new addresses must be
    /// reserved.
    fn missing_from(&mut self, home: &Request, from: Option<u64>) -> Option<u64> {
        let from = GrowsFrom { lendable_only: true, address: from };
        self.heap.find_growth(home.pool, home.stream, self.policy.growth(home).0, from).map(|place| place.missing)
    }

    /// Like [`Allocator::bring_home`], but for part of a different pool's segment.
    pub(super) fn bring_part_home(&mut self, index: u32) -> Result<(), BackendError> {
        let stream = self.heap.stream(self.heap.arena.at(index).stream);
        if self.is_part_to_return(index) && self.may_wait_for(stream) {
            self.device.synchronize_stream(stream)?;
            self.take_part_back(index);
        }
        Ok(())
    }
}
