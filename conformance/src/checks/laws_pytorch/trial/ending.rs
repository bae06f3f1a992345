//! The endings law: no matter what happened before, nothing is left.

use parkade::stats::Family;
use parkade::units::{Bytes, PoolId};
use parkade_sim::FaultPlan;

use super::{Finished, Outcome, Trial};
use crate::backend::{Race, TestDevice, Touch};
use crate::checks::laws_pytorch::operation::{Operation, POOLS};
use crate::law::{Broken, Law, ensure};

impl Trial {
    /// Gives everything back, checks that nothing is left, drops the allocator and checks the device again.
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
        // At most two planned failures may hit this call. If it fails again, the checks below find what is left.
        for _ in 0..3 {
            if !matches!(self.apply(&Operation::ReleaseCached)?, Outcome::Failed(_)) {
                break;
            }
        }
        ensure(Law::Endings, self.history.is_empty(), || format!("the history ends with something held: {:?}", self.history))?;
        let reserved = self.core.heap().reserved();
        ensure(Law::Endings, reserved == Bytes::ZERO, || format!("{reserved} bytes stay reserved"))?;
        for family in Family::ALL {
            let current = self.core.stats().family(family).all.current;
            ensure(Law::Endings, current == 0, || format!("{}.all.current is {current} at the end", family.name()))?;
        }
        let holdings = self.device.look().holdings();
        // Growth that fails for lack of memory leaves its addresses reserved for the next attempt, also if the request is then
        // served elsewhere: the heap knows them, and nothing was ever mapped there. A range that had memory is unreserved with
        // its last page.
        let known = self.core.expandable_segments().iter().filter(|(_, _, mapped)| *mapped == Bytes::ZERO).count();
        let bare = self.device.bare_ranges().min(known);
        let is_empty = holdings.ranges == 0 && holdings.physical == 0 && holdings.reservations == bare;
        ensure(Law::Endings, self.expects_faults || is_empty, || format!("an empty heap keeps {holdings:?}"))?;
        let finished = Finished { trace: std::mem::take(self.core.observer_mut()), stats: self.core.stats().clone() };
        self.abandon()?;
        Ok(finished)
    }

    /// Drops the allocator in its current state, and checks that the device got everything back.
    ///
    /// # Errors
    /// If the device keeps anything, or memory was taken while in use.
    pub fn abandon(self) -> Result<(), Broken> {
        let Trial { core, device, held, .. } = self;
        // After a failure of the very last call nothing could be done.
        device.plan_faults(FaultPlan::none());
        drop((core, held));
        let left = device.look().holdings();
        ensure(Law::Endings, left.is_empty(), || format!("the device keeps {left:?}"))?;
        let used = device.steer().insight().map_or(Bytes::ZERO, |device| device.used_bytes());
        ensure(Law::Endings, used == Bytes::ZERO, || format!("the device keeps {used} bytes"))?;
        // On a real device, work whose memory is unmapped fails, and with it the whole process.
        let is_pulled_away = |race: &&Race| race.second.touch == Touch::Unmapped;
        let race =
            device.steer().insight().and_then(|device| device.races().iter().find(is_pulled_away).map(ToString::to_string));
        ensure(Law::NoRace, race.is_none(), || race.unwrap_or_default())
    }
}
