//! The rules of best, first, next and worst fit on a growing region, from `docs/policies.md` and the works that it cites.

use std::collections::BTreeMap;

use parkade::policy::{Placement, Policy, Request};
use parkade::units::{Bytes, MIB, PoolClass, StreamId};
use parkade::{BlockView, Heap, PoolSlot};
use parkade_policies::Fit;

use super::lists::sufficient;

/// The rules of one fit, with handles of `page` bytes.
#[derive(Debug)]
pub(crate) struct GrowingRegion {
    fit: Fit,
    page: u64,
    /// The end of the block that next fit took last.
    ends: BTreeMap<(PoolSlot, StreamId), u64>,
}

impl GrowingRegion {
    /// Creates the rules of one fit. The size of handles is rounded up to a multiple of 2 MiB.
    pub(crate) fn new(fit: Fit, page: u64) -> GrowingRegion {
        let whole = page.div_ceil(2 * MIB).max(1);
        // The result must fit into 64 bits.
        let whole = whole.min(u64::MAX / (2 * MIB));
        GrowingRegion { fit, page: whole * 2 * MIB, ends: BTreeMap::new() }
    }

    fn choose(&mut self, heap: &Heap, request: &Request) -> Option<BlockView> {
        let mut blocks = sufficient(heap, request, request.stream);
        blocks.sort_by_key(|block| block.address);
        match self.fit {
            Fit::First => blocks.first().copied(),
            Fit::Best => {
                let least = blocks.iter().map(|block| block.size).min()?;
                blocks.into_iter().find(|block| block.size == least)
            }
            Fit::Worst => {
                let most = blocks.iter().map(|block| block.size).max()?;
                blocks.into_iter().find(|block| block.size == most)
            }
            Fit::Next => {
                let end = self.ends.get(&(request.pool, request.stream)).copied().unwrap_or(0);
                let is_behind = |block: &&BlockView| block.address.get() + block.size.get() > end;
                let block = blocks.iter().find(is_behind).or(blocks.first()).copied()?;
                self.ends.insert((request.pool, request.stream), block.address.get() + request.size.get());
                Some(block)
            }
        }
    }
}

impl Policy for GrowingRegion {
    fn name(&self) -> &'static str {
        "best-fit-remap"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.get().div_ceil(512).checked_mul(512).map(Bytes)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let pages = request.size.get().div_ceil(self.page);
        let grown = Placement::Segment(pages.checked_mul(self.page).map_or(Bytes::MAX, Bytes));
        self.choose(heap, request).map_or(grown, |block| Placement::Reuse(block.id))
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn is_expandable(&self, _: PoolSlot) -> bool {
        true
    }

    fn page(&self, _: PoolSlot) -> Bytes {
        Bytes(self.page)
    }
}
