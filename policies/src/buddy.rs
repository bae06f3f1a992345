//! The binary buddy system.
//!
//! Knowlton, A Fast Storage Allocator (CACM 8, October 1965), and Knuth, The Art of Computer Programming, volume 1, section 2.5,
//! algorithms R and S: sizes are powers of two; the smallest fitting free block is halved until it has the request's size,
//! keeping the low half each time; a block that becomes free merges with its buddy, the other half, as often as possible.
//!
//! Different here: the original splits one area whose size is a power of two. Here each segment is such an area, as large as the
//! request it was made for, at least 2 MiB; a larger one is halved for smaller requests later. The smallest block has 512 bytes.
//! Blocks of one stream do not serve another.

use crate::ladder;
use parkade::policy::{Coalescing, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade::{Heap, PoolSlot};

/// The smallest block, in bytes.
const SMALLEST_BLOCK: u64 = 512;
/// The smallest segment: a page of the device's memory.
const SMALLEST_SEGMENT: Bytes = Bytes::mib(2);

/// The binary buddy system. It has no state.
#[derive(Clone, Copy, Default, Debug)]
pub struct Buddy;

impl Policy for Buddy {
    fn name(&self) -> &'static str {
        "buddy"
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.0.max(SMALLEST_BLOCK).checked_next_power_of_two().map(Bytes)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size.max(SMALLEST_SEGMENT)),
        }
    }

    #[inline]
    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        whole.0.is_power_of_two() && whole.0 / 2 >= request.size.0
    }

    #[inline]
    fn cut(&self, whole: Bytes, _: &Request) -> Bytes {
        Bytes(whole.0 / 2)
    }

    fn coalescing(&self) -> Coalescing {
        Coalescing::Buddies
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        let find = || heap.first_at_least(request.pool, request.stream, request.size).map(|block| block.id);
        ladder::plain(heap, rung, find)
    }

    fn stamp(&self, _: PoolSlot) -> u64 {
        0
    }
}
