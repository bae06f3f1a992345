//! Next fit: first fit that begins where the last search ended, and comes round to the lowest address.
//!
//! Knuth, The Art of Computer Programming, volume 1, section 2.5, exercise 6: how to change algorithm A so that short blocks do not gather in one
//! area; a pointer that roves through the list. Behind which of two neighbours it stops is this policy's choice: at what was left of the
//! block, for its low end is taken. A block into which that merged is the one where the search begins. Where new memory is mapped is not
//! seen from here, so the pointer stays when the region grows.

use alloc::collections::BTreeMap;

use crate::growing_region::{Fit, GrowingRegion};
use parkade::PoolSlot;
use parkade::policy::{FreeOrder, Request};
use parkade::units::{DeviceAddress, StreamId};
use parkade::{BlockId, Heap};

/// Next fit on one growing region for each stream.
pub type NextFit = GrowingRegion<Next>;

/// Chooses the next address that suffices.
#[derive(Clone, Default, Debug)]
pub struct Next {
    /// Behind the last block that was taken.
    rovers: BTreeMap<(PoolSlot, StreamId), DeviceAddress>,
}

impl Fit for Next {
    fn name(&self) -> &'static str {
        "next-fit"
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
