//! Private pools under any policy: their use counts, which requests they get, and what must not happen while a graph is captured.

use parkade::AllocError;
use parkade::policy::Policy;
use parkade::profile::Deferral;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::TraceAction;
use parkade_sim::CallName;

use super::super::pool_step::PoolStep;
use super::super::step::Step;
use super::book::Live;
use super::{Outcome, Trial};
use crate::checks::laws_pytorch::operation::POOLS;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::id;

/// Calls that wait for work, or that a capture would record or reject.
const FORBIDDEN: [CallName; 5] = [
    CallName::EventRecord,
    CallName::EventQuery,
    CallName::EventSynchronize,
    CallName::StreamWaitEvent,
    CallName::StreamSynchronize,
];

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
            // Not set for a pool that does not exist yet: some versions forget the setting with the pool, others never do.
            PoolStep::KeepWhole(pool) if core.pool_use_count(id(pool)).is_ok() => routing.keep_whole(core, pool),
            PoolStep::KeepWhole(_) => {}
            PoolStep::ReleaseCached(pool) => {
                // This waits for the pool's events even while a graph is captured; PyTorch forbids that with an assertion.
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

    /// Whether waiting must be deferred: what this version of PyTorch considers a capture is in progress.
    pub(super) fn should_defer(&self) -> bool {
        match self.core.policy().profile().deferral {
            Deferral::WhileRouting => self.routing.is_routing(),
            Deferral::WhileCapturing => self.routing.is_capturing(),
        }
    }

    /// Checks that a step that starts and ends with waiting deferred has not waited.
    pub(super) fn check_calls(&self, step: Step) -> Result<(), Broken> {
        let is_deferring = self.should_defer();
        let agrees = self.core.heap().is_deferring() == is_deferring;
        ensure(Law::Pools, agrees, || format!("waiting is allowed: {}, with {:?}", !is_deferring, self.routing))?;
        // Saving records the deferred events at any time (spec 5.8).
        if !self.was_deferring || !is_deferring || matches!(step, Step::Pool(PoolStep::Save(_))) {
            return Ok(());
        }
        // Pages of an unused pool may be given back at any time, after waiting for their stream (spec 4.6). Where the wait fails, or
        // giving them back, no entry tells of it.
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

    /// Checks that pools in use keep their memory, and that uses and each pool's memory are counted correctly.
    pub(super) fn check_pools(&mut self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        // PyTorch's ladder may take memory from a pool in use during a capture (spec 2.7, 2.9).
        if !self.core.policy().releases_during_captures() {
            // Handles may be broken before requests are routed.
            let is_deferring = self.was_deferring && self.should_defer();
            self.routing.check_kept(&self.core.observer()[self.followed..], is_deferring)?;
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
            ensure(Law::Accounting, agrees, || format!("pool {pool} has {reserved} bytes, but counts {counted}"))?;
        }
        Ok(())
    }

    /// Checks and returns the pool that served a request; the block must be unsplit if the pool's segments are not split.
    pub(super) fn check_pool_served(&self, told_before: usize, bytes: u64, live: &Live) -> Result<u64, Broken> {
        let (pool, is_borrowed) = self.routing.check_served(&self.core.observer()[told_before..], bytes, live.home)?;
        let segments = self.core.segments();
        let found = segments.iter().find(|segment| segment.blocks.iter().any(|block| block.address == live.address()));
        let Some(segment) = found else { return Ok(pool) };
        let pool_of_segment = segment.pool.1;
        ensure(Law::Pools, pool_of_segment == pool, || format!("{bytes} bytes of pool {pool} came from {segment:?}"))?;
        ensure(Law::Pools, !is_borrowed || pool != 0, || format!("the default pool lent {bytes} bytes"))?;
        // Where blocks have changed streams, the block after it may have been free before.
        if self.routing.is_whole(pool) && !self.core.policy().has_transferred() {
            let mut behind = segment.blocks.iter().skip_while(|block| block.address != live.address()).skip(1);
            let rest = behind.next().filter(|next| next.state == BlockActivity::Inactive);
            ensure(Law::Pools, rest.is_none(), || format!("{bytes} bytes were split off in pool {pool}, leaving {rest:?}"))?;
        }
        Ok(pool)
    }

    /// A request failed in a pool that was searched.
    pub(super) fn failed_in_pool(&mut self, error: &AllocError) -> Result<Outcome, Broken> {
        match *error {
            AllocError::Pool(error) => self.routing.failed_in_pool(error).map(|()| Outcome::Refused),
            ref error => Err(Broken::new(Law::NoFalseOutOfMemory, format!("a request failed: {error}"))),
        }
    }

    /// Ends all routing and all uses of pools.
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

    /// Whether false out of memory can be detected: while requests are routed or a graph is captured, the rules forbid waiting
    /// for and giving back memory that would serve a request.
    pub(super) fn tells_false_alarms(&self) -> bool {
        self.expected.nothing() && !self.routing.is_routing()
    }
}
