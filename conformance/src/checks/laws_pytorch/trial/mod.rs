//! Performs a sequence's operations one by one: requests, private pools, settings, work and time on the device, and the
//! contents of memory. Nothing is left at the end, whatever happened before.

use parkade::device::{BackendError, DeviceBackend as _};
use parkade::stats::Family;
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade::{AllocError, FreeError, PoolError};
use parkade_sim::{CallName, FaultPlan};

use super::{Finished, Held, Outcome, Trial};
use crate::backend::{AnyDevice, MadeCall, Race, TestDevice, Touch};
use crate::checks::laws_pytorch::operation::{Operation, POOLS};
use crate::law::{Broken, Law, ensure};
use crate::reference_model::SETTINGS;

/// Number of bytes read back at the start and at the end of a block; reuse would overwrite one of
/// them.
const READ_BYTES: usize = 512;

impl Trial {
    /// Performs an operation, then checks every law.
    ///
    /// # Errors
    /// The first broken law.
    pub fn apply(&mut self, operation: &Operation) -> Result<Outcome, Broken> {
        self.device.begin_operation();
        self.reserved_before = self.core.heap().reserved().get();
        self.retries_before = self.core.stats().num_alloc_retries;
        self.ages.begin_operation();
        let _ = self.device.list_calls();
        self.ranges_before = self.device.reserved_ranges();
        let queues = self.model.waiting_streams(&self.device.witness());
        self.script.extend(self.line_of(operation));
        let outcome = self.carry_out(operation)?;
        if !self.expects_faults {
            self.check_calls(operation, queues)?;
        }
        if let Outcome::Failed(error) = &outcome {
            ensure(Law::Faults, self.expects_faults, || format!("the device failed without a planned fault: {error}"))?;
        }
        self.check()?;
        Ok(outcome)
    }

    fn carry_out(&mut self, operation: &Operation) -> Result<Outcome, Broken> {
        match *operation {
            Operation::Allocate(bytes, stream) => return self.allocate(bytes, self.streams[stream]),
            Operation::Free(which) => return self.free(which),
            Operation::RecordStream(which, stream) if !self.held.is_empty() => {
                let which = which % self.held.len();
                self.model.record(which, self.streams[stream].get(), self.core.heap().is_deferring());
                self.core.record_stream(&self.held[which].allocation, self.streams[stream]);
            }
            Operation::RecordStream(..) => return Ok(Outcome::Nothing),
            Operation::ProcessEvents => return failed(self.core.process_events().map_err(AllocError::Device)),
            Operation::ReleaseCached => {
                let outcome = failed(self.core.release_cached())?;
                self.check_released()?;
                return Ok(outcome);
            }
            Operation::ReleaseCachedPool(pool) => {
                return match self.core.release_cached_pool(PoolId(0, pool)) {
                    // The pool does not exist, or waiting for its events is impossible while requests are routed.
                    Err(AllocError::Pool(_)) => Ok(Outcome::Nothing),
                    answer => failed(answer),
                };
            }
            Operation::ResetPeaks => {
                self.core.reset_peak_stats();
                self.ledger.peaks_were_reset();
            }
            Operation::ResetSums => {
                self.core.reset_accumulated_stats();
                self.ledger.sums_were_reset(self.core.stats());
            }
            Operation::SetFraction(_) | Operation::ChangeSettings(_) | Operation::Expandable(_) => self.turn_knob(operation)?,
            Operation::BeginPool(..)
            | Operation::EndPool(_)
            | Operation::ReleasePool(_)
            | Operation::UseOnOom(_)
            | Operation::NoSplit(_) => self.pools(operation)?,
            _ => return self.drive(operation),
        }
        Ok(Outcome::Done)
    }

    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Outcome, Broken> {
        let segments = self.core.segments();
        let before = self.before_request(segments, bytes);
        let answer = self.core.allocate(Bytes(bytes), stream);
        let witness = self.device.witness();
        let checks_places = !self.expects_faults && !self.setup.is_virtual;
        let checks_pools = !self.expects_faults && self.setup.is_virtual;
        match answer {
            Ok(allocation) => {
                let address = allocation.address();
                self.names += 1;
                let word = self.names as u32;
                self.held.push(Held { allocation, name: self.names, word });
                if checks_places {
                    self.check_place(&before.segments, bytes, stream.get(), address.get())?;
                    self.check_ladder(&before, bytes, stream.get(), true)?;
                }
                if checks_pools {
                    self.check_pool(&before.segments, bytes, stream, address.get())?;
                }
                // Other settings may round a block differently, but the requested size is always the caller's.
                let rounded = if self.setup.is_virtual { bytes } else { self.rules.rounded(bytes) };
                self.model.add(address.get(), bytes, rounded, stream.get(), &witness)?;
                self.write(address, bytes, word, stream)?;
                Ok(Outcome::Done)
            }
            Err(AllocError::OutOfMemory(_)) => {
                if checks_places {
                    self.check_out_of_memory(&before.segments, bytes, stream.get())?;
                    self.check_ladder(&before, bytes, stream.get(), false)?;
                }
                if checks_pools {
                    self.check_nobody_serves(&before.segments, bytes, stream)?;
                }
                Ok(Outcome::OutOfMemory)
            }
            Err(AllocError::Device(error)) => Ok(Outcome::Failed(error)),
            // A pool that serves when memory runs out and to which requests are also routed: PyTorch refuses this too.
            Err(AllocError::Pool(error)) if self.setup.is_virtual => {
                self.failed_in_pool(error)?;
                Ok(Outcome::OutOfMemory)
            }
            Err(error) => Err(Broken::new(Law::NoFalseOutOfMemory, format!("a request of {bytes} bytes failed: {error}"))),
        }
    }

    fn free(&mut self, which: usize) -> Result<Outcome, Broken> {
        if self.held.is_empty() {
            return Ok(Outcome::Nothing);
        }
        let which = which % self.held.len();
        self.read_back(which)?;
        let held = self.held.swap_remove(which);
        self.model.give_back(which, self.core.heap().is_deferring(), &self.device.witness());
        match self.core.free(held.allocation) {
            Ok(()) => Ok(Outcome::Done),
            Err(FreeError::Device(error)) => Ok(Outcome::Failed(error)),
            Err(error) => Err(Broken::new(Law::Accounting, error)),
        }
    }

    /// Operations on private pools. A refused operation changes nothing, except that routing to a pool twice counts as a use.
    fn pools(&mut self, operation: &Operation) -> Result<(), Broken> {
        let Trial { routing, core, .. } = self;
        match *operation {
            Operation::BeginPool(pool, stream) => routing.begin(core, pool, stream.map(|place| self.streams[place]))?,
            Operation::EndPool(pool) => routing.end(core, pool)?,
            Operation::ReleasePool(pool) => routing.release(core, pool)?,
            Operation::UseOnOom(pool) => routing.serve_when_out(core, pool),
            Operation::NoSplit(pool) => routing.keep_whole(core, pool),
            _ => {}
        }
        Ok(())
    }

    /// `empty_cache` releases nothing from a pool in use, nor from the default pool while requests are routed elsewhere
    /// (spec 2.10).
    fn check_released(&self) -> Result<(), Broken> {
        self.routing.check_kept(&self.core.observer()[self.followed..], self.routing.is_routing())
    }

    /// Handles a request that failed in a pool.
    fn failed_in_pool(&mut self, error: PoolError) -> Result<(), Broken> {
        self.routing.failed_in_pool(error)
    }

    /// Checks the waits. A request queries the oldest event of every stream that has pending events, and pages are
    /// unmapped only after a wait for their stream (spec 3.6, 4.6). `queues` is the number of streams with events that
    /// the allocator did not know to be complete.
    fn check_calls(&mut self, operation: &Operation, queues: usize) -> Result<(), Broken> {
        let done = |call: CallName| move |made: &&MadeCall| made.name == call && made.done;
        let calls = self.made_calls();
        let looked = calls.iter().filter(done(CallName::EventQuery)).count();
        let looks = matches!(operation, Operation::Allocate(..) | Operation::ProcessEvents) && !self.core.heap().is_deferring();
        ensure(Law::Ladder, !looks || looked >= queues, || {
            format!("{queues} streams have pending events, but {looked} events were queried")
        })?;
        let waited = calls.iter().position(|made| made.name == CallName::StreamSynchronize);
        let unmapped = calls.iter().position(|made| made.name == CallName::MemUnmap);
        let in_order = unmapped.is_none_or(|unmapped| waited.is_some_and(|waited| waited < unmapped));
        ensure(Law::NoEarlyReuse, in_order, || "pages were unmapped without waiting for the segment's stream".to_owned())?;
        Ok(())
    }

    /// Stops writing and reading memory, for runs that check decisions only.
    pub fn without_contents(&mut self) {
        self.checks_contents = false;
    }

    fn turn_knob(&mut self, operation: &Operation) -> Result<(), Broken> {
        match *operation {
            Operation::SetFraction(hundredths) => {
                let fraction = f64::from(hundredths) / 100.0;
                self.limit = (hundredths < 100).then_some((fraction * self.setup.capacity as f64) as u64);
                if self.core.device().look().total_memory().get() == self.setup.capacity {
                    self.core.set_memory_fraction(fraction).map_err(|error| Broken::new(Law::Limit, error))?;
                    for illegal in [fraction + 1.01, fraction - 1.01, f64::NAN] {
                        let answer = self.core.set_memory_fraction(illegal);
                        ensure(Law::Limit, answer.is_err(), || format!("the illegal fraction {illegal} was accepted"))?;
                    }
                } else {
                    // A real device reports more memory than the ballast leaves.
                    self.core.set_limit(self.limit.map(Bytes));
                }
                let limit = self.core.heap().limit().map(Bytes::get);
                ensure(Law::Limit, limit == self.limit, || {
                    format!("a fraction of {fraction} means a limit of {:?}, but it became {limit:?}", self.limit)
                })?;
            }
            Operation::ChangeSettings(place) => {
                let settings = &mut self.core.policy_mut().settings;
                settings.apply(SETTINGS[place].text).map_err(|error| Broken::new(Law::Placement, error))?;
                self.rules = SETTINGS[place].applied_to(self.rules);
                self.settings_changed = true;
            }
            Operation::Expandable(on) => {
                self.core.policy_mut().settings.expandable_segments = on;
                self.expandable = on;
            }
            _ => {}
        }
        Ok(())
    }

    /// Performs operations that concern only the device. A real device completes work without help, so the trial waits
    /// for the work that the sequence completes.
    fn drive(&mut self, operation: &Operation) -> Result<Outcome, Broken> {
        let mut device = self.device.steer();
        let answer = match *operation {
            Operation::Launch(place, duration) => device.spin(self.streams[place], duration),
            Operation::OthersHold(bytes) => {
                self.others_hold = bytes;
                device.others_hold(Bytes(bytes))
            }
            Operation::Advance(duration) => {
                device.pause(duration);
                Ok(())
            }
            _ => complete(&mut device, &self.streams, operation),
        };
        answer.map(|()| Outcome::Done).map_err(|error| Broken::new(Law::Faults, format!("{operation:?}: {error}")))
    }

    /// Fills a new allocation, on its own stream.
    fn write(&mut self, address: DeviceAddress, bytes: u64, word: u32, stream: StreamId) -> Result<(), Broken> {
        let whole = bytes / 4 * 4;
        if !self.checks_contents || whole == 0 {
            return Ok(());
        }
        let answer = self.device.steer().fill(address, Bytes(whole), word, stream);
        answer.map_err(|error| Broken::new(Law::Contents, format!("{bytes} bytes at {address} cannot be written: {error}")))
    }

    /// Checks that an allocation still holds what was written.
    fn read_back(&mut self, which: usize) -> Result<(), Broken> {
        let (address, word) = (self.held[which].allocation.address(), self.held[which].word);
        let live = &self.model.live[which];
        let whole = live.requested / 4 * 4;
        if !self.checks_contents || whole == 0 {
            return Ok(());
        }
        let mut device = self.device.steer();
        if device.insight().is_none() {
            let answer = device.synchronize_stream(StreamId(live.stream));
            answer.map_err(|error| Broken::new(Law::Contents, error))?;
        }
        let piece = whole.min(READ_BYTES as u64);
        let mut bytes = [0; READ_BYTES];
        let bytes = &mut bytes[..piece as usize];
        for offset in [0, whole - piece] {
            let place = address.offset(Bytes(offset));
            device.read(place, bytes).map_err(|error| Broken::new(Law::Contents, format!("{place} cannot be read: {error}")))?;
            let wrong = bytes.chunks_exact(4).position(|found| found != word.to_le_bytes());
            ensure(Law::Contents, wrong.is_none(), || {
                let at = offset + 4 * wrong.unwrap_or(0) as u64;
                format!("{live:?} was filled with {word:#x}, but holds something else at byte {at}")
            })?;
        }
        Ok(())
    }

    /// Frees all memory, checks that nothing is left, drops the allocator and checks the device again.
    ///
    /// # Errors
    /// If anything is left.
    pub fn finish(mut self) -> Result<Finished, Broken> {
        for pool in 1..=if self.setup.is_virtual { POOLS } else { 0 } {
            self.apply(&Operation::EndPool(pool))?;
            while self.core.pool_use_count(PoolId(0, pool)).is_ok_and(|uses| uses > 0) {
                self.apply(&Operation::ReleasePool(pool))?;
            }
        }
        while !self.held.is_empty() {
            self.apply(&Operation::Free(0))?;
        }
        self.apply(&Operation::CompleteAll)?;
        // At most two planned failures may hit this call. If it fails again after that, the checks below find the
        // leftovers.
        for _ in 0..3 {
            if !matches!(self.apply(&Operation::ReleaseCached)?, Outcome::Failed(_)) {
                break;
            }
        }
        ensure(Law::Endings, self.history.is_empty(), || format!("the history ends with memory still held: {:?}", self.history))?;
        let reserved = self.core.heap().reserved();
        ensure(Law::Endings, reserved == Bytes::ZERO, || format!("{reserved} bytes are still reserved"))?;
        for family in Family::ALL {
            let current = self.core.stats().family(family).all.current;
            ensure(Law::Endings, current == 0, || format!("{}.all.current is {current} at the end", family.name()))?;
        }
        let holdings = self.device.look().holdings();
        // Growth that fails for lack of memory leaves its addresses reserved for the next attempt, even if the request
        // is then served elsewhere: the heap knows the addresses, and nothing has ever been mapped there. A range that
        // had memory is unreserved together with its last page.
        let known = self.core.expandable_segments().iter().filter(|(_, _, mapped)| *mapped == Bytes::ZERO).count();
        let bare = self.device.bare_ranges().min(known);
        let is_empty = holdings.ranges == 0 && holdings.physical == 0 && holdings.reservations == bare;
        ensure(Law::Endings, self.expects_faults || is_empty, || format!("an empty heap still holds {holdings:?}"))?;
        let finished = Finished { trace: std::mem::take(self.core.observer_mut()), stats: self.core.stats().clone() };
        self.abandon()?;
        Ok(finished)
    }

    /// Drops the allocator in its current state, and checks that everything was returned to the
    /// device.
    ///
    /// # Errors
    /// If anything is left on the device, or memory was taken away while in use.
    pub fn abandon(self) -> Result<(), Broken> {
        let Trial { core, device, held, .. } = self;
        // If the very last call failed, the allocator could not do anything more.
        device.plan_faults(FaultPlan::none());
        drop((core, held));
        let left = device.look().holdings();
        ensure(Law::Endings, left.is_empty(), || format!("left on the device: {left:?}"))?;
        let used = device.steer().insight().map_or(Bytes::ZERO, |device| device.used_bytes());
        ensure(Law::Endings, used == Bytes::ZERO, || format!("{used} bytes are left on the device"))?;
        // On a real device, work fails if its memory is unmapped, and takes down the entire
        // process.
        let is_pulled_away = |race: &&Race| race.second.touch == Touch::Unmapped;
        let race =
            device.steer().insight().and_then(|device| device.races().iter().find(is_pulled_away).map(ToString::to_string));
        ensure(Law::NoRace, race.is_none(), || race.unwrap_or_default())
    }
}

/// The outcome of an operation that only the device can make fail.
fn failed(answer: Result<(), AllocError>) -> Result<Outcome, Broken> {
    match answer {
        Ok(()) => Ok(Outcome::Done),
        Err(AllocError::Device(error)) => Ok(Outcome::Failed(error)),
        Err(error) => Err(Broken::new(Law::Sweep, error)),
    }
}

/// Completes the work that the operation names.
fn complete(device: &mut AnyDevice, streams: &[StreamId; 4], operation: &Operation) -> Result<(), BackendError> {
    if let Some(device) = device.insight() {
        match *operation {
            Operation::Complete(place) => device.complete(streams[place]),
            Operation::CompleteOne(place) => {
                device.complete_one(streams[place]);
            }
            Operation::CompleteAll => device.complete_all(),
            _ => {}
        }
        return Ok(());
    }
    match *operation {
        Operation::Complete(place) | Operation::CompleteOne(place) => device.synchronize_stream(streams[place])?,
        Operation::CompleteAll => device.settle(),
        _ => {}
    }
    Ok(())
}
