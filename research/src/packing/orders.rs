//! The methods for any number of buffers: orders, ejection from their packings, and repair of the best order; and,
//! for many buffers, which of them comes first.

use super::effort::{Effort, Found};
use super::eject::{Ejection, Price};
use super::greedy::{self, Start};
use super::instance::{Buffer, Instance, Packing};
use super::online;
use super::place::STEPS_OF_A_PAIR;

/// The packing of many buffers.
pub(super) struct Many<'a> {
    instance: &'a Instance,
    effort: &'a Effort,
    goal: u64,
    /// For each buffer, its group of buffers with the same lifetime.
    groups: Vec<u32>,
    merged: Instance,
}

impl<'a> Many<'a> {
    pub(super) fn new(instance: &'a Instance, effort: &'a Effort, goal: u64) -> Many<'a> {
        let (groups, merged) = instance.merged();
        Many { instance, effort, goal, groups, merged }
    }

    /// Groups come first if they are much less work, otherwise the plain orders: a small budget is enough only for
    /// what comes first. If it is not enough for either, the buffers are placed as they begin.
    pub(super) fn run(&self, found: &mut Found, progress: &mut dyn FnMut(u64)) {
        let least_pairs = self.merged.pairs().min(self.instance.pairs());
        if least_pairs.saturating_mul(STEPS_OF_A_PAIR) > self.effort.steps {
            found.packing = online::place(self.instance);
            found.steps += self.instance.buffers().len() as u64;
            progress(found.steps);
            return;
        }
        if self.merged.pairs() <= self.instance.pairs() / MUCH_LESS {
            self.pack_groups(found, progress);
            self.place_plainly(found, progress);
        } else {
            self.place_plainly(found, progress);
            self.pack_groups(found, progress);
        }
        if self.is_open(found) {
            Orders::run(self.instance, self.effort, SHARES_OF_MANY, found, progress);
        }
    }

    fn is_open(&self, found: &Found) -> bool {
        found.packing.offsets.is_empty() || (found.packing.height > self.goal && found.steps < self.effort.steps)
    }

    fn pack_groups(&self, found: &mut Found, progress: &mut dyn FnMut(u64)) {
        if !self.is_open(found) || self.merged.buffers().len() == self.instance.buffers().len() {
            return;
        }
        let before = std::mem::take(&mut found.packing);
        Orders::run(&self.merged, self.effort, SHARES_OF_MERGED, found, progress);
        let packing = apart(self.instance, &self.groups, &found.packing);
        let is_lower = before.offsets.is_empty() || packing.height < before.height;
        found.packing = if is_lower { packing } else { before };
    }

    fn place_plainly(&self, found: &mut Found, progress: &mut dyn FnMut(u64)) {
        if !self.is_open(found) {
            return;
        }
        let until = found.steps + self.effort.steps / 100 * SHARE_OF_PLAIN;
        for start in greedy::plain_starts(self.instance) {
            found.steps += start.steps;
            progress(found.steps);
            if found.packing.offsets.is_empty() || start.packing.height < found.packing.height {
                found.packing = start.packing;
            }
            if !self.is_open(found) || found.steps >= until {
                break;
            }
        }
    }
}

/// Groups count as much less work than buffers if the pairs that overlap in time are this many times fewer.
const MUCH_LESS: u64 = 4;

/// The packing of buffers from that of their groups.
fn apart(instance: &Instance, groups: &[u32], packing: &Packing) -> Packing {
    let mut free = packing.offsets.clone();
    let place = |(buffer, &group): (&Buffer, &u32)| {
        let offset = free[group as usize];
        free[group as usize] += buffer.size;
        offset
    };
    Packing { offsets: instance.buffers().iter().zip(groups).map(place).collect(), height: packing.height }
}

/// The share of the budget for the plain orders of many buffers, in hundredths.
const SHARE_OF_PLAIN: u64 = 50;

/// The shares of the budget, in hundredths, at which placing first orders, ejection, and the repair of orders end.
/// The search gets the rest.
pub(super) type Shares = (u64, u64, u64);

pub(super) const SHARES_OF_FEW: Shares = (100, 2, 4);
const SHARES_OF_MERGED: Shares = (40, 40, 40);
const SHARES_OF_MANY: Shares = (100, 80, 90);

/// The methods for any number of buffers.
pub(super) struct Orders<'a> {
    instance: &'a Instance,
    effort: &'a Effort,
    starts: Vec<Start>,
    found: &'a mut Found,
    progress: &'a mut dyn FnMut(u64),
}

/// In the first round, ejection from an order gets its steps divided by this.
const FIRST_EJECTION: u64 = 8;

impl<'a> Orders<'a> {
    /// Runs all methods. The packing found replaces the one in `found` if it is lower, or if there is none.
    pub(super) fn run(
        instance: &'a Instance,
        effort: &'a Effort,
        shares: Shares,
        found: &'a mut Found,
        progress: &'a mut dyn FnMut(u64),
    ) {
        let starts = Orders::start(instance, effort, shares, found, progress);
        Orders::go_on(instance, effort, shares, starts, found, progress);
    }

    /// The first part: places the first orders and returns them.
    pub(super) fn start(
        instance: &'a Instance,
        effort: &'a Effort,
        (for_starts, _, _): Shares,
        found: &'a mut Found,
        progress: &'a mut dyn FnMut(u64),
    ) -> Vec<Start> {
        let mut work = Orders { instance, effort, starts: Vec::new(), found, progress };
        work.place(effort.steps / 100 * for_starts);
        work.starts
    }

    /// The second part: ejection from the first orders, and repair of the best one.
    pub(super) fn go_on(
        instance: &'a Instance,
        effort: &'a Effort,
        (_, for_ejection, for_orders): Shares,
        starts: Vec<Start>,
        found: &'a mut Found,
        progress: &'a mut dyn FnMut(u64),
    ) {
        let mut work = Orders { instance, effort, starts, found, progress };
        work.eject(effort.steps / 100 * for_ejection);
        work.repair(effort.steps / 100 * for_orders);
    }

    /// Places the first orders, each followed by a short ejection.
    fn place(&mut self, steps: u64) {
        for start in greedy::starts(self.instance, self.found.bound) {
            self.found.steps += start.steps;
            if self.found.packing.offsets.is_empty() || start.packing.height < self.found.packing.height {
                self.found.packing = start.packing.clone();
            }
            (self.progress)(self.found.steps);
            self.eject_from(&start, Price::ALL[0], start.steps / FIRST_EJECTION, self.effort.seed);
            self.starts.push(start);
            if self.is_done(steps) {
                break;
            }
        }
    }

    fn is_done(&self, steps: u64) -> bool {
        self.found.packing.height <= self.found.bound || self.found.steps >= steps
    }

    /// Ejects from all first orders again and again, with more steps in each round, until `steps` are done in all.
    fn eject(&mut self, steps: u64) {
        let starts = std::mem::take(&mut self.starts);
        for (round, price) in Price::ALL.into_iter().cycle().enumerate().skip(1) {
            for start in &starts {
                if self.is_done(steps) {
                    self.starts = starts;
                    return;
                }
                let limit = (start.steps.max(1_000_000) / FIRST_EJECTION) << round.min(30);
                self.eject_from(start, price, limit.min(steps - self.found.steps), self.effort.seed.wrapping_add(round as u64));
            }
        }
    }

    fn eject_from(&mut self, start: &Start, price: Price, limit: u64, seed: u64) {
        if start.above.is_empty() {
            return;
        }
        let mut ejection = Ejection::new(self.instance, start, self.found.bound, price, seed);
        if let Some(packing) = ejection.run(limit) {
            self.found.packing = packing;
        }
        self.found.steps += ejection.steps;
        (self.progress)(self.found.steps);
    }

    /// Repairs the order with the best packing, until `steps` are done in all.
    fn repair(&mut self, steps: u64) {
        if self.is_done(steps) {
            return;
        }
        let Some(best) = self.starts.iter().min_by_key(|start| start.packing.height) else { return };
        let (done, progress) = (self.found.steps, &mut self.progress);
        let (packing, steps) =
            greedy::repair(self.instance, (best, self.found.bound), (self.effort.seed, steps - done), &mut |steps| {
                progress(done + steps)
            });
        self.found.steps += steps;
        if packing.height < self.found.packing.height {
            self.found.packing = packing;
        }
    }
}
