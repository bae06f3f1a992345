//! Next fit: first fit that begins where the last search ended and wraps around.
//!
//! Knuth, The Art of Computer Programming, volume 1, section 2.5, exercise 6: how to change algorithm A so
//! that short blocks do not gather in one area, with a pointer that roves through the list. Where exactly it
//! stops is this policy's choice: at the remainder of the block, whose low end was taken. If that remainder
//! has coalesced, the search begins with the coalesced block. The policy does not see where new memory is
//! mapped, so the pointer stays when a segment grows.

use alloc::collections::BTreeMap;

use parkade::policy::{FreeOrder, Request};
use parkade::units::{DeviceAddress, StreamId};
use parkade::{BlockId, Heap, PoolSlot};

use crate::growing_region::{Fit, GrowingRegion};

/// Next fit on one growing region per stream.
pub type NextFit = GrowingRegion<Next>;

/// Chooses the next address that is large enough.
#[derive(Clone, Default, Debug)]
pub struct Next {
    /// The end of the last block taken.
    rovers: BTreeMap<(PoolSlot, StreamId), DeviceAddress>,
}

impl Fit for Next {
    fn name(&self) -> &'static str {
        "next-fit-remap"
    }

    fn free_order(&self) -> FreeOrder {
        FreeOrder::ByAddress
    }

    fn find(&mut self, heap: &Heap, request: &Request) -> Option<BlockId> {
        let rover = self.rovers.entry((request.pool, request.stream)).or_insert(DeviceAddress(0));
        let search = |from| heap.lowest_at_least(request.pool, request.stream, request.size, from);
        let block = search(*rover).or_else(|| search(DeviceAddress(0)))?;
        *rover = block.address.offset(request.size);
        Some(block.id)
    }
}
