//! Requests and frees: the steps taken when no free block serves a request (callbacks, garbage collection, the device, other
//! pools, oversize blocks, waiting and the error: spec 2.1, 2.4, 2.6 to 2.13), and the events that freed blocks wait for
//! (spec 3.3 to 3.8); during a capture, the captured graph decides what is reused.
//!
//! While the request that called it is in progress, a callback may free a block, make another request, or change pools
//! and the cache.

use std::collections::{BTreeMap, VecDeque};

use parkade::device::BackendError;
use parkade::profile::ExpandableHint;
use parkade::stats::Family;
use parkade::texts::{Hint, OomWords, OutOfMemory};
use parkade::trace::TraceAction;
use parkade::units::{Bytes, MIB, PoolClass, PoolId};
use parkade::{AllocError, PoolError};
use parkade_sim::CallName;

use super::super::table::{Table, hash_of_stream};
use super::{Deed, FreeBlock, Made, Reference, State, Wanted, add};
use crate::backend::MadeCall;
use crate::reference_model::graphs::Part;

/// The result of releasing oversize segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sum {
    /// Enough for the request.
    Enough,
    Short,
    /// A block in an expandable segment is reached first, and the request fails there.
    MeetsExpandable,
}

impl Reference {
    /// Serves a request; `raw` requests have no upper bound (spec 2.1). Returns the block's
    /// address.
    pub fn allocate(&mut self, requested: u64, stream: u64, raw: bool) -> Result<u64, AllocError> {
        if !raw && requested >= 1 << 60 {
            return Err(AllocError::TooLarge { requested: Bytes(requested) });
        }
        let wanted = self.wanted(requested, stream)?;
        let needs_capture = self.rules.fails_outside_captures && self.settings.graph_capture_record_stream_reuse;
        if needs_capture && !self.routings.is_empty() && !self.is_capturing {
            return Err(AllocError::NotCaptured);
        }
        match self.search(&wanted) {
            Some(address) => Ok(self.hand_out(address, &wanted)),
            None => {
                let (address, wanted) = self.climb(&wanted)?;
                Ok(self.hand_out(address, &wanted))
            }
        }
    }

    /// Returns a request with its size and pool, after the events have been checked.
    fn wanted(&mut self, requested: u64, stream: u64) -> Result<Wanted, AllocError> {
        if requested == 0 {
            return Err(AllocError::ZeroSize);
        }
        let size = self.rounded(requested).ok_or(AllocError::TooLarge { requested: Bytes(requested) })?;
        if self.is_deferring() {
            self.free_ordered(stream)?;
        } else {
            self.process_events()?;
        }
        let pool = self.pool_for(stream);
        let class = if size > MIB { PoolClass::Large } else { PoolClass::Small };
        let is_expandable = self.settings.expandable_segments;
        Ok(Wanted { requested, size, pool, class, stream, is_expandable })
    }

    /// Serves a request at an address, if a free block has room there (spec 2.16).
    pub fn allocate_at(&mut self, requested: u64, stream: u64, at: u64) -> Result<Option<u64>, AllocError> {
        let wanted = match self.wanted(requested, stream) {
            Err(AllocError::TooLarge { .. }) => return Ok(None),
            wanted => wanted?,
        };
        let free = self.free_blocks(wanted.pool, wanted.class);
        let has_room = |block: &&FreeBlock| {
            let room = u128::from(block.address)..=u128::from(block.address) + u128::from(block.size);
            room.contains(&u128::from(at)) && room.contains(&(u128::from(at) + u128::from(wanted.size)))
        };
        let Some(block) = free.iter().filter(|block| block.stream == stream).find(has_room) else { return Ok(None) };
        if !at.is_multiple_of(512) {
            return Ok(None);
        }
        let (start, before) = (block.address, at - block.address);
        if before == 0 {
            return Ok(Some(self.hand_out(start, &wanted)));
        }
        let front = self.hand_out_part(start, &Wanted { requested: before, size: before, ..wanted }, true);
        let served = self.hand_out(at, &wanted);
        self.free(front)?;
        Ok(Some(served))
    }

    /// Returns a block that was taken off the free list, and the request with the pool that serves
    /// it.
    fn climb(&mut self, wanted: &Wanted) -> Result<(u64, Wanted), AllocError> {
        self.awaited.push(wanted.pool);
        let outcome = self.climb_on(wanted);
        self.awaited.pop();
        outcome
    }

    fn climb_on(&mut self, wanted: &Wanted) -> Result<(u64, Wanted), AllocError> {
        if self.run_callbacks()
            && let Some(address) = self.search(wanted)
        {
            return Ok((address, *wanted));
        }
        let segment = self.segment_for(wanted.size);
        let garbage = self.garbage();
        self.release(&garbage)?;
        if let Some(address) = self.ask(wanted, segment)? {
            return Ok((address, *wanted));
        }
        if !self.rules.borrows_last
            && let Some(borrowed) = self.borrow(wanted)?
        {
            return Ok(borrowed);
        }
        let (oversize, sum) = self.oversize(wanted);
        self.release(&oversize)?;
        if sum == Sum::MeetsExpandable {
            return Err(AllocError::ExpandableRelease);
        }
        if sum == Sum::Enough
            && let Some(address) = self.ask(wanted, segment)?
        {
            return Ok((address, *wanted));
        }
        if !self.is_deferring() {
            self.synchronize()?;
            let everything = self.releasable();
            self.release(&everything)?;
            self.forget_empty_pools()?;
            self.accounts.retries += 1;
            if let Some(address) = self.ask(wanted, segment)? {
                return Ok((address, *wanted));
            }
        }
        if self.rules.borrows_last
            && let Some(borrowed) = self.borrow(wanted)?
        {
            return Ok(borrowed);
        }
        Err(self.out_of_memory(wanted, segment))
    }

    /// Runs the callbacks, each of which performs the next action in its stock. Returns whether any of them reports
    /// that it freed something.
    ///
    /// During the run, the list of registered callbacks contains only those that the callbacks themselves register;
    /// afterwards these are appended to the others.
    fn run_callbacks(&mut self) -> bool {
        let mut freed = false;
        let mut called = std::mem::take(&mut self.registered);
        for &place in &called {
            if let Some((deed, says)) = self.stocks[place].pop_front() {
                let made = self.perform(deed);
                self.callback_answers.push(made);
                freed |= says;
            }
        }
        called.append(&mut self.registered);
        self.registered = called;
        freed
    }

    fn perform(&mut self, deed: Deed) -> Made {
        match deed {
            Deed::Free(address) => Made::Freed(address, self.free(address).err()),
            Deed::Allocate(bytes, stream) => Made::Allocated(self.allocate(bytes, stream, false)),
            Deed::ReleaseCached => Made::Done(self.release_cached()),
            Deed::Create(pool) => Made::Pool(self.create_pool(pool)),
            Deed::Begin(pool, filter) => Made::Pool(self.begin_pool(pool, filter)),
            Deed::End(pool) => Made::Pool(self.end_pool(pool)),
            Deed::Release(pool) => Made::Pool(self.release_pool(pool)),
            Deed::ReleaseCachedPool(pool) => Made::Done(self.release_cached_pool(pool)),
            Deed::Register(stock) => {
                self.registered.push(stock);
                Made::Pool(Ok(()))
            }
        }
    }

    /// Releases free large segments of the default pool that are at least as old as the average, until enough memory is
    /// collected (spec 2.7).
    fn garbage(&self) -> Vec<u64> {
        let threshold = self.settings.garbage_collection_threshold;
        let Some(limit) = self.limit.filter(|_| threshold > 0.0) else { return Vec::new() };
        let target = self.reserved().saturating_sub((threshold * limit as f64) as u64);
        let mut left = self.free_blocks(PoolId::DEFAULT, PoolClass::Large);
        left.retain(|block| !block.is_split);
        let age = |stamp: u64| (self.searches - stamp) as f64;
        let (mut gone, mut collected) = (Vec::new(), 0);
        while collected < target && !left.is_empty() {
            let average = left.iter().map(|block| age(block.stamp)).sum::<f64>() / left.len() as f64;
            let is_due = |block: &FreeBlock| age(block.stamp) >= average && !block.is_expandable;
            let (old, young): (Vec<_>, Vec<_>) = left.into_iter().partition(is_due);
            if old.is_empty() {
                break;
            }
            collected += old.iter().map(|block| block.size).sum::<u64>();
            gone.extend(old.iter().map(|block| block.address));
            left = young;
        }
        gone
    }

    /// Returns oversize segments of the request's stream, and what releasing them achieves (spec
    /// 2.9).
    fn oversize(&self, wanted: &Wanted) -> (Vec<u64>, Sum) {
        let max_split = self.settings.max_split_bytes;
        if max_split == u64::MAX {
            return (Vec::new(), Sum::Short);
        }
        let needed = wanted.size.max(max_split);
        let mut own = self.free_blocks(wanted.pool, wanted.class);
        own.retain(|block| block.stream == wanted.stream && block.size >= max_split && (block.is_expandable || !block.is_split));
        let fails = |block: &FreeBlock| block.is_expandable && self.rules.fails_at_expandable;
        match own.iter().find(|block| block.size >= needed) {
            Some(block) if !block.is_expandable => return (vec![block.address], Sum::Enough),
            Some(block) if fails(block) => return (Vec::new(), Sum::MeetsExpandable),
            _ => {}
        }
        let (mut gone, mut sum) = (Vec::new(), 0);
        for block in own.iter().rev().filter(|block| block.size < needed) {
            if sum >= needed {
                break;
            }
            if fails(block) {
                return (gone, Sum::MeetsExpandable);
            }
            if !block.is_expandable {
                sum += block.size;
                gone.push(block.address);
            }
        }
        (gone, if sum >= needed { Sum::Enough } else { Sum::Short })
    }

    /// Releases everything that can be released, in order (spec 2.10).
    fn releasable(&self) -> Vec<u64> {
        let mut blocks = Vec::new();
        if !self.is_deferring() {
            for class in [PoolClass::Large, PoolClass::Small] {
                blocks.extend(self.releasable_of(PoolId::DEFAULT, class));
            }
        }
        for pool in self.freeable().into_iter().take_while(|&pool| self.uses(pool) == Ok(0)) {
            for class in [PoolClass::Small, PoolClass::Large] {
                blocks.extend(self.releasable_of(pool, class));
            }
        }
        blocks
    }

    /// Returns the error and updates its counters and trace entries (spec 2.13). The caller fills in the device's
    /// processes.
    fn out_of_memory(&mut self, wanted: &Wanted, segment: u64) -> AllocError {
        let free = match self.call(MadeCall::to(CallName::MemGetInfo)) {
            Ok(free) => free,
            Err(error) => return error.into(),
        };
        self.tell(TraceAction::Oom, free, wanted.size, wanted.stream, wanted.pool);
        self.accounts.ooms += 1;
        let reserve = self.reservation();
        let hint = if !wanted.is_expandable || self.rules.expandable_hint == ExpandableHint::Settings {
            Hint::ExpandableSegments
        } else if self.rules.expandable_hint == ExpandableHint::Nothing {
            Hint::None
        } else if reserve < self.total.saturating_add(self.total / 8) && segment > reserve {
            Hint::LargerReserve(Bytes(reserve))
        } else {
            Hint::Addresses
        };
        let private = self.segments.iter().filter(|segment| segment.pool != PoolId::DEFAULT).flat_map(|segment| &segment.blocks);
        let cached = private.filter(|block| block.state == State::Free).map(|block| block.size).sum();
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            segment_bytes: Bytes(segment),
            device: self.device,
            device_total: Bytes(self.total),
            device_free: Bytes(free),
            processes: Vec::new(),
            limit: self.limit.map(Bytes),
            allocated_bytes: self.accounts.current(Family::AllocatedBytes),
            reserved_bytes: self.accounts.current(Family::ReservedBytes),
            private_cached_bytes: Bytes(cached),
            hint,
            // The text that the release produces for all of this is compared instead.
            words: &OomWords::PYTORCH_2_11,
            rescue: None,
        }))
    }

    /// `empty_cache` (spec 2.10).
    pub fn release_cached(&mut self) -> Result<(), AllocError> {
        if !self.is_deferring() {
            self.synchronize()?;
        } else if self.rules.keeps_cache_in_captures {
            self.accounts.waits += 1;
            return Err(AllocError::Capturing);
        }
        self.release_leftovers()?;
        let everything = self.releasable();
        self.release(&everything)?;
        self.forget_empty_pools()
    }
}

impl Reference {
    /// Records that another stream uses an allocated block.
    pub fn record_stream(&mut self, address: u64, stream: u64) {
        if self.segment_at(address).stream == stream {
            return;
        }
        let is_forgotten = self.is_deferring() && self.rules.forgets_captured_uses;
        let hash = hash_of_stream(self.device, stream);
        let block = self.block_mut(address);
        block.uses.insert(hash, stream);
        if is_forgotten {
            block.captured.insert(stream);
        }
    }

    /// Frees an allocated block (spec 3.3).
    pub fn free(&mut self, address: u64) -> Result<(), BackendError> {
        let segment = self.segment_at(address);
        let (class, stream, pool) = (segment.class, segment.stream, segment.pool);
        let block = self.block_mut(address);
        block.state = State::Pending;
        let (size, requested, is_used) = (block.size, block.requested, !block.uses.is_empty());
        self.accounts.change(Family::Allocation, class, -1);
        self.accounts.change(Family::AllocatedBytes, class, -(size as i64));
        self.tell(TraceAction::FreeRequested, address, requested, stream, pool);
        if self.is_oversize(size) {
            add(&mut self.accounts.oversize_allocations, -1);
        }
        if !is_used {
            self.free_block(address);
            return Ok(());
        }
        if self.is_deferring() {
            let markers = self.markers(address);
            self.block_mut(address).markers = markers;
            self.deferred.push_back(address);
            return Ok(());
        }
        self.block_mut(address).captured.clear();
        self.record_events(address).inspect_err(|_| self.deferred.push_back(address))
    }

    /// Makes a block free (spec 3.4).
    pub(super) fn free_block(&mut self, address: u64) {
        let segment = self.segment_at(address);
        let (class, stream, pool, is_expandable) = (segment.class, segment.stream, segment.pool, segment.is_expandable());
        let (size, requested) = (self.block(address).size, self.block(address).requested);
        self.tell(TraceAction::FreeCompleted, address, requested, stream, pool);
        let (start, absorbed) = self.put_back(address);
        if !is_expandable {
            let (segment, whole) = (self.segment_at(start), self.block(start).size as i64);
            let (more, bytes) = if segment.blocks.len() > 1 { (1, whole) } else { (0, 0) };
            self.accounts.change(Family::InactiveSplit, class, more - absorbed.blocks);
            self.accounts.change(Family::InactiveSplitBytes, class, bytes - absorbed.bytes);
        }
        self.accounts.change(Family::Active, class, -1);
        self.accounts.change(Family::ActiveBytes, class, -(size as i64));
        self.accounts.change(Family::RequestedBytes, class, -(requested as i64));
    }

    /// Records an event on each stream that uses the block (spec 3.5).
    fn record_events(&mut self, address: u64) -> Result<(), BackendError> {
        while let Some(stream) = self.block(address).uses.first() {
            let event = match self.spare_events.pop() {
                Some(event) => event,
                None => self.call(MadeCall::to(CallName::EventCreate))?,
            };
            if let Err(error) = self.call(MadeCall::to(CallName::EventRecord).on(stream).with(event)) {
                self.spare_events.push(event);
                return Err(error);
            }
            self.block_mut(address).uses.remove(stream);
            self.waited_for.insert(hash_of_stream(self.device, stream), stream);
            self.queues.entry(stream).or_default().push_back((event, address));
        }
        // PyTorch moves the uses out of the block, whose table then has no buckets.
        self.block_mut(address).uses = Table::default();
        Ok(())
    }

    /// Records the deferred events. Uses recorded during the capture are forgotten (spec 3.8).
    pub(super) fn flush_deferred(&mut self) -> Result<(), BackendError> {
        while let Some(&address) = self.deferred.front() {
            self.settle(address)?;
            self.deferred.pop_front();
            self.free_if_settled(address);
        }
        Ok(())
    }

    /// Does the same for the blocks of one pool, even if some fail: the failed ones are deferred to the next time,
    /// after the others.
    pub(super) fn flush_deferred_of(&mut self, pool: PoolId) {
        let (own, others): (Vec<u64>, Vec<u64>) =
            self.deferred.iter().partition(|&&address| self.segment_at(address).pool == pool);
        self.deferred = others.into();
        for address in own {
            match self.settle(address) {
                Ok(()) => self.free_if_settled(address),
                Err(_) => self.deferred.push_back(address),
            }
        }
    }

    /// Records the events of a deferred block, except those of forgotten uses.
    fn settle(&mut self, address: u64) -> Result<(), BackendError> {
        self.block_mut(address).markers.clear();
        let captured = std::mem::take(&mut self.block_mut(address).captured);
        if !captured.is_empty() {
            let uses = std::mem::take(&mut self.block_mut(address).uses);
            for stream in uses.keys().into_iter().filter(|stream| !captured.contains(stream)) {
                let hash = hash_of_stream(self.device, stream);
                self.block_mut(address).uses.insert(hash, stream);
            }
        }
        self.record_events(address)
    }

    fn free_if_settled(&mut self, address: u64) {
        if !self.is_waiting(address) {
            self.free_block(address);
        }
    }

    /// Returns whether a block is waiting for an event.
    pub(super) fn is_waiting(&self, address: u64) -> bool {
        self.queues.values().flatten().any(|&(_, block)| block == address)
    }

    /// Removes an event from its queue; its block becomes free if it is not waiting for another
    /// event.
    fn complete(&mut self, stream: u64, place: usize) {
        let Some((event, address)) = self.queues.get_mut(&stream).and_then(|queue| queue.remove(place)) else { return };
        if self.queues.get(&stream).is_some_and(VecDeque::is_empty) {
            self.queues.remove(&stream);
            self.waited_for.remove(stream);
        }
        self.spare_events.push(event);
        if !self.is_waiting(address) && self.block(address).uses.is_empty() {
            self.free_block(address);
        }
    }

    /// Frees blocks whose events are complete, without waiting (spec 3.6).
    pub fn process_events(&mut self) -> Result<(), BackendError> {
        if self.is_deferring() {
            return Ok(());
        }
        self.flush_deferred()?;
        for stream in self.waited_for.keys() {
            while let Some(&(event, _)) = self.queues.get(&stream).and_then(|queue| queue.front()) {
                if self.call(MadeCall::to(CallName::EventQuery).with(event))? == 0 {
                    break;
                }
                self.complete(stream, 0);
            }
        }
        Ok(())
    }

    /// Waits for all events (spec 3.7).
    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.accounts.waits += 1;
        self.flush_deferred()?;
        while let Some(stream) = self.waited_for.first() {
            let event = self.queues[&stream][0].0;
            self.call(MadeCall::to(CallName::EventSynchronize).with(event))?;
            self.complete(stream, 0);
        }
        Ok(())
    }

    /// Waits for the events of one pool's blocks.
    pub(super) fn synchronize_pool(&mut self, pool: PoolId) -> Result<(), BackendError> {
        self.accounts.waits += 1;
        self.flush_deferred()?;
        loop {
            let of_pool = |&&(_, block): &&(u64, u64)| self.segment_at(block).pool == pool;
            let first = self.waited_for.keys().into_iter().find_map(|stream| {
                let queue = &self.queues[&stream];
                let place = queue.iter().position(|entry| of_pool(&entry))?;
                Some((stream, place, queue[place].0))
            });
            let Some((stream, place, event)) = first else { return Ok(()) };
            self.call(MadeCall::to(CallName::EventSynchronize).with(event))?;
            self.complete(stream, place);
        }
    }
}

impl Reference {
    fn reuses_by_graph(&self) -> bool {
        self.rules.reuses_by_graph && self.settings.graph_capture_record_stream_reuse
    }

    /// Returns the nodes at which the graph ends on all streams that use a block; none if any of them is not captured.
    pub(super) fn markers(&self, address: u64) -> Vec<usize> {
        let own = self.segment_at(address).stream;
        let streams = std::iter::once(own).chain(self.block(address).uses.keys());
        let parts: Option<Vec<&Part>> = streams.map(|stream| self.graphs.part(stream).ok().flatten()).collect();
        let is_used = self.reuses_by_graph();
        parts.filter(|_| is_used).unwrap_or_default().into_iter().flat_map(|(_, ends)| ends.clone()).collect()
    }

    /// Frees the deferred blocks of a stream that the graph makes wait for all other users.
    pub(super) fn free_ordered(&mut self, stream: u64) -> Result<(), AllocError> {
        if !self.reuses_by_graph() {
            return Ok(());
        }
        let part = self.graphs.part(stream)?.filter(|(_, ends)| !ends.is_empty()).cloned();
        let Some((capture, ends)) = part else { return Ok(()) };
        let pool = self.pool_for(stream);
        if pool == PoolId::DEFAULT && !self.captures.contains_key(&capture) {
            return Err(AllocError::NotCaptured);
        }
        let reached = self.graphs.up_to(ends);
        let (_, visited) = self.captures.entry(capture).or_insert((pool, BTreeMap::new()));
        let visited = visited.entry(stream).or_default();
        self.graphs.check_order(stream)?;
        visited.extend(reached);
        let visited = visited.clone();
        for address in self.deferred.clone() {
            let is_own = self.segment_at(address).stream == stream;
            let block = self.block_mut(address);
            if !is_own || block.markers.is_empty() || !block.markers.iter().all(|node| visited.contains(node)) {
                continue;
            }
            block.markers.clear();
            block.captured.clear();
            block.uses = Default::default();
            self.deferred.retain(|&other| other != address);
            self.free_block(address);
        }
        Ok(())
    }

    /// Forgets the newest capture that a pool serves, because the routing ends.
    pub(super) fn forget_capture(&mut self, id: PoolId) -> Result<(), PoolError> {
        let newest = self.captures.iter().rev().find(|(_, (pool, _))| *pool == id);
        let Some((&capture, (_, visited))) = newest.filter(|_| self.reuses_by_graph() && self.has_pool(id)) else {
            return Ok(());
        };
        // A stream of which the device does not answer whether it is captured may still be captured.
        if visited.keys().any(|&stream| !matches!(self.graphs.part(stream), Ok(None))) {
            return Err(PoolError::Captured(id));
        }
        self.captures.remove(&capture);
        Ok(())
    }
}
