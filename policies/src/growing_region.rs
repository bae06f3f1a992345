//! One growing region per stream: the common part of policies that differ only in which free block they take.
//!
//! A region is an expandable segment: when no free block fits, it maps memory page by page at the lowest address with enough
//! room. Blocks are multiples of 512 bytes, every remainder is split off, and all free neighbours merge. Whole free pages go back
//! to the device when it is out of memory, or when the program empties the cache. So only the choice of the block differs between
//! these policies.
//!
//! The textbooks have one region for everything; here every stream and every private pool has its own, because memory that
//! changes streams must wait. The limit is checked against the whole request in pages, although a free block at the region's end
//! may save some of them.

use crate::ladder;
use parkade::BlockId;
use parkade::policy::{FreeOrder, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade::{Heap, PoolSlot};

/// Every block is a multiple of this, so that addresses are aligned like cudaMalloc's.
const UNIT: Bytes = Bytes(512);
/// The smallest page of virtual memory.
const PAGE: Bytes = Bytes::mib(2);

/// A rule that chooses a free block.
pub trait Fit {
    /// The policy's name.
    fn name(&self) -> &'static str;

    /// See [`Policy::free_order`].
    fn free_order(&self) -> FreeOrder {
        FreeOrder::BySize
    }

    /// The free block that serves the request.
    fn find(&mut self, heap: &Heap, request: &Request) -> Option<BlockId>;

    /// Like [`Fit::find`], once the device is out of memory.
    fn find_at_last(&mut self, heap: &Heap, request: &Request) -> Option<BlockId> {
        self.find(heap, request)
    }

    /// See [`Policy::stamp`].
    fn stamp(&self) -> u64 {
        0
    }
}

/// A policy that takes free blocks by a rule, and otherwise grows the region.
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
        ladder::plain(heap, rung, || self.0.find_at_last(heap, request))
    }

    #[inline]
    fn stamp(&self, _: PoolSlot) -> u64 {
        self.0.stamp()
    }
}
