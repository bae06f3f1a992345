//! The rules of the model of cudaMallocAsync's pool, from NVIDIA's documentation and the first paragraphs of
//! `policies/src/cuda_async.rs`.

use std::cmp::Reverse;

use parkade::policy::{Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, MIB, PoolClass};
use parkade::{BlockId, Heap};

use super::lists::{Turns, releasable_segments, release, release_and_ask, tightest, tightest_of_others};

const STEP: u64 = 32 * MIB;
const PAGE: u64 = 2 * MIB;

/// The rules of a pool with a release threshold in bytes.
#[derive(Debug)]
pub(crate) struct CudaAsync {
    threshold: u64,
    turns: Turns<Turn>,
}

#[derive(Clone, Debug)]
enum Turn {
    /// This block, if its stream's work happens to be done.
    Opportunity(BlockId),
    /// The tightest block of another stream, after a wait.
    Dependency,
    Trim,
    Grow {
        unit: u64,
    },
    Borrow,
    Wait,
    Search,
    ReleaseAll,
}

impl CudaAsync {
    pub(crate) fn new(threshold: u64) -> CudaAsync {
        CudaAsync { threshold, turns: Turns::none() }
    }

    /// Returns the entirely free segments above the threshold, largest first.
    fn above_threshold(&self, heap: &Heap, request: &Request) -> Vec<BlockId> {
        let mut blocks = Vec::new();
        if heap.is_deferring() {
            return blocks;
        }
        let mut reserved = heap.reserved_in(request.pool).get();
        let mut segments = releasable_segments(heap, request);
        segments.sort_by_key(|segment| Reverse(segment.size));
        for segment in segments {
            if reserved > self.threshold {
                reserved = reserved.saturating_sub(segment.size.get());
                blocks.push(segment.id);
            }
        }
        blocks
    }

    fn in_units(request: &Request, unit: u64) -> Bytes {
        request.size.get().div_ceil(unit).checked_mul(unit).map_or(Bytes::MAX, Bytes)
    }

    fn take(&mut self, turn: Turn, heap: &Heap, request: &Request) -> Option<Relief> {
        match turn {
            Turn::Opportunity(block) => Some(Relief::Transfer { block, waits: false }),
            Turn::Dependency => {
                let block = tightest_of_others(heap, request).first()?.id;
                Some(Relief::Transfer { block, waits: true })
            }
            Turn::Trim => Some(self.above_threshold(heap, request)).filter(|blocks| !blocks.is_empty()).map(release),
            Turn::Grow { unit } => Some(release_and_ask(Vec::new(), CudaAsync::in_units(request, unit))),
            Turn::Borrow => Some(Relief::Borrow),
            Turn::Wait if heap.is_deferring() => {
                self.turns.give_up();
                None
            }
            Turn::Wait => Some(Relief::Wait),
            Turn::Search => tightest(heap, request).map(|block| Relief::Reuse(block.id)),
            Turn::ReleaseAll => Some(release_and_ask(heap.releasable(), CudaAsync::in_units(request, PAGE))),
        }
    }
}

impl Policy for CudaAsync {
    fn name(&self) -> &'static str {
        "cuda-async"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.get().div_ceil(512).checked_mul(512).map(Bytes)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let grown = Placement::Segment(CudaAsync::in_units(request, PAGE));
        tightest(heap, request).map_or(grown, |block| Placement::Reuse(block.id))
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        if turn == 0 {
            let opportunities = tightest_of_others(heap, request).into_iter().map(|block| Turn::Opportunity(block.id));
            let rest = [
                Turn::Dependency,
                Turn::Trim,
                Turn::Grow { unit: STEP },
                Turn::Grow { unit: PAGE },
                Turn::Borrow,
                Turn::Wait,
                Turn::Search,
                Turn::Dependency,
                Turn::ReleaseAll,
            ];
            self.turns.begin(opportunities.chain(rest));
        }
        while let Some(turn) = self.turns.next() {
            if let Some(relief) = self.take(turn, heap, request) {
                return relief;
            }
        }
        Relief::Done
    }
}
