//! Segments, expandable or not: how they are requested, grown, released, adopted and counted (spec 2.8, 2.10, 2.12,
//! section 4).
//!
//! Adopted segments count as if they had been allocated here, except for driver calls. For expandable segments, this
//! file decides where they grow and which pages are unmapped.

use parkade::device::BackendError;
use parkade::settings::ReserveSize;
use parkade::stats::Family;
use parkade::trace::TraceAction;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId};
use parkade::{AdoptedContent, AdoptedSegment, AllocError, AnswerProblem, WrongAnswer};
use parkade_sim::CallName;

use super::{Block, Reference, Segment, State, Wanted, add};
use crate::backend::MadeCall;

impl Reference {
    /// Asks the device for a segment (spec 2.8).
    pub(super) fn ask(&mut self, wanted: &Wanted, size: u64) -> Result<Option<u64>, AllocError> {
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

    /// Returns the bytes of address space that an expandable segment reserves, before they are rounded to pages (spec
    /// 4.1, 11.0).
    pub fn reservation(&self) -> u64 {
        let full = self.total.saturating_add(self.total / 8);
        let wanted = match self.settings.expandable_segments_reserve {
            None => return full,
            Some(ReserveSize::Fraction(part)) => part * self.total as f64,
            Some(ReserveSize::Gibibytes(count)) => count * 1024.0 * 1024.0 * 1024.0,
        };
        (wanted as u64).min(full)
    }

    fn count_reserved(&mut self, pool: PoolId, class: PoolClass, bytes: i64) {
        self.accounts.change(Family::ReservedBytes, class, bytes);
        if self.rules.counts_private_pools && pool != PoolId::DEFAULT {
            self.accounts.change_pool(pool, class, bytes);
        }
    }

    /// Later releases query the device's free memory after a refusal (spec 11.0).
    fn look_after_refusal(&mut self) -> Result<(), BackendError> {
        if self.rules.asks_after_refusal { self.call(MadeCall::to(CallName::MemGetInfo)).map(drop) } else { Ok(()) }
    }

    /// Releases whole segments first, then free memory in expandable segments (spec 2.10.1).
    pub(super) fn releasable_of(&self, pool: PoolId, class: PoolClass) -> Vec<u64> {
        let free = self.free_blocks(pool, class);
        let whole = free.iter().filter(|block| !block.is_expandable && !block.is_split);
        whole.chain(free.iter().filter(|block| block.is_expandable)).map(|block| block.address).collect()
    }

    /// Releases free blocks, and stops at the first failure (spec 2.12).
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

    /// Maps the missing memory for a request. Returns `None` if the device is out of memory (spec
    /// 4.4).
    fn grow(&mut self, wanted: &Wanted) -> Result<Option<u64>, AllocError> {
        let start = match self.find_room(wanted) {
            Some(start) => start,
            None => match self.reserve(wanted)? {
                Some(start) => start,
                None => return Ok(None),
            },
        };
        if self.block(start).state == State::Unmapped && !self.map(start, wanted.size)? {
            return Ok(None);
        }
        loop {
            let segment = self.segment_at(start);
            let place = segment.place(start);
            let size = segment.blocks[place].size;
            if size >= wanted.size {
                self.block_mut(start).state = State::Taken;
                return Ok(Some(start));
            }
            let Some(next) = segment.blocks.get(place + 1).filter(|next| next.state == State::Unmapped) else {
                return Err(AllocError::TooLarge { requested: Bytes(wanted.requested) });
            };
            let next = next.address;
            if !self.map(next, wanted.size - size)? {
                return Ok(None);
            }
        }
    }

    /// Returns the lowest run of free and unmapped blocks that is long enough; it starts at an unmapped block or at the
    /// free block before it (spec 4.2).
    fn find_room(&self, wanted: &Wanted) -> Option<u64> {
        let is_own = |segment: &&Segment| {
            segment.is_expandable() && (segment.pool, segment.class, segment.stream) == (wanted.pool, wanted.class, wanted.stream)
        };
        let mut own: Vec<&Segment> = self.segments.iter().filter(is_own).collect();
        own.sort_by_key(|segment| segment.base);
        for segment in own {
            let is_usable = |block: &&Block| matches!(block.state, State::Free | State::Unmapped);
            for hole in (0..segment.blocks.len()).filter(|&place| segment.blocks[place].state == State::Unmapped) {
                let start = if hole > 0 && segment.blocks[hole - 1].state == State::Free { hole - 1 } else { hole };
                let room: u64 = segment.blocks[start..].iter().take_while(is_usable).map(|block| block.size).sum();
                if room >= wanted.size {
                    return Some(segment.blocks[start].address);
                }
            }
        }
        None
    }

    /// Reserves addresses for a new segment (spec 4.1).
    fn reserve(&mut self, wanted: &Wanted) -> Result<Option<u64>, AllocError> {
        let page = if wanted.class == PoolClass::Small { 2 * MIB } else { self.settings.large_segment_bytes };
        let size = u128::from(self.reservation()).div_ceil(u128::from(page)) * u128::from(page);
        let size = u64::try_from(size).map_err(|_| AllocError::TooLarge { requested: Bytes(wanted.requested) })?;
        let base = self.call(MadeCall::to(CallName::AddressReserve).of(size))?;
        let mut answer = Ok(Some(base));
        if size < wanted.size && self.rules.gives_short_ranges_back {
            match self.call(MadeCall::to(CallName::AddressFree).of(size).at(base)) {
                Ok(_) => return Ok(None),
                // The allocator keeps the range.
                Err(error) => answer = Err(error.into()),
            }
        }
        let Wanted { stream, pool, class, .. } = *wanted;
        let (rank, number) = (self.next_rank(), self.ranges_made);
        self.ranges_made += 1;
        let blocks = vec![Block::new(base, size, State::Unmapped, rank)];
        self.segments.push(Segment { base, size, page, stream, pool, class, number, blocks });
        answer
    }

    /// Maps the first `wanted` bytes of an unmapped block, in whole pages. Returns false if the device is out of memory (spec 4.3,
    /// 4.5).
    fn map(&mut self, address: u64, wanted: u64) -> Result<bool, AllocError> {
        let segment = self.segment_at(address);
        let (page, stream, pool, class) = (segment.page, segment.stream, segment.pool, segment.class);
        let pages = wanted.min(self.block(address).size).div_ceil(page);
        if self.unreleased > 0 || !self.stuck.is_empty() {
            self.release_leftovers()?;
        }
        for made in 0..pages {
            let Err(error) = self.call(MadeCall::to(CallName::MemCreate).of(page)) else { continue };
            let is_refusal = matches!(error, BackendError::OutOfMemory { .. });
            let looked = if is_refusal { self.look_after_refusal() } else { Ok(()) };
            self.release_handles(made)?;
            looked?;
            return if is_refusal { Ok(false) } else { Err(error.into()) };
        }
        self.map_pages(address, page, pages)?;
        let (bytes, whole, rank) = (pages * page, self.block(address).size, self.block(address).rank);
        if bytes < whole {
            let rest = Block::new(address + bytes, whole - bytes, State::Unmapped, self.next_rank_beside(rank));
            let segment = self.segment_at_mut(address);
            let place = segment.place(address);
            segment.blocks[place].size = bytes;
            segment.blocks.insert(place + 1, rest);
        }
        self.block_mut(address).state = State::Taken;
        self.put_back(address);
        self.count_reserved(pool, class, bytes as i64);
        self.accounts.taken += 1;
        self.tell(TraceAction::SegmentMap, address, bytes, stream, pool);
        Ok(true)
    }

    fn map_pages(&mut self, address: u64, page: u64, pages: u64) -> Result<(), BackendError> {
        let map = |at: u64| MadeCall::to(CallName::MemMap).of(page).at(at);
        let mut mapped = 0;
        let mut outcome = Ok(0);
        while mapped < pages && outcome.is_ok() {
            outcome = self.call(map(address + mapped * page));
            mapped += u64::from(outcome.is_ok());
        }
        let outcome = outcome.and_then(|_| self.call(MadeCall::to(CallName::MemSetAccess).of(mapped * page).at(address)));
        let Err(error) = outcome else { return Ok(()) };
        for place in 0..mapped {
            let _ = self.clear(address + place * page, page);
        }
        let _ = self.release_handles(pages);
        Err(error)
    }

    /// Releases this many handles, and keeps those whose release fails. Returns the first failure.
    fn release_handles(&mut self, count: u64) -> Result<(), BackendError> {
        let mut outcome = Ok(());
        for _ in 0..count {
            if let Err(error) = self.call(MadeCall::to(CallName::MemRelease)) {
                self.unreleased += 1;
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    fn clear(&mut self, address: u64, bytes: u64) -> Result<(), BackendError> {
        let answer = self.call(MadeCall::to(CallName::MemUnmap).of(bytes).at(address));
        answer.map(drop).inspect_err(|_| self.stuck.push((address, bytes)))
    }

    /// Retries the unmappings and releases that have failed.
    pub(super) fn release_leftovers(&mut self) -> Result<(), BackendError> {
        let mut outcome = Ok(());
        for (address, bytes) in std::mem::take(&mut self.stuck) {
            outcome = outcome.and(self.clear(address, bytes));
        }
        let handles = std::mem::take(&mut self.unreleased);
        outcome.and(self.release_handles(handles))
    }

    /// Unmaps the whole pages in a free block, after waiting for the segment's stream (spec 4.6).
    fn unmap_free(&mut self, address: u64) -> Result<(), AllocError> {
        let (segment, size) = (self.segment_at(address), self.block(address).size);
        let (base, page, stream) = (segment.base, segment.page, segment.stream);
        let (begin, end) = ((address - base).div_ceil(page), (address + size - base) / page);
        if begin >= end {
            return Ok(());
        }
        self.call(MadeCall::to(CallName::StreamSynchronize).on(stream))?;
        let mut outcome = Ok(());
        let mut done = begin;
        while done < end && outcome.is_ok() {
            outcome = self.call(MadeCall::to(CallName::MemUnmap).of(page).at(base + done * page)).map(drop);
            if outcome.is_ok() {
                done += 1;
                outcome = self.release_handles(1);
            }
        }
        if done > begin {
            self.note_unmapped(address, base + begin * page, (done - begin) * page)?;
        }
        Ok(outcome?)
    }

    /// Splits the unmapped part off a free block. If no memory is left, the segment is removed (spec 4.6, 4.7).
    fn note_unmapped(&mut self, address: u64, start: u64, bytes: u64) -> Result<(), AllocError> {
        let segment = self.segment_at(address);
        let stamp = self.stamp(segment.pool, segment.class);
        let (stream, pool, class, base, size) = (segment.stream, segment.pool, segment.class, segment.base, segment.size);
        let whole = self.block(address).clone();
        let (end, whole_end) = (start + bytes, address + whole.size);
        let mut free =
            |from: u64, to: u64| Block { stamp, ..Block::new(from, to - from, State::Free, self.next_rank_beside(whole.rank)) };
        let head = (address < start).then(|| free(address, start));
        let tail = (end < whole_end).then(|| free(end, whole_end));
        let mut middle = Block { address: start, size: bytes, state: State::Unmapped, ..whole };
        let segment = self.segment_at_mut(address);
        let place = segment.place(address);
        segment.blocks.remove(place);
        if head.is_none() && place > 0 && segment.blocks[place - 1].state == State::Unmapped {
            let before = segment.blocks.remove(place - 1);
            (middle.address, middle.size) = (before.address, middle.size + before.size);
        }
        let at = segment.blocks.iter().take_while(|block| block.address < middle.address).count();
        if end == whole_end && segment.blocks.get(at).is_some_and(|next| next.state == State::Unmapped) {
            middle.size += segment.blocks.remove(at).size;
        }
        segment.blocks.splice(at..at, head.into_iter().chain([middle]).chain(tail));
        let is_empty = segment.blocks.len() == 1;
        self.count_reserved(pool, class, -(bytes as i64));
        self.accounts.given += 1;
        self.tell(TraceAction::SegmentUnmap, start, bytes, stream, pool);
        if is_empty {
            self.release_leftovers()?;
            self.drop_range(base, size)?;
        }
        Ok(())
    }

    /// Releases the addresses of a segment without memory (spec 4.7).
    pub(super) fn drop_range(&mut self, base: u64, size: u64) -> Result<(), BackendError> {
        self.call(MadeCall::to(CallName::AddressFree).of(size).at(base))?;
        self.segments.retain(|segment| segment.base != base);
        Ok(())
    }

    /// Adopts a segment that fits. Returns the addresses of its allocations.
    pub fn adopt(&mut self, adopted: &AdoptedSegment) -> Vec<u64> {
        let (pool, class, base) = (adopted.pool, adopted.class, adopted.address.get());
        let (mut blocks, mut end) = (Vec::new(), base);
        for block in &adopted.blocks {
            let (state, requested) = match block.content {
                AdoptedContent::Free => (State::Free, 0),
                AdoptedContent::Allocated(requested) => (State::Allocated, requested.get()),
                AdoptedContent::Unmapped => (State::Unmapped, 0),
            };
            let stamp = if state == State::Free { self.stamp(pool, class) } else { 0 };
            let rank = match blocks.last() {
                None => self.next_rank(),
                Some(Block { rank, .. }) => self.next_rank_beside(*rank),
            };
            blocks.push(Block { requested, stamp, ..Block::new(end, block.size.get(), state, rank) });
            end += block.size.get();
        }
        let page = adopted.page.map_or(0, |page| page.get());
        let number = self.ranges_made;
        self.ranges_made += u64::from(page > 0);
        let stream = adopted.stream.get();
        let segment = Segment { base, size: end - base, page, stream, pool, class, number, blocks };
        self.count_adopted(&segment, pool);
        let held = segment.blocks.iter().filter(|block| block.state == State::Allocated).map(|block| block.address).collect();
        self.segments.push(segment);
        held
    }

    fn count_adopted(&mut self, segment: &Segment, pool: PoolId) {
        let class = segment.class;
        self.count_reserved(pool, class, segment.mapped() as i64);
        if !segment.is_expandable() {
            self.accounts.change(Family::Segment, class, 1);
            if self.is_oversize(segment.size) {
                add(&mut self.accounts.oversize_segments, 1);
            }
        }
        for block in &segment.blocks {
            let size = block.size as i64;
            match block.state {
                State::Free if segment.blocks.len() > 1 && !segment.is_expandable() => {
                    self.accounts.change(Family::InactiveSplit, class, 1);
                    self.accounts.change(Family::InactiveSplitBytes, class, size);
                }
                State::Allocated => {
                    self.accounts.change(Family::Allocation, class, 1);
                    self.accounts.change(Family::AllocatedBytes, class, size);
                    self.accounts.change(Family::Active, class, 1);
                    self.accounts.change(Family::ActiveBytes, class, size);
                    self.accounts.change(Family::RequestedBytes, class, block.requested as i64);
                    if self.is_oversize(block.size) {
                        add(&mut self.accounts.oversize_allocations, 1);
                    }
                }
                _ => {}
            }
        }
    }
}
