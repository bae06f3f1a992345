//! Private pools (spec section 5), their checkpoints, and the check that a checkpoint fits its pool (spec 5.8).

use parkade::checkpoint::SavedState;
use parkade::device::BackendError;
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
use parkade::{AllocError, CheckpointError, PoolError, PoolFilter};

use super::{Block, PrivatePool, Reference, Segment, State, Wanted};

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
        self.forget_capture(id)?;
        if !self.is_routed(id) {
            return Err(PoolError::NotRouted(id));
        }
        self.routings.retain(|(routed, _)| *routed != id);
        if self.rules.flushes_at_pool_end && self.settings.graph_capture_record_stream_reuse {
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
    fn is_freeable(&self, id: PoolId) -> bool {
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
            if let Some(address) = found {
                self.block_mut(address).state = State::Free;
            }
            self.end_pool(id)?;
            self.release_pool(id)?;
            if let Some(address) = found {
                // The end of the routing may have freed a neighbour, with which the block then coalesced.
                let mut blocks = self.segment_at_mut(address).blocks.iter_mut();
                let holds = |block: &&mut Block| (block.address..block.address + block.size).contains(&address);
                let block = blocks.find(holds).expect("every address in use has a block");
                block.state = State::Taken;
                return Ok(Some((block.address, lent)));
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
        if self.is_deferring() {
            self.accounts.waits += 1;
            return Err(AllocError::Capturing);
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

/// A segment in a checkpoint: its first byte, its stream and its blocks.
pub type SavedRun = (DeviceAddress, StreamId, Vec<(Bytes, SavedState)>);

/// The saved state of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Saved {
    /// The pool.
    pub pool: PoolId,
    /// Its segments, in the order in which they are restored.
    pub segments: Vec<SavedRun>,
}

/// The blocks that a restore took back and handed out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restoration {
    /// The addresses of the blocks taken back, in order.
    pub freed: Vec<u64>,
    /// The addresses of the blocks handed out, in order.
    pub allocations: Vec<u64>,
}

impl Reference {
    /// Returns the pool's segments in the order in which they are saved: first those whose first block is in use, by
    /// address, then those whose first block is free, in the order of free blocks. A segment whose start is unmapped is
    /// left out.
    fn saved_order(&self, pool: PoolId) -> Vec<u64> {
        let own = self.segments.iter().filter(|segment| segment.pool == pool);
        let is_used = |segment: &&Segment| matches!(segment.blocks[0].state, State::Allocated | State::Pending);
        let mut order: Vec<u64> = own.filter(is_used).map(|segment| segment.base).collect();
        order.sort_unstable();
        for class in [PoolClass::Small, PoolClass::Large] {
            let free = self.free_blocks(pool, class).into_iter().map(|block| block.address);
            order.extend(free.filter(|&address| self.segment_at(address).base == address));
        }
        order
    }

    /// Saves a pool.
    pub fn save(&mut self, pool: PoolId) -> Result<Saved, CheckpointError> {
        if self.rules.flushes_before_saving {
            self.flush_deferred()?;
        }
        if !self.has_pool(pool) {
            return Err(CheckpointError::UnknownPool(pool));
        }
        let mut segments = Vec::new();
        for base in self.saved_order(pool) {
            let segment = self.segment_at(base);
            let mut blocks = Vec::new();
            for block in &segment.blocks {
                let state = match block.state {
                    // If no event has been recorded for the block, nothing shows that it is
                    // waiting.
                    State::Pending if !self.is_waiting(block.address) => SavedState::Free,
                    State::Pending => return Err(CheckpointError::EventsPending(DeviceAddress(block.address))),
                    State::Allocated => SavedState::Allocated,
                    State::Unmapped => SavedState::Unmapped,
                    State::Free | State::Taken => SavedState::Free,
                };
                blocks.push((Bytes(block.size), state));
            }
            segments.push((DeviceAddress(base), StreamId(segment.stream), blocks));
        }
        Ok(Saved { pool, segments })
    }

    /// Restores a pool: takes back all its blocks, then hands out the saved ones and frees those that were free.
    pub fn restore(&mut self, saved: &Saved) -> Result<Restoration, CheckpointError> {
        if !self.has_pool(saved.pool) {
            return Err(CheckpointError::LostPool(saved.pool));
        }
        if self.is_freeable(saved.pool) {
            return Err(CheckpointError::Abandoned(saved.pool));
        }
        self.check_fit(saved)?;
        let (mut freed, mut outcome): (_, Result<(), BackendError>) = (Vec::new(), Ok(()));
        for base in self.saved_order(saved.pool) {
            let blocks = self.segment_at(base).blocks.clone();
            for block in blocks.iter().filter(|block| block.state == State::Allocated) {
                freed.push(block.address);
                outcome = outcome.and(self.free(block.address));
            }
        }
        outcome?;
        let mut allocations = Vec::new();
        for (base, stream, blocks) in &saved.segments {
            self.restore_run(base.get(), *stream, blocks, &mut allocations)?;
        }
        Ok(Restoration { freed, allocations })
    }

    fn restore_run(
        &mut self,
        base: u64,
        stream: StreamId,
        blocks: &[(Bytes, SavedState)],
        allocations: &mut Vec<u64>,
    ) -> Result<(), CheckpointError> {
        let (pool, class) = (self.segment_at(base).pool, self.segment_at(base).class);
        let (mut address, mut unused) = (base, Vec::new());
        for &(size, state) in blocks.iter().filter(|(_, state)| *state != SavedState::Unmapped) {
            let size = size.get();
            let wanted = Wanted { requested: size, size, pool, class, stream: stream.get(), is_expandable: false };
            let splits = self.block(address).size > size;
            self.hand_out_part(address, &wanted, splits);
            if state == SavedState::Allocated {
                allocations.push(address)
            } else {
                unused.push(address)
            }
            address += self.block(address).size;
        }
        for address in unused {
            self.free(address)?;
        }
        Ok(())
    }

    /// Checks every saved segment, and returns the error of the first one that does not fit.
    fn check_fit(&self, saved: &Saved) -> Result<(), CheckpointError> {
        let mut used = Vec::new();
        for run in &saved.segments {
            let address = run.0;
            let holds = |segment: &&Segment| segment.pool == saved.pool && segment.stream == run.1.get();
            let place = self.segments.iter().filter(holds).find_map(|segment| {
                let place = segment.blocks.iter().position(|block| block.address == address.get())?;
                let begins = comes_free(&segment.blocks[place]) && (place == 0 || !comes_free(&segment.blocks[place - 1]));
                begins.then_some((segment, place))
            });
            let place = place.filter(|_| !used.contains(&address));
            let (segment, place) = place.ok_or(CheckpointError::SegmentMissing(address))?;
            used.push(address);
            check_run(segment, place, run, self.rules.restores_grown_segments)?;
        }
        Ok(())
    }
}

/// Returns whether the block is free once everything is freed. A block that other streams use is pending instead.
fn comes_free(block: &Block) -> bool {
    block.state == State::Free || (block.state == State::Allocated && block.uses.is_empty())
}

/// Lays out the saved blocks in the free bytes that begin at `place`.
fn check_run(segment: &Segment, place: usize, (address, _, saved): &SavedRun, takes_grown: bool) -> Result<(), CheckpointError> {
    let free = segment.blocks[place..].iter().take_while(|block| comes_free(block)).count();
    let mut room: u64 = segment.blocks[place..place + free].iter().map(|block| block.size).sum();
    let behind = &segment.blocks[place + free..];
    let mut at = address.get();
    for (number, &(size, state)) in saved.iter().enumerate() {
        let (size, is_last) = (size.get(), number + 1 == saved.len());
        if state == SavedState::Unmapped {
            if !takes_grown {
                check_same_tail(room, behind, *address)?;
                return if is_last { Ok(()) } else { Err(CheckpointError::SizeDiffers(DeviceAddress(at))) };
            }
            let fits = is_last && is_tail(room, behind);
            return if fits { Ok(()) } else { Err(CheckpointError::TailInUse(*address)) };
        }
        match behind.first() {
            None if room == 0 => return Err(CheckpointError::LengthDiffers(*address)),
            _ if size == 0 => return Err(CheckpointError::SizeDiffers(DeviceAddress(at))),
            Some(next) if size > room && room == 0 && next.state != State::Unmapped && size <= next.size => {
                return Err(CheckpointError::BlockPending(DeviceAddress(at)));
            }
            _ if size > room => return Err(CheckpointError::SizeDiffers(DeviceAddress(at))),
            _ => {}
        }
        room -= size;
        at += size;
        if is_last && room == 0 && behind.is_empty() {
            return Ok(());
        }
    }
    Err(CheckpointError::LengthDiffers(*address))
}

/// Checks that only the unmapped end of the segment follows the saved blocks, which leave `room` free bytes.
fn check_same_tail(room: u64, behind: &[Block], address: DeviceAddress) -> Result<(), CheckpointError> {
    let is_mapped = room > 0 || behind.first().is_none_or(|next| next.state != State::Unmapped);
    match usize::from(room > 0) + behind.len() {
        2.. => Err(CheckpointError::TailGrew(address)),
        _ if is_mapped => Err(CheckpointError::TailMapped(address)),
        _ => Ok(()),
    }
}

/// Returns whether the saved blocks are followed by at most one block with memory, and then only by addresses without
/// memory.
fn is_tail(room: u64, behind: &[Block]) -> bool {
    let rest = match behind.first() {
        None => return room != 0,
        Some(next) if room == 0 && next.state != State::Unmapped => &behind[1..],
        Some(_) => behind,
    };
    rest.is_empty() || (rest.len() == 1 && rest[0].state == State::Unmapped)
}
