//! Private pools (spec section 5).

use parkade::units::{PoolClass, PoolId};
use parkade::{AllocError, PoolError, PoolFilter};

use super::{PrivatePool, Reference, State, Wanted};

impl Reference {
    /// Creates a pool, or adds a use (spec 5.3).
    pub fn create_pool(&mut self, id: PoolId) -> Result<(), PoolError> {
        match self.pools.get_mut(&id) {
            Some(pool) if pool.uses <= 0 => Err(PoolError::Abandoned(id)),
            Some(pool) => {
                pool.uses += 1;
                Ok(())
            }
            None => {
                self.pools.insert(id, PrivatePool { uses: 1 });
                Ok(())
            }
        }
    }

    /// Routes requests to a pool; a refusal still adds a use.
    pub fn begin_pool(&mut self, id: PoolId, filter: PoolFilter) -> Result<(), PoolError> {
        let created = self.create_pool(id);
        let begun = created.and_then(|()| if self.is_routed(id) { Err(PoolError::AlreadyRouted(id)) } else { Ok(()) });
        match begun {
            Ok(()) => self.routings.push((id, filter)),
            Err(_) => self.routes_for_ever |= self.rules.counts_failed_routings,
        }
        begun
    }

    /// Stops routing requests to a pool.
    pub fn end_pool(&mut self, id: PoolId) -> Result<(), PoolError> {
        if !self.is_routed(id) {
            return Err(PoolError::NotRouted(id));
        }
        self.routings.retain(|(routed, _)| *routed != id);
        if self.rules.settles_at_pool_end && self.settings.graph_capture_record_stream_reuse {
            self.flush_deferred_of(id);
        }
        Ok(())
    }

    /// Removes a use.
    pub fn release_pool(&mut self, id: PoolId) -> Result<(), PoolError> {
        let pool = self.pools.get_mut(&id).ok_or(PoolError::Unknown(id))?;
        pool.uses -= 1;
        if pool.uses == 0 {
            self.freeable.insert(hash(id), id);
        }
        if pool.uses < 0 { Err(PoolError::NotInUse(id)) } else { Ok(()) }
    }

    /// Returns the number of uses of a pool.
    pub fn uses(&self, id: PoolId) -> Result<i64, PoolError> {
        self.pools.get(&id).map(|pool| pool.uses).ok_or(PoolError::Unknown(id))
    }

    /// Selects the pool for the requests that follow, among the pools to which requests are routed
    /// by selection.
    pub fn choose_pool(&mut self, id: Option<PoolId>) {
        self.chosen = id;
    }

    /// Returns whether requests are routed to the pool.
    pub fn is_routed(&self, id: PoolId) -> bool {
        self.routings.iter().any(|(routed, _)| *routed == id)
    }

    /// Returns whether the pool has no uses left.
    pub(super) fn is_freeable(&self, id: PoolId) -> bool {
        self.freeable.contains(id)
    }

    /// Returns whether the pool exists.
    pub(super) fn has_pool(&self, id: PoolId) -> bool {
        self.pools.contains_key(&id)
    }

    /// Returns the pool for a request on the stream, which is decided by the newest (or the oldest) routing that
    /// accepts it.
    pub(super) fn pool_for(&self, stream: u64) -> PoolId {
        let accepts = |id: PoolId, filter: &PoolFilter| match filter {
            PoolFilter::All => true,
            PoolFilter::Stream(wanted) => wanted.get() == stream,
            PoolFilter::Chosen => self.chosen == Some(id),
        };
        let mut accepting = self.routings.iter().map(|(id, filter)| (*id, filter)).filter(|&(id, filter)| accepts(id, filter));
        let decides = if self.rules.oldest_routing_decides { accepting.next() } else { accepting.next_back() };
        decides.map_or(PoolId::DEFAULT, |(id, _)| id)
    }

    /// Lets a pool serve other requests when memory runs out, or stops it from doing so.
    pub fn serve_when_out(&mut self, id: PoolId, serves: bool) {
        if serves {
            self.serving.insert(hash(id), id);
        } else {
            self.serving.remove(id);
        }
    }

    /// Stops splitting a pool's blocks.
    pub fn keep_whole(&mut self, id: PoolId) {
        self.whole.insert(id);
    }

    /// Returns the pools without uses, in the order in which they are removed.
    pub(super) fn freeable(&self) -> Vec<PoolId> {
        self.freeable.keys()
    }

    /// Searches for a block in the pools that serve when memory runs out (spec 5.6).
    pub(super) fn borrow(&mut self, wanted: &Wanted) -> Result<Option<(u64, Wanted)>, AllocError> {
        if wanted.pool != PoolId::DEFAULT {
            return Ok(None);
        }
        for id in self.serving.keys() {
            self.begin_pool(id, PoolFilter::All)?;
            let is_expandable = wanted.is_expandable && self.rules.borrows_expandable;
            let lent = Wanted { pool: id, is_expandable, ..*wanted };
            let found = self.search(&lent);
            self.end_pool(id)?;
            self.release_pool(id)?;
            if let Some(address) = found {
                return Ok(Some((address, lent)));
            }
        }
        Ok(None)
    }

    /// Returns whether memory remains although everything is freed, because a pool was released more often than it was
    /// used, or because waiting is deferred.
    pub fn keeps_memory(&self) -> bool {
        self.is_deferring() || self.pools.values().any(|pool| pool.uses < 0)
    }

    /// Fails if the pool was released more often than it was used.
    fn check_uses(&self, id: PoolId) -> Result<(), PoolError> {
        if self.pools[&id].uses < 0 { Err(PoolError::Overreleased(id)) } else { Ok(()) }
    }

    /// Performs `empty_cache` for one pool; nothing happens while the pool is in use (spec 2.10).
    pub fn release_cached_pool(&mut self, id: PoolId) -> Result<(), AllocError> {
        if !self.is_freeable(id) {
            return Ok(());
        }
        self.synchronize_pool(id)?;
        self.check_uses(id)?;
        let small = self.releasable_of(id, PoolClass::Small);
        let blocks: Vec<u64> = small.into_iter().chain(self.releasable_of(id, PoolClass::Large)).collect();
        self.release(&blocks)?;
        self.forget_if_empty(id)
    }

    /// Removes pools without uses and memory, together with the addresses that they still reserve.
    pub(super) fn forget_empty_pools(&mut self) -> Result<(), AllocError> {
        for id in self.freeable() {
            self.check_uses(id)?;
            self.forget_if_empty(id)?;
        }
        Ok(())
    }

    /// Does the same for one of these pools.
    fn forget_if_empty(&mut self, id: PoolId) -> Result<(), AllocError> {
        if self.reserved_by(id) > 0 || self.is_routed(id) || self.is_awaited(id) {
            return Ok(());
        }
        loop {
            let bare = self.segments.iter().filter(|segment| segment.pool == id && segment.blocks[0].state == State::Unmapped);
            let first = bare.min_by_key(|segment| (segment.class, segment.stream, segment.base));
            let Some((base, size)) = first.map(|segment| (segment.base, segment.size)) else { break };
            self.release_leftovers()?;
            self.drop_range(base, size)?;
        }
        self.pools.remove(&id);
        self.freeable.remove(id);
        if self.rules.forgets_no_split {
            self.whole.remove(&id);
        }
        Ok(())
    }

    /// Returns whether a request in progress will use the pool, which must not be removed before
    /// that.
    fn is_awaited(&self, pool: PoolId) -> bool {
        self.awaited.contains(&pool)
    }
}

/// Returns the hash of a pool's id: the number of the graph or of the user's pool.
fn hash(id: PoolId) -> u64 {
    [id.0, id.1].into_iter().find(|&number| number != 0).unwrap_or(0)
}
