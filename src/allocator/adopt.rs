//! Adopting segments that already exist, so that a replay can start in the middle of a program.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use super::allocation::PackedId;
use super::{Allocation, Allocator};
use crate::block::{BlockState, Marks};
use crate::device::DeviceBackend;
use crate::heap::PoolSlot;
use crate::policy::Policy;
use crate::reservation::Run;
use crate::stats::Family;
use crate::trace::Observer;
use crate::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};

/// A segment that the device has already handed out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdoptedSegment {
    /// The segment's first byte.
    pub address: DeviceAddress,
    /// The stream for which the segment was created.
    pub stream: StreamId,
    /// The pool that the segment belongs to: the default pool, or a private pool that exists.
    pub pool: PoolId,
    /// The collection of that pool: small or large.
    pub class: PoolClass,
    /// The page size of an expandable segment, whose blocks cover the entire reserved range; `None` for any other
    /// segment.
    pub page: Option<Bytes>,
    /// The segment's blocks, by address, without gaps. Two free blocks must not be adjacent, nor two unmapped blocks.
    pub blocks: Vec<AdoptedBlock>,
}

/// A block of an adopted segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdoptedBlock {
    /// The block's size.
    pub size: Bytes,
    /// The block's state.
    pub content: AdoptedContent,
}

/// The state of an adopted block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdoptedContent {
    /// Cached.
    Free,
    /// Handed out, for a request of this many bytes.
    Allocated(Bytes),
    /// Addresses of an expandable segment that have no memory, in whole pages.
    Unmapped,
}

/// The reason why a segment cannot be adopted. The allocator is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdoptError {
    /// The segment has no blocks, or one of them has 0 bytes.
    Empty,
    /// The segment's blocks reach beyond 64-bit addresses.
    TooLarge,
    /// Two free blocks or two unmapped blocks are adjacent.
    NotCoalesced,
    /// Mapped memory begins or ends inside a page, or a segment that is not expandable has unmapped blocks.
    NotWholePages,
    /// The segment's pool does not exist.
    UnknownPool,
    /// There are more than 65,535 streams.
    TooManyStreams,
    /// The segment overlaps one of the allocator's segments, or its address is not a multiple of 512.
    Misplaced,
    /// With this segment, the allocator would hold more bytes than its statistics can count (2^63 - 1).
    TooMuch,
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AdoptError::Empty => "the segment has no block, or a block of 0 bytes",
            AdoptError::TooLarge => "the segment extends beyond the 64-bit address space",
            AdoptError::NotCoalesced => "two neighbouring blocks of the segment are both free or both unmapped",
            AdoptError::NotWholePages => "memory of the segment begins or ends inside a page",
            AdoptError::UnknownPool => "the segment's pool has not been created",
            AdoptError::TooManyStreams => "more than 65535 streams",
            AdoptError::Misplaced => "the segment overlaps another segment, or its address is not a multiple of 512",
            AdoptError::TooMuch => "the segment would bring the total above 2^63 - 1 bytes",
        })
    }
}

impl core::error::Error for AdoptError {}

impl AdoptedSegment {
    fn check(&self) -> Result<Bytes, AdoptError> {
        if self.blocks.is_empty() || self.blocks.iter().any(|block| block.size == Bytes::ZERO) {
            return Err(AdoptError::Empty);
        }
        let is_mergeable = |block: &AdoptedBlock| !matches!(block.content, AdoptedContent::Allocated(_));
        if self.blocks.windows(2).any(|pair| pair[0].content == pair[1].content && is_mergeable(&pair[0])) {
            return Err(AdoptError::NotCoalesced);
        }
        let total =
            self.blocks.iter().try_fold(Bytes::ZERO, |sum, block| sum.checked_add(block.size)).ok_or(AdoptError::TooLarge)?;
        self.address.0.checked_add(total.0).ok_or(AdoptError::TooLarge)?;
        let page = self.page.map_or(0, Bytes::get);
        if self.page.is_some() && (page == 0 || !total.0.is_multiple_of(page)) {
            return Err(AdoptError::NotWholePages);
        }
        let mut offset = 0;
        for block in &self.blocks {
            let end = offset + block.size.0;
            let is_whole = page != 0 && offset.is_multiple_of(page) && end.is_multiple_of(page);
            if block.content == AdoptedContent::Unmapped && !is_whole {
                return Err(AdoptError::NotWholePages);
            }
            offset = end;
        }
        Ok(total)
    }

    /// The mapped pages, as non-empty runs that are not adjacent to each other.
    fn mapped_runs(&self) -> Vec<Range<u64>> {
        let Some(page) = self.page.map(Bytes::get) else { return Vec::new() };
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut offset = 0;
        for block in &self.blocks {
            let end = offset + block.size.0;
            if block.content != AdoptedContent::Unmapped {
                let (first, behind) = (offset / page, end.div_ceil(page));
                match runs.last_mut() {
                    // A page may hold the end of one block and the beginning of the next.
                    Some(last) if first <= last.end => last.end = behind,
                    _ => runs.push(first..behind),
                }
            }
            offset = end;
        }
        runs
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Takes over a segment that overlaps none of the allocator's own. Returns its allocations, by address. The
    /// statistics count the segment as if this allocator had requested it, but driver calls are not counted and the
    /// observer receives no entries.
    ///
    /// `memory` provides the memory behind the mapped pages of an expandable segment. Its arguments are the address of
    /// the first page that still needs memory and the number of consecutive pages there that need it. Like
    /// [`DeviceBackend::create_run`], it returns memory and the number of pages that this memory backs.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub fn adopt(
        &mut self,
        segment: &AdoptedSegment,
        memory: &mut dyn FnMut(DeviceAddress, u64) -> (D::Physical, u64),
    ) -> Result<Vec<Allocation>, AdoptError> {
        let total = segment.check()?;
        let stream = self.heap.stream_slot(segment.stream).map_err(|_| AdoptError::TooManyStreams)?;
        let pool_number = self.heap.private_pools().number_of(segment.pool).ok_or(AdoptError::UnknownPool)?;
        let pool = PoolSlot::of_pool(pool_number, segment.class);
        if self.heap.reserved().checked_add(total).is_none_or(|reserved| reserved.0 > i64::MAX as u64) {
            return Err(AdoptError::TooMuch);
        }
        self.note_taken("adopt", segment.address, total).map_err(|_| AdoptError::Misplaced)?;
        match segment.page {
            Some(page) => self.adopt_pages(segment, pool, (total, page), memory),
            None => self.adopt_whole(pool, total),
        }
        let marks = if segment.page.is_some() { Marks::EXPANDABLE } else { Marks::default() };
        let first = self.heap.add_segment(segment.address, total, stream, pool);
        self.heap.arena.at_mut(first).marks = marks;
        self.heap.arena.at_mut(first).size = segment.blocks[0].size.0;
        let mut places = alloc::vec![first];
        for block in &segment.blocks[1..] {
            let last = places[places.len() - 1];
            places.push(self.heap.append(last, block.size.0));
        }
        let adopted = places.iter().zip(&segment.blocks);
        let allocations: Vec<Allocation> = adopted.filter_map(|(&index, block)| self.adopt_block(index, block, pool)).collect();
        allocations.iter().for_each(|allocation| self.note_allocated(allocation));
        Ok(allocations)
    }

    fn adopt_whole(&mut self, pool: PoolSlot, total: Bytes) {
        self.stats.increase(Family::Segment, pool.class(), 1);
        self.count_reserved(pool, total.0 as i64);
        if self.policy.is_oversize(total) {
            self.stats.oversize_segments.increase(1);
        }
    }

    fn adopt_pages(
        &mut self,
        segment: &AdoptedSegment,
        pool: PoolSlot,
        (total, page): (Bytes, Bytes),
        memory: &mut dyn FnMut(DeviceAddress, u64) -> (D::Physical, u64),
    ) {
        let base = segment.address.0;
        self.reservations.insert(base, total.0, page.0, (pool.0, segment.stream));
        let runs = segment.mapped_runs();
        self.count_reserved(pool, (runs.iter().map(|run| run.end - run.start).sum::<u64>() * page.0) as i64);
        let Some((_, range)) = self.reservations.holding(base) else { return };
        for run in runs {
            let mut place = run.start;
            while place < run.end {
                let (memory, pages) = memory(DeviceAddress(base + place * page.0), run.end - place);
                let pages = pages.clamp(1, run.end - place);
                range.put(place, Run { pages, memory, is_handle: false });
                place += pages;
            }
        }
    }

    fn adopt_block(&mut self, index: u32, adopted: &AdoptedBlock, pool: PoolSlot) -> Option<Allocation> {
        let class = pool.class();
        let (size, is_split) = (adopted.size.0 as i64, self.heap.arena.at(index).is_split());
        let requested = match adopted.content {
            AdoptedContent::Allocated(requested) => requested,
            AdoptedContent::Unmapped => {
                self.heap.make_unmapped(index);
                return None;
            }
            AdoptedContent::Free => {
                self.heap.attach(index, self.policy.stamp(pool));
                if is_split && !self.heap.arena.at(index).is_expandable() {
                    self.stats.increase(Family::InactiveSplit, class, 1);
                    self.stats.increase(Family::InactiveSplitBytes, class, size);
                }
                return None;
            }
        };
        let block = self.heap.arena.at_mut(index);
        block.state = BlockState::Allocated;
        block.requested = requested.0;
        let address = DeviceAddress(block.address);
        self.stats.increase(Family::Allocation, class, 1);
        self.stats.increase(Family::AllocatedBytes, class, size);
        self.stats.increase(Family::Active, class, 1);
        self.stats.increase(Family::ActiveBytes, class, size);
        self.stats.increase(Family::RequestedBytes, class, requested.0 as i64);
        if self.policy.is_oversize(adopted.size) {
            self.stats.oversize_allocations.increase(1);
        }
        Some(Allocation::new(address, PackedId::of(self.heap.arena.id(index)), self.identity.own()))
    }
}
