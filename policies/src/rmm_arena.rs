//! The arenas of RAPIDS Memory Manager: each stream has its own small blocks, and a global arena has the large ones.
//!
//! From rapidsai/rmm, cpp/include/rmm/mr/detail/arena.hpp (commit 07b2ac6) and cpp/src/mr/detail/arena_memory_resource_impl.cpp
//! (08cef2a): sizes are multiples of 256 bytes. A request of up to 1 MiB takes the lowest fitting address in the superblocks of
//! its stream's arena; if there is none, the arena gets a superblock of 1 MiB from the global arena. A larger request takes the
//! lowest fitting address of the global arena itself. Every remainder is split off. When nothing is left, RMM waits for the
//! device, returns all superblocks of all arenas to the global arena, and tries the request once more.
//!
//! Different here: the original takes one area of fixed size at the start, half of the free memory by default; here the global
//! arena is a growing region, so that its needs are visible, and a superblock is a separate segment. Large blocks of one stream
//! serve another only after everything was waited for and given back; the original waits for the stream whenever a large block is
//! freed, and then offers it to all streams. A partly used superblock does not move between arenas here, and no stream gets a
//! superblock that is partly used by large blocks.

use crate::ladder;
use parkade::BlockId;
use parkade::policy::{FreeOrder, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, DeviceAddress, PoolClass};
use parkade::{Heap, PoolSlot};

/// The unit of sizes.
const UNIT: Bytes = Bytes(256);
/// The size of a superblock. The global arena serves larger requests.
const SUPERBLOCK: Bytes = Bytes::mib(1);
/// The smallest page of virtual memory.
const PAGE: Bytes = Bytes::mib(2);

/// The rules of RMM's arenas. Has no state.
#[derive(Clone, Copy, Default, Debug)]
pub struct RmmArena;

impl RmmArena {
    #[inline]
    fn find(heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.lowest_at_least(request.pool, request.stream, request.size, DeviceAddress(0)).map(|block| block.id)
    }
}

impl Policy for RmmArena {
    fn name(&self) -> &'static str {
        "rmm-arena"
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(UNIT)
    }

    #[inline]
    fn classify(&self, size: Bytes) -> PoolClass {
        if size <= SUPERBLOCK { PoolClass::Small } else { PoolClass::Large }
    }

    #[inline]
    fn is_expandable(&self, pool: PoolSlot) -> bool {
        pool.class() == PoolClass::Large
    }

    fn free_order(&self) -> FreeOrder {
        FreeOrder::ByAddress
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match (RmmArena::find(heap, request), request.pool.class()) {
            (Some(block), _) => Placement::Reuse(block),
            (None, PoolClass::Small) => Placement::Segment(SUPERBLOCK),
            (None, PoolClass::Large) => Placement::Segment(request.size.checked_round_up(PAGE).unwrap_or(Bytes::MAX)),
        }
    }

    #[inline]
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        ladder::plain(heap, rung, || RmmArena::find(heap, request))
    }
}
