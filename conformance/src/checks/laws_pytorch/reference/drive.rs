//! What a program does apart from its requests: it moves the device, and gives everything back in the end.

use std::collections::VecDeque;
use std::sync::PoisonError;

use parkade::Allocation;
use parkade::units::{Bytes, DeviceAddress};
use parkade_sim::FaultPlan;

use super::play::Play;
use super::step::{POOLS, Step};
use crate::backend::{AnyDevice, TestDevice};
use crate::law::{Broken, Law, ensure};

impl Play {
    /// The program's allocations in a private pool, or all but the first.
    pub(super) fn live_of(&self, pool: usize, all: bool) -> Vec<DeviceAddress> {
        let addresses = self.held.iter().map(Allocation::address);
        addresses.filter(|address| self.reference.pool_of(address.get()) == POOLS[pool]).skip(usize::from(!all)).collect()
    }

    /// Moves the device, on which the allocators have no say.
    pub(super) fn drive(&self, step: &Step) -> Result<(), Broken> {
        let mut device = self.device.steer();
        let answer = match *step {
            Step::Launch(place, duration) => device.spin(self.streams[place], duration),
            Step::OthersHold(bytes) => device.others_hold(Bytes(bytes)),
            Step::Pause(duration) => {
                device.pause(duration);
                Ok(())
            }
            _ => {
                self.complete(&mut device, step);
                Ok(())
            }
        };
        answer.map_err(|error| Broken::new(Law::Faults, format!("{step:?}: {error}")))
    }

    /// Completes work; a real device does so by itself, so it is waited for.
    fn complete(&self, device: &mut AnyDevice, step: &Step) {
        let Some(device) = device.insight() else {
            if matches!(step, Step::Complete(_) | Step::CompleteOne(_) | Step::CompleteAll) {
                device.settle();
            }
            return;
        };
        match *step {
            Step::Complete(place) => device.complete(self.streams[place]),
            Step::CompleteOne(place) => device.complete_one(self.streams[place]),
            Step::CompleteAll => device.complete_all(),
            _ => {}
        }
    }

    /// Gives everything back if the scene says so, and drops the allocator: the device must have everything back.
    pub(super) fn finish(mut self) -> Result<(), Broken> {
        if self.scene.is_finished {
            self.give_everything_back()?;
        }
        let Play { core, device, held, .. } = self;
        device.plan_faults(FaultPlan::none());
        drop((core, held));
        let left = device.look().holdings();
        ensure(Law::Endings, left.is_empty(), || format!("the device keeps {left:?}"))?;
        let used = device.steer().insight().map_or(Bytes::ZERO, |device| device.used_bytes());
        ensure(Law::Endings, used == Bytes::ZERO, || format!("the device keeps {used} bytes"))
    }

    fn give_everything_back(&mut self) -> Result<(), Broken> {
        self.apply(&Step::Capturing(false))?;
        for (pool, id) in POOLS.into_iter().enumerate() {
            self.apply(&Step::EndPool(pool))?;
            while self.core.pool_use_count(id).is_ok_and(|uses| uses > 0) {
                self.apply(&Step::ReleasePool(pool))?;
            }
        }
        while !self.held.is_empty() {
            self.apply(&Step::Free(0))?;
        }
        for stock in &self.stocks.clone() {
            let left = stock.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect::<Vec<_>>();
            self.held.extend(left.into_iter().filter_map(|(deed, _)| deed.allocation()));
        }
        self.reference.stocks.iter_mut().for_each(VecDeque::clear);
        while !self.held.is_empty() {
            self.apply(&Step::Free(0))?;
        }
        self.apply(&Step::CompleteAll)?;
        for _ in 0..4 {
            self.apply(&Step::ReleaseCached)?;
        }
        let reserved = self.core.heap().reserved();
        let may_stay = self.expects_faults || self.reference.keeps_memory();
        ensure(Law::Endings, may_stay || reserved == Bytes::ZERO, || format!("{reserved} bytes stay reserved"))
    }
}
