//! One request and one free: what the allocator did with the policy's answers.

use parkade::policy::{Policy, PolicyFault};
use parkade::snapshot::BlockActivity;
use parkade::trace::TraceAction;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocation, FreeError};
use parkade_sim::CallName;

use super::super::watched::{Answer, changed_since_answer};
use super::book::Live;
use super::{Outcome, Trial};
use crate::backend::TestDevice;
use crate::law::{Broken, Law, ensure};

impl Trial {
    pub(super) fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Outcome, Broken> {
        self.core.policy_mut().begin();
        let (told_before, waiting) = (self.core.observer().len(), self.book.pending());
        match self.core.allocate(Bytes(bytes), stream) {
            Ok(allocation) => {
                self.count_carried_out();
                self.check_served(&allocation, bytes, told_before)?;
                self.hold(allocation, bytes, stream, told_before)?;
                Ok(Outcome::Done)
            }
            Err(AllocError::OutOfMemory(_) | AllocError::Rejected { .. }) => {
                if self.tells_false_alarms() {
                    self.check_refusal(bytes, stream, waiting)?;
                }
                Ok(Outcome::Refused)
            }
            Err(AllocError::TooLarge { .. }) if self.expected.wrong_answers || bytes > self.setup.capacity => {
                Ok(Outcome::Refused)
            }
            Err(AllocError::Device(error)) => Ok(Outcome::Failed(error)),
            Err(AllocError::Policy(fault)) => self.at_fault(&fault),
            Err(error) => self.failed_in_pool(&error),
        }
    }

    /// Counts what the device did for a served request: a wait between streams for a block that changed streams, and pages mapped
    /// without being created.
    fn count_carried_out(&mut self) {
        let calls = self.device.calls_so_far();
        let done = |name| calls.iter().filter(|call| call.name == name && call.done).count();
        let is_transfer = matches!(self.core.policy().notes().answer, Some(Answer::Transfer(_) | Answer::TransferPart(_)));
        let transfer = is_transfer && done(CallName::StreamWaitEvent) > 0;
        let remap = done(CallName::MemMap) > done(CallName::MemCreate);
        self.core.policy_mut().carried_out(transfer, remap);
    }

    fn hold(&mut self, allocation: Allocation, requested: u64, stream: StreamId, told_before: usize) -> Result<(), Broken> {
        let address = allocation.address();
        let segments = self.core.segments();
        let block = segments.iter().flat_map(|segment| &segment.blocks).find(|block| block.address == address);
        let size = block.filter(|block| block.state == BlockActivity::Allocated).map(|block| block.size.get());
        let Some(size) = size else {
            return Err(Broken::new(Law::Accounting, format!("the heap has no live block at {address}: {block:?}")));
        };
        let mut live = Live::new(allocation, requested, stream, 0);
        live.pool = self.check_pool_served(told_before, requested, &live)?;
        self.core.policy_mut().used_pool(live.pool != 0, false);
        let policy = self.core.policy();
        let rounded = policy.round(Bytes(requested)).unwrap_or(Bytes::ZERO).get();
        // A policy with random answers would answer differently now; and a policy is not asked about blocks that are not split.
        if !self.expected.wrong_answers && !self.routing.is_whole(live.pool) {
            let expected = policy.kept(rounded);
            ensure(Law::Placement, size == expected, || {
                format!("{requested} bytes got a block of {size}, but the policy said {expected}")
            })?;
        }
        let unit =
            if self.expected.wrong_answers { 1 } else { policy.round(Bytes(1)).map_or(512, |unit| unit.get().clamp(1, 512)) };
        self.book.add(live, size, unit, &self.device.witness())?;
        self.fill(self.book.live.len() - 1, stream)
    }

    /// Checks that the block is where the policy said, in a segment of the size that it said.
    fn check_served(&self, allocation: &Allocation, bytes: u64, told_before: usize) -> Result<(), Broken> {
        let notes = self.core.policy().notes();
        let address = allocation.address().get();
        let made = &self.core.observer()[told_before..];
        let made = made.iter().rfind(|entry| entry.action == TraceAction::SegmentAlloc).map(|entry| entry.size);
        let holds = match notes.answer {
            Some(Answer::Reuse(place)) => place.map(|place| self.core.policy().expected_at(place)) == Some(address),
            // A policy with random answers may change its mind about the end after it has cut a part.
            Some(Answer::TransferPart(_)) if self.expected.wrong_answers && self.core.policy().took_high_end() => true,
            Some(Answer::TransferPart(place)) => place == Some(address),
            // It first merges with free blocks of its new stream beside it.
            Some(Answer::Transfer(_)) if self.core.policy().took_high_end() => true,
            Some(Answer::Transfer(place)) => place.is_some_and(|place| address <= place),
            Some(Answer::Segment(size, _)) => made.is_none_or(|made| made == size),
            _ => true,
        };
        ensure(Law::Placement, holds, || {
            format!("{bytes} bytes went to {address:#x} (new segment: {made:?} bytes), but the policy said {:x?}", notes.answer)
        })
    }

    /// Checks that out of memory is justified: the policy finds no block, not even after waiting for all work and giving back all
    /// that its rules allow. At most `waiting` blocks were pending: if there were any, a policy that does not search again after
    /// waiting may have missed one.
    fn check_refusal(&mut self, bytes: u64, stream: StreamId, waiting: usize) -> Result<(), Broken> {
        // Like PyTorch, pools that serve when memory runs out are searched once, before any wait.
        let looks_again = self.habits.looks_after_waiting && self.routing.serving().next().is_none();
        if waiting > 0 && !looks_again {
            return Ok(());
        }
        let overlooked = self.core.policy().notes().overlooked;
        ensure(Law::NoFalseOutOfMemory, overlooked.is_none(), || overlooked.unwrap_or_default())?;
        let before = self.core.heap().reserved();
        let answer = if self.habits.keeps_memory {
            self.device.steer().settle();
            self.core.process_events().map_err(AllocError::Device)
        } else {
            self.core.release_cached()
        };
        answer.map_err(|error| Broken::new(Law::Answers, format!("giving memory back after a refusal failed: {error}")))?;
        let after = self.core.heap().reserved();
        self.check()?;
        self.core.policy_mut().begin();
        let again = self.core.allocate(Bytes(bytes), stream);
        ensure(Law::NoFalseOutOfMemory, again.is_err(), || {
            format!(
                "{bytes} bytes were refused with at most {waiting} blocks pending and {before} bytes reserved; with nothing \
                 pending and {after} bytes reserved they are served"
            )
        })
    }

    /// Whether the program may free an allocation: not during a capture if another stream used it during one, because that use is
    /// then forgotten (spec 3.8) and the memory reused too early.
    pub(super) fn may_free(&self, which: usize) -> bool {
        !self.book.live[which].is_captured || !self.core.heap().is_deferring()
    }

    pub(super) fn free(&mut self, which: usize) -> Result<Outcome, Broken> {
        if self.device.steer().insight().is_none() {
            // Only this shows whether something was overwritten.
            self.read(which)?;
        }
        let live = self.book.give_back(which, &self.device.witness());
        match self.core.free(live.allocation) {
            Ok(()) => Ok(Outcome::Done),
            Err(FreeError::Device(error)) => Ok(Outcome::Failed(error)),
            Err(error) => Err(Broken::new(Law::Accounting, error)),
        }
    }

    /// Checks a rejected answer: the error names the policy, and nothing has changed.
    pub(super) fn at_fault(&self, fault: &PolicyFault) -> Result<Outcome, Broken> {
        let name = self.core.policy().name();
        ensure(Law::Answers, fault.policy == name, || format!("the fault is that of {name}, but the error says {fault}"))?;
        ensure(Law::Answers, self.expected.wrong_answers, || fault.to_string())?;
        let is_block = fault.problem.starts_with("releases") || fault.problem.starts_with("remaps");
        // A segment that grows at several gaps asks for the handles of each, and keeps what it has mapped.
        let has_mapped = fault.problem.starts_with("takes a handle") && self.core.policy().saw_less_than(self.core.heap());
        // What a rung did before its invalid part stays: blocks released before an invalid one.
        let unchanged = match self.core.policy().notes().answer {
            Some(Answer::Reuse(_) | Answer::Transfer(_) | Answer::TransferPart(_)) => true,
            Some(Answer::Segment(_, blocks) | Answer::Rung(blocks)) => blocks <= usize::from(is_block),
            None => false,
        };
        let changed = changed_since_answer(&self.core).filter(|_| unchanged && !has_mapped && fault.problem != "never gives up");
        ensure(Law::Answers, changed.is_none(), || format!("{fault}, but the heap changed: {}", changed.unwrap_or_default()))?;
        Ok(Outcome::AtFault)
    }
}
