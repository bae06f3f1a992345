//! One request and one free, and the use of memory between them. The checks cover what the allocator did with the
//! policy's answers, which pool served the request, and that memory keeps its contents.

use parkade::device::DeviceBackend as _;
use parkade::policy::{Policy, PolicyFault};
use parkade::snapshot::BlockActivity;
use parkade::trace::TraceAction;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocation, FreeError};
use parkade_sim::CallName;

use super::{Live, Outcome, Trial};
use crate::backend::TestDevice;
use crate::checks::laws_any_policy::watched::{Answer, changed_since_answer};
use crate::law::{Broken, Law, ensure};

/// Number of bytes read back at the start and at the end of an allocation; reuse would overwrite
/// one of them.
const READ_BYTES: u64 = 512;

fn device_failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Contents, format!("allocated memory cannot be used: {error}"))
}

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

    /// Counts what the device did for a served request: a wait between streams (for a block that changed streams), and
    /// pages that were mapped without being created.
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
        // A policy with random answers would answer differently now. A policy is not asked about blocks that are not
        // split.
        if !self.expected.wrong_answers && !self.routing.is_whole(live.pool) {
            let expected = policy.kept(rounded);
            ensure(Law::Placement, size == expected, || {
                format!("a request of {requested} bytes got a block of {size} bytes, but the policy specified {expected}")
            })?;
        }
        let unit =
            if self.expected.wrong_answers { 1 } else { policy.round(Bytes(1)).map_or(512, |unit| unit.get().clamp(1, 512)) };
        self.book.add(live, size, unit, &self.device.witness())?;
        self.fill(self.book.live.len() - 1, stream)
    }

    /// Checks that the block is where the policy placed it, in a segment of the size that the
    /// policy specified.
    fn check_served(&self, allocation: &Allocation, bytes: u64, told_before: usize) -> Result<(), Broken> {
        let notes = self.core.policy().notes();
        let address = allocation.address().get();
        let made = &self.core.observer()[told_before..];
        let made = made.iter().rfind(|entry| entry.action == TraceAction::SegmentAlloc).map(|entry| entry.size);
        let holds = match notes.answer {
            Some(Answer::Reuse(place)) => place.map(|place| self.core.policy().expected_at(place)) == Some(address),
            // After a split, a policy with random answers may change its mind about which end to use.
            Some(Answer::TransferPart(_)) if self.expected.wrong_answers && self.core.policy().took_high_end() => true,
            Some(Answer::TransferPart(place)) => place == Some(address),
            // The block first coalesces with adjacent free blocks of its new stream.
            Some(Answer::Transfer(_)) if self.core.policy().took_high_end() => true,
            Some(Answer::Transfer(place)) => place.is_some_and(|place| address <= place),
            Some(Answer::Segment(size, _)) => made.is_none_or(|made| made == size),
            _ => true,
        };
        ensure(Law::Placement, holds, || {
            format!("{bytes} bytes went to {address:#x} (new segment: {made:?} bytes), but the policy chose {:x?}", notes.answer)
        })
    }

    /// Checks that an out-of-memory error is justified: the policy finds no block even after all work is done and
    /// everything that its rules allow has been released. At most `waiting` blocks were pending; if there were any, a
    /// policy that does not search again after waiting may have missed one.
    fn check_refusal(&mut self, bytes: u64, stream: StreamId, waiting: usize) -> Result<(), Broken> {
        // As in PyTorch, pools that serve when memory runs out are searched once, before any wait.
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
        answer.map_err(|error| Broken::new(Law::Answers, format!("releasing memory after a refusal failed: {error}")))?;
        let after = self.core.heap().reserved();
        self.check()?;
        self.core.policy_mut().begin();
        let again = self.core.allocate(Bytes(bytes), stream);
        ensure(Law::NoFalseOutOfMemory, again.is_err(), || {
            format!(
                "{bytes} bytes were refused with at most {waiting} blocks pending and {before} bytes reserved; with nothing \
                 pending and {after} bytes reserved, the request is served"
            )
        })
    }

    /// Returns whether the program may free an allocation. It may not do so during a capture if another stream used the
    /// allocation during a capture, because that use would be forgotten (spec 3.8) and the memory would be reused too
    /// early.
    pub(super) fn may_free(&self, which: usize) -> bool {
        !self.book.live[which].is_captured || !self.core.heap().is_deferring()
    }

    pub(super) fn free(&mut self, which: usize) -> Result<Outcome, Broken> {
        if self.device.steer().insight().is_none() {
            // Only a read shows whether something was overwritten.
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
    fn at_fault(&self, fault: &PolicyFault) -> Result<Outcome, Broken> {
        let name = self.core.policy().name();
        ensure(Law::Answers, fault.policy == name, || format!("the policy at fault is {name}, but the error says {fault}"))?;
        ensure(Law::Answers, self.expected.wrong_answers, || fault.to_string())?;
        let is_block = fault.problem.starts_with("releases") || fault.problem.starts_with("remaps");
        // A segment that grows at several gaps requests the handles for each gap, and keeps what it has already mapped.
        let has_mapped = fault.problem.starts_with("takes a handle") && self.core.policy().saw_less_than(self.core.heap());
        // The effects of a rung that precede its invalid part remain, for example blocks released before an invalid
        // one.
        let unchanged = match self.core.policy().notes().answer {
            Some(Answer::Reuse(_) | Answer::Transfer(_) | Answer::TransferPart(_)) => true,
            Some(Answer::Segment(_, blocks) | Answer::Rung(blocks)) => blocks <= usize::from(is_block),
            None => false,
        };
        let changed = changed_since_answer(&self.core).filter(|_| unchanged && !has_mapped && fault.problem != "never gives up");
        ensure(Law::Answers, changed.is_none(), || format!("{fault}, but the heap changed: {}", changed.unwrap_or_default()))?;
        Ok(Outcome::AtFault)
    }

    /// The outcome of an operation that the device or the policy can make fail.
    pub(super) fn outcome(&self, answer: Result<(), AllocError>) -> Result<Outcome, Broken> {
        match answer {
            Ok(()) => Ok(Outcome::Done),
            Err(AllocError::Device(error)) => Ok(Outcome::Failed(error)),
            Err(AllocError::Policy(fault)) => self.at_fault(&fault),
            Err(error) => Err(Broken::new(Law::Answers, format!("a free failed: {error}"))),
        }
    }

    /// Checks and returns the pool that served a request; the block must be unsplit if the pool's segments are not split.
    fn check_pool_served(&self, told_before: usize, bytes: u64, live: &Live) -> Result<u64, Broken> {
        let (pool, is_borrowed) = self.routing.check_served(&self.core.observer()[told_before..], bytes, live.home)?;
        let segments = self.core.segments();
        let found = segments.iter().find(|segment| segment.blocks.iter().any(|block| block.address == live.address()));
        let Some(segment) = found else { return Ok(pool) };
        let pool_of_segment = segment.pool.1;
        ensure(Law::Pools, pool_of_segment == pool, || format!("{bytes} bytes for pool {pool} were served from {segment:?}"))?;
        ensure(Law::Pools, !is_borrowed || pool != 0, || format!("the default pool served {bytes} bytes for a private pool"))?;
        // If blocks have changed streams, the block after this one may have been free before.
        if self.routing.is_whole(pool) && !self.core.policy().has_transferred() {
            let mut behind = segment.blocks.iter().skip_while(|block| block.address != live.address()).skip(1);
            let rest = behind.next().filter(|next| next.state == BlockActivity::Inactive);
            ensure(Law::Pools, rest.is_none(), || format!("{bytes} bytes were split off in pool {pool}, which leaves {rest:?}"))?;
        }
        Ok(pool)
    }

    /// Handles a request that failed in a pool that was searched.
    fn failed_in_pool(&mut self, error: &AllocError) -> Result<Outcome, Broken> {
        match *error {
            AllocError::Pool(error) => self.routing.failed_in_pool(error).map(|()| Outcome::Refused),
            ref error => Err(Broken::new(Law::NoFalseOutOfMemory, format!("a request failed: {error}"))),
        }
    }

    /// Fills a live allocation with a new word, on a stream.
    pub(super) fn fill(&mut self, which: usize, stream: StreamId) -> Result<(), Broken> {
        self.words += 1;
        let word = self.words.wrapping_mul(0x9e37_79b1);
        let live = &mut self.book.live[which];
        (live.word, live.last) = (word, stream);
        let whole = live.whole_words();
        if whole == 0 {
            return Ok(());
        }
        self.device.steer().fill(live.address(), Bytes(whole), word, stream).map_err(device_failed)
    }

    /// Makes a stream fill a live allocation after its last user, and records the use with the allocator.
    pub(super) fn use_by(&mut self, which: usize, stream: StreamId) -> Result<(), Broken> {
        let live = &mut self.book.live[which];
        if stream != live.last {
            let mut device = self.device.steer();
            let mut event = device.create_event().map_err(device_failed)?;
            let ordered = device.record_event(&mut event, live.last).and_then(|()| device.stream_wait(stream, &event));
            device.destroy_event(event);
            ordered.map_err(device_failed)?;
        }
        self.core.record_stream(&live.allocation, stream);
        if stream != live.home {
            live.is_captured |= self.core.heap().is_deferring();
            if !live.told.contains(&stream.get()) {
                live.told.push(stream.get());
            }
        }
        self.fill(which, stream)
    }

    /// Waits for the last user of a live allocation and checks that the allocation still holds what was written.
    pub(super) fn read(&mut self, which: usize) -> Result<(), Broken> {
        let live = &self.book.live[which];
        let whole = live.whole_words();
        let piece = whole.min(READ_BYTES);
        if piece == 0 {
            return Ok(());
        }
        let mut device = self.device.steer();
        device.synchronize_stream(live.last).map_err(device_failed)?;
        let mut bytes = vec![0; piece as usize];
        for offset in [0, whole - piece] {
            let place = live.address().offset(Bytes(offset));
            device.read(place, &mut bytes).map_err(device_failed)?;
            let wrong = bytes.chunks_exact(4).position(|found| found != live.word.to_le_bytes());
            ensure(Law::Contents, wrong.is_none(), || {
                let (at, size, word) = (live.address(), live.requested, live.word);
                let place = offset + 4 * wrong.unwrap_or(0) as u64;
                format!("the {size} bytes at {at} were filled with {word:#x}, but hold something else at byte {place}")
            })?;
        }
        Ok(())
    }
}
