//! The private pool law: their use counts, which requests they get, and that no other pool serves those.

use parkade::PoolError;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::{PoolId, StreamId};

use super::Trial;
use crate::checks::laws_pytorch::operation::{Operation, POOLS};
use crate::law::{Broken, Law, ensure};
use crate::reference_model::{Rules, best, id};

impl Trial {
    /// Operations on private pools. A refused one changes nothing, except that routing to a pool twice counts as a use.
    pub(super) fn pools(&mut self, operation: &Operation) -> Result<(), Broken> {
        let Trial { routing, core, .. } = self;
        match *operation {
            Operation::BeginPool(pool, stream) => routing.begin(core, pool, stream.map(|place| self.streams[place]))?,
            Operation::EndPool(pool) => routing.end(core, pool)?,
            Operation::ReleasePool(pool) => routing.release(core, pool)?,
            Operation::UseOnOom(pool) => routing.serve_when_out(core, pool),
            Operation::NoSplit(pool) => routing.keep_whole(core, pool),
            _ => {}
        }
        Ok(())
    }

    /// Checks the allocator's use counts against the trial's.
    pub(super) fn check_uses(&self) -> Result<(), Broken> {
        self.routing.check_uses(&self.core, POOLS)
    }

    /// `empty_cache` takes nothing from a pool in use, nor from the default pool while requests are routed elsewhere (spec 2.10).
    pub(super) fn check_released(&self) -> Result<(), Broken> {
        self.routing.check_kept(&self.core.observer()[self.followed..], self.routing.is_routing())
    }

    /// Checks a served request: it came from the pool it was routed to, or from one that serves when memory runs out, and was
    /// split as that pool splits.
    pub(super) fn check_pool(&self, before: &[SegmentInfo], bytes: u64, stream: StreamId, address: u64) -> Result<(), Broken> {
        let (served, is_borrowed) = self.routing.check_served(&self.core.observer()[self.followed..], bytes, stream)?;
        let segments = self.core.segments();
        let Some(segment) = segments.iter().find(|segment| segment.blocks.iter().any(|block| block.address.get() == address))
        else {
            return Ok(());
        };
        ensure(Law::Pools, !is_borrowed || !segment.expandable, || format!("pool {served} lent a part of {segment:?}"))?;
        let mut blocks = segment.blocks.iter().skip_while(|block| block.address.get() != address);
        let size = blocks.next().map_or(0, |block| block.size.get());
        if self.routing.is_whole(served) {
            let rest = blocks.next().filter(|next| next.state == BlockActivity::Inactive);
            return ensure(Law::Pools, rest.is_none(), || {
                format!("{bytes} bytes were split off in pool {served}, leaving {rest:?}")
            });
        }
        let right = Rules::default().rounded(bytes);
        let is_exact = !self.expandable || is_borrowed || size == right;
        ensure(Law::Placement, is_exact, || format!("{bytes} bytes took {size} of an expandable segment, expected {right}"))?;
        let pool = if served == 0 { PoolId::DEFAULT } else { id(served) };
        self.check_growth(before, (pool, stream), right, address)
    }

    /// Checks a refused request of the default pool: none of the pools that serve when memory runs out had room (spec 5.6).
    pub(super) fn check_nobody_serves(&self, before: &[SegmentInfo], bytes: u64, stream: StreamId) -> Result<(), Broken> {
        if self.routing.pool_for(stream) != 0 {
            return Ok(());
        }
        let size = self.rules.rounded(bytes);
        for pool in self.routing.serving() {
            let mut own = before.to_vec();
            own.retain(|segment| segment.pool == id(pool) && !segment.expandable);
            let runs = self.model.free_at_search(&own, &self.device.witness());
            let run = best(&runs, &self.rules, size, stream.get());
            ensure(Law::NoFalseOutOfMemory, run.is_none(), || {
                format!("{bytes} bytes were refused, although pool {pool} has {run:x?}")
            })?;
        }
        Ok(())
    }

    /// A request failed in a pool.
    pub(super) fn failed_in_pool(&mut self, error: PoolError) -> Result<(), Broken> {
        self.routing.failed_in_pool(error)
    }
}
