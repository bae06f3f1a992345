//! The law of private pools: who uses them, which requests they get, and that nobody else does.

use std::collections::{BTreeMap, BTreeSet};

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{PoolId, StreamId};
use parkade::{AllocError, PoolError, PoolFilter};

use super::World;
use crate::harness::TestDevice;
use crate::model::best;
use crate::operation::{Operation, POOLS};
use crate::rules::Rules;
use crate::{Broken, Law, ensure};

/// What a pool is called.
fn id(pool: u64) -> PoolId {
    PoolId(0, pool)
}

/// Private pools as they ought to be, by number.
#[derive(Clone, Default, Debug)]
pub(super) struct Routing {
    /// Pools that requests are sent to, the newest last, with the stream whose requests they are.
    routed: Vec<(u64, Option<StreamId>)>,
    uses: BTreeMap<u64, i64>,
    /// Pools that serve when memory is out.
    serving: BTreeSet<u64>,
    /// Pools that are not split.
    whole: BTreeSet<u64>,
}

impl Routing {
    /// Where a request of the stream goes: the newest routing that is for it. 0 is the default pool.
    fn pool_for(&self, stream: StreamId) -> u64 {
        let accepts = |filter: &Option<StreamId>| filter.is_none_or(|wanted| wanted == stream);
        self.routed.iter().rev().find(|(_, filter)| accepts(filter)).map_or(0, |&(pool, _)| pool)
    }

    fn uses(&self, pool: u64) -> i64 {
        self.uses.get(&pool).copied().unwrap_or(0)
    }
}

impl<D: TestDevice> World<D> {
    /// Operations on private pools. One that the allocator refuses changes nothing, except that routing to a pool twice counts as a use.
    pub(super) fn pools(&mut self, operation: &Operation) -> Result<(), Broken> {
        match *operation {
            Operation::BeginPool(pool, stream) => {
                let stream = stream.map(|place| self.streams[place]);
                let answer = self.core.begin_pool(id(pool), stream.map_or(PoolFilter::All, PoolFilter::Stream));
                let is_routed = self.routing.routed.iter().any(|&(routed, _)| routed == pool);
                let is_abandoned = matches!(answer, Err(PoolError::Abandoned(_))) && self.routing.uses(pool) == 0;
                let is_right = is_abandoned || matches!(answer, Err(PoolError::AlreadyRouted(_))) == is_routed;
                ensure(Law::Pools, is_right, || format!("{operation:?}: {answer:?}, while {:?}", self.routing))?;
                if !is_abandoned {
                    *self.routing.uses.entry(pool).or_insert(0) += 1;
                }
                if answer.is_ok() {
                    self.routing.routed.push((pool, stream));
                }
            }
            Operation::EndPool(pool) => {
                let answer = self.core.end_pool(id(pool));
                let place = self.routing.routed.iter().position(|&(routed, _)| routed == pool);
                ensure(Law::Pools, answer.is_ok() == place.is_some(), || format!("{operation:?}: {answer:?}"))?;
                place.map(|place| self.routing.routed.remove(place));
            }
            Operation::ReleasePool(pool) if self.routing.uses(pool) > 0 => {
                let answer = self.core.release_pool(id(pool));
                ensure(Law::Pools, answer.is_ok(), || format!("{operation:?}: {answer:?}"))?;
                *self.routing.uses.entry(pool).or_insert(0) -= 1;
            }
            Operation::UseOnOom(pool) => {
                self.core.set_pool_use_on_oom(id(pool), true);
                self.routing.serving.insert(pool);
            }
            Operation::NoSplit(pool) => {
                self.core.set_pool_no_split(id(pool));
                self.routing.whole.insert(pool);
            }
            _ => {}
        }
        Ok(())
    }

    /// The allocator counts uses as the world does.
    pub(super) fn check_uses(&self) -> Result<(), Broken> {
        for pool in 1..=POOLS {
            let (counted, wanted) = (self.core.pool_use_count(id(pool)).unwrap_or(0), self.routing.uses(pool));
            ensure(Law::Pools, counted == wanted, || format!("pool {pool} has {counted} uses, and should have {wanted}"))?;
        }
        Ok(())
    }

    /// `empty_cache` takes nothing from a pool that is in use, nor from the default one while requests are routed elsewhere (spec 2.10).
    pub(super) fn check_released(&self) -> Result<(), Broken> {
        let is_gone = |entry: &&TraceEntry| matches!(entry.action, TraceAction::SegmentFree | TraceAction::SegmentUnmap);
        for entry in self.core.observer()[self.followed..].iter().filter(is_gone) {
            let pool = entry.pool.1;
            let is_kept = if pool == 0 { !self.routing.routed.is_empty() } else { self.routing.uses(pool) > 0 };
            ensure(Law::Pools, !is_kept, || format!("{entry:?}, while {:?}", self.routing))?;
        }
        Ok(())
    }

    /// A request that was served: from the pool that it was routed to, or from one that serves when memory is out; and cut as that pool
    /// is cut.
    pub(super) fn check_pool(&self, before: &[SegmentInfo], bytes: u64, stream: StreamId, address: u64) -> Result<(), Broken> {
        let entries = &self.core.observer()[self.followed..];
        let served = entries.iter().rev().find(|entry| entry.action == TraceAction::Alloc).map_or(0, |entry| entry.pool.1);
        let wanted = self.routing.pool_for(stream);
        let is_borrowed = served != wanted && wanted == 0 && self.routing.serving.contains(&served);
        ensure(Law::Pools, served == wanted || is_borrowed, || {
            format!("{bytes} bytes of stream {stream} came from pool {served}, and should from {wanted}: {:?}", self.routing)
        })?;
        let segments = self.core.segments();
        let Some(segment) = segments.iter().find(|segment| segment.blocks.iter().any(|block| block.address.get() == address))
        else {
            return Ok(());
        };
        ensure(Law::Pools, !is_borrowed || !segment.expandable, || format!("pool {served} lent a part of {segment:?}"))?;
        let mut blocks = segment.blocks.iter().skip_while(|block| block.address.get() != address);
        let size = blocks.next().map_or(0, |block| block.size.get());
        if self.routing.whole.contains(&served) {
            let rest = blocks.next().filter(|next| next.state == BlockActivity::Inactive);
            return ensure(Law::Pools, rest.is_none(), || {
                format!("{bytes} bytes were cut off in pool {served}, leaving {rest:?}")
            });
        }
        let right = Rules::default().rounded(bytes);
        let is_exact = !self.expandable || is_borrowed || size == right;
        ensure(Law::Placement, is_exact, || format!("{bytes} bytes took {size} of an expandable segment, and should {right}"))?;
        let pool = if served == 0 { PoolId::DEFAULT } else { id(served) };
        self.check_growth(before, (pool, stream), right, address)
    }

    /// A request of the default pool that was refused: none of the pools that serve then had room (spec 5.6).
    pub(super) fn check_nobody_serves(&self, before: &[SegmentInfo], bytes: u64, stream: StreamId) -> Result<(), Broken> {
        if self.routing.pool_for(stream) != 0 {
            return Ok(());
        }
        let size = self.rules.rounded(bytes);
        for pool in &self.routing.serving {
            let mut own = before.to_vec();
            own.retain(|segment| segment.pool == id(*pool) && !segment.expandable);
            let runs = self.model.free_at_search(&own, &self.device.witness());
            let run = best(&runs, &self.rules, size, stream.get());
            ensure(Law::NoFalseOutOfMemory, run.is_none(), || {
                format!("{bytes} bytes were refused, though pool {pool} has {run:x?}")
            })?;
        }
        Ok(())
    }

    /// A request failed in a pool. Only looking into one that is routed already fails so, and that counts as a use.
    pub(super) fn failed_in_pool(&mut self, error: PoolError) -> Result<(), Broken> {
        let is_legal = matches!(error, PoolError::AlreadyRouted(id) if self.routing.serving.contains(&id.1)
            && self.routing.routed.iter().any(|&(routed, _)| routed == id.1));
        ensure(Law::Pools, is_legal || matches!(error, PoolError::Abandoned(_)), || AllocError::Pool(error).to_string())?;
        if let PoolError::AlreadyRouted(id) = error {
            *self.routing.uses.entry(id.1).or_insert(0) += 1;
        }
        Ok(())
    }
}
