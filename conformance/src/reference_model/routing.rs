//! The expected state of an allocator's private pools: their use counts, the requests they serve, and which of them
//! must keep their memory.

use std::collections::{BTreeMap, BTreeSet};

use parkade::device::DeviceBackend;
use parkade::policy::Policy;
use parkade::trace::{Observer, TraceAction, TraceEntry};
use parkade::units::{PoolId, StreamId};
use parkade::{AllocError, Allocator, PoolError, PoolFilter};

use crate::law::{Broken, Law, ensure};

/// Returns the allocator's id for a pool number.
pub const fn id(pool: u64) -> PoolId {
    PoolId(0, pool)
}

/// The expected state of private pools, by number.
#[derive(Clone, Default, Debug)]
pub struct Routing {
    /// Pools to which requests are routed, newest last, with the stream they serve, or `None` for all streams.
    routed: Vec<(u64, Option<StreamId>)>,
    uses: BTreeMap<u64, i64>,
    /// Pools that may serve other requests when memory runs out.
    serving: BTreeSet<u64>,
    /// Pools that are not split.
    whole: BTreeSet<u64>,
}

impl Routing {
    /// Returns whether requests are routed to any pool.
    pub fn is_routing(&self) -> bool {
        !self.routed.is_empty()
    }

    /// Returns the stream whose requests are routed to the pool, or `Some(None)` for all streams;
    /// `None` if none are routed to it.
    pub fn routed(&self, pool: u64) -> Option<Option<StreamId>> {
        self.routed.iter().find(|&&(routed, _)| routed == pool).map(|&(_, stream)| stream)
    }

    /// Returns whether a pool serves the requests of a single stream, as it does while a graph is
    /// captured on that stream.
    pub fn is_capturing(&self) -> bool {
        self.routed.iter().any(|(_, stream)| stream.is_some())
    }

    /// Returns the pool for a request on the stream: the pool of the newest routing that matches. 0 is the default
    /// pool.
    pub fn pool_for(&self, stream: StreamId) -> u64 {
        let accepts = |filter: &Option<StreamId>| filter.is_none_or(|wanted| wanted == stream);
        self.routed.iter().rev().find(|(_, filter)| accepts(filter)).map_or(0, |&(pool, _)| pool)
    }

    /// Returns the pool's use count.
    pub fn uses(&self, pool: u64) -> i64 {
        self.uses.get(&pool).copied().unwrap_or(0)
    }

    /// Returns the pools that may serve other requests when memory runs out.
    pub fn serving(&self) -> impl Iterator<Item = u64> + '_ {
        self.serving.iter().copied()
    }

    /// Returns whether the pool's blocks are not split.
    pub fn is_whole(&self, pool: u64) -> bool {
        self.whole.contains(&pool)
    }

    /// Creates a pool, or adds a use to it.
    ///
    /// # Errors
    /// If the answer does not match the pool's uses.
    pub fn create<D: DeviceBackend, P: Policy, O: Observer>(
        &mut self,
        core: &mut Allocator<D, P, O>,
        pool: u64,
    ) -> Result<(), Broken> {
        let answer = core.create_pool(id(pool));
        let is_abandoned = matches!(answer, Err(PoolError::Abandoned(_))) && self.uses(pool) == 0;
        ensure(Law::Pools, is_abandoned || answer.is_ok(), || format!("create_pool({pool}) returned {answer:?}, with {self:?}"))?;
        if answer.is_ok() {
            *self.uses.entry(pool).or_insert(0) += 1;
        }
        Ok(())
    }

    /// Routes requests to a pool. Routing to a pool twice is refused, but still counts as a use.
    ///
    /// # Errors
    /// If the answer does not match the pool's routing and uses.
    pub fn begin<D: DeviceBackend, P: Policy, O: Observer>(
        &mut self,
        core: &mut Allocator<D, P, O>,
        pool: u64,
        stream: Option<StreamId>,
    ) -> Result<(), Broken> {
        let answer = core.begin_pool(id(pool), stream.map_or(PoolFilter::All, PoolFilter::Stream));
        let is_routed = self.routed(pool).is_some();
        let is_abandoned = matches!(answer, Err(PoolError::Abandoned(_))) && self.uses(pool) == 0;
        let is_right = is_abandoned || matches!(answer, Err(PoolError::AlreadyRouted(_))) == is_routed;
        ensure(Law::Pools, is_right, || format!("begin_pool({pool}) returned {answer:?}, with {self:?}"))?;
        if !is_abandoned {
            *self.uses.entry(pool).or_insert(0) += 1;
        }
        if answer.is_ok() {
            self.routed.push((pool, stream));
        }
        Ok(())
    }

    /// Stops routing requests to a pool.
    ///
    /// # Errors
    /// If the answer does not match the pool's routing.
    pub fn end<D: DeviceBackend, P: Policy, O: Observer>(
        &mut self,
        core: &mut Allocator<D, P, O>,
        pool: u64,
    ) -> Result<(), Broken> {
        let answer = core.end_pool(id(pool));
        let place = self.routed.iter().position(|&(routed, _)| routed == pool);
        ensure(Law::Pools, answer.is_ok() == place.is_some(), || format!("end_pool({pool}) returned {answer:?}"))?;
        place.map(|place| self.routed.remove(place));
        Ok(())
    }

    /// Ends one use of the pool; does nothing if it has none.
    ///
    /// # Errors
    /// If the allocator refuses.
    pub fn release<D: DeviceBackend, P: Policy, O: Observer>(
        &mut self,
        core: &mut Allocator<D, P, O>,
        pool: u64,
    ) -> Result<(), Broken> {
        if self.uses(pool) == 0 {
            return Ok(());
        }
        let answer = core.release_pool(id(pool));
        ensure(Law::Pools, answer.is_ok(), || format!("release_pool({pool}) returned {answer:?}"))?;
        *self.uses.entry(pool).or_insert(0) -= 1;
        Ok(())
    }

    /// Lets the pool serve other requests when memory runs out.
    pub fn serve_when_out<D: DeviceBackend, P: Policy, O: Observer>(&mut self, core: &mut Allocator<D, P, O>, pool: u64) {
        core.set_pool_use_on_oom(id(pool), true);
        self.serving.insert(pool);
    }

    /// Stops splitting the pool's blocks.
    pub fn keep_whole<D: DeviceBackend, P: Policy, O: Observer>(&mut self, core: &mut Allocator<D, P, O>, pool: u64) {
        core.set_pool_no_split(id(pool));
        self.whole.insert(pool);
    }

    /// Removes the mark that the pool is not split, because the pool no longer exists.
    pub fn forget_whole(&mut self, pool: u64) {
        self.whole.remove(&pool);
    }

    /// Compares the allocator's use counts of pools 1 to `pools` with these counts.
    ///
    /// # Errors
    /// If they differ.
    pub fn check_uses<D: DeviceBackend, P: Policy, O: Observer>(
        &self,
        core: &Allocator<D, P, O>,
        pools: u64,
    ) -> Result<(), Broken> {
        for pool in 1..=pools {
            let (counted, wanted) = (core.pool_use_count(id(pool)).unwrap_or(0), self.uses(pool));
            ensure(Law::Pools, counted == wanted, || format!("pool {pool} has {counted} uses, expected {wanted}"))?;
        }
        Ok(())
    }

    /// Checks that no memory was taken from a pool in use, nor from the default pool while waiting is deferred (spec 2.10).
    ///
    /// # Errors
    /// If any memory was taken.
    pub fn check_kept(&self, entries: &[TraceEntry], is_deferring: bool) -> Result<(), Broken> {
        let is_gone = |entry: &&TraceEntry| matches!(entry.action, TraceAction::SegmentFree | TraceAction::SegmentUnmap);
        for entry in entries.iter().filter(is_gone) {
            let pool = entry.pool.1;
            let is_kept = if pool == 0 { is_deferring } else { self.uses(pool) > 0 };
            ensure(Law::Pools, !is_kept, || format!("{entry:?}, while {self:?}"))?;
        }
        Ok(())
    }

    /// Checks that the newest request in these entries was served by the pool it was routed to, or by one that serves
    /// when memory runs out. Returns the pool, and whether it served the request only because memory ran out.
    ///
    /// # Errors
    /// If a different pool served it.
    pub fn check_served(&self, entries: &[TraceEntry], bytes: u64, stream: StreamId) -> Result<(u64, bool), Broken> {
        let served = entries.iter().rev().find(|entry| entry.action == TraceAction::Alloc).map_or(0, |entry| entry.pool.1);
        let wanted = self.pool_for(stream);
        let is_borrowed = served != wanted && wanted == 0 && self.serving.contains(&served);
        ensure(Law::Pools, served == wanted || is_borrowed, || {
            format!("{bytes} bytes for stream {stream} were served from pool {served}, expected {wanted}: {self:?}")
        })?;
        Ok((served, is_borrowed))
    }

    /// Handles a request that failed in a pool. Only a search in a pool to which requests are already routed may fail
    /// in this way, and the search counts as a use.
    ///
    /// # Errors
    /// If it failed for a different reason.
    pub fn failed_in_pool(&mut self, error: PoolError) -> Result<(), Broken> {
        let is_legal =
            matches!(error, PoolError::AlreadyRouted(id) if self.serving.contains(&id.1) && self.routed(id.1).is_some());
        ensure(Law::Pools, is_legal || matches!(error, PoolError::Abandoned(_)), || AllocError::Pool(error).to_string())?;
        if let PoolError::AlreadyRouted(id) = error {
            *self.uses.entry(id.1).or_insert(0) += 1;
        }
        Ok(())
    }
}
