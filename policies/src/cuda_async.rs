//! A model of the pool behind cudaMallocAsync.
//!
//! NVIDIA documents the following (CUDA Programming Guide, Stream-Ordered Memory Allocator; CUDA Runtime API,
//! cudaMemPoolAttr). Memory freed in a stream can serve that stream immediately. It can serve another stream if that
//! stream's work is already ordered after the free (`cudaMemPoolReuseFollowEventDependencies`), if the work before the
//! free happens to be done (`cudaMemPoolReuseAllowOpportunistic`), or if the pool makes the requesting stream wait
//! (`cudaMemPoolReuseAllowInternalDependencies`). All three are on by default. Memory above the release threshold
//! (`cudaMemPoolAttrReleaseThreshold`) is released at a synchronization. Users have observed that the pool reserves
//! memory in steps of 32 MiB.
//!
//! The driver's code is closed, so this is only a model, and recordings cannot confirm it. The model tries, in this
//! order: the tightest block of the stream; opportunistically, the tightest block of each other stream that has no
//! work left; the tightest block of any stream, with a wait; and a new segment whose size is a multiple of 32 MiB. If
//! the device refuses, the model requests a segment of the request's size, in whole 2 MiB pages. If the device also
//! refuses that, the model waits for all work and releases all free memory.
//!
//! The policy does not know which streams are already ordered, so it treats the first kind of reuse as the third, with
//! a wait that costs nothing. It does not see synchronizations either, so it applies the threshold when the pool would
//! grow: entirely free segments above the threshold are released first. The model does not remap pages, which the
//! driver reportedly does in a pool. PyTorch's backend of this name differs in two ways: it compares its limit with
//! the bytes in use instead of the reserved bytes, and it frees a block recorded on other streams on a helper stream,
//! so that the block can serve other streams only opportunistically.

use alloc::boxed::Box;
use alloc::vec::Vec;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, Heap};

use crate::entry::Entry;
use crate::parameter::Parameter;
use crate::shared_steps;

/// The maximum number of streams to try without a wait, because each try is a rung of the ladder.
const MOST_TRIES: usize = 64;
/// Sizes are multiples of this.
const UNIT: Bytes = Bytes(512);
/// New segments are multiples of this.
const STEP: Bytes = Bytes::mib(32);
/// New segments are multiples of this when the device has little memory left.
const PAGE: Bytes = Bytes::mib(2);

pub(crate) const ENTRY: Entry = Entry::new(
    "cuda-async",
    "a model of cudaMallocAsync's pool as PyTorch configures it: freed memory stays in the pool",
    "CUDA Programming Guide, Stream-Ordered Memory Allocator; cudaMemPoolAttr",
    |values| Box::new(CudaAsync::new(values.bytes("threshold"))),
)
.with_parameters(&[Parameter::size(
    "threshold",
    "the release threshold: free memory above it is released before the pool grows; the driver's own default is 0B",
    "unlimited",
    Bytes::ZERO,
    Bytes::mib(1 << 24),
)
.or_unlimited("unlimited")]);

/// The model's rules.
#[derive(Clone, Debug)]
pub struct CudaAsync {
    release_threshold: Bytes,
    step: Step,
}

/// The next step of the ladder for the current request.
#[derive(Clone, Debug)]
enum Step {
    /// Blocks of other streams, without a wait: those that have not been tried yet, in reverse order.
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
    /// Creates a pool with this release threshold. PyTorch sets [`Bytes::MAX`]; the driver's default is
    /// [`Bytes::ZERO`].
    #[must_use]
    pub fn new(release_threshold: Bytes) -> CudaAsync {
        CudaAsync { release_threshold, step: Step::GiveUp }
    }

    /// Entirely free segments of the request's pool, largest first: as many as must be released for the reserved bytes
    /// not to exceed the threshold.
    fn beyond_threshold(&self, heap: &Heap, request: &Request) -> Vec<BlockId> {
        let mut excess = heap.reserved_in(request.pool).saturating_sub(self.release_threshold);
        if excess == Bytes::ZERO || heap.is_deferring() {
            return Vec::new();
        }
        let mut whole = shared_steps::whole_segments(heap, request);
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

    /// The rung of this step, if it has one, and the next step.
    fn climb(&mut self, heap: &Heap, request: &Request) -> (Option<Relief>, Step) {
        let ask = |blocks, unit| {
            let bytes = request.size.checked_round_up(unit).unwrap_or(Bytes::MAX);
            Some(Relief::Release { blocks, attempt: Attempt::AskFor(bytes) })
        };
        let take = || {
            let found = shared_steps::elsewhere(heap, request).first().map(|block| block.id);
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
            // While a graph is captured, nothing waits and nothing is released.
            Step::Wait if heap.is_deferring() => (None, Step::GiveUp),
            Step::Wait => (Some(Relief::Wait), Step::Look),
            Step::Look => {
                let found = heap.first_at_least(request.pool, request.stream, request.size);
                (found.map(|block| Relief::Reuse(block.id)), Step::LookElsewhere)
            }
            Step::LookElsewhere => (take(), Step::ReleaseAll),
            Step::ReleaseAll => (ask(heap.releasable(), PAGE), Step::GiveUp),
            Step::GiveUp => (Some(Relief::Done), Step::GiveUp),
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

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if rung == 0 {
            self.step =
                Step::Luck(shared_steps::elsewhere(heap, request).iter().rev().take(MOST_TRIES).map(|block| block.id).collect());
        }
        shared_steps::first_relief(|| {
            let (relief, next) = self.climb(heap, request);
            self.step = next;
            relief
        })
    }
}
