//! Best fit: the smallest free block that is large enough; of equal ones the lowest address.
//!
//! Knuth, The Art of Computer Programming, volume 1, section 2.5. PyTorch's allocator and others choose by
//! this rule, within their segments, limits and size classes; here it stands alone.

use parkade::policy::Request;
use parkade::{BlockId, Heap};

use crate::growing_region::{Fit, GrowingRegion};

/// Best fit on one growing region per stream.
pub type BestFit = GrowingRegion<Best>;

/// Chooses the tightest block.
#[derive(Clone, Copy, Default, Debug)]
pub struct Best;

impl Fit for Best {
    fn name(&self) -> &'static str {
        "best-fit-remap"
    }

    #[inline]
    fn find(&mut self, heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.first_at_least(request.pool, request.stream, request.size).map(|block| block.id)
    }
}
