//! Private pools as they ought to be, beside those of an allocator: who uses them, which requests they get, and which must keep their
//! memory.

use std::collections::{BTreeMap, BTreeSet};

use parkade::device::DeviceBackend;
use parkade::policy::Policy;
use parkade::trace::{Observer, TraceAction, TraceEntry};
use parkade::units::{PoolId, StreamId};
use parkade::{AllocError, Allocator, PoolError, PoolFilter};

use crate::law::{Broken, Law, ensure};

/// What a pool is called.
pub(crate) const fn id(pool: u64) -> PoolId {
    PoolId(0, pool)
}

/// Private pools as they ought to be, by number.
#[derive(Clone, Default, Debug)]
pub(crate) struct Routing {
    /// Pools that requests are sent to, the newest last, with the stream whose requests they are.
    routed: Vec<(u64, Option<StreamId>)>,
    uses: BTreeMap<u64, i64>,
    /// Pools that serve when memory is out.
    serving: BTreeSet<u64>,
    /// Pools that are not split.
    whole: BTreeSet<u64>,
}

impl Routing {
    /// Requests are sent to some pool.
    pub(crate) fn is_routing(&self) -> bool {
        !self.routed.is_empty()
    }

    /// Requests are sent to the pool: the stream whose requests these are, if not all.
    pub(crate) fn routed(&self, pool: u64) -> Option<Option<StreamId>> {
        self.routed.iter().find(|&&(routed, _)| routed == pool).map(|&(_, stream)| stream)
    }

    /// A pool gets the requests of one stream, as while a graph is captured on it.
    pub(crate) fn is_capturing(&self) -> bool {
        self.routed.iter().any(|(_, stream)| stream.is_some())
    }

    /// Where a request of the stream goes: the newest routing that is for it. 0 is the default pool.
    pub(crate) fn pool_for(&self, stream: StreamId) -> u64 {
        let accepts = |filter: &Option<StreamId>| filter.is_none_or(|wanted| wanted == stream);
        self.routed.iter().rev().find(|(_, filter)| accepts(filter)).map_or(0, |&(pool, _)| pool)
    }

    /// How many uses the pool has.
    pub(crate) fn uses(&self, pool: u64) -> i64 {
        self.uses.get(&pool).copied().unwrap_or(0)
    }

    /// The pools that serve when memory is out.
    pub(crate) fn serving(&self) -> impl Iterator<Item = u64> + '_ {
        self.serving.iter().copied()
    }

    /// Whether the pool's blocks are not split.
    pub(crate) fn is_whole(&self, pool: u64) -> bool {
        self.whole.contains(&pool)
    }

    /// Makes a pool, or uses it once more.
    ///
    /// # Errors
    /// If the answer is not the one that the uses call for.
    pub(crate) fn create<D: DeviceBackend, P: Policy, O: Observer>(
        &mut self,
        core: &mut Allocator<D, P, O>,
        pool: u64,
    ) -> Result<(), Broken> {
        let answer = core.create_pool(id(pool));
        let is_abandoned = matches!(answer, Err(PoolError::Abandoned(_))) && self.uses(pool) == 0;
        ensure(Law::Pools, is_abandoned || answer.is_ok(), || format!("pool {pool} is made: {answer:?}, while {self:?}"))?;
        if answer.is_ok() {
            *self.uses.entry(pool).or_insert(0) += 1;
        }
        Ok(())
    }

    /// Sends requests to a pool. Twice the same is refused, and counts as a use all the same.
    ///
    /// # Errors
    /// If the answer is not the one that routings and uses call for.
    pub(crate) fn begin<D: DeviceBackend, P: Policy, O: Observer>(
        &mut self,
        core: &mut Allocator<D, P, O>,
        pool: u64,
        stream: Option<StreamId>,
    ) -> Result<(), Broken> {
        let answer = core.begin_pool(id(pool), stream.map_or(PoolFilter::All, PoolFilter::Stream));
        let is_routed = self.routed(pool).is_some();
        let is_abandoned = matches!(answer, Err(PoolError::Abandoned(_))) && self.uses(pool) == 0;
        let is_right = is_abandoned || matches!(answer, Err(PoolError::AlreadyRouted(_))) == is_routed;
        ensure(Law::Pools, is_right, || format!("requests go to pool {pool}: {answer:?}, while {self:?}"))?;
        if !is_abandoned {
            *self.uses.entry(pool).or_insert(0) += 1;
        }
        if answer.is_ok() {
            self.routed.push((pool, stream));
        }
        Ok(())
    }

    /// Sends no more requests to a pool.
    ///
    /// # Errors
    /// If the answer is not the one that the routings call for.
    pub(crate) fn end<D: DeviceBackend, P: Policy, O: Observer>(
        &mut self,
        core: &mut Allocator<D, P, O>,
        pool: u64,
    ) -> Result<(), Broken> {
        let answer = core.end_pool(id(pool));
        let place = self.routed.iter().position(|&(routed, _)| routed == pool);
        ensure(Law::Pools, answer.is_ok() == place.is_some(), || format!("no requests go to pool {pool}: {answer:?}"))?;
        place.map(|place| self.routed.remove(place));
        Ok(())
    }

    /// A use of the pool ends; nothing happens if it has none.
    ///
    /// # Errors
    /// If that is refused.
    pub(crate) fn release<D: DeviceBackend, P: Policy, O: Observer>(
        &mut self,
        core: &mut Allocator<D, P, O>,
        pool: u64,
    ) -> Result<(), Broken> {
        if self.uses(pool) == 0 {
            return Ok(());
        }
        let answer = core.release_pool(id(pool));
        ensure(Law::Pools, answer.is_ok(), || format!("a use of pool {pool} ends: {answer:?}"))?;
        *self.uses.entry(pool).or_insert(0) -= 1;
        Ok(())
    }

    /// The pool serves when memory is out, from now on.
    pub(crate) fn serve_when_out<D: DeviceBackend, P: Policy, O: Observer>(&mut self, core: &mut Allocator<D, P, O>, pool: u64) {
        core.set_pool_use_on_oom(id(pool), true);
        self.serving.insert(pool);
    }

    /// The pool's blocks are not split, from now on.
    pub(crate) fn keep_whole<D: DeviceBackend, P: Policy, O: Observer>(&mut self, core: &mut Allocator<D, P, O>, pool: u64) {
        core.set_pool_no_split(id(pool));
        self.whole.insert(pool);
    }

    /// A pool is gone, and with it that it was not split.
    pub(crate) fn forget_whole(&mut self, pool: u64) {
        self.whole.remove(&pool);
    }

    /// The allocator counts uses of the pools from 1 to `pools` as they are counted here.
    ///
    /// # Errors
    /// If not.
    pub(crate) fn check_uses<D: DeviceBackend, P: Policy, O: Observer>(
        &self,
        core: &Allocator<D, P, O>,
        pools: u64,
    ) -> Result<(), Broken> {
        for pool in 1..=pools {
            let (counted, wanted) = (core.pool_use_count(id(pool)).unwrap_or(0), self.uses(pool));
            ensure(Law::Pools, counted == wanted, || format!("pool {pool} has {counted} uses, and should have {wanted}"))?;
        }
        Ok(())
    }

    /// Nothing was taken from a pool that is in use, nor from the default one while nothing waits (spec 2.10).
    ///
    /// # Errors
    /// If something was.
    pub(crate) fn check_kept(&self, entries: &[TraceEntry], is_deferring: bool) -> Result<(), Broken> {
        let is_gone = |entry: &&TraceEntry| matches!(entry.action, TraceAction::SegmentFree | TraceAction::SegmentUnmap);
        for entry in entries.iter().filter(is_gone) {
            let pool = entry.pool.1;
            let is_kept = if pool == 0 { is_deferring } else { self.uses(pool) > 0 };
            ensure(Law::Pools, !is_kept, || format!("{entry:?}, while {self:?}"))?;
        }
        Ok(())
    }

    /// The newest request among these entries, which was served, was served by the pool that it was routed to, or by one that serves when
    /// memory is out: which pool, and whether it only lent.
    ///
    /// # Errors
    /// If not.
    pub(crate) fn check_served(&self, entries: &[TraceEntry], bytes: u64, stream: StreamId) -> Result<(u64, bool), Broken> {
        let served = entries.iter().rev().find(|entry| entry.action == TraceAction::Alloc).map_or(0, |entry| entry.pool.1);
        let wanted = self.pool_for(stream);
        let is_borrowed = served != wanted && wanted == 0 && self.serving.contains(&served);
        ensure(Law::Pools, served == wanted || is_borrowed, || {
            format!("{bytes} bytes of stream {stream} came from pool {served}, and should from {wanted}: {self:?}")
        })?;
        Ok((served, is_borrowed))
    }

    /// A request failed in a pool. Only looking into one that is routed already fails so, and that counts as a use.
    ///
    /// # Errors
    /// If it failed for another reason.
    pub(crate) fn failed_in_pool(&mut self, error: PoolError) -> Result<(), Broken> {
        let is_legal =
            matches!(error, PoolError::AlreadyRouted(id) if self.serving.contains(&id.1) && self.routed(id.1).is_some());
        ensure(Law::Pools, is_legal || matches!(error, PoolError::Abandoned(_)), || AllocError::Pool(error).to_string())?;
        if let PoolError::AlreadyRouted(id) = error {
            *self.uses.entry(id.1).or_insert(0) += 1;
        }
        Ok(())
    }
}
