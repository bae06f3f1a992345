//! The pool of RAPIDS Memory Manager (RMM): coalescing best fit per stream, which takes memory from other streams and
//! never releases any.
//!
//! From rapidsai/rmm, cpp/include/rmm/mr/detail/stream_ordered_memory_resource.hpp (commit 032b3a6),
//! coalescing_free_list.hpp (0059816) and cpp/src/mr/detail/pool_memory_resource_impl.cpp (06ddb24), compared with the
//! library of 26.10.0, decision by decision (`conformance/other_allocators`):
//! - the pool begins with half of the free memory, the default of RMM's Python package, in the default stream's list.
//!   Here, it begins with half of the device's memory, which is the same if no other process uses the device;
//! - sizes are multiples of 256 bytes. A request gets the smallest block in the stream's list that is large enough; if
//!   several have the same size, the one with the lowest address. Every remainder is split off;
//! - next, the pool searches the other streams' lists in turn. The first list with a large enough block provides the
//!   necessary part of its tightest one and keeps the rest, and the requesting stream waits for that stream's event;
//! - next, the other lists are moved into the requesting stream's list one by one, each after a wait, until a block is
//!   large enough;
//! - next, the pool grows: without a maximum, by its current size or the size of the request, whichever is larger;
//!   with a maximum, by half of the remainder. If the device refuses, the pool tries half of that, repeatedly, down to
//!   the size of the request;
//! - if the maximum leaves too little, the pool releases as many entirely free segments as the request needs.
//!
//! The heap's limit, rounded down to a multiple of 256 bytes, is the pool's maximum. RMM rounds up the remainder of
//! its maximum, so it may exceed the maximum by up to 255 bytes; this policy does the same under a limit that is 255
//! bytes higher.
//!
//! RMM orders streams by the addresses of their events. Here, streams are ordered by their first request, starting
//! with the default stream; this is the same order if these addresses ascend. Some behaviour is PyTorch's and not
//! RMM's. Before a request fails, the policy waits for blocks that other streams use and searches once more.
//! `empty_cache` releases whole segments. A private pool begins empty and releases all its memory when the program
//! drops it. While a graph is captured, the policy takes nothing from other streams.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, PoolClass, StreamId};
use parkade::{BlockId, BlockView, Heap, PoolSlot};

use crate::entry::Entry;
use crate::parameter::Parameter;
use crate::shared_steps;

/// Sizes are multiples of this.
const UNIT: u64 = 256;

/// The share of the device's memory that the pool begins with unless a parameter says more: the default of RMM's Python
/// package.
const INITIAL_PERCENT: u64 = 50;

pub(crate) const ENTRY: Entry = Entry::new(
    "rmm-pool",
    "RAPIDS' pool: best fit per stream, then other streams' blocks; releases memory only under a limit",
    "rapidsai/rmm, pool_memory_resource, stream_ordered_memory_resource.hpp",
    |values| Box::new(RmmPool::beginning_with(values.number("initial_percent"))),
)
.with_parameters(&[Parameter::number(
    "initial_percent",
    "the percentage of the device's memory that the pool begins with",
    "50",
    0,
    100,
)])
.keeping_memory_if(|_| true);

/// The rules of RMM's pool.
#[derive(Clone, Debug)]
pub struct RmmPool {
    /// The share of the device's memory that the pool begins with.
    initial_percent: u64,
    step: Step,
    has_begun: bool,
    /// The existing lists, except those that exist only because a block was freed. A list is kept when it becomes
    /// empty, and removed when it is moved into another one. Moving an empty list costs a wait.
    lists: BTreeSet<(PoolSlot, StreamId)>,
    /// The list of the previous request, which is in `lists`.
    last: Option<(PoolSlot, StreamId)>,
}

/// The next step of the ladder for the current request.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begin,
    Own,
    Others,
    /// Move the next list into the request's list, starting with the stream at this position in the order of first
    /// use.
    Merge(usize),
    /// The list of the stream before this position has been moved.
    Merged(usize),
    /// Grow; the flag says whether segments have been reclaimed.
    Grow(bool),
    /// The device refused this many bytes.
    Refused(u64),
    /// Continue without growing; the flag says whether the device refused.
    Borrow(IsRefused),
    Wait(IsRefused),
    Look(IsRefused),
    LookElsewhere(IsRefused),
    Reclaim,
    GiveUp,
}

type IsRefused = bool;

/// The bytes that remain of the pool's maximum, which is the heap's limit.
fn left(heap: &Heap, limit: Bytes) -> u64 {
    (limit.0 / UNIT * UNIT).saturating_sub(heap.reserved().0)
}

/// The tightest block of a stream that is large enough.
fn tightest(heap: &Heap, request: &Request, stream: StreamId) -> Option<BlockView> {
    heap.first_at_least(request.pool, stream, request.size).filter(|block| !block.is_expandable)
}

impl RmmPool {
    /// Creates an empty pool.
    #[must_use]
    pub fn new() -> RmmPool {
        RmmPool::beginning_with(INITIAL_PERCENT)
    }

    /// Creates an empty pool that begins with this share of the device's memory, in percent, at most 100.
    #[must_use]
    pub fn beginning_with(initial_percent: u64) -> RmmPool {
        let initial_percent = initial_percent.min(100);
        RmmPool { initial_percent, step: Step::GiveUp, has_begun: false, lists: BTreeSet::new(), last: None }
    }

    /// The first segment, which is added to the default stream's list.
    fn begin(&mut self, heap: &Heap, request: &Request) -> Option<Relief> {
        let is_default = request.pool == PoolSlot::default_pool(PoolClass::Large);
        if !is_default && heap.reserved_in(request.pool) == Bytes::ZERO {
            // The pool is new, possibly with the number of a pool that no longer exists.
            self.lists.retain(|&(pool, stream)| pool != request.pool || stream == request.stream);
        }
        if !is_default || core::mem::replace(&mut self.has_begun, true) {
            return None;
        }
        let total = heap.device_total().0;
        let initial = total / 100 * self.initial_percent + total % 100 * self.initial_percent / 100;
        let bytes = heap.limit().map_or(initial, |limit| initial.min(left(heap, limit))) / UNIT * UNIT;
        self.lists.insert((request.pool, StreamId::DEFAULT));
        (bytes > 0).then_some(Relief::Provide { bytes: Bytes(bytes), stream: StreamId::DEFAULT })
    }

    /// Takes memory from the first other stream that has a large enough block.
    fn take(&mut self, heap: &Heap, request: &Request) -> Option<Relief> {
        let others = heap.streams_seen().iter().filter(|&&stream| stream != request.stream);
        let block = others.filter_map(|&stream| tightest(heap, request, stream)).next()?;
        self.lists.insert((request.pool, block.stream));
        Some(Relief::TransferPart { block: block.id })
    }

    /// Moves the first other list, starting with the stream at position `from` in the order of first use. Also returns
    /// the position after it.
    fn merge(&mut self, heap: &Heap, request: &Request, from: usize) -> Option<(Relief, usize)> {
        let streams = heap.streams_seen().iter().enumerate().skip(from);
        for (place, &stream) in streams.filter(|&(_, &stream)| stream != request.stream) {
            let was_noted = self.lists.remove(&(request.pool, stream));
            if was_noted || heap.first_at_least(request.pool, stream, Bytes(1)).is_some() {
                self.last = None;
                return Some((Relief::TransferAll { from: stream }, place + 1));
            }
        }
        None
    }

    /// The number of bytes to request first; `None` if the maximum leaves too few.
    fn growth(heap: &Heap, request: &Request) -> Option<u64> {
        let size = request.size.0;
        match heap.limit() {
            None => Some(size.max(heap.reserved_in(request.pool).0)),
            Some(limit) => {
                let left = left(heap, limit).next_multiple_of(UNIT);
                (size <= left).then_some(size.max(left / 2))
            }
        }
    }

    /// Entirely free segments of the request's pool, by address: as many as must be released so that the maximum
    /// leaves enough for the request, or all of them if that is not possible. `None` if there is no maximum, or if the
    /// request exceeds it.
    fn reclaimed(heap: &Heap, request: &Request) -> Option<Vec<BlockId>> {
        let limit = heap.limit().filter(|limit| request.size.0 <= limit.0 / UNIT * UNIT)?;
        let mut whole = shared_steps::whole_segments(heap, request);
        whole.sort_unstable_by_key(|block| block.address);
        // If the limit has been lowered, more bytes may be reserved than it allows.
        let most = limit.0 / UNIT * UNIT - request.size.0;
        let mut reserved = heap.reserved().0;
        let mut blocks = Vec::new();
        for block in whole {
            if reserved <= most {
                break;
            }
            reserved -= block.size.0;
            blocks.push(block.id);
        }
        Some(blocks)
    }

    /// The rung of this step, if it has one, and the next step.
    fn climb(&mut self, heap: &Heap, request: &Request) -> (Option<Relief>, Step) {
        let ask = |bytes: u64| Relief::Release { blocks: Vec::new(), attempt: Attempt::AskFor(Bytes(bytes)) };
        let own = || tightest(heap, request, request.stream).map(|block| Relief::Reuse(block.id));
        match self.step {
            Step::Begin => match self.begin(heap, request) {
                Some(relief) => (Some(relief), Step::Own),
                None => (None, Step::Others),
            },
            Step::Own => (own(), Step::Others),
            // While a graph is captured, nothing waits.
            Step::Others if heap.is_deferring() => (None, Step::Grow(false)),
            Step::Others => (self.take(heap, request), Step::Merge(0)),
            Step::Merge(from) => match self.merge(heap, request, from) {
                Some((relief, next)) => (Some(relief), Step::Merged(next)),
                None => (None, Step::Grow(false)),
            },
            Step::Merged(next) => (own(), Step::Merge(next)),
            Step::Grow(again) => match RmmPool::growth(heap, request) {
                Some(bytes) => (Some(ask(bytes)), Step::Refused(bytes)),
                None => (None, if again { Step::GiveUp } else { Step::Borrow(false) }),
            },
            Step::Refused(bytes) if bytes == request.size.0 => (None, Step::Borrow(true)),
            Step::Refused(bytes) => {
                let half = request.size.0.max(bytes / 2);
                (Some(ask(half)), Step::Refused(half))
            }
            Step::Borrow(refused) => (Some(Relief::Borrow), Step::Wait(refused)),
            // Nothing is released either.
            Step::Wait(_) if heap.is_deferring() => (None, Step::GiveUp),
            Step::Wait(refused) => (Some(Relief::Wait), Step::Look(refused)),
            Step::Look(refused) => (own(), Step::LookElsewhere(refused)),
            Step::LookElsewhere(refused) => (self.take(heap, request), if refused { Step::GiveUp } else { Step::Reclaim }),
            Step::Reclaim => match RmmPool::reclaimed(heap, request) {
                Some(blocks) => (Some(Relief::Release { blocks, attempt: Attempt::No }), Step::Grow(true)),
                None => (None, Step::GiveUp),
            },
            Step::GiveUp => (Some(Relief::Done), Step::GiveUp),
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
        let list = (request.pool, request.stream);
        if self.last != Some(list) {
            self.lists.insert(list);
            self.last = Some(list);
        }
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size),
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
        let left_behind = shared_steps::left_behind(heap, request);
        if rung == 0 || left_behind.is_some() {
            self.step = Step::Begin;
        }
        if let Some(relief) = left_behind {
            return relief;
        }
        shared_steps::first_relief(|| {
            let (relief, next) = self.climb(heap, request);
            self.step = next;
            relief
        })
    }
}
