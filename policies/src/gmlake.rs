//! A policy like GMLake, which stitches together the pages of several free blocks for a request that is too large for
//! each of them.
//!
//! Guo and others, GMLake: Efficient and Transparent GPU Memory Defragmentation for Large-scale DNN Training with
//! Virtual Memory Stitching (ASPLOS 2024, arXiv 2401.08156), and the code of intelligent-machine-learning/glake,
//! GMLake/src/CUDACachingAllocator.cpp at commit 0274a9c:
//! - requests of up to 1 MiB use PyTorch's small pool: 2 MiB segments, 512-byte blocks;
//! - larger requests are rounded up to multiples of 2 MiB, the size of a physical page. They get the tightest block of
//!   the stream that is large enough, and every remainder is split off;
//! - if there is none and the request has at least 512 MiB (`fragment_limit`), two or more of the stream's largest
//!   blocks are stitched together until they are large enough;
//! - if that fails, the request gets new memory: a 20 MiB segment for requests below 10 MiB, and a segment of the
//!   request's size for others. Each segment has separate addresses, so blocks coalesce only within it;
//! - if there is no new memory, the policy tries to stitch again, and then releases segments that are entirely free.
//!
//! As long as no request reaches 512 MiB, each decision equals the original's (compared on 23 November 2026:
//! `conformance/other_allocators/README.md`).
//!
//! There are some differences. The original maps the pages a second time and keeps both views, so it can use the
//! blocks both individually and stitched, and they still coalesce with their old neighbours. Here, a page has a single
//! address: the blocks lose their pages, and the stitched block remains as a separate segment, which also serves
//! smaller requests. The remaining pages of the last block become a free block after the stitched block; in the
//! original, they stay where they were. Here, stitching waits for the stream. After it has waited for events, this
//! policy looks for a block once more, but the original does not.

use alloc::boxed::Box;
use alloc::vec::Vec;

use parkade::policy::{Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, Heap, PoolSlot};

use crate::entry::Entry;
use crate::parameter::Parameter;

/// Small sizes are multiples of this.
const UNIT: Bytes = Bytes(512);
/// The largest size that counts as small.
const MOST_SMALL: Bytes = Bytes::mib(1);
/// The size of a page and of a small segment.
const PAGE: Bytes = Bytes::mib(2);
/// The size of the segment for large requests of less than half of it.
const LARGE_SEGMENT: Bytes = Bytes::mib(20);
/// The smallest request for which blocks are stitched, unless a parameter says more.
const FRAGMENT_LIMIT: Bytes = Bytes::mib(512);

pub(crate) const ENTRY: Entry = Entry::new(
    "gmlake-like",
    "similar to GMLake: maps the pages of several free blocks together to serve a large request",
    "GMLake, ASPLOS 2024; intelligent-machine-learning/glake",
    |values| Box::new(GmLake::new(values.bytes("fragment"))),
)
.with_parameters(&[Parameter::size(
    "fragment",
    "the smallest request for which blocks are stitched: GMLake's fragLimit",
    "512MiB",
    Bytes::mib(2),
    Bytes::mib(1 << 24),
)]);

/// The rules of GMLake.
#[derive(Clone, Copy, Debug)]
pub struct GmLake {
    /// The smallest request for which blocks are stitched.
    fragment_limit: Bytes,
    /// The size of the segment that the current request would get.
    segment: Bytes,
    /// Whether the last step stitched blocks.
    is_stitching: bool,
}

impl Default for GmLake {
    fn default() -> GmLake {
        GmLake::new(FRAGMENT_LIMIT)
    }
}

impl GmLake {
    /// The rules with this smallest request for which blocks are stitched.
    #[must_use]
    pub const fn new(fragment_limit: Bytes) -> GmLake {
        GmLake { fragment_limit, segment: Bytes::ZERO, is_stitching: false }
    }

    fn find(heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.first_at_least(request.pool, request.stream, request.size).map(|block| block.id)
    }

    /// The size of a new segment for a block of this size.
    fn new_segment(size: Bytes) -> Bytes {
        match size {
            _ if size <= MOST_SMALL => PAGE,
            _ if size < Bytes(LARGE_SEGMENT.0 / 2) => LARGE_SEGMENT,
            _ => size,
        }
    }

    /// The stream's largest blocks, as many as are needed for the request, and their total size. `None` if all of them
    /// together are too small, or if a single block is enough.
    fn stitched(&self, heap: &Heap, request: &Request) -> Option<(Vec<BlockId>, Bytes)> {
        if !request.is_expandable || request.size < self.fragment_limit {
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

    /// Blocks are stitched before the allocator asks the device, after the device has refused, and after the release of
    /// the cache.
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

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        let has_just_stitched = core::mem::take(&mut self.is_stitching) && turn > 0;
        if !has_just_stitched && let Some((blocks, bytes)) = self.stitched(heap, request) {
            (self.segment, self.is_stitching) = (bytes, true);
            return Relief::Remap { blocks };
        }
        self.segment = GmLake::new_segment(request.size);
        Relief::Done
    }

    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        GmLake::idle(heap)
    }
}
