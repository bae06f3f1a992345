//! The pool of RAPIDS Memory Manager: a coalescing best fit per stream that takes blocks from other streams and gives nothing
//! back.
//!
//! From rapidsai/rmm, cpp/include/rmm/mr/detail/stream_ordered_memory_resource.hpp (commit 032b3a6), coalescing_free_list.hpp
//! (0059816) and cpp/src/mr/detail/pool_memory_resource_impl.cpp (06ddb24):
//! - sizes are multiples of 256 bytes; the smallest fitting block of the stream's own list serves, of equal ones the lowest
//!   address, and every remainder is split off;
//! - then the other streams are searched in turn: the first with a large enough block gives its smallest such block, and the
//!   requesting stream waits for that stream's event;
//! - then the pool grows: without a maximum by its own size or the request's, whichever is larger; with one, by half of what is
//!   left of it. If the device refuses, half as much is tried, down to what the request needs;
//! - with a maximum, when nothing is left of it, as many entirely free segments go back as the request needs.
//!
//! The pool starts with half of the device's memory, the default of RMM's Python package. The heap's limit is its maximum.
//!
//! Different here: the original keeps the remainder of a block taken from another stream in that stream's list, and before it
//! grows it moves the lists of all other streams into the requesting one's, where neighbours merge. Here the whole block changes
//! streams, after all work queued on its former stream so far and not only the work before its last free; and neighbours of
//! different streams merge only after a wait for all work, which happens before the pool reports out of memory. Streams are
//! ordered by their handles, not by their events' addresses. `empty_cache`, which RMM does not have, gives whole segments back.

use alloc::vec::Vec;

use parkade::BlockId;
use parkade::policy::{Attempt, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade::{Heap, PoolSlot};

/// The unit of sizes.
const UNIT: u64 = 256;

/// The rules of RMM's pool.
#[derive(Clone, Debug)]
pub struct RmmPool {
    step: Step,
}

/// Where on the ladder a request is.
#[derive(Clone, Debug)]
enum Step {
    Others,
    /// Grow; the flag says whether segments have been reclaimed already.
    Grow(bool),
    /// The device refused this many bytes.
    Refused(u64, bool),
    Borrow,
    Wait,
    Look,
    LookElsewhere,
    Reclaim,
    GiveUp,
}

impl RmmPool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> RmmPool {
        RmmPool { step: Step::GiveUp }
    }

    /// How many bytes to ask for first; `None` if the maximum leaves too few.
    fn growth(heap: &Heap, request: &Request) -> Option<u64> {
        let (size, held) = (request.size.0, heap.reserved_in(request.pool).0);
        let is_default = request.pool == PoolSlot::default_pool(PoolClass::Large);
        let initial = if is_default && held == 0 { heap.device_total().0 / 2 / UNIT * UNIT } else { 0 };
        match heap.limit() {
            None => Some(size.max(held).max(initial)),
            Some(limit) => {
                let left = limit.saturating_sub(heap.reserved()).0;
                (size <= left).then_some(size.max(left / 2 / UNIT * UNIT).max(initial.min(left / UNIT * UNIT)))
            }
        }
    }

    /// Whole segments of the request's pool, by address, until the maximum leaves what the request needs.
    fn reclaimed(heap: &Heap, request: &Request) -> Option<Vec<BlockId>> {
        let limit = heap.limit()?;
        let mut whole: Vec<_> = heap.free_blocks(request.pool).filter(|block| !block.is_split && !block.is_expandable).collect();
        whole.sort_unstable_by_key(|block| block.address);
        let mut left = limit.saturating_sub(heap.reserved()).0;
        let mut blocks = Vec::new();
        for block in whole {
            if left >= request.size.0 {
                break;
            }
            left += block.size.0;
            blocks.push(block.id);
        }
        Some(blocks)
    }

    /// The rung of this step, and the next step; `None` goes on to the next step at once.
    fn climb(&self, heap: &Heap, request: &Request) -> (Option<Relief>, Step) {
        let ask = |bytes: u64| Relief::Release { blocks: Vec::new(), attempt: Attempt::AskFor(Bytes(bytes)) };
        let take = || {
            let others = heap.first_at_least_elsewhere(request.pool, request.stream, request.size);
            let mut others = others.filter(|block| !block.is_expandable);
            others.next().map(|block| Relief::Transfer { block: block.id, waits: true })
        };
        match self.step {
            Step::Others => (take(), Step::Grow(false)),
            Step::Grow(again) => match RmmPool::growth(heap, request) {
                Some(bytes) => (Some(ask(bytes)), Step::Refused(bytes, again)),
                None => (None, if again { Step::GiveUp } else { Step::Borrow }),
            },
            Step::Refused(bytes, again) if bytes == request.size.0 => (None, if again { Step::GiveUp } else { Step::Borrow }),
            Step::Refused(bytes, again) => {
                let half = request.size.0.max(bytes / 2 / UNIT * UNIT);
                (Some(ask(half)), Step::Refused(half, again))
            }
            Step::Borrow => (Some(Relief::Borrow), Step::Wait),
            // While a graph is captured nothing waits and nothing is given back.
            Step::Wait if heap.is_deferring() => (None, Step::GiveUp),
            Step::Wait => (Some(Relief::Wait), Step::Look),
            Step::Look => {
                let found = heap.first_at_least(request.pool, request.stream, request.size);
                (found.map(|block| Relief::Reuse(block.id)), Step::LookElsewhere)
            }
            Step::LookElsewhere => (take(), Step::Reclaim),
            Step::Reclaim => match RmmPool::reclaimed(heap, request) {
                Some(blocks) => (Some(Relief::Release { blocks, attempt: Attempt::No }), Step::Grow(true)),
                None => (None, Step::GiveUp),
            },
            Step::GiveUp => (Some(Relief::GiveUp), Step::GiveUp),
        }
    }
}

impl Default for RmmPool {
    fn default() -> RmmPool {
        RmmPool::new()
    }
}

impl Policy for RmmPool {
    fn name(&self) -> &'static str {
        "rmm-pool"
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(UNIT))
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size),
        }
    }

    #[inline]
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if rung == 0 {
            self.step = Step::Others;
        }
        loop {
            let (relief, next) = self.climb(heap, request);
            self.step = next;
            if let Some(relief) = relief {
                return relief;
            }
        }
    }
}
