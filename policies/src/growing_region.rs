//! One growing region per stream: what policies have in common that differ only in which free block they take.
//!
//! A region is an expandable segment: pages are mapped at the lowest place that is large enough, when no free
//! block is. Blocks are multiples of 512 bytes, every remainder is split off, all free neighbours coalesce.
//! Whole free pages are released when the device is out of memory or the program empties the cache. So only
//! the choice of the block makes a difference between these policies.
//!
//! The textbooks have one region for everything. Here every stream and every private pool has its own,
//! because memory that changes streams must wait. The limit is checked against the whole request in pages,
//! although a free block at the end of the region may save some.

use parkade::policy::{FreeOrder, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, Heap, PoolSlot};

use crate::plain_ladder;

/// Sizes are multiples of this, so that addresses are aligned like cudaMalloc's.
const UNIT: Bytes = Bytes(512);
/// The smallest page of virtual memory.
const PAGE: Bytes = Bytes::mib(2);

/// A rule for choosing a free block.
pub trait Fit {
    /// The policy's name.
    fn name(&self) -> &'static str;

    /// See [`Policy::free_order`].
    fn free_order(&self) -> FreeOrder {
        FreeOrder::BySize
    }

    /// The free block that serves the request.
    fn find(&mut self, heap: &Heap, request: &Request) -> Option<BlockId>;

    /// As [`Fit::find`], once the device is out of memory.
    fn find_at_last(&mut self, heap: &Heap, request: &Request) -> Option<BlockId> {
        self.find(heap, request)
    }

    /// See [`Policy::stamp`].
    fn stamp(&self) -> u64 {
        0
    }
}

/// A policy that takes free blocks by a rule, and new memory from a growing region.
#[derive(Clone, Copy, Default, Debug)]
pub struct GrowingRegion<F>(pub F);

impl<F: Fit> Policy for GrowingRegion<F> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(UNIT)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn is_expandable(&self, _: PoolSlot) -> bool {
        true
    }

    fn page(&self, _: PoolSlot) -> Bytes {
        PAGE
    }

    fn free_order(&self) -> FreeOrder {
        self.0.free_order()
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match self.0.find(heap, request) {
            Some(block) => Placement::Reuse(block),
            None => Placement::Segment(request.size.checked_round_up(PAGE).unwrap_or(Bytes::MAX)),
        }
    }

    #[inline]
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        plain_ladder::plain(heap, rung, || self.0.find_at_last(heap, request))
    }

    #[inline]
    fn stamp(&self, _: PoolSlot) -> u64 {
        self.0.stamp()
    }
}
