//! A user-defined policy that learns how long blocks live, and keeps short-lived and long-lived ones in different segments.
//!
//! A long-lived block in the middle of short-lived ones divides the memory that they leave. The policy therefore reuses only
//! free blocks whose live neighbours have lifetimes like that of the request, and otherwise takes a new segment. If the device
//! has no memory left, any free block serves.

use std::collections::BTreeMap;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, BlockView, Heap, LiveBlock, Neighbour};

/// Requests that are smaller share segments of this size.
const SHARED: Bytes = Bytes::mib(32);
/// Sizes whose blocks live at most this long on average are short-lived. Time is counted in requests.
const SHORT: u64 = 100;

/// The lifetimes of a class of sizes that have ended.
#[derive(Clone, Copy, Default)]
struct Lifetimes {
    count: u64,
    total: u64,
}

/// The state is in the policy, so a clone of the allocator continues with the same answers.
#[derive(Clone, Default)]
pub(crate) struct LifetimeArenas {
    /// The time: the number of requests so far.
    now: u64,
    /// When each live block was handed out.
    born: BTreeMap<BlockId, u64>,
    /// The lifetimes by class. A class contains the sizes between two powers of two.
    seen: BTreeMap<u32, Lifetimes>,
}

impl LifetimeArenas {
    /// Whether blocks of this size are expected to be short-lived. Unknown sizes count as long-lived.
    fn is_short(&self, size: Bytes) -> bool {
        let class = size.get().ilog2();
        self.seen.get(&class).is_some_and(|lifetimes| lifetimes.total <= SHORT * lifetimes.count)
    }

    /// Whether no live neighbour of the free block has a different lifetime than the request.
    fn suits(&self, heap: &Heap, block: &BlockView, request: &Request) -> bool {
        heap.neighbours(block.id).into_iter().flatten().all(|neighbour| match neighbour {
            Neighbour::Live(live) => self.is_short(live.size()) == self.is_short(request.size),
            Neighbour::Free(_) | Neighbour::Pending(_) | Neighbour::Unmapped(_) => true,
        })
    }
}

impl Policy for LifetimeArenas {
    fn name(&self) -> &'static str {
        "lifetime-arenas"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, _size: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let mut free = heap.at_least(request.pool, request.stream, request.size);
        match free.find(|block| self.suits(heap, block, request)) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size.checked_round_up(Bytes::mib(2)).unwrap_or(Bytes::MAX).max(SHARED)),
        }
    }

    fn splits(&self, _whole: Bytes, _request: &Request) -> bool {
        true
    }

    fn ladder(&self) -> &'static [Rung] {
        use Rung::{BorrowFromPools, Grow, GrowAgain, Own, ReleaseAll, WaitForEvents};
        &[Grow, Own, BorrowFromPools, WaitForEvents, Own, ReleaseAll, GrowAgain, Own]
    }

    /// Any free block, and on the last rung, new memory for only the request.
    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) => Relief::Reuse(block.id),
            None if turn == 2 => Relief::Release { blocks: Vec::new(), attempt: Attempt::AskFor(request.size) },
            None => Relief::Done,
        }
    }

    fn allocated(&mut self, _heap: &Heap, block: LiveBlock<'_>) {
        self.now += 1;
        self.born.insert(block.id(), self.now);
    }

    fn freed(&mut self, _heap: &Heap, block: LiveBlock<'_>) {
        let Some(born) = self.born.remove(&block.id()) else { return };
        let lifetimes = self.seen.entry(block.size().get().ilog2()).or_default();
        lifetimes.count += 1;
        lifetimes.total += self.now - born;
    }
}

#[cfg(test)]
mod laws {
    use parkade_conformance::checks::laws_any_policy::check;
    use parkade_conformance::suite::Effort;

    use super::LifetimeArenas;

    #[test]
    fn it_obeys_every_policy_law() {
        check(LifetimeArenas::default, &Effort::new(50, 0)).unwrap_or_else(|report| panic!("{report}"));
    }
}
