//! One growing region per stream: what policies have in common that differ only in which free block they take.
//!
//! These are inventions of this crate, not how anybody's first fit works: virtual memory lets free pages in the
//! middle of the region serve at its end. A region is an expandable segment: pages are mapped at the lowest place that is large enough, when no free
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
/// The smallest page of virtual memory, and the page unless another is chosen.
const SMALLEST_PAGE: Bytes = Bytes::mib(2);

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
}

/// A policy that takes free blocks by a rule, and new memory from a growing region.
#[derive(Clone, Copy, Debug)]
pub struct GrowingRegion<F> {
    fit: F,
    page: Bytes,
}

impl<F> GrowingRegion<F> {
    /// Pages of 2 MiB, the smallest.
    #[must_use]
    pub const fn new(fit: F) -> GrowingRegion<F> {
        GrowingRegion { fit, page: SMALLEST_PAGE }
    }

    /// Pages of other sizes: each is a handle of the driver's, mapped and released as a whole. A page of all
    /// the memory there is makes the region a fixed area, in which nothing can be remapped. `page` is rounded
    /// up to 2 MiB; a multiple that exceeds 64 bits to the largest that does not.
    #[must_use]
    pub fn with_page(self, page: Bytes) -> GrowingRegion<F> {
        let most = Bytes(Bytes::MAX.0 / SMALLEST_PAGE.0 * SMALLEST_PAGE.0);
        GrowingRegion { page: page.max(Bytes(1)).checked_round_up(SMALLEST_PAGE).unwrap_or(most), ..self }
    }
}

impl<F: Default> Default for GrowingRegion<F> {
    fn default() -> GrowingRegion<F> {
        GrowingRegion::new(F::default())
    }
}

impl<F: Fit> Policy for GrowingRegion<F> {
    fn name(&self) -> &'static str {
        self.fit.name()
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
        self.page
    }

    fn free_order(&self) -> FreeOrder {
        self.fit.free_order()
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match self.fit.find(heap, request) {
            Some(block) => Placement::Reuse(block),
            None => Placement::Segment(request.size.checked_round_up(self.page).unwrap_or(Bytes::MAX)),
        }
    }

    #[inline]
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        plain_ladder::plain(heap, rung, || self.fit.find(heap, request))
    }
}
