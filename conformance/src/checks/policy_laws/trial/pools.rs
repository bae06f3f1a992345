//! Private pools under any policy: who uses them, which requests they get, and what must not happen while a graph is captured.

use parkade::AllocError;
use parkade::policy::{Coalescing, Policy};
use parkade::profile::Deferral;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::TraceAction;
use parkade_sim::CallName;

use super::super::pool_step::PoolStep;
use super::super::step::Step;
use super::book::Live;
use super::{Mode, Outcome, Trial};
use crate::backend::TestDevice;
use crate::checks::pytorch_laws::operation::POOLS;
use crate::law::{Broken, Law, ensure};
use crate::model::id;

/// Calls that wait for work, or that a capture would write down or break.
const FORBIDDEN: [CallName; 5] = [
    CallName::EventRecord,
    CallName::EventQuery,
    CallName::EventSynchronize,
    CallName::StreamWaitEvent,
    CallName::StreamSynchronize,
];

impl<D: TestDevice, P: Policy> Trial<D, P> {
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
            // Of a pool that is not there yet nothing is said, for some versions forget it with the pool, and some never.
            PoolStep::KeepWhole(pool) if core.pool_use_count(id(pool)).is_ok() => routing.keep_whole(core, pool),
            PoolStep::KeepWhole(_) => {}
            PoolStep::ReleaseCached(pool) => {
                // It waits for the pool's events whether or not a graph is captured; PyTorch refuses that by an assertion.
                if !core.heap().is_deferring() {
                    let answer = core.release_cached_pool(id(pool));
                    return self.outcome(answer);
                }
            }
            PoolStep::Save(pool) => return self.save(pool),
            PoolStep::Load(pool) => return self.load(pool),
        }
        self.core.set_capturing(self.routing.is_capturing());
        Ok(Outcome::Done)
    }

    /// Whether nothing may wait: what the version of PyTorch takes for a capture goes on.
    pub(super) fn should_defer(&self) -> bool {
        match self.core.policy().profile().deferral {
            Deferral::WhileRouting => self.routing.is_routing(),
            Deferral::WhileCapturing => self.routing.is_capturing(),
        }
    }

    /// Where a step begins and ends while nothing may wait, nothing has waited.
    pub(super) fn check_calls(&self, step: Step, was_deferring: bool) -> Result<(), Broken> {
        let is_deferring = self.should_defer();
        let agrees = self.core.heap().is_deferring() == is_deferring;
        ensure(Law::Pools, agrees, || format!("nothing waits: {}, while {:?}", !is_deferring, self.routing))?;
        // Saving records the events that were put off, at whatever time (spec 5.8).
        if !was_deferring || !is_deferring || matches!(step, Step::Pool(PoolStep::Save(_))) {
            return Ok(());
        }
        // Pages of a pool that nobody uses may go back at any time, and their stream is waited for (spec 4.6).
        let entries = &self.core.observer()[self.before_step..];
        let unmaps = entries.iter().any(|entry| entry.action == TraceAction::SegmentUnmap && entry.pool.1 != 0);
        let is_forbidden = |name: &CallName| FORBIDDEN.contains(name) && !(unmaps && *name == CallName::StreamSynchronize);
        let call = self.device.calls_so_far().into_iter().find(|call| is_forbidden(&call.name));
        ensure(Law::Pools, call.is_none(), || format!("{call:?} while a graph is captured"))
    }

    /// Pools in use keep their memory, uses are counted rightly, and so is what each pool has taken.
    pub(super) fn check_pools(&mut self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        // PyTorch's rules take memory from under a capture in the ladder (spec 2.7, 2.9).
        if !self.core.policy().releases_during_captures() {
            self.routing.check_kept(&self.core.observer()[self.followed..], self.should_defer())?;
        }
        self.routing.check_uses(&self.core, POOLS)?;
        let profile = self.core.policy().profile();
        for pool in 1..=POOLS {
            if profile.forgets_no_split && self.core.pool_use_count(id(pool)).is_err() {
                self.routing.forget_whole(pool);
            }
            let counted = self.core.stats().reserved_by_pool.get(&id(pool)).map_or(0, |set| set.all.current);
            let own = segments.iter().filter(|segment| segment.pool == id(pool));
            let reserved: u64 = own.map(|segment| segment.total.get()).sum();
            let agrees = !profile.counts_private_pools || u64::try_from(counted) == Ok(reserved);
            ensure(Law::Accounting, agrees, || format!("pool {pool} has {reserved} bytes, and counts {counted}"))?;
        }
        Ok(())
    }

    /// Which pool a request was served by, as it should be, and uncut if the pool's segments are not split.
    pub(super) fn check_pool_served(&self, told_before: usize, bytes: u64, live: &Live) -> Result<u64, Broken> {
        let (pool, is_borrowed) = self.routing.check_served(&self.core.observer()[told_before..], bytes, live.home)?;
        let segments = self.core.segments();
        let found = segments.iter().find(|segment| segment.blocks.iter().any(|block| block.address == live.address()));
        let Some(segment) = found else { return Ok(pool) };
        let owner = segment.pool.1;
        ensure(Law::Pools, owner == pool, || format!("{bytes} bytes of pool {pool} came from {segment:?}"))?;
        ensure(Law::Pools, !is_borrowed || pool != 0, || format!("{bytes} bytes were lent by the default pool"))?;
        // What is behind it was free on its own before where not all neighbours become one block.
        if self.routing.is_whole(pool)
            && self.core.policy().coalescing() == Coalescing::Neighbours
            && !self.core.policy().has_transferred()
        {
            let mut behind = segment.blocks.iter().skip_while(|block| block.address != live.address()).skip(1);
            let rest = behind.next().filter(|next| next.state == BlockActivity::Inactive);
            ensure(Law::Pools, rest.is_none(), || format!("{bytes} bytes were cut off in pool {pool}, leaving {rest:?}"))?;
        }
        Ok(pool)
    }

    /// A request failed in a pool that was looked into.
    pub(super) fn failed_in_pool(&mut self, error: &AllocError) -> Result<Outcome, Broken> {
        match *error {
            AllocError::Pool(error) => self.routing.failed_in_pool(error).map(|()| Outcome::Refused),
            ref error => Err(Broken::new(Law::NoFalseOutOfMemory, format!("a request: {error}"))),
        }
    }

    /// Requests go to no pool any more, and nobody uses one.
    pub(super) fn leave_pools(&mut self) -> Result<(), Broken> {
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

    /// Whether false alarms can be told: while requests are routed, or a graph is captured, nothing is waited for and given back
    /// that would serve them, which is the rule and no alarm.
    pub(super) fn tells_false_alarms(&self) -> bool {
        self.mode == Mode::Honest && !self.routing.is_routing()
    }
}
