//! A model of the pool behind cudaMallocAsync.
//!
//! Documented (CUDA Programming Guide, Stream-Ordered Memory Allocator; CUDA Runtime API, cudaMemPoolAttr):
//! memory freed in a stream serves that stream at once. It serves another stream if that stream's work is
//! already ordered after it (`cudaMemPoolReuseFollowEventDependencies`), if the work happens to be done
//! (`cudaMemPoolReuseAllowOpportunistic`), or if the pool makes the requesting stream wait
//! (`cudaMemPoolReuseAllowInternalDependencies`). All three are on by default. Above the release threshold
//! (`cudaMemPoolAttrReleaseThreshold`) memory is released when something is synchronized. Users have seen it
//! reserve in steps of 32 MiB.
//!
//! The driver's code is closed, so this is a model and not comparable with recordings. It takes the tightest
//! block of the stream; then, opportunistically, the tightest of each other stream that has no work left;
//! then the tightest of all, with a wait; then a new segment, a multiple of 32 MiB. When the device refuses,
//! it asks for the request in whole pages of 2 MiB, and when that is refused, waits for everything and
//! releases it.
//!
//! The policy does not see which streams are already ordered, so the first kind of reuse appears as the
//! third, with a wait that costs nothing. Nor does it see synchronizations, so the threshold acts when the
//! pool would grow: entirely free segments above it are released first. The remapping that the driver is said
//! to do in a pool is not modelled. Under PyTorch's backend of this name two things differ: its limit is
//! checked against the bytes in use instead of those reserved, and a block recorded on other streams is freed
//! on a helper stream, so that it serves others only opportunistically.

use alloc::vec::Vec;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, Heap};

use crate::plain_ladder;

/// The most streams to try without a wait: each try is a rung of the ladder.
const MOST_TRIES: usize = 64;
/// Sizes are multiples of this.
const UNIT: Bytes = Bytes(512);
/// New segments are multiples of this.
const STEP: Bytes = Bytes::mib(32);
/// New segments are multiples of this when the device has little left.
const PAGE: Bytes = Bytes::mib(2);

/// The model's rules.
#[derive(Clone, Debug)]
pub struct CudaAsync {
    release_threshold: Bytes,
    step: Step,
}

/// The next step of the ladder for the current request.
#[derive(Clone, Debug)]
enum Step {
    /// Other streams' blocks, without a wait: those not tried yet, the next one last.
    Luck(Vec<BlockId>),
    /// Another stream's block, with a wait.
    Dependency,
    Trim,
    Grow,
    GrowByPages,
    Borrow,
    Wait,
    Look,
    LookElsewhere,
    ReleaseAll,
    GiveUp,
}

impl CudaAsync {
    /// A pool with this release threshold: [`Bytes::MAX`] as PyTorch sets it, [`Bytes::ZERO`] by default in
    /// the driver.
    #[must_use]
    pub fn new(release_threshold: Bytes) -> CudaAsync {
        CudaAsync { release_threshold, step: Step::GiveUp }
    }

    /// Entirely free segments of the request's pool, the largest first, until no more than the threshold is
    /// reserved.
    fn beyond_threshold(&self, heap: &Heap, request: &Request) -> Vec<BlockId> {
        let mut excess = heap.reserved_in(request.pool).saturating_sub(self.release_threshold);
        if excess == Bytes::ZERO || heap.is_deferring() {
            return Vec::new();
        }
        let mut whole: Vec<_> = heap.free_blocks(request.pool).filter(|block| !block.is_split && !block.is_expandable).collect();
        whole.sort_by_key(|block| core::cmp::Reverse(block.size));
        let mut blocks = Vec::new();
        for block in whole {
            if excess == Bytes::ZERO {
                break;
            }
            excess = excess.saturating_sub(block.size);
            blocks.push(block.id);
        }
        blocks
    }

    /// This step's rung, if it has one, and the next step.
    fn climb(&mut self, heap: &Heap, request: &Request) -> (Option<Relief>, Step) {
        let ask = |blocks, unit| {
            let bytes = request.size.checked_round_up(unit).unwrap_or(Bytes::MAX);
            Some(Relief::Release { blocks, attempt: Attempt::AskFor(bytes) })
        };
        let take = || {
            let found = plain_ladder::elsewhere(heap, request).first().map(|block| block.id);
            found.map(|block| Relief::Transfer { block, waits: true })
        };
        match core::mem::replace(&mut self.step, Step::GiveUp) {
            Step::Luck(mut left) => match left.pop() {
                Some(block) => (Some(Relief::Transfer { block, waits: false }), Step::Luck(left)),
                None => (None, Step::Dependency),
            },
            Step::Dependency => (take(), Step::Trim),
            Step::Trim => match self.beyond_threshold(heap, request) {
                blocks if blocks.is_empty() => (None, Step::Grow),
                blocks => (Some(Relief::Release { blocks, attempt: Attempt::No }), Step::Grow),
            },
            Step::Grow => (ask(Vec::new(), STEP), Step::GrowByPages),
            Step::GrowByPages => (ask(Vec::new(), PAGE), Step::Borrow),
            Step::Borrow => (Some(Relief::Borrow), Step::Wait),
            // While a graph is captured nothing waits and nothing is released.
            Step::Wait if heap.is_deferring() => (None, Step::GiveUp),
            Step::Wait => (Some(Relief::Wait), Step::Look),
            Step::Look => {
                let found = heap.first_at_least(request.pool, request.stream, request.size);
                (found.map(|block| Relief::Reuse(block.id)), Step::LookElsewhere)
            }
            Step::LookElsewhere => (take(), Step::ReleaseAll),
            Step::ReleaseAll => (ask(heap.releasable(), PAGE), Step::GiveUp),
            Step::GiveUp => (Some(Relief::GiveUp), Step::GiveUp),
        }
    }
}

impl Policy for CudaAsync {
    fn name(&self) -> &'static str {
        "cuda-async"
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(UNIT)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size.checked_round_up(PAGE).unwrap_or(Bytes::MAX)),
        }
    }

    #[inline]
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if rung == 0 {
            self.step =
                Step::Luck(plain_ladder::elsewhere(heap, request).iter().rev().take(MOST_TRIES).map(|block| block.id).collect());
        }
        plain_ladder::first_relief(|| {
            let (relief, next) = self.climb(heap, request);
            self.step = next;
            relief
        })
    }
}
