//! GMLake: pages of several free blocks are stitched together for a request that none of them can serve.
//!
//! Guo and others, GMLake: Efficient and Transparent GPU Memory Defragmentation for Large-scale DNN Training
//! with Virtual Memory Stitching (ASPLOS 2024, arXiv 2401.08156), and the code of
//! intelligent-machine-learning/glake, GMLake/src/CUDACachingAllocator.cpp at commit 0274a9c:
//! - requests of up to 1 MiB use PyTorch's small pool: segments of 2 MiB, blocks of 512 bytes;
//! - larger ones are multiples of 2 MiB, each a physical page of its own; they get the tightest block of the
//!   stream that is large enough, and every remainder is split off;
//! - if there is none and the request has at least 512 MiB (`fragment_limit`), the largest blocks of the
//!   stream are stitched together until they are large enough; smaller requests take new memory;
//! - then new memory; when there is none, stitching is tried again once the cache is released.
//!
//! Different here: the original maps the pages a second time and keeps both views. A stitched block can then
//! be used again without driver calls, and takes addresses for each view until a collection drops the oldest.
//! Here a page has one address: the blocks lose their pages, which are mapped together at new addresses, so
//! stitching the same blocks again costs the calls again, and a wait for the stream each time. Unused pages
//! of the last block are released; the original keeps them as a block. Since every block's pages can be
//! released and mapped elsewhere, it needs less memory than the original: 1.033 times the load instead of
//! 1.098, and 1.090 instead of 1.266 on a random script (`conformance/other_allocators`).

use alloc::vec::Vec;

use parkade::policy::{Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, Heap, PoolSlot};

use crate::plain_ladder;

/// Small sizes are multiples of this.
const UNIT: Bytes = Bytes(512);
/// The largest small size.
const MOST_SMALL: Bytes = Bytes::mib(1);
/// A page, and a small segment.
const PAGE: Bytes = Bytes::mib(2);
/// The smallest request for which blocks are stitched.
const FRAGMENT_LIMIT: Bytes = Bytes::mib(512);

/// The rules of GMLake.
#[derive(Clone, Copy, Default, Debug)]
pub struct GmLake {
    /// Whether the first rung for this request is to stitch.
    stitches: bool,
}

impl GmLake {
    fn find(heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.first_at_least(request.pool, request.stream, request.size).map(|block| block.id)
    }

    /// The stream's largest blocks, as many as are large enough together; `None` if all of them are not.
    fn stitched(heap: &Heap, request: &Request) -> Option<Vec<BlockId>> {
        if !request.is_expandable || request.size < FRAGMENT_LIMIT {
            return None;
        }
        let (mut blocks, mut bytes) = (Vec::new(), Bytes::ZERO);
        for block in heap.below(request.pool, request.stream, Bytes::MAX).filter(|block| block.is_expandable) {
            blocks.push(block.id);
            bytes += block.size;
            if bytes >= request.size {
                return Some(blocks);
            }
        }
        None
    }
}

impl Policy for GmLake {
    fn name(&self) -> &'static str {
        "gmlake-like"
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(if requested <= MOST_SMALL { UNIT } else { PAGE })
    }

    #[inline]
    fn classify(&self, size: Bytes) -> PoolClass {
        if size <= MOST_SMALL { PoolClass::Small } else { PoolClass::Large }
    }

    #[inline]
    fn is_expandable(&self, pool: PoolSlot) -> bool {
        pool.class() == PoolClass::Large
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match GmLake::find(heap, request) {
            Some(block) => Placement::Reuse(block),
            None => Placement::Segment(request.size.max(PAGE)),
        }
    }

    #[inline]
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if rung == 0 {
            let blocks = GmLake::stitched(heap, request);
            self.stitches = blocks.is_some();
            if let Some(blocks) = blocks {
                return Relief::Remap { blocks };
            }
        }
        plain_ladder::plain(heap, rung - u32::from(self.stitches), || GmLake::find(heap, request))
    }
}
