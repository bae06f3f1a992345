//! Worst fit: the largest free block; of equal ones the lowest address.
//!
//! Wilson, Johnstone, Neely and Boles, Dynamic Storage Allocation: A Survey and Critical Review (IWMM 1995,
//! LNCS 986). The idea is that the remainder of the largest block is large enough to be useful. Textbooks
//! find it worse than first and best fit; here it marks the other end of the scale. A segment grows only when
//! its largest free block is too small.

use parkade::policy::Request;
use parkade::{BlockId, Heap};

use crate::growing_region::{Fit, GrowingRegion};

/// Worst fit on one growing region per stream.
pub type WorstFit = GrowingRegion<Worst>;

/// Chooses the largest block.
#[derive(Clone, Copy, Default, Debug)]
pub struct Worst;

impl Fit for Worst {
    fn name(&self) -> &'static str {
        "worst-fit-remap"
    }

    #[inline]
    fn find(&mut self, heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.largest(request.pool, request.stream).filter(|block| block.size >= request.size).map(|block| block.id)
    }
}
