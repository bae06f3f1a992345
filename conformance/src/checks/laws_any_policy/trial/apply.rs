//! Performs a program's steps one by one. Every law is checked after each step, no call waits while a graph is
//! captured, and nothing is left at the end, whatever happened before.

use parkade::AllocError;
use parkade::device::{BackendError, DeviceBackend as _};
use parkade::policy::Policy;
use parkade::stats::{Family, Stats};
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::Bytes;
use parkade_sim::{CallName, FaultPlan};

use super::{Outcome, Trial};
use crate::backend::TestDevice;
use crate::checks::laws_any_policy::programs::PoolStep;
use crate::checks::laws_any_policy::programs::Step;
use crate::checks::laws_pytorch::operation::POOLS;
use crate::law::{Broken, Law, ensure};

/// Calls that wait for work, or that a graph capture would record or reject.
const FORBIDDEN: [CallName; 5] = [
    CallName::EventRecord,
    CallName::EventQuery,
    CallName::EventSynchronize,
    CallName::StreamWaitEvent,
    CallName::StreamSynchronize,
];

/// The result of a finished program.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::checks::laws_any_policy) struct Finished {
    /// The trace.
    pub(in crate::checks::laws_any_policy) trace: Vec<TraceEntry>,
    /// The statistics at the end.
    stats: Stats,
    /// The device calls made in each step, if calls were made to fail.
    pub(in crate::checks::laws_any_policy) calls: Vec<Vec<CallName>>,
    /// The time of the driver calls in nanoseconds; 0 on a real device, which does not report it.
    pub(in crate::checks::laws_any_policy) driver_ns: u64,
}

impl Trial {
    /// Performs a step, then checks every law.
    ///
    /// # Errors
    /// The first broken law.
    pub(in crate::checks::laws_any_policy) fn apply(&mut self, step: Step) -> Result<Outcome, Broken> {
        self.device.begin_operation();
        self.script.push(step.line());
        self.before_step = self.core.observer().len();
        drop(self.device.list_calls());
        self.was_deferring = self.should_defer();
        let outcome = self.carry_out(step)?;
        if self.expected.faults {
            self.calls.push(self.device.calls_so_far().iter().map(|call| call.name).collect());
        }
        match &outcome {
            // A page size that the device does not have is also an invalid answer; the driver rejects it as an invalid
            // value.
            Outcome::Failed(BackendError::Driver { code, .. }) if self.expected.wrong_answers && *code == self.invalid_value => {}
            Outcome::Failed(error) => {
                ensure(Law::Faults, self.expected.faults, || format!("the device failed without a planned fault: {error}"))?
            }
            Outcome::AtFault => {
                ensure(Law::Answers, self.expected.wrong_answers, || "the policy gave an invalid answer".to_owned())?
            }
            Outcome::Done | Outcome::Refused => {}
        }
        self.check_calls(step)?;
        self.check()?;
        Ok(outcome)
    }

    fn carry_out(&mut self, step: Step) -> Result<Outcome, Broken> {
        match step {
            Step::Allocate(bytes, place) => return self.allocate(bytes, self.streams[place]),
            Step::ProcessEvents => {
                let answer = self.core.process_events().map_err(AllocError::Device);
                return self.outcome(answer);
            }
            Step::ReleaseCached => {
                self.core.policy_mut().begin();
                let answer = self.core.release_cached();
                return self.outcome(answer);
            }
            Step::Limit(hundredths) => {
                let limit = u64::from(hundredths) * (self.setup.capacity / 100);
                self.core.set_limit((hundredths < 100).then_some(Bytes(limit)));
            }
            Step::ResetPeaks => {
                self.core.reset_peak_stats();
                self.ledger.peaks_were_reset();
            }
            Step::ResetSums => {
                self.core.reset_accumulated_stats();
                self.ledger.sums_were_reset(self.core.stats());
            }
            Step::Launch(..) | Step::Advance(_) | Step::CompleteOne(_) | Step::CompleteAll | Step::OthersHold(_) => {
                self.drive(step).map_err(|error| Broken::new(Law::Faults, error))?;
            }
            Step::Pool(step) => return self.pool(step),
            _ if self.book.live.is_empty() => {}
            Step::Free(which) | Step::Replace(which) if !self.may_free(which % self.book.live.len()) => {}
            Step::Free(which) => return self.free(which % self.book.live.len()),
            Step::Replace(which) => {
                let which = which % self.book.live.len();
                let (bytes, stream) = (self.book.live[which].requested, self.book.live[which].home);
                match self.free(which)? {
                    Outcome::Done => {}
                    failed => return Ok(failed),
                }
                self.check()?;
                return self.allocate(bytes, stream);
            }
            Step::Use(which, place) => self.use_by(which % self.book.live.len(), self.streams[place])?,
            Step::Read(which) => self.read(which % self.book.live.len())?,
        }
        Ok(Outcome::Done)
    }

    fn drive(&mut self, step: Step) -> Result<(), BackendError> {
        let mut device = self.device.steer();
        match step {
            Step::Launch(place, duration) => device.spin(self.streams[place], duration),
            Step::OthersHold(bytes) => device.others_hold(Bytes(bytes)),
            Step::Advance(duration) => {
                device.pause(duration);
                Ok(())
            }
            Step::CompleteOne(place) => match device.insight() {
                Some(device) => {
                    device.complete_one(self.streams[place]);
                    Ok(())
                }
                None => device.synchronize_stream(self.streams[place]),
            },
            _ => {
                device.settle();
                Ok(())
            }
        }
    }

    /// Checks that a step during which waiting was deferred from start to end has not waited.
    fn check_calls(&self, step: Step) -> Result<(), Broken> {
        let is_deferring = self.should_defer();
        let agrees = self.core.heap().is_deferring() == is_deferring;
        ensure(Law::Pools, agrees, || format!("waiting allowed: {}, routing: {:?}", !is_deferring, self.routing))?;
        // Saving a pool records the deferred events at any time (spec 5.8).
        if !self.was_deferring || !is_deferring || matches!(step, Step::Pool(PoolStep::Save(_))) {
            return Ok(());
        }
        // Pages of an unused pool may be released at any time, after waiting for their stream (spec 4.6). No entry
        // records a failure of the wait or of the release.
        let entries = &self.core.observer()[self.before_step..];
        let unmaps = entries.iter().any(|entry| entry.action == TraceAction::SegmentUnmap && entry.pool.1 != 0);
        let calls = self.device.calls_so_far();
        let fails = |place: usize| {
            let next = calls.get(place + 1).filter(|next| next.name == CallName::MemUnmap);
            calls[place].error.is_some() || next.is_some_and(|next| next.error.is_some())
        };
        let may_wait = |place: usize| calls[place].name == CallName::StreamSynchronize && (unmaps || fails(place));
        let call = (0..calls.len()).find(|&place| FORBIDDEN.contains(&calls[place].name) && !may_wait(place));
        let call = call.map(|place| &calls[place]);
        ensure(Law::Pools, call.is_none(), || format!("{call:?} while a graph is captured"))
    }

    /// Ends all routing and all uses of pools.
    fn leave_pools(&mut self) -> Result<(), Broken> {
        for pool in 1..=POOLS {
            if self.routing.routed(pool).is_some() {
                self.apply(Step::Pool(PoolStep::End(pool)))?;
            }
            while self.routing.uses(pool) > 0 {
                self.apply(Step::Pool(PoolStep::Release(pool)))?;
            }
        }
        Ok(())
    }

    /// Reads and frees everything, checks that nothing is left, drops the allocator and checks the device again.
    ///
    /// # Errors
    /// If anything is left.
    pub(in crate::checks::laws_any_policy) fn finish(mut self) -> Result<Finished, Broken> {
        self.leave_pools()?;
        for which in 0..self.book.live.len() {
            self.read(which)?;
        }
        while !self.book.live.is_empty() {
            self.apply(Step::Free(0))?;
        }
        self.apply(Step::CompleteAll)?;
        // At most two planned failures may hit this call. If it fails again after that, the checks below find the
        // leftovers.
        for _ in 0..3 {
            if self.apply(Step::ReleaseCached)? == Outcome::Done {
                break;
            }
        }
        if !self.expected.wrong_answers {
            self.check_nothing_left()?;
        }
        let (trace, stats) = (std::mem::take(self.core.observer_mut()), self.core.stats().clone());
        let calls = std::mem::take(&mut self.calls);
        let driver_ns = self.abandon()?;
        Ok(Finished { trace, stats, calls, driver_ns })
    }

    /// Checks that nothing is in use, and that everything that the policy releases has been
    /// released.
    fn check_nothing_left(&self) -> Result<(), Broken> {
        let (named, whole) = (self.core.policy().releasable(self.core.heap()), self.core.heap().releasable());
        // A policy may keep memory forever; it then reports nothing as releasable.
        let keeps = named.is_empty() && !whole.is_empty();
        for family in Family::ALL {
            let is_kept = keeps
                && matches!(family, Family::Segment | Family::ReservedBytes | Family::InactiveSplit | Family::InactiveSplitBytes);
            let current = self.core.stats().family(family).all.current;
            ensure(Law::Endings, current == 0 || is_kept, || format!("{}.all.current is {current} at the end", family.name()))?;
        }
        let reserved = self.core.heap().reserved();
        ensure(Law::Endings, reserved == Bytes::ZERO || keeps, || format!("{reserved} bytes are still reserved"))?;
        let holdings = self.device.look().holdings();
        // Growth that fails for lack of memory leaves its addresses reserved for the next attempt: the heap knows the
        // addresses, and nothing has ever been mapped there. A range that had memory is unreserved together with its
        // last page.
        let known = self.core.expandable_segments().iter().filter(|(_, _, mapped)| *mapped == Bytes::ZERO).count();
        let bare = self.device.bare_ranges().min(known);
        let is_empty = holdings.ranges == 0 && holdings.physical == 0 && holdings.reservations == bare;
        let excused = keeps || self.expected.faults;
        ensure(Law::Endings, is_empty || excused, || format!("an empty heap still holds {holdings:?}"))
    }

    /// Drops the allocator in its current state, and checks that everything was returned to the device. Returns the
    /// time of the driver calls in nanoseconds.
    ///
    /// # Errors
    /// If anything is left on the device, or memory was taken away while in use.
    pub(in crate::checks::laws_any_policy) fn abandon(self) -> Result<u64, Broken> {
        let Trial { core, device, book, .. } = self;
        // If the very last call failed, the allocator could not do anything more.
        device.plan_faults(FaultPlan::none());
        if !book.live.is_empty() {
            // The program itself waits for the work on allocations that it has not freed.
            device.steer().settle();
        }
        drop((core, book));
        let left = device.look().holdings();
        ensure(Law::Endings, left.is_empty(), || format!("left on the device: {left:?}"))?;
        let mut device = device.steer();
        let Some(device) = device.insight() else { return Ok(0) };
        let used = device.used_bytes();
        ensure(Law::Endings, used == Bytes::ZERO, || format!("{used} bytes are left on the device"))?;
        let race = device.races().first().map(ToString::to_string);
        ensure(Law::NoEarlyReuse, race.is_none(), || race.unwrap_or_default())?;
        Ok(device.driver_and_wait_ns())
    }
}
