//! What our own policies do and PyTorch does not: memory moves between streams, pools and addresses.
//!
//! PyTorch's allocator fails although memory is free when that memory is on the wrong stream, in the wrong pool, or in
//! pages that are partly in use. The mechanisms here make such memory usable. A policy names them as steps of its ladder
//! ([`Rung::Own`](crate::policy::Rung::Own), [`Relief`]). Under PyTorch's rules, nothing here ever does anything: the path
//! of a request only passes a few checks, such as whether blocks are on another stream than their segment.
//! - `transfer.rs`: free blocks move to another stream when its work is ordered after theirs; the pages of free blocks
//!   move to other addresses.
//! - `handles.rs`: handles of several sizes, which move as a whole or are broken, so that the free part serves requests.
//! - `coalescing.rs`: free blocks that the policy has kept apart coalesce after all.
//! - `ends.rs`: a request gets the high end of a block, or a part from an offset, and what is before it stays free.
//! - `lending.rs`: private pools take idle memory of the default pool.
//!
//! All of them keep the rule of the core: every answer of the policy is checked before anything changes, and after an
//! error nothing is lost. Memory that a captured graph may write to never moves.

mod coalescing;
mod ends;
mod handles;
mod lending;
mod transfer;

use super::Allocator;
use super::allocate::{Found, Take};
use crate::device::DeviceBackend;
use crate::error::AllocError;
use crate::policy::{Policy, Relief, Request};
use crate::texts::RescueTried;
use crate::trace::Observer;
use crate::units::Bytes;

/// More steps than any sensible policy takes for one request, not counting a step for each stream. A policy that exceeds
/// this number never ends, which is a fault.
const MOST_STEPS: u32 = 512;

/// The policy's own steps for one request.
#[derive(Default)]
pub(super) struct OwnSteps {
    /// The number of steps for which the policy was asked.
    turn: u32,
    /// The steps of a rescue, if one has begun.
    rescue: Option<RescueTried>,
}

impl OwnSteps {
    pub(super) fn rescue(&self) -> Option<RescueTried> {
        self.rescue
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Takes the policy's own steps until one yields a block or the policy has no further step.
    pub(super) fn take_own_steps(
        &mut self,
        request: &Request,
        stream_slot: u16,
        segment: Bytes,
        steps: &mut OwnSteps,
    ) -> Result<Option<Found>, AllocError> {
        let most_steps = MOST_STEPS + self.heap.streams_seen().len() as u32;
        while steps.turn < most_steps {
            let relief = self.policy.relieve(&self.heap, request, steps.turn);
            steps.turn += 1;
            if relief == Relief::Done {
                return Ok(None);
            }
            if let Some(found) = self.take_own_step(request, stream_slot, segment, relief, &mut steps.rescue)? {
                return Ok(Some(found));
            }
        }
        Err(self.fault("never gives up").into())
    }

    /// Carries out a step.
    fn take_own_step(
        &mut self,
        request: &Request,
        stream_slot: u16,
        segment: Bytes,
        step: Relief,
        rescue: &mut Option<RescueTried>,
    ) -> Result<Option<Found>, AllocError> {
        let index = match step {
            Relief::Release { blocks, attempt } => {
                return self.release_and_ask(request, stream_slot, segment, &blocks, attempt);
            }
            Relief::Borrow => return self.borrow_from_pools(request, stream_slot),
            Relief::TransferPart { block } => {
                let moved = self.transfer_part(request, stream_slot, block)?;
                // The part has not coalesced, so it is handed out as it is.
                return Ok(moved.map(|index| Found { take: Some(Take::Whole), ..Found::new(index, request) }));
            }
            Relief::Lend => self.lend(request, stream_slot),
            Relief::Transfer { block, waits } => self.transfer(request, stream_slot, block, waits)?,
            Relief::TransferAll { from } => self.transfer_all(request, stream_slot, from).map(|()| None)?,
            Relief::Provide { bytes, stream } => self.provide(request, bytes, stream).map(|()| None)?,
            Relief::Remap { blocks } => self.remap(request, stream_slot, segment, &blocks)?,
            Relief::Move { handles } => {
                rescue.iter_mut().for_each(|tried| tried.moved_handles += handles.len() as u64);
                self.move_handles(request, stream_slot, segment, &handles, true)?
            }
            Relief::Replace { handles } => {
                rescue.iter_mut().for_each(|tried| tried.moved_handles += handles.len() as u64);
                self.move_handles(request, stream_slot, segment, &handles, false)?
            }
            Relief::Break { handles } => {
                let copied_before = self.stats.copied_bytes;
                let broken = self.break_handles(&handles)?;
                if let Some(tried) = rescue {
                    tried.broken_handles += broken;
                    tried.copied_bytes += self.stats.copied_bytes.abs_diff(copied_before);
                }
                None
            }
            Relief::Rescue { page } => {
                if rescue.is_none() {
                    let free = self.device.memory_info()?.free;
                    self.observe_failure(request, free);
                    *rescue = Some(RescueTried::default());
                }
                self.refine(page).map(|()| None)?
            }
            Relief::Coalesce => {
                self.coalesce_all(None);
                None
            }
            // Waiting would break the capture, and the stream uses recorded during it would be lost.
            Relief::ReleaseAll | Relief::Wait if self.heap.is_deferring() => None,
            Relief::ReleaseAll => self.release_all().map(|()| None)?,
            Relief::Wait => self.synchronize().map(|()| None)?,
            Relief::Reuse(id) => Some(self.check_choice(id, request, stream_slot)?),
            Relief::ReuseAt { block, offset } => Some(self.reuse_from(block, offset, request, stream_slot)?),
            Relief::Done => None,
        };
        Ok(index.map(|index| Found::new(index, request)))
    }

    /// Counts and reports a rescue of the request, unless the request still ran out of memory.
    pub(super) fn count_rescue(&mut self, request: &Request, found: &Result<Found, AllocError>, steps: &OwnSteps) {
        let is_refused = matches!(found, Err(AllocError::OutOfMemory(_)));
        if let Some(tried) = steps.rescue().filter(|_| !is_refused) {
            self.stats.num_rescues += 1;
            if found.is_ok() {
                self.observer.rescued(request.size, &tried);
            }
        }
    }
}
