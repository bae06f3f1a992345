//! The law of endings: whatever happened before, nothing is left.

use parkade::policy::{Coalescing, Policy};
use parkade::stats::{Family, Stats};
use parkade::trace::TraceEntry;
use parkade::units::Bytes;
use parkade_sim::{CallName, FaultPlan};

use super::super::step::Step;
use super::{Mode, Outcome, Trial};
use crate::backend::TestDevice;
use crate::law::{Broken, Law, ensure};

/// What is left when a program is over.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::checks::policy_laws) struct Finished {
    /// Everything that the observer was told.
    pub(in crate::checks::policy_laws) trace: Vec<TraceEntry>,
    /// The statistics at the end.
    pub(in crate::checks::policy_laws) stats: Stats,
    /// The calls of the device, step by step, if some were to fail.
    pub(in crate::checks::policy_laws) calls: Vec<Vec<CallName>>,
    /// What the calls of the driver took, in nanoseconds; 0 on a real device, which does not say.
    pub(in crate::checks::policy_laws) driver_ns: u64,
}

impl<D: TestDevice, P: Policy> Trial<D, P> {
    /// Reads everything, gives everything back, checks that nothing is left, drops the allocator and looks at the device again.
    ///
    /// # Errors
    /// If anything is left.
    pub(in crate::checks::policy_laws) fn finish(mut self) -> Result<Finished, Broken> {
        self.leave_pools()?;
        for which in 0..self.book.live.len() {
            self.read(which)?;
        }
        while !self.book.live.is_empty() {
            self.apply(Step::Free(0))?;
        }
        self.apply(Step::CompleteAll)?;
        // Planned failures may hit this call; there are two of them at most. Whatever fails more often shows in what is left.
        for _ in 0..3 {
            if self.apply(Step::ReleaseCached)? == Outcome::Done {
                break;
            }
        }
        if self.mode != Mode::Wrong {
            self.check_nothing_left()?;
        }
        let (trace, stats) = (std::mem::take(self.core.observer_mut()), self.core.stats().clone());
        let calls = std::mem::take(&mut self.calls);
        let driver_ns = self.abandon()?;
        Ok(Finished { trace, stats, calls, driver_ns })
    }

    /// Nothing is in use, and everything went back that the policy gives back.
    fn check_nothing_left(&self) -> Result<(), Broken> {
        let (named, whole) = (self.core.policy().releasable(self.core.heap()), self.core.heap().releasable());
        // A policy may keep memory for ever: then it names nothing that could still go. And where not all neighbours become one
        // block, a segment need not become whole again; whether those that should have become one is looked at after every step.
        let apart = self.core.policy().coalescing() != Coalescing::Neighbours && self.free_blocks().all(|block| block.is_split);
        let keeps = apart || named.is_empty() && !whole.is_empty();
        for family in Family::ALL {
            let is_kept = keeps
                && matches!(family, Family::Segment | Family::ReservedBytes | Family::InactiveSplit | Family::InactiveSplitBytes);
            let current = self.core.stats().family(family).all.current;
            ensure(Law::Endings, current == 0 || is_kept, || format!("{}.all.current ends at {current}", family.name()))?;
        }
        let reserved = self.core.heap().reserved();
        ensure(Law::Endings, reserved == Bytes::ZERO || keeps, || format!("{reserved} bytes stay reserved"))?;
        let holdings = self.device.look().holdings();
        // A growth for which there was no memory leaves its addresses reserved, for the next one: the heap knows them, and
        // nothing was ever mapped there. Whatever had memory goes back with its last page.
        let known = self.core.expandable_segments().iter().filter(|(_, _, mapped)| *mapped == Bytes::ZERO).count();
        let bare = self.device.bare_ranges().min(known);
        let is_empty = holdings.ranges == 0 && holdings.physical == 0 && holdings.reservations == bare;
        let excused = keeps || self.mode == Mode::Faults;
        ensure(Law::Endings, is_empty || excused, || format!("a heap that holds nothing keeps {holdings:?}"))
    }

    /// Drops the allocator as it is, and checks that the device has everything back. What the calls of the driver took, in
    /// nanoseconds.
    ///
    /// # Errors
    /// If not.
    pub(in crate::checks::policy_laws) fn abandon(self) -> Result<u64, Broken> {
        let Trial { core, device, book, .. } = self;
        // A failure of the very last call could not be answered by anybody.
        device.plan_faults(FaultPlan::none());
        if !book.live.is_empty() {
            // What is not given back is for the program to wait for.
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
