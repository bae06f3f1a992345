//! The rules of compaction, from `docs/compaction.md`.

use std::collections::BTreeMap;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, StreamId};
use parkade::{Heap, PoolSlot};

use super::handles::{
    PAGE, ask, break_all, break_every, breakable, from_another_stream, gather, has_room, is_private, memory, partly_free,
    unreserved,
};
use super::lists::{Turns, tightest};

/// The rules, and what they remember.
#[derive(Debug)]
pub(super) struct Compaction {
    /// The sizes of the first and of the largest handles.
    handles: [u64; 2],
    /// The newest size in each of the 4,096 slots.
    seen: BTreeMap<u64, u64>,
    /// The size of the current request, until it is served or its ladder begins, and whether it is the first of its size.
    current: Option<(u64, bool)>,
    takes_high_end: bool,
    /// For each stream, the bytes of its requests that no free block could serve.
    lacked: BTreeMap<StreamId, u64>,
    main: Option<StreamId>,
    was_refused: bool,
    turns: Turns<Turn>,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    Ask,
    Elsewhere,
    Gather,
    Borrow,
    Wait,
    Search,
    Break,
    ReleaseAndAsk(Attempt),
    BreakEvery,
}

/// The order of steps after lending.
const LADDER: [Turn; 12] = [
    Turn::Ask,
    Turn::Elsewhere,
    Turn::Borrow,
    Turn::Wait,
    Turn::Search,
    Turn::Elsewhere,
    Turn::Break,
    Turn::Ask,
    Turn::Gather,
    Turn::ReleaseAndAsk(Attempt::AskAgain),
    Turn::BreakEvery,
    Turn::ReleaseAndAsk(Attempt::Ask),
];

/// Returns the slot of a size: the upper twelve bits of its product with 2^64 divided by the golden ratio.
fn slot(size: u64) -> u64 {
    ((u128::from(size) * 0x9E37_79B9_7F4A_7C15) as u64) >> 52
}

impl Compaction {
    pub(super) fn new(first: u64, most: u64) -> Compaction {
        Compaction {
            handles: [first, most],
            seen: BTreeMap::new(),
            current: None,
            takes_high_end: false,
            lacked: BTreeMap::new(),
            main: None,
            was_refused: false,
            turns: Turns::none(),
        }
    }

    fn is_first_of_its_size(&mut self, size: u64) -> bool {
        match self.current {
            Some((current, is_first)) if current == size => is_first,
            _ => {
                let is_first = self.seen.insert(slot(size), size) != Some(size);
                self.current = Some((size, is_first));
                is_first
            }
        }
    }

    /// Counts a request that no free block could serve.
    fn lacks(&mut self, stream: StreamId, bytes: u64) {
        let lacked = self.lacked.entry(stream).or_insert(0);
        *lacked = lacked.saturating_add(bytes);
        let lacked = *lacked;
        let is_main = match self.main {
            None => true,
            Some(main) => lacked / 16 > self.lacked.get(&main).copied().unwrap_or(0),
        };
        if is_main {
            self.main = Some(stream);
        }
    }

    /// Returns the largest handle that the stream may get.
    fn most_for(&self, stream: StreamId, missing: u64) -> u64 {
        if self.main.is_some_and(|main| main != stream) {
            missing.saturating_mul(2).max(self.lacked.get(&stream).copied().unwrap_or(0))
        } else {
            u64::MAX
        }
    }

    fn take(&mut self, turn: Turn, heap: &Heap, request: &Request) -> Option<Relief> {
        let may_move = !heap.is_deferring();
        match turn {
            Turn::Ask => {
                let has_room = has_room(heap, request);
                if !has_room && !is_private(request) {
                    return None;
                }
                // If there is room but a further step follows, the device has refused.
                self.was_refused = has_room;
                Some(ask())
            }
            Turn::Elsewhere if !may_move => None,
            Turn::Elsewhere => from_another_stream(heap, request).or_else(|| gather(heap, request, self.was_refused)),
            Turn::Gather => gather(heap, request, self.was_refused),
            Turn::Borrow => Some(Relief::Borrow),
            Turn::Wait => {
                if may_move {
                    return Some(Relief::Wait);
                }
                self.turns.give_up();
                None
            }
            Turn::Search => tightest(heap, request).filter(|_| may_move).map(|block| Relief::Reuse(block.id)),
            Turn::Break => {
                let left = if self.was_refused { 0 } else { unreserved(heap) };
                breakable(heap, request, left).and_then(break_all)
            }
            Turn::ReleaseAndAsk(attempt) => Some(Relief::Release { blocks: heap.releasable(), attempt }),
            Turn::BreakEvery => {
                // If all handles together are not enough, nothing can serve the request.
                if breakable(heap, request, unreserved(heap)).is_none() {
                    self.turns.give_up();
                }
                break_every(heap, request)
            }
        }
    }
}

impl Policy for Compaction {
    fn name(&self) -> &'static str {
        "compaction"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.get().div_ceil(512).checked_mul(512).map(Bytes)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn is_expandable(&self, _: PoolSlot) -> bool {
        true
    }

    fn page(&self, _: PoolSlot) -> Bytes {
        Bytes(PAGE)
    }

    fn lends_to_pools(&self) -> bool {
        true
    }

    fn waits_for_pools(&self, heap: &Heap) -> bool {
        unreserved(heap) < memory(heap) / 4
    }

    fn breaks_for_pools(&self, heap: &Heap) -> Vec<DeviceAddress> {
        let is_scarce = unreserved(heap) <= memory(heap) / 16;
        let mut handles = Vec::new();
        for part in partly_free(heap).into_iter().filter(|_| is_scarce) {
            if part.free.get() >= 8 * MIB && part.free.get() >= part.handle.size.get() / 4 {
                handles.push(part.handle.address);
            }
        }
        handles
    }

    fn handle(&self, heap: &Heap, request: &Request, missing: Bytes) -> Option<Bytes> {
        let missing = missing.get();
        let limits = [
            (heap.reserved_in(request.pool).get() / 2).max(self.handles[0]),
            missing.saturating_mul(64),
            self.most_for(request.stream, missing),
            unreserved(heap) / 3,
            self.handles[1],
        ];
        let least = limits.into_iter().min()?.max(8 * MIB).max(missing);
        least.div_ceil(PAGE).checked_mul(PAGE).map(Bytes)
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        self.takes_high_end = self.is_first_of_its_size(request.size.get());
        match tightest(heap, request) {
            Some(block) => {
                self.current = None;
                Placement::Reuse(block.id)
            }
            None => Placement::Segment(request.size.get().div_ceil(PAGE).checked_mul(PAGE).map_or(Bytes::MAX, Bytes)),
        }
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn takes_high_end(&self, _: &Request) -> bool {
        self.takes_high_end
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        if turn == 0 {
            self.turns.begin(LADDER);
            self.was_refused = false;
            self.current = None;
            if request.size.get() <= memory(heap) {
                self.lacks(request.stream, request.size.get().max(PAGE));
            }
            return Relief::Lend;
        }
        while let Some(turn) = self.turns.next() {
            if let Some(relief) = self.take(turn, heap, request) {
                return relief;
            }
        }
        Relief::Done
    }
}
