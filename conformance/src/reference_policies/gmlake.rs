//! The rules of `gmlake-like`, from glake's CUDACachingAllocator.cpp, with the differences that the first paragraphs of
//! `policies/src/gmlake.rs` list.

use parkade::policy::{Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, MIB, PoolClass};
use parkade::{BlockId, BlockView, Heap, PoolSlot};

use super::lists::tightest;

/// The rules, with the size of the segment that the current request would get.
#[derive(Debug)]
pub(crate) struct GmLake {
    /// The smallest request for which blocks are stitched.
    smallest: u64,
    segment: u64,
    /// Whether the previous step stitched blocks.
    stitched: bool,
}

/// Returns the size of a new segment for a block.
fn segment_for(size: u64) -> u64 {
    if size <= MIB {
        2 * MIB
    } else if size < 10 * MIB {
        20 * MIB
    } else {
        size
    }
}

/// Returns the fewest of the stream's largest blocks that are large enough together, at least two, and their size.
fn to_stitch(heap: &Heap, request: &Request, smallest: u64) -> Option<(Vec<BlockId>, u64)> {
    if !request.is_expandable || request.size.get() < smallest {
        return None;
    }
    let is_own = |block: &BlockView| block.stream == request.stream && block.is_expandable;
    // The heap lists the smallest block first.
    let mut blocks: Vec<BlockView> = heap.free_blocks(request.pool).filter(is_own).collect();
    blocks.reverse();
    let mut bytes = 0;
    for count in 1..=blocks.len() {
        bytes += blocks[count - 1].size.get();
        if bytes >= request.size.get() {
            return (count >= 2).then(|| (blocks[..count].iter().map(|block| block.id).collect(), bytes));
        }
    }
    None
}

impl GmLake {
    pub(crate) fn new(smallest: u64) -> GmLake {
        GmLake { smallest, segment: 0, stitched: false }
    }
}

impl Policy for GmLake {
    fn name(&self) -> &'static str {
        "gmlake-like"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        let unit = if requested.get() > MIB { 2 * MIB } else { 512 };
        requested.get().div_ceil(unit).checked_mul(unit).map(Bytes)
    }

    fn classify(&self, size: Bytes) -> PoolClass {
        if size.get() > MIB { PoolClass::Large } else { PoolClass::Small }
    }

    fn is_expandable(&self, pool: PoolSlot) -> bool {
        pool.class() == PoolClass::Large
    }

    fn reservation(&self, _: Bytes) -> Bytes {
        Bytes(self.segment)
    }

    fn growth(&self, _: &Request) -> Bytes {
        Bytes(self.segment)
    }

    fn has_own_segments(&self) -> bool {
        true
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        if let Some(block) = tightest(heap, request) {
            return Placement::Reuse(block.id);
        }
        self.segment = segment_for(request.size.get());
        Placement::Segment(Bytes(self.segment))
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn ladder(&self) -> &'static [Rung] {
        &[
            Rung::Own,
            Rung::Grow,
            Rung::Own,
            Rung::BorrowFromPools,
            Rung::WaitForEvents,
            Rung::ReuseFreed,
            Rung::ReleaseAll,
            Rung::GrowAgain,
            Rung::Own,
        ]
    }

    /// On each of its three rungs, the policy stitches at most once.
    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        let may_stitch = turn == 0 || !self.stitched;
        self.stitched = false;
        let found = if may_stitch { to_stitch(heap, request, self.smallest) } else { None };
        match found {
            Some((blocks, bytes)) => {
                self.stitched = true;
                self.segment = bytes;
                Relief::Remap { blocks }
            }
            None => {
                self.segment = segment_for(request.size.get());
                Relief::Done
            }
        }
    }

    /// Releases only segments in which no block is in use.
    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        let mut blocks = heap.releasable();
        blocks.retain(|&block| heap.is_idle(block));
        blocks
    }
}
