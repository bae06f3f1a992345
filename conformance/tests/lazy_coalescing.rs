//! A user-defined policy that coalesces lazily: a freed block keeps its size, ready for the next request of that size, and free
//! blocks coalesce only when a request would otherwise need new memory or fail.

use parkade::policy::{Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, PoolClass};
use parkade::{FreePair, Heap};

/// Requests that are smaller share segments of this size.
const SHARED: Bytes = Bytes::mib(20);

/// The policy has no state: which blocks are apart is in the heap.
#[derive(Clone)]
pub(crate) struct LazyCoalescing;

impl Policy for LazyCoalescing {
    fn name(&self) -> &'static str {
        "lazy-coalescing"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, _size: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size.checked_round_up(Bytes::mib(2)).unwrap_or(Bytes::MAX).max(SHARED)),
        }
    }

    fn splits(&self, _whole: Bytes, _request: &Request) -> bool {
        true
    }

    /// A freed block never coalesces by itself.
    fn coalesces(&self, _pair: &FreePair) -> bool {
        false
    }

    /// Own steps come before new memory, and again after the wait has made more blocks free.
    fn ladder(&self) -> &'static [Rung] {
        use Rung::{BorrowFromPools, Grow, GrowAgain, Own, ReleaseAll, WaitForEvents};
        &[Own, Grow, BorrowFromPools, WaitForEvents, Own, ReleaseAll, GrowAgain]
    }

    /// On each of the two rungs, coalesces everything and then looks for a block again.
    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        if turn.is_multiple_of(2) {
            return Relief::Coalesce;
        }
        let found = heap.first_at_least(request.pool, request.stream, request.size);
        found.map_or(Relief::Done, |block| Relief::Reuse(block.id))
    }
}

#[cfg(test)]
mod laws {
    use parkade_conformance::checks::laws_any_policy::check;
    use parkade_conformance::suite::Effort;

    use super::LazyCoalescing;

    #[test]
    fn it_obeys_every_policy_law() {
        check(|| LazyCoalescing, &Effort::new(50, 0)).unwrap_or_else(|report| panic!("{report}"));
    }
}
