//! Taking over a heap that already exists, segment by segment: how a recording that lost its beginning is continued.

use alloc::vec::Vec;
use core::fmt;

use super::{Allocation, Allocator};
use crate::block::BlockState;
use crate::device::DeviceBackend;
use crate::heap::PoolSlot;
use crate::policy::Policy;
use crate::stats::Family;
use crate::trace::Observer;
use crate::units::{Bytes, DeviceAddress, PoolClass, StreamId};

/// A segment that the device has already given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdoptedSegment {
    /// Its first byte.
    pub address: DeviceAddress,
    /// The stream that it was made for.
    pub stream: StreamId,
    /// The collection of the default pool that it belongs to.
    pub class: PoolClass,
    /// Its blocks, by address, without gaps. Two free blocks are never neighbours.
    pub blocks: Vec<AdoptedBlock>,
}

/// A block of an adopted segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdoptedBlock {
    /// Its size.
    pub size: Bytes,
    /// What was asked for, if it is handed out; `None` if it is free.
    pub requested: Option<Bytes>,
}

/// Why a segment cannot be adopted. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdoptError {
    /// It has no blocks, or one of no bytes.
    Empty,
    /// Its blocks reach beyond 64 bits.
    TooLarge,
    /// Two free blocks are neighbours.
    NotCoalesced,
    /// More than 65,535 streams.
    TooManyStreams,
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AdoptError::Empty => "the segment has no block, or one of 0 bytes",
            AdoptError::TooLarge => "the segment reaches beyond 64 bits",
            AdoptError::NotCoalesced => "two neighbouring blocks of the segment are both free",
            AdoptError::TooManyStreams => "more than 65535 streams",
        })
    }
}

impl core::error::Error for AdoptError {}

impl AdoptedSegment {
    fn check(&self) -> Result<Bytes, AdoptError> {
        if self.blocks.is_empty() || self.blocks.iter().any(|block| block.size == Bytes::ZERO) {
            return Err(AdoptError::Empty);
        }
        if self.blocks.windows(2).any(|pair| pair[0].requested.is_none() && pair[1].requested.is_none()) {
            return Err(AdoptError::NotCoalesced);
        }
        let total =
            self.blocks.iter().try_fold(Bytes::ZERO, |sum, block| sum.checked_add(block.size)).ok_or(AdoptError::TooLarge)?;
        self.address.0.checked_add(total.0).ok_or(AdoptError::TooLarge)?;
        Ok(total)
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Takes over a segment that the device has already given and that overlaps none of the allocator's. Returns the allocations
    /// that are out in it, by address. The statistics count it as if it had been made here, except for the driver calls; the
    /// observer is told nothing.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub fn adopt(&mut self, segment: &AdoptedSegment) -> Result<Vec<Allocation>, AdoptError> {
        let total = segment.check()?;
        let stream = self.heap.stream_slot(segment.stream).map_err(|_| AdoptError::TooManyStreams)?;
        let pool = PoolSlot::default_pool(segment.class);
        self.stats.increase(Family::Segment, segment.class, 1);
        self.stats.increase(Family::ReservedBytes, segment.class, total.0 as i64);
        if self.policy.is_oversize(total) {
            self.stats.oversize_segments.increase(1);
        }
        let first = self.heap.add_segment(segment.address, total, stream, pool);
        self.heap.arena.at_mut(first).size = segment.blocks[0].size.0;
        let mut places = alloc::vec![first];
        for block in &segment.blocks[1..] {
            let last = places[places.len() - 1];
            places.push(self.heap.append(last, block.size.0));
        }
        let adopted = places.iter().zip(&segment.blocks);
        Ok(adopted.filter_map(|(&index, block)| self.adopt_block(index, block, pool)).collect())
    }

    fn adopt_block(&mut self, index: u32, adopted: &AdoptedBlock, pool: PoolSlot) -> Option<Allocation> {
        let class = pool.class();
        let (size, is_split) = (adopted.size.0 as i64, self.heap.arena.at(index).is_split());
        let Some(requested) = adopted.requested else {
            self.heap.attach(index, self.policy.stamp(pool));
            if is_split {
                self.stats.increase(Family::InactiveSplit, class, 1);
                self.stats.increase(Family::InactiveSplitBytes, class, size);
            }
            return None;
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
        Some(Allocation { address, id: self.heap.arena.id(index) })
    }
}
