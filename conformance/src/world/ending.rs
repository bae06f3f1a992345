//! The law of endings: whatever happened before, nothing is left.

use parkade::stats::Family;
use parkade::units::Bytes;
use parkade_sim::device::FaultPlan;

use super::{Finished, Outcome, World};
use crate::operation::Operation;
use crate::{Broken, ensure};

impl World {
    /// Gives everything back, checks that nothing is left, drops the allocator and looks at the device again.
    ///
    /// # Errors
    /// If anything is left.
    pub fn finish(mut self) -> Result<Finished, Broken> {
        while !self.held.is_empty() {
            self.apply(&Operation::Free(0))?;
        }
        self.apply(&Operation::CompleteAll)?;
        // A planned failure may hit this call; there is one of them at most.
        while let Outcome::Failed(_) = self.apply(&Operation::ReleaseCached)? {}
        ensure(self.history.is_empty(), || format!("the history ends with {:?}", self.history))?;
        ensure(self.core.heap().reserved() == Bytes::ZERO, || format!("{} bytes stay reserved", self.core.heap().reserved()))?;
        for family in Family::ALL {
            let current = self.core.stats().family(family).all.current;
            ensure(current == 0, || format!("{}.all.current ends at {current}", family.name()))?;
        }
        let finished = Finished { trace: std::mem::take(self.core.observer_mut()), stats: self.core.stats().clone() };
        self.abandon()?;
        Ok(finished)
    }

    /// Drops the allocator as it is, and checks that the device has everything back.
    ///
    /// # Errors
    /// If not.
    pub fn abandon(self) -> Result<(), Broken> {
        let World { core, device, held, .. } = self;
        // A failure of the very last call could not be answered by anybody.
        device.steer().set_fault_plan(FaultPlan::none());
        drop((core, held));
        let device = device.look();
        ensure(device.live_ranges().next().is_none(), || "the device keeps a range".to_owned())?;
        ensure(device.used_bytes() == Bytes::ZERO, || format!("the device keeps {} bytes", device.used_bytes()))?;
        ensure(device.live_events() == 0, || format!("the device keeps {} events", device.live_events()))
    }
}
