//! Requests, and the steps taken when no free block serves one: callbacks, garbage collection, the device, other pools,
//! oversize blocks, waiting and the error (spec 2.1, 2.4, 2.6 to 2.13).
//!
//! While the request that called it is in progress, a callback may free a block, make another request, or change pools
//! and the cache.

use parkade::AllocError;
use parkade::profile::ExpandableHint;
use parkade::stats::Family;
use parkade::texts::{Hint, OomWords, OutOfMemory};
use parkade::trace::TraceAction;
use parkade::units::{Bytes, MIB, PoolClass, PoolId};
use parkade_sim::CallName;

use super::{Deed, FreeBlock, Made, Reference, State, Wanted};
use crate::backend::MadeCall;

/// What releasing oversize segments achieves.
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
        if requested == 0 {
            return Err(AllocError::ZeroSize);
        }
        let size = self.rounded(requested).ok_or(AllocError::TooLarge { requested: Bytes(requested) })?;
        self.process_events()?;
        let needs_capture = self.rules.fails_outside_captures && self.settings.graph_capture_record_stream_reuse;
        if needs_capture && !self.routings.is_empty() && !self.is_capturing {
            return Err(AllocError::NotCaptured);
        }
        let pool = self.pool_for(stream);
        let class = if size > MIB { PoolClass::Large } else { PoolClass::Small };
        let is_expandable = self.settings.expandable_segments;
        let wanted = Wanted { requested, size, pool, class, stream, is_expandable };
        match self.search(&wanted) {
            Some(address) => Ok(self.hand_out(address, &wanted)),
            None => {
                let (address, wanted) = self.climb(&wanted)?;
                Ok(self.hand_out(address, &wanted))
            }
        }
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
