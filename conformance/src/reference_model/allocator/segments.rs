//! Expandable segments: where they grow, and which pages are unmapped (spec section 4).

use parkade::AllocError;
use parkade::device::BackendError;
use parkade::trace::TraceAction;
use parkade::units::{Bytes, MIB, PoolClass};
use parkade_sim::CallName;

use super::Reference;
use super::blocks::{Block, Segment, State};
use super::request::Wanted;
use crate::backend::MadeCall;

impl Reference {
    /// Maps what is missing for a request. `None` if the device is out of memory (spec 4.4).
    pub(super) fn grow(&mut self, wanted: &Wanted) -> Result<Option<u64>, AllocError> {
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

    /// The lowest run of free and unmapped blocks that is long enough, from a hole or the free block before it (spec 4.2).
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
                // The range stays the allocator's.
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

    /// Maps the first `wanted` bytes of an unmapped block, in whole pages. False if the device is out of memory (spec 4.3, 4.5).
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

    /// Releases this many handles; those that fail are kept. Returns the first failure.
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

    /// Tries again what failed to be unmapped and released.
    pub(super) fn release_leftovers(&mut self) -> Result<(), BackendError> {
        let mut outcome = Ok(());
        for (address, bytes) in std::mem::take(&mut self.stuck) {
            outcome = outcome.and(self.clear(address, bytes));
        }
        let handles = std::mem::take(&mut self.unreleased);
        outcome.and(self.release_handles(handles))
    }

    /// Unmaps the whole pages in a free block, after waiting for the segment's stream (spec 4.6).
    pub(super) fn unmap_free(&mut self, address: u64) -> Result<(), AllocError> {
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

    /// Splits the unmapped part out of a free block. Without memory left the segment goes (spec 4.6, 4.7).
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

    /// Gives the addresses of a segment without memory back (spec 4.7).
    pub(super) fn drop_range(&mut self, base: u64, size: u64) -> Result<(), BackendError> {
        self.call(MadeCall::to(CallName::AddressFree).of(size).at(base))?;
        self.segments.retain(|segment| segment.base != base);
        Ok(())
    }
}
