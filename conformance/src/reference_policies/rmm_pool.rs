//! The rules of RMM's pool, from rapidsai/rmm's stream_ordered_memory_resource.hpp, coalescing_free_list.hpp and
//! pool_memory_resource_impl.cpp, with the differences that `docs/policies.md` and the first paragraphs of
//! `policies/src/rmm_pool.rs` list.

use std::collections::BTreeSet;

use parkade::policy::{Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, PoolClass, StreamId};
use parkade::{BlockId, BlockView, Heap, PoolSlot};

use super::lists::{Turns, is_default, left_behind, releasable_segments, release, release_and_ask, sufficient};

const UNIT: u64 = 256;

/// The rules of the pool.
#[derive(Debug)]
pub(super) struct RmmPool {
    /// The percentage of the device's memory in the first segment.
    percent: u64,
    has_initial_segment: bool,
    /// The lists that exist even if they are empty, because a request on the stream has created them.
    lists: BTreeSet<(PoolSlot, StreamId)>,
    turns: Turns<Turn>,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    InitialSegment,
    OwnList,
    /// Take a part of a block from the first other list that has one. If `merges` is true, nothing is taken while a graph is
    /// captured, and the merging of lists follows.
    OtherLists {
        merges: bool,
    },
    /// Merge the next list, from this position in the order of the streams' first requests.
    Merge(usize),
    Expand {
        after_reclaiming: bool,
    },
    Halve(u64),
    /// Continue without growth, after the device has refused or the maximum has left too little.
    Without {
        was_refused: bool,
    },
    Wait,
    Reclaim,
}

impl RmmPool {
    pub(super) fn new(percent: u64) -> RmmPool {
        RmmPool { percent, has_initial_segment: false, lists: BTreeSet::new(), turns: Turns::none() }
    }

    /// Returns the pool's maximum size, if there is one.
    fn maximum(heap: &Heap) -> Option<u64> {
        heap.limit().map(|limit| limit.get() / UNIT * UNIT)
    }

    /// Returns the bytes that remain of the maximum.
    fn rest(heap: &Heap) -> Option<u64> {
        RmmPool::maximum(heap).map(|maximum| maximum.saturating_sub(heap.reserved().get()))
    }

    fn movable(heap: &Heap, request: &Request, stream: StreamId) -> Option<BlockView> {
        sufficient(heap, request, stream).first().copied().filter(|block| !block.is_expandable)
    }

    fn initial_segment(&mut self, heap: &Heap, request: &Request) -> Option<Relief> {
        if !is_default(request.pool) {
            if heap.reserved_in(request.pool).get() == 0 {
                // A pool without memory is new, so only this request's list exists.
                self.lists.retain(|&(pool, stream)| pool != request.pool || stream == request.stream);
            }
            return None;
        }
        if self.has_initial_segment {
            return None;
        }
        self.has_initial_segment = true;
        let share = u128::from(heap.device_total().get()) * u128::from(self.percent) / 100;
        let bytes = RmmPool::rest(heap).unwrap_or(u64::MAX).min(share as u64) / UNIT * UNIT;
        self.lists.insert((request.pool, StreamId::DEFAULT));
        if bytes == 0 {
            return None;
        }
        self.turns.first([Turn::OwnList]);
        Some(Relief::Provide { bytes: Bytes(bytes), stream: StreamId::DEFAULT })
    }

    fn take_from_another_list(&mut self, heap: &Heap, request: &Request) -> Option<Relief> {
        for &stream in heap.streams_seen() {
            if stream == request.stream {
                continue;
            }
            if let Some(block) = RmmPool::movable(heap, request, stream) {
                self.lists.insert((request.pool, stream));
                return Some(Relief::TransferPart { block: block.id });
            }
        }
        None
    }

    fn merge(&mut self, heap: &Heap, request: &Request, from: usize) -> Option<Relief> {
        for (place, &stream) in heap.streams_seen().iter().enumerate() {
            if place < from || stream == request.stream {
                continue;
            }
            let has_list = self.lists.remove(&(request.pool, stream));
            let has_blocks = heap.free_blocks(request.pool).any(|block| block.stream == stream);
            if has_list || has_blocks {
                self.turns.first([Turn::OwnList, Turn::Merge(place + 1)]);
                return Some(Relief::TransferAll { from: stream });
            }
        }
        None
    }

    /// Returns the first size to try when the pool grows.
    fn size_to_grow(heap: &Heap, request: &Request) -> Option<u64> {
        let needed = request.size.get();
        let Some(rest) = RmmPool::rest(heap) else {
            return Some(needed.max(heap.reserved_in(request.pool).get()));
        };
        let rest = rest.div_ceil(UNIT) * UNIT;
        (needed <= rest).then(|| needed.max(rest / 2))
    }

    /// Returns the segments to release so that the maximum leaves enough for the request, lowest address first.
    fn to_reclaim(heap: &Heap, request: &Request) -> Option<Vec<BlockId>> {
        let maximum = RmmPool::maximum(heap).filter(|&maximum| request.size.get() <= maximum)?;
        let mut segments = releasable_segments(heap, request);
        segments.sort_by_key(|segment| segment.address);
        let mut reserved = heap.reserved().get();
        let mut blocks = Vec::new();
        for segment in segments {
            if reserved + request.size.get() > maximum {
                reserved -= segment.size.get();
                blocks.push(segment.id);
            }
        }
        Some(blocks)
    }

    fn take(&mut self, turn: Turn, heap: &Heap, request: &Request) -> Option<Relief> {
        match turn {
            Turn::InitialSegment => self.initial_segment(heap, request),
            Turn::OwnList => RmmPool::movable(heap, request, request.stream).map(|block| Relief::Reuse(block.id)),
            Turn::OtherLists { merges } => {
                if merges && heap.is_deferring() {
                    return None;
                }
                if merges {
                    self.turns.first([Turn::Merge(0)]);
                }
                self.take_from_another_list(heap, request)
            }
            Turn::Merge(from) => self.merge(heap, request, from),
            Turn::Expand { after_reclaiming } => match RmmPool::size_to_grow(heap, request) {
                Some(bytes) => {
                    self.turns.begin([Turn::Halve(bytes)]);
                    Some(release_and_ask(Vec::new(), Bytes(bytes)))
                }
                None if after_reclaiming => None,
                None => {
                    self.turns.begin([Turn::Without { was_refused: false }]);
                    None
                }
            },
            Turn::Halve(refused) if refused == request.size.get() => {
                self.turns.begin([Turn::Without { was_refused: true }]);
                None
            }
            Turn::Halve(refused) => {
                let half = request.size.get().max(refused / 2);
                self.turns.begin([Turn::Halve(half)]);
                Some(release_and_ask(Vec::new(), Bytes(half)))
            }
            Turn::Without { was_refused } => {
                let searches = [Turn::Wait, Turn::OwnList, Turn::OtherLists { merges: false }];
                let reclaims = [Turn::Reclaim, Turn::Expand { after_reclaiming: true }];
                self.turns.begin(searches.into_iter().chain(reclaims.into_iter().filter(|_| !was_refused)));
                Some(Relief::Borrow)
            }
            Turn::Wait if heap.is_deferring() => {
                self.turns.give_up();
                None
            }
            Turn::Wait => Some(Relief::Wait),
            Turn::Reclaim => {
                let blocks = RmmPool::to_reclaim(heap, request);
                if blocks.is_none() {
                    self.turns.give_up();
                }
                blocks.map(release)
            }
        }
    }
}

impl Policy for RmmPool {
    fn name(&self) -> &'static str {
        "rmm-pool"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.get().div_ceil(UNIT).checked_mul(UNIT).map(Bytes)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        self.lists.insert((request.pool, request.stream));
        let found = sufficient(heap, request, request.stream);
        found.first().map_or(Placement::Segment(request.size), |block| Placement::Reuse(block.id))
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        let left = left_behind(heap, request);
        if turn == 0 || !left.is_empty() {
            self.turns.begin([Turn::InitialSegment, Turn::OtherLists { merges: true }, Turn::Expand { after_reclaiming: false }]);
        }
        if !left.is_empty() {
            return release(left);
        }
        while let Some(turn) = self.turns.next() {
            if let Some(relief) = self.take(turn, heap, request) {
                return relief;
            }
        }
        Relief::Done
    }
}
