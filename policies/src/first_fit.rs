//! First fit: the lowest address among the free blocks that are large enough.
//!
//! Knuth, The Art of Computer Programming, volume 1, section 2.5, algorithm A, with the list of free blocks
//! in address order, as his algorithm B needs it. Wilson, Johnstone, Neely and Boles, Dynamic Storage
//! Allocation: A Survey and Critical Review (IWMM 1995, LNCS 986), compare it with other rules.
//!
//! Different here: algorithm A allocates the high end of the block that it finds; here it is the low end, as
//! everywhere in this allocator.

use parkade::policy::{FreeOrder, Request};
use parkade::units::DeviceAddress;
use parkade::{BlockId, Heap};

use crate::growing_region::{Fit, GrowingRegion};

/// First fit on one growing region per stream.
pub type FirstFit = GrowingRegion<First>;

/// Chooses the lowest address.
#[derive(Clone, Copy, Default, Debug)]
pub struct First;

impl Fit for First {
    fn name(&self) -> &'static str {
        "first-fit-remap"
    }

    fn free_order(&self) -> FreeOrder {
        FreeOrder::ByAddress
    }

    #[inline]
    fn find(&mut self, heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.lowest_at_least(request.pool, request.stream, request.size, DeviceAddress(0)).map(|block| block.id)
    }
}
