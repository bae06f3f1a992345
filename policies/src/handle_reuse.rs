//! PyTorch with expandable segments, but a page that is unmapped to make room keeps its physical memory, which the
//! request then gets.
//!
//! pytorch/pytorch issue 166116 (open in November 2026) observes that the allocator releases a handle whenever it
//! unmaps a page (cuMemRelease) and creates another for the next mapping (cuMemCreate), and asks whether the next
//! mapping could not reuse it. No change of PyTorch's does so yet; these are the question's rules, made definite:
//! - everything is as in PyTorch 2.11 with `expandable_segments:True` until it would release its cache because the
//!   device has no room;
//! - then whole pages inside free blocks are unmapped and mapped for the request, only as many blocks as have enough:
//!   the smallest block that is enough alone, or else those with the most pages first; of equal ones the lowest
//!   address first;
//! - pages have one size in the small pool and another in the large one, and a handle cannot be cut, so the blocks are
//!   those of the request's collection, of any stream, in the default pool;
//! - pages of these blocks that are not needed go back to the device, and if that was not enough, so does the rest of
//!   the cache, as in PyTorch.
//!
//! Unmapping waits for the stream of the segment, here as there.

use alloc::vec::Vec;

use parkade::policy::{Attempt, Policy, PyTorch, Relief, Request, Wrapper};
use parkade::settings::Settings;
use parkade::{BlockId, BlockView, Heap, PoolSlot};

/// PyTorch's rules, and handles that are reused.
#[derive(Clone, Debug)]
pub struct HandleReuse {
    pytorch: PyTorch,
    /// Whether the current request's ladder has had the rung that PyTorch does not have.
    has_remapped: bool,
}

impl HandleReuse {
    /// PyTorch 2.11's default settings with expandable segments.
    #[must_use]
    pub fn new() -> HandleReuse {
        let settings = Settings { expandable_segments: true, ..Settings::default() };
        HandleReuse { pytorch: PyTorch::new(settings), has_remapped: false }
    }

    /// The free blocks whose pages the request gets; none if it cannot use pages.
    fn donors(&self, heap: &Heap, request: &Request) -> Vec<BlockId> {
        let pool = PoolSlot::default_pool(request.pool.class());
        if !request.is_expandable || request.pool != pool || heap.is_deferring() {
            return Vec::new();
        }
        let page = self.pytorch.page(pool).get();
        let wanted = request.size.get().div_ceil(page);
        let blocks = heap.free_blocks(pool).filter(|block| block.is_expandable);
        let mut donors: Vec<(u64, BlockView)> =
            blocks.map(|block| (whole_pages(heap, &block, page), block)).filter(|&(pages, _)| pages > 0).collect();
        donors.sort_unstable_by_key(|(pages, block)| (core::cmp::Reverse(*pages), block.address));
        let enough_alone =
            donors.iter().filter(|(pages, _)| *pages >= wanted).min_by_key(|(pages, block)| (*pages, block.address));
        if let Some((_, block)) = enough_alone {
            return alloc::vec![block.id];
        }
        let mut missing = wanted;
        let taken = donors.iter().take_while(|(pages, _)| {
            let is_needed = missing > 0;
            missing = missing.saturating_sub(*pages);
            is_needed
        });
        taken.map(|(_, block)| block.id).collect()
    }
}

/// How many pages lie entirely in a free block of an expandable segment.
fn whole_pages(heap: &Heap, block: &BlockView, page: u64) -> u64 {
    let Some(start) = heap.segment_start(block.id) else { return 0 };
    let offset = block.address.get() - start.get();
    let (first, end) = (offset.div_ceil(page), (offset + block.size.get()) / page);
    end.saturating_sub(first)
}

impl Default for HandleReuse {
    fn default() -> HandleReuse {
        HandleReuse::new()
    }
}

impl Wrapper for HandleReuse {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.pytorch
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.pytorch
    }

    fn name(&self) -> &'static str {
        "pytorch-expandable-reuse"
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if rung == 0 {
            self.has_remapped = false;
        }
        let relief = self.pytorch.relieve(heap, request, rung - u32::from(self.has_remapped));
        let gives_all_back = matches!(relief, Relief::Release { attempt: Attempt::AskAgain, .. });
        if gives_all_back && !self.has_remapped {
            let blocks = self.donors(heap, request);
            if !blocks.is_empty() {
                self.has_remapped = true;
                return Relief::Remap { blocks };
            }
        }
        relief
    }
}
