//! One request and one free, the use of memory between them, and the operations on private pools. The checks cover what
//! the allocator did with the policy's answers, which pool served the request, and that memory keeps its contents.
//!
//! A checkpoint of a private pool contains what was handed out, a restore brings back what was saved, and a refusal is
//! justified and changes nothing.

use parkade::checkpoint::{CheckpointError, SavedState};
use parkade::device::{BackendError, DeviceBackend as _};
use parkade::policy::{Policy, PolicyFault};
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::TraceAction;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{AllocError, Allocation, FreeError, PoolCheckpoint};
use parkade_sim::CallName;

use super::{Live, Outcome, Trial};
use crate::backend::{TestDevice, Witness};
use crate::checks::laws_any_policy::programs::PoolStep;
use crate::law::{Broken, Law, ensure};
use crate::program::watched::{Answer, changed_since_answer};
use crate::reference_model::id;

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
                format!("a request for {requested} bytes got a block of {size} bytes, but the policy specified {expected}")
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
            format!(
                "a request for {bytes} bytes was placed at {address:#x} (new segment: {made:?} bytes), but the policy chose \
                 {:x?}",
                notes.answer
            )
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
                "a request for {bytes} bytes was refused with at most {waiting} blocks pending and {before} bytes reserved; \
                 with nothing \
                 pending and {after} bytes reserved, it was served"
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
        ensure(Law::Answers, fault.policy == name, || format!("the policy at fault is {name}, but the error names {fault}"))?;
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
        ensure(Law::Answers, changed.is_none(), || {
            format!("the policy's answer was refused ({fault}), but the heap changed: {}", changed.unwrap_or_default())
        })?;
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
            ensure(Law::Pools, rest.is_none(), || {
                format!("pool {pool} must not split blocks, but a request for {bytes} bytes split off {rest:?}")
            })?;
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
    fn fill(&mut self, which: usize, stream: StreamId) -> Result<(), Broken> {
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
                format!("the {size} bytes at {at} were filled with {word:#x}, but contain something else at byte {place}")
            })?;
        }
        Ok(())
    }
}

/// The address, size and stream of each allocation in a checkpoint, in the checkpoint's order.
fn saved_allocations(checkpoint: &PoolCheckpoint) -> Vec<(DeviceAddress, Bytes, StreamId)> {
    let mut found = Vec::new();
    for segment in &checkpoint.segments {
        let mut address = segment.address;
        for block in &segment.blocks {
            if block.state == SavedState::Allocated {
                found.push((address, block.size, segment.stream));
            }
            address = address.offset(block.size);
        }
    }
    found
}

fn failed(error: CheckpointError) -> Option<BackendError> {
    if let CheckpointError::Device(error) = error { Some(error) } else { None }
}

impl Trial {
    pub(super) fn pool(&mut self, step: PoolStep) -> Result<Outcome, Broken> {
        let Trial { routing, core, .. } = self;
        match step {
            PoolStep::Create(pool) => routing.create(core, pool)?,
            PoolStep::Begin(pool, stream) => routing.begin(core, pool, stream.map(|place| self.streams[place]))?,
            PoolStep::End(pool) => {
                let was_routed = routing.routed(pool);
                routing.end(core, pool)?;
                if was_routed == Some(None) {
                    routing.release(core, pool)?;
                }
            }
            PoolStep::Release(pool) => routing.release(core, pool)?,
            PoolStep::Serve(pool) => routing.serve_when_out(core, pool),
            // Not set for a pool that does not exist yet: some versions drop the setting together with the pool, others
            // never drop it.
            PoolStep::KeepWhole(pool) if core.pool_use_count(id(pool)).is_ok() => routing.keep_whole(core, pool),
            PoolStep::KeepWhole(_) => {}
            PoolStep::ReleaseCached(pool) => {
                let is_deferring = core.heap().is_deferring();
                let answer = core.release_cached_pool(id(pool));
                // While a graph counts as being captured, the pool's events cannot be waited for.
                if is_deferring && answer == Err(AllocError::Capturing) {
                    return Ok(Outcome::Done);
                }
                return self.outcome(answer);
            }
            PoolStep::Save(pool) => return self.save(pool),
            PoolStep::Load(pool) => return self.load(pool),
        }
        self.core.set_capturing(self.routing.is_capturing());
        Ok(Outcome::Done)
    }

    /// Saves a pool. The checkpoint's allocations must be exactly those that the program holds.
    fn save(&mut self, pool: u64) -> Result<Outcome, Broken> {
        match self.core.checkpoint_pool(id(pool)) {
            Ok(checkpoint) => {
                let segments = self.core.segments();
                let ordinary = |address: DeviceAddress| {
                    let holds = |segment: &&SegmentInfo| segment.blocks.iter().any(|block| block.address == address);
                    segments.iter().find(holds).is_some_and(|segment| !segment.expandable)
                };
                // An expandable segment whose start is not mapped is left out (spec 5.7).
                let mut saved: Vec<DeviceAddress> =
                    saved_allocations(&checkpoint).into_iter().map(|(address, ..)| address).collect();
                saved.retain(|&address| ordinary(address));
                let mut held = self.addresses_of(pool);
                let is_live = self.core.pool_live_allocations_are(id(pool), &held) == Ok(true);
                ensure(Law::Pools, is_live, || format!("pool {pool} does not report {held:x?} as handed out"))?;
                held.retain(|&address| ordinary(address));
                saved.sort_unstable();
                ensure(Law::Pools, saved == held, || {
                    format!("the checkpoint of pool {pool} lists {saved:x?}, but the pool had handed out {held:x?}")
                })?;
                self.saved.insert(pool, checkpoint);
                Ok(Outcome::Done)
            }
            Err(CheckpointError::Device(error)) => Ok(Outcome::Failed(error)),
            Err(error) => {
                let is_legal = match error {
                    CheckpointError::UnknownPool(_) => self.core.pool_use_count(id(pool)).is_err(),
                    CheckpointError::EventsPending(address) => self.pending_addresses(pool).contains(&address),
                    _ => false,
                };
                ensure(Law::Pools, is_legal, || format!("pool {pool} cannot be saved: {error}"))?;
                Ok(Outcome::Refused)
            }
        }
    }

    /// Loads a pool's checkpoint.
    fn load(&mut self, pool: u64) -> Result<Outcome, Broken> {
        let Some(checkpoint) = self.saved.get(&pool).cloned() else { return Ok(Outcome::Done) };
        // The pool takes back everything it has handed out, so the program does not free it.
        let is_deferring = self.core.heap().is_deferring();
        if is_deferring && self.book.of_pool(pool).any(|which| self.book.live[which].is_captured) {
            return Ok(Outcome::Done);
        }
        let (before, stats) = (self.core.segments(), self.core.stats().clone());
        // Loading frees the allocations that the pool has handed out and records events for them, so use the witness
        // from before the load.
        let witness = self.device.witness();
        match self.core.restore_pool(&checkpoint) {
            Ok(restored) => {
                let mut freed = restored.freed;
                freed.sort_unstable();
                let held = self.addresses_of(pool);
                ensure(Law::Pools, freed == held, || format!("pool {pool} took back {freed:x?}, but had handed out {held:x?}"))?;
                self.forget_handed_out(pool, &witness)?;
                self.hold_restored(pool, &checkpoint, restored.allocations)?;
                self.core.policy_mut().used_pool(false, true);
                Ok(Outcome::Done)
            }
            Err(error) => {
                if let Some(error) = failed(error) {
                    // Everything was freed before the failure.
                    self.forget_handed_out(pool, &witness)?;
                    return Ok(Outcome::Failed(error));
                }
                let is_same = self.core.segments() == before && *self.core.stats() == stats;
                ensure(Law::Pools, is_same, || format!("loading pool {pool} failed with {error}, but the heap changed"))?;
                let policy = self.core.policy();
                let is_legal = match error {
                    CheckpointError::Parted => policy.has_transferred(),
                    CheckpointError::LostPool(_) => self.core.pool_use_count(id(pool)).is_err(),
                    CheckpointError::Abandoned(_) => self.routing.uses(pool) == 0,
                    _ => !self.fits(&before, &checkpoint),
                };
                ensure(Law::Pools, is_legal, || {
                    format!("pool {pool} cannot be loaded: {error}; the checkpoint is {checkpoint:x?}")
                })?;
                Ok(Outcome::Refused)
            }
        }
    }

    /// Whether every saved segment still exists, is ordinary, and will be free once its pool takes back its allocations.
    fn fits(&self, segments: &[SegmentInfo], checkpoint: &PoolCheckpoint) -> bool {
        checkpoint.segments.iter().all(|saved| {
            let bytes: u64 = saved.blocks.iter().map(|block| block.size.get()).sum();
            let is_same = |segment: &&SegmentInfo| {
                let same = (segment.address, segment.stream, segment.pool) == (saved.address, saved.stream, checkpoint.pool);
                same && segment.total.get() == bytes && !segment.expandable
            };
            segments.iter().find(is_same).is_some_and(|segment| {
                segment.blocks.iter().all(|block| match block.state {
                    BlockActivity::Inactive => true,
                    BlockActivity::Allocated => {
                        let live = self.book.live.iter().find(|live| live.address() == block.address);
                        live.is_some_and(|live| live.told.is_empty())
                    }
                    BlockActivity::PendingFree => false,
                })
            })
        })
    }

    /// Drops the allocations that a pool itself had taken back at the time of `witness`.
    fn forget_handed_out(&mut self, pool: u64, witness: &Witness) -> Result<(), Broken> {
        // Go from last to first, because removing one moves only those after it.
        let own: Vec<usize> = self.book.of_pool(pool).collect();
        for which in own.into_iter().rev() {
            let live = self.book.give_back(which, witness);
            let answer = self.core.free(live.allocation);
            ensure(Law::Pools, answer == Err(FreeError::NotAllocated), || {
                format!("an allocation was freed again after its pool had taken it back, and the answer was {answer:?}")
            })?;
        }
        Ok(())
    }

    /// Checks that a restored pool hands out what was saved, and that nothing else uses that
    /// memory.
    fn hold_restored(&mut self, pool: u64, checkpoint: &PoolCheckpoint, allocations: Vec<Allocation>) -> Result<(), Broken> {
        let expected = saved_allocations(checkpoint);
        let addresses: Vec<DeviceAddress> = allocations.iter().map(Allocation::address).collect();
        let same = addresses.iter().eq(expected.iter().map(|(address, ..)| address));
        ensure(Law::Pools, same, || format!("pool {pool} has handed out {addresses:x?}, but the checkpoint has {expected:x?}"))?;
        for (allocation, (_, size, stream)) in allocations.into_iter().zip(expected) {
            let live = Live::new(allocation, size.get(), stream, pool);
            self.book.add(live, size.get(), 1, &self.device.witness())?;
            self.fill(self.book.live.len() - 1, stream)?;
        }
        Ok(())
    }

    /// Returns the addresses that a pool has handed out, in order.
    fn addresses_of(&self, pool: u64) -> Vec<DeviceAddress> {
        let mut addresses: Vec<DeviceAddress> = self.book.of_pool(pool).map(|which| self.book.live[which].address()).collect();
        addresses.sort_unstable();
        addresses
    }

    fn pending_addresses(&self, pool: u64) -> Vec<DeviceAddress> {
        let segments = self.core.segments();
        let blocks = segments.iter().filter(|segment| segment.pool == id(pool)).flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == BlockActivity::PendingFree).map(|block| block.address).collect()
    }
}
