//! Like GMLake: stitches together the pages of several free blocks for a request that none of them can serve alone.
//!
//! Guo and others, GMLake: Efficient and Transparent GPU Memory Defragmentation for Large-scale DNN Training with
//! Virtual Memory Stitching (ASPLOS 2024, arXiv 2401.08156), and the code of intelligent-machine-learning/glake,
//! GMLake/src/CUDACachingAllocator.cpp at commit 0274a9c:
//! - requests of up to 1 MiB use PyTorch's small pool: segments of 2 MiB, blocks of 512 bytes;
//! - larger requests are rounded to multiples of 2 MiB, each of which is a separate physical page. They get the
//!   tightest block of the stream that is large enough, and every remainder is split off;
//! - if there is none and the request has at least 512 MiB (`fragment_limit`), the largest blocks of the stream, two
//!   or more, are stitched together until they are large enough;
//! - then the request gets new memory: a segment of 20 MiB for requests below 10 MiB, and of the request's size for
//!   others, at separate addresses, so that blocks coalesce only within it;
//! - if there is none, the policy tries to stitch again, and then releases segments that are entirely free.
//!
//! As long as no request reaches 512 MiB, each decision equals the original's (compared on 23 November 2026:
//! `conformance/other_allocators/README.md`).
//!
//! Different here: the original maps the pages a second time and keeps both views, so that it can use the blocks both
//! one by one and stitched, and they coalesce with their old neighbours. Here a page has one address: the blocks lose
//! their pages, and the stitched block stays where it is, as a separate segment that also serves smaller requests.
//! Left-over pages of the last block become a free block behind the stitched block; in the original they stay where
//! they were. Stitching waits for the stream. After it has waited for events, this policy looks for a block once
//! more; the original does not.

use alloc::vec::Vec;

use parkade::policy::{Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, Heap, PoolSlot};

use crate::plain_ladder;

/// Small sizes are multiples of this.
const UNIT: Bytes = Bytes(512);
/// The largest size that counts as small.
const MOST_SMALL: Bytes = Bytes::mib(1);
/// A page, and a small segment.
const PAGE: Bytes = Bytes::mib(2);
/// The segment for large requests of less than half its size.
const LARGE_SEGMENT: Bytes = Bytes::mib(20);
/// The smallest request for which blocks are stitched.
const FRAGMENT_LIMIT: Bytes = Bytes::mib(512);

/// The rules of GMLake.
#[derive(Clone, Copy, Default, Debug)]
pub struct GmLake {
    /// The bytes of the segment that the current request would get.
    segment: Bytes,
    /// The next step of the ladder.
    step: u32,
}

impl GmLake {
    fn find(heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.first_at_least(request.pool, request.stream, request.size).map(|block| block.id)
    }

    /// Bytes of a new segment for a block of this size.
    fn new_segment(size: Bytes) -> Bytes {
        match size {
            _ if size <= MOST_SMALL => PAGE,
            _ if size < Bytes(LARGE_SEGMENT.0 / 2) => LARGE_SEGMENT,
            _ => size,
        }
    }

    /// The stream's largest blocks, as many as are large enough together, and their total size. `None` if all of them
    /// are not enough, or if a single one is.
    fn stitched(heap: &Heap, request: &Request) -> Option<(Vec<BlockId>, Bytes)> {
        if !request.is_expandable || request.size < FRAGMENT_LIMIT {
            return None;
        }
        let (mut blocks, mut bytes) = (Vec::new(), Bytes::ZERO);
        for block in heap.below(request.pool, request.stream, Bytes::MAX).filter(|block| block.is_expandable) {
            blocks.push(block.id);
            bytes += block.size;
            if bytes >= request.size {
                return (blocks.len() > 1).then_some((blocks, bytes));
            }
        }
        None
    }

    /// The free blocks of segments that are entirely free.
    fn idle(heap: &Heap) -> Vec<BlockId> {
        heap.releasable().into_iter().filter(|&block| heap.is_idle(block)).collect()
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

    fn reservation(&self, _: Bytes) -> Bytes {
        self.segment
    }

    fn growth(&self, _: &Request) -> Bytes {
        self.segment
    }

    fn has_own_segments(&self) -> bool {
        true
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match GmLake::find(heap, request) {
            Some(block) => Placement::Reuse(block),
            None => {
                self.segment = GmLake::new_segment(request.size);
                Placement::Segment(self.segment)
            }
        }
    }

    #[inline]
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if rung == 0 {
            self.step = 0;
        }
        loop {
            let step = self.step;
            self.step += 1;
            match step {
                // Before asking the device, after it has refused, and after the cache has been released.
                0 | 2 | 6 => {
                    if let Some((blocks, bytes)) = GmLake::stitched(heap, request) {
                        self.segment = bytes;
                        return Relief::Remap { blocks };
                    }
                }
                _ => {
                    self.segment = GmLake::new_segment(request.size);
                    let rung = match step {
                        1 => 0,
                        3..=5 => step - 2,
                        _ => return Relief::GiveUp,
                    };
                    return plain_ladder::releasing(heap, rung, || GmLake::find(heap, request), || GmLake::idle(heap));
                }
            }
        }
    }

    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        GmLake::idle(heap)
    }
}
