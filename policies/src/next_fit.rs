//! Next fit: first fit that starts where the last search ended, and wraps around to the lowest address.
//!
//! Knuth, The Art of Computer Programming, volume 1, section 2.5, exercise 6: how to change algorithm A so that short blocks do
//! not accumulate in one area, with a pointer that roves through the list. Where exactly it stops is this policy's choice: at the
//! remainder of the block, because the block's low end is taken. If the remainder has merged into a block, the search starts at
//! that block. The policy does not see where new memory is mapped, so the pointer stays when the region grows.

use alloc::collections::BTreeMap;

use crate::growing_region::{Fit, GrowingRegion};
use parkade::PoolSlot;
use parkade::policy::{FreeOrder, Request};
use parkade::units::{DeviceAddress, StreamId};
use parkade::{BlockId, Heap};

/// Next fit on one growing region for each stream.
pub type NextFit = GrowingRegion<Next>;

/// Chooses the next address with enough room.
#[derive(Clone, Default, Debug)]
pub struct Next {
    /// The end of the last block taken, by pool and stream.
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
