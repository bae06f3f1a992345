//! Best fit: the smallest free block that is large enough, of equal ones the lowest address.
//!
//! Knuth, The Art of Computer Programming, volume 1, section 2.5. This is the rule of PyTorch's allocator and others, without
//! their segments, limits and size classes.

use crate::growing_region::{Fit, GrowingRegion};
use parkade::policy::Request;
use parkade::{BlockId, Heap};

/// Best fit on one growing region for each stream.
pub type BestFit = GrowingRegion<Best>;

/// Chooses the smallest fitting block.
#[derive(Clone, Copy, Default, Debug)]
pub struct Best;

impl Fit for Best {
    fn name(&self) -> &'static str {
        "best-fit"
    }

    #[inline]
    fn find(&mut self, heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.first_at_least(request.pool, request.stream, request.size).map(|block| block.id)
    }
}
