//! The endings law: no matter what happened before, nothing is left.

use parkade::policy::Policy;
use parkade::stats::{Family, Stats};
use parkade::trace::TraceEntry;
use parkade::units::Bytes;
use parkade_sim::{CallName, FaultPlan};

use super::super::step::Step;
use super::{Outcome, Trial};
use crate::backend::TestDevice;
use crate::law::{Broken, Law, ensure};

/// The result of a finished program.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::checks::laws_any_policy) struct Finished {
    /// The trace.
    pub(in crate::checks::laws_any_policy) trace: Vec<TraceEntry>,
    /// The statistics at the end.
    pub(in crate::checks::laws_any_policy) stats: Stats,
    /// The device calls of each step, if calls were made to fail.
    pub(in crate::checks::laws_any_policy) calls: Vec<Vec<CallName>>,
    /// The time of the driver calls in nanoseconds; 0 on a real device, which does not report it.
    pub(in crate::checks::laws_any_policy) driver_ns: u64,
}

impl Trial {
    /// Reads everything, gives everything back, checks that nothing is left, drops the allocator and checks the device again.
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
        // At most two planned failures may hit this call. If it fails again, the checks below find what is left.
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

    /// Checks that nothing is in use, and that everything went back that the policy gives back.
    fn check_nothing_left(&self) -> Result<(), Broken> {
        let (named, whole) = (self.core.policy().releasable(self.core.heap()), self.core.heap().releasable());
        // A policy may keep memory forever; it then names nothing as releasable.
        let keeps = named.is_empty() && !whole.is_empty();
        for family in Family::ALL {
            let is_kept = keeps
                && matches!(family, Family::Segment | Family::ReservedBytes | Family::InactiveSplit | Family::InactiveSplitBytes);
            let current = self.core.stats().family(family).all.current;
            ensure(Law::Endings, current == 0 || is_kept, || format!("{}.all.current is {current} at the end", family.name()))?;
        }
        let reserved = self.core.heap().reserved();
        ensure(Law::Endings, reserved == Bytes::ZERO || keeps, || format!("{reserved} bytes stay reserved"))?;
        let holdings = self.device.look().holdings();
        // Growth that fails for lack of memory leaves its addresses reserved for the next attempt: the heap knows them, and
        // nothing was ever mapped there. A range that had memory is unreserved with its last page.
        let known = self.core.expandable_segments().iter().filter(|(_, _, mapped)| *mapped == Bytes::ZERO).count();
        let bare = self.device.bare_ranges().min(known);
        let is_empty = holdings.ranges == 0 && holdings.physical == 0 && holdings.reservations == bare;
        let excused = keeps || self.expected.faults;
        ensure(Law::Endings, is_empty || excused, || format!("an empty heap keeps {holdings:?}"))
    }

    /// Drops the allocator in its current state, and checks that the device got everything back. Returns the time of the driver
    /// calls in nanoseconds.
    ///
    /// # Errors
    /// If the device keeps anything, or memory was taken while in use.
    pub(in crate::checks::laws_any_policy) fn abandon(self) -> Result<u64, Broken> {
        let Trial { core, device, book, .. } = self;
        // After a failure of the very last call nothing could be done.
        device.plan_faults(FaultPlan::none());
        if !book.live.is_empty() {
            // The program itself waits for work on allocations that it did not free.
            device.steer().settle();
        }
        drop((core, book));
        let left = device.look().holdings();
        ensure(Law::Endings, left.is_empty(), || format!("the device keeps {left:?}"))?;
        let mut device = device.steer();
        let Some(device) = device.insight() else { return Ok(0) };
        let used = device.used_bytes();
        ensure(Law::Endings, used == Bytes::ZERO, || format!("the device keeps {used} bytes"))?;
        let race = device.races().first().map(ToString::to_string);
        ensure(Law::NoEarlyReuse, race.is_none(), || race.unwrap_or_default())?;
        Ok(device.driver_and_wait_ns())
    }
}
