//! The rules of the rescue, from `docs/rescue.md`. PyTorch's own rules are those of the policy in the core.

use parkade::policy::{Policy, PyTorch, Relief, Request, Rung, Wrapper};
use parkade::units::Bytes;
use parkade::{Heap, PoolSlot};
use parkade_policies::Reach;

use super::handles::{
    PAGE, ask, break_all, break_every, breakable, from_another_stream, gather, has_room, is_private, unreserved,
};
use super::lists::{Turns, tightest};

/// PyTorch's rules with a rescue of this reach, for this many requests.
#[derive(Debug)]
pub(crate) struct Rescue {
    rules: PyTorch,
    reach: Option<Reach>,
    most: u64,
    rescued: u64,
    /// Whether the current request counts as rescued.
    counts: bool,
    /// Whether segments have 2 MiB pages, as they do after the first rescue.
    has_small_pages: bool,
    /// Whether PyTorch's own ladder has ended for the current request.
    is_last: bool,
    was_refused: bool,
    /// Whether the steps of the current rung have begun.
    has_begun: bool,
    turns: Turns<Turn>,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    Declare,
    /// Continue only if segments have 2 MiB pages.
    IfSmallPages,
    Ask,
    FromStreams,
    Gather,
    Wait,
    Search,
    Break,
    /// Continue only if PyTorch's ladder has ended.
    IfLast,
    BreakEvery,
}

const STEPS: [Turn; 13] = [
    Turn::Declare,
    Turn::IfSmallPages,
    Turn::Ask,
    Turn::FromStreams,
    Turn::Wait,
    Turn::Search,
    Turn::FromStreams,
    Turn::Break,
    Turn::Ask,
    Turn::Gather,
    Turn::IfLast,
    Turn::BreakEvery,
    Turn::Ask,
];

impl Rescue {
    pub(crate) fn new(rules: PyTorch, reach: Option<Reach>, most: u64) -> Rescue {
        Rescue {
            rules,
            reach,
            most,
            rescued: 0,
            counts: false,
            has_small_pages: false,
            is_last: false,
            was_refused: false,
            has_begun: false,
            turns: Turns::none(),
        }
    }

    /// Returns whether to rescue the request on this rung. Before PyTorch's ladder has ended, this requires an earlier rescue,
    /// and that no graph is captured.
    fn is_due(&self, heap: &Heap, request: &Request) -> bool {
        let is_time = if self.is_last { true } else { self.has_small_pages && !heap.is_deferring() };
        is_time && request.is_expandable && (self.counts || self.rescued < self.most)
    }

    fn take(&mut self, turn: Turn, heap: &Heap, request: &Request) -> Option<Relief> {
        match turn {
            Turn::Declare => Some(Relief::Rescue { page: Bytes(PAGE) }),
            Turn::IfSmallPages => {
                if !self.has_small_pages {
                    self.turns.give_up();
                }
                None
            }
            Turn::Ask => {
                self.was_refused = has_room(heap, request);
                (self.was_refused || is_private(request)).then(ask)
            }
            Turn::FromStreams => from_another_stream(heap, request).or_else(|| gather(heap, request, self.was_refused)),
            Turn::Gather => gather(heap, request, self.was_refused),
            Turn::Wait => Some(Relief::Wait),
            Turn::Search => tightest(heap, request).filter(|block| block.is_expandable).map(|block| Relief::Reuse(block.id)),
            Turn::Break | Turn::BreakEvery if self.reach != Some(Reach::Breaks) => None,
            Turn::Break => {
                let left = if self.was_refused { 0 } else { unreserved(heap) };
                breakable(heap, request, left).and_then(break_all)
            }
            Turn::IfLast => {
                if !self.is_last {
                    self.turns.give_up();
                }
                None
            }
            Turn::BreakEvery => break_every(heap, request),
        }
    }
}

impl Wrapper for Rescue {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.rules
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.rules
    }

    fn name(&self) -> &'static str {
        if self.reach.is_none() { "pytorch" } else { "pytorch-rescue" }
    }

    fn page(&self, pool: PoolSlot) -> Bytes {
        if self.has_small_pages { Bytes(PAGE) } else { self.rules.page(pool) }
    }

    fn handle(&self, heap: &Heap, request: &Request, _: Bytes) -> Option<Bytes> {
        let usual = self.rules.page(request.pool).get();
        let pages = usual.min(unreserved(heap)).div_ceil(PAGE).max(1);
        self.has_small_pages.then_some(Bytes(pages * PAGE))
    }

    fn ladder(&self) -> &'static [Rung] {
        use Rung::{BorrowFromPools, CollectGarbage, Grow, GrowAgain, Own, ReleaseAll, ReleaseOversize, WaitForEvents};
        if self.reach.is_none() {
            return self.rules.ladder();
        }
        // PyTorch's ladder, with a rescue before the wait and at the end.
        if self.rules.profile().borrows_last {
            const { &[CollectGarbage, Grow, ReleaseOversize, Own, WaitForEvents, ReleaseAll, GrowAgain, BorrowFromPools, Own] }
        } else {
            const { &[CollectGarbage, Grow, BorrowFromPools, ReleaseOversize, Own, WaitForEvents, ReleaseAll, GrowAgain, Own] }
        }
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        if heap.refined_page() == Some(Bytes(PAGE)) {
            self.has_small_pages = true;
        }
        if turn == 0 {
            self.turns.give_up();
            (self.has_begun, self.is_last, self.was_refused, self.counts) = (false, false, false, false);
        }
        if !self.has_begun && self.is_due(heap, request) {
            self.has_begun = true;
            if !self.counts {
                self.counts = true;
                self.rescued += 1;
            }
            self.turns.begin(STEPS);
        }
        while let Some(turn) = self.turns.next() {
            if let Some(relief) = self.take(turn, heap, request) {
                return relief;
            }
        }
        // A request that the rescue could not serve does not count. If rungs remain, they may still serve it.
        if self.has_begun && self.is_last && self.counts {
            self.counts = false;
            self.rescued -= 1;
        }
        (self.has_begun, self.is_last) = (false, true);
        Relief::Done
    }
}
