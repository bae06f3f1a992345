//! What happens when no free block serves a request: callbacks, garbage, the device, other pools, oversize blocks, waiting, and the
//! error (spec 2.4, 2.6 to 2.13).

use parkade::device::BackendError;
use parkade::profile::ExpandableHint;
use parkade::settings::ReserveSize;
use parkade::stats::Family;
use parkade::texts::{Hint, OomWords, OutOfMemory};
use parkade::trace::TraceAction;
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId};
use parkade::{AllocError, AnswerProblem, WrongAnswer};
use parkade_sim::CallName;

use super::Reference;
use super::accounts::add;
use super::blocks::{Block, FreeBlock, Segment, State};
use super::request::Wanted;
use crate::backend::MadeCall;

/// What oversize segments that are released come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sum {
    /// Enough for the request.
    Enough,
    Short,
    /// On the way to that there is a block of an expandable segment, at which the request fails.
    MeetsExpandable,
}

impl Reference {
    /// Returns a block that is taken, and the request with the pool that serves it.
    pub(super) fn climb(&mut self, wanted: &Wanted) -> Result<(u64, Wanted), AllocError> {
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

    /// Asks the device for a segment (spec 2.8).
    fn ask(&mut self, wanted: &Wanted, size: u64) -> Result<Option<u64>, AllocError> {
        let after = u128::from(self.reserved()) + u128::from(size);
        if after > u128::from(self.limit.unwrap_or(u64::MAX)) {
            return Ok(None);
        }
        let most = (self.settings.per_process_memory_fraction * self.total as f64) as u64;
        if self.settings.throw_on_cudamalloc_oom && after > u128::from(most) {
            self.accounts.rejections += 1;
            return Err(AllocError::Rejected { requested: Bytes(wanted.requested) });
        }
        if wanted.is_expandable && (self.rules.expands_private_pools || wanted.pool == PoolId::DEFAULT) {
            return self.grow(wanted);
        }
        let base = match self.call(MadeCall::to(CallName::Malloc).of(size)) {
            Ok(base) => base,
            Err(BackendError::OutOfMemory { .. }) => return self.look_after_refusal().map(|()| None).map_err(Into::into),
            Err(error) => return Err(error.into()),
        };
        if after > i64::MAX as u128 {
            let (address, bytes, problem) = (DeviceAddress(base), Bytes(size), AnswerProblem::TooMuch);
            return Err(AllocError::Answer(WrongAnswer { call: "malloc", address, bytes, problem }));
        }
        let Wanted { stream, pool, class, .. } = *wanted;
        let rank = self.next_rank();
        let blocks = vec![Block::new(base, size, State::Taken, rank)];
        self.segments.push(Segment { base, size, page: 0, stream, pool, class, number: 0, blocks });
        self.accounts.change(Family::Segment, class, 1);
        self.count_reserved(pool, class, size as i64);
        if self.is_oversize(size) {
            add(&mut self.accounts.oversize_segments, 1);
        }
        self.accounts.taken += 1;
        self.tell(TraceAction::SegmentAlloc, base, size, stream, pool);
        Ok(Some(base))
    }

    pub(super) fn count_reserved(&mut self, pool: PoolId, class: PoolClass, bytes: i64) {
        self.accounts.change(Family::ReservedBytes, class, bytes);
        if self.rules.counts_private_pools && pool != PoolId::DEFAULT {
            self.accounts.change_pool(pool, class, bytes);
        }
    }

    /// Later releases ask for the free memory after a refusal (spec 11.0).
    pub(super) fn look_after_refusal(&mut self) -> Result<(), BackendError> {
        if self.rules.asks_after_refusal { self.call(MadeCall::to(CallName::MemGetInfo)).map(drop) } else { Ok(()) }
    }

    /// Free large segments of the default pool, at least as old as the average, until enough is collected (spec 2.7).
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

    /// Oversize segments of the request's stream, and what they come to (spec 2.9).
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

    /// Everything that can be released, in order (spec 2.10).
    pub(super) fn releasable(&self) -> Vec<u64> {
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

    /// Whole segments first, then what is free in expandable ones (spec 2.10.1).
    pub(super) fn releasable_of(&self, pool: PoolId, class: PoolClass) -> Vec<u64> {
        let free = self.free_blocks(pool, class);
        let whole = free.iter().filter(|block| !block.is_expandable && !block.is_split);
        whole.chain(free.iter().filter(|block| block.is_expandable)).map(|block| block.address).collect()
    }

    /// Releases free blocks, up to the first that fails (spec 2.12).
    pub(super) fn release(&mut self, blocks: &[u64]) -> Result<(), AllocError> {
        for &address in blocks {
            let segment = self.segment_at(address);
            if segment.is_expandable() {
                self.unmap_free(address)?;
                continue;
            }
            let Segment { size, stream, pool, class, .. } = *segment;
            self.call(MadeCall::to(CallName::Free).at(address))?;
            self.tell(TraceAction::SegmentFree, address, size, stream, pool);
            self.segments.retain(|segment| segment.base != address);
            self.accounts.given += 1;
            self.accounts.change(Family::Segment, class, -1);
            self.count_reserved(pool, class, -(size as i64));
            if self.is_oversize(size) {
                add(&mut self.accounts.oversize_segments, -1);
            }
        }
        Ok(())
    }

    /// The bytes of addresses that an expandable segment reserves, before they are rounded to pages (spec 4.1, 11.0).
    pub fn reservation(&self) -> u64 {
        let full = self.total.saturating_add(self.total / 8);
        let wanted = match self.settings.expandable_segments_reserve {
            None => return full,
            Some(ReserveSize::Fraction(part)) => part * self.total as f64,
            Some(ReserveSize::Gibibytes(count)) => count * 1024.0 * 1024.0 * 1024.0,
        };
        (wanted as u64).min(full)
    }

    /// The error, and what is counted and told with it (spec 2.13). The device's processes are left to the caller.
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
            // The text that a release makes of all this is compared instead.
            words: &OomWords::PYTORCH_2_11,
        }))
    }
}
