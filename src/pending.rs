//! Blocks that other streams use: the streams recorded on them, and the events for which they wait (spec 3.5 to 3.7).
//!
//! A block that is freed while other streams use it gets one event on each of those streams, and becomes free when all
//! of them are complete. PyTorch keeps these streams in hash tables. This module follows the order of those tables
//! when it records and completes events; within a stream, it follows the order of recording.
//!
//! Most of these blocks are used by only one other stream, and the same few streams recur. The block itself therefore
//! stores its first use and the number of its events, in fields that only free blocks need, and a stream's queue keeps
//! its memory when its last event is complete.
//!
//! Each stream with events has a queue. The queues are in the order of PyTorch's hash table of streams. If the
//! device's events complete by handle, they are in the order of the handles instead. In that case, there may be one
//! queue for each waiting block, and the next event may be for any of them, so a queue is removed with its last event.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::block::{Arena, BlockState};
use crate::device::GraphNode;
use crate::flat_table::FlatTable;
use crate::units::StreamId;

/// The number of empty queues in the table that keep their memory.
const KEPT_EMPTY: usize = 16;

/// PyTorch's number for the device type, which is part of a stream's hash.
const CUDA: u64 = 1;

/// A stream's events, oldest first, each with its block.
type Events<E> = VecDeque<(E, u32)>;

/// The order in which streams are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamOrder {
    /// Ascending by handle.
    ByHandle,
    /// The order of PyTorch's tables, for the device with this index.
    Hashed(u32),
}

impl StreamOrder {
    /// The hash of a stream, as PyTorch's tables compute it: the device, then 48 bits of the id, which is the handle.
    /// If only the order of handles matters, the device is ignored.
    fn hash(self, stream: StreamId) -> u64 {
        let device = match self {
            StreamOrder::ByHandle => 0,
            StreamOrder::Hashed(device) => u64::from(device),
        };
        CUDA << 56 | device << 48 | stream.0 & ((1 << 48) - 1)
    }
}

/// All queues of one allocator.
#[derive(Clone, Debug)]
enum Queues<E> {
    /// Ascending by handle.
    ByHandle(BTreeMap<StreamId, Events<E>>),
    /// In PyTorch's order, with unused queues whose memory can be reused.
    Hashed { table: FlatTable<StreamId, (StreamId, Events<E>)>, unused: Vec<Events<E>>, order: StreamOrder },
}

impl<E> Queues<E> {
    fn new(order: StreamOrder) -> Queues<E> {
        match order {
            StreamOrder::ByHandle => Queues::ByHandle(BTreeMap::new()),
            StreamOrder::Hashed(_) => Queues::Hashed { table: FlatTable::default(), unused: Vec::new(), order },
        }
    }

    /// Adds an event to a stream's queue.
    fn push(&mut self, stream: StreamId, event: E, block: u32) {
        match self {
            Queues::ByHandle(queues) => queues.entry(stream).or_default().push_back((event, block)),
            Queues::Hashed { table, unused, order } => {
                let hash = order.hash(stream);
                if let Some((_, events)) = table.find(hash, stream).and_then(|place| table.at_mut(place)) {
                    events.push_back((event, block));
                    return;
                }
                let mut events = unused.pop().unwrap_or_default();
                events.push_back((event, block));
                table.insert(hash, stream, (stream, events));
            }
        }
    }

    /// The first position at or after this one that may have a queue. The position may be empty or have an empty
    /// queue.
    fn place_from(&self, place: u64) -> Option<u64> {
        match self {
            Queues::ByHandle(queues) => queues.range(StreamId(place)..).next().map(|(stream, _)| stream.0),
            Queues::Hashed { table, .. } => Some(place).filter(|&place| place < table.places() as u64),
        }
    }

    /// The events of the queue at `place`.
    fn at(&self, place: u64) -> Option<&Events<E>> {
        match self {
            Queues::ByHandle(queues) => queues.get(&StreamId(place)),
            Queues::Hashed { table, .. } => table.at(place as usize).map(|(_, events)| events),
        }
    }

    /// Removes an event from the queue at `place`, and returns it with its block. `position` is the event's index in
    /// the queue.
    fn take(&mut self, place: u64, position: usize) -> Option<(E, u32)> {
        let events = match self {
            Queues::ByHandle(queues) => queues.get_mut(&StreamId(place)),
            Queues::Hashed { table, .. } => table.at_mut(place as usize).map(|(_, events)| events),
        }?;
        // Removing the oldest event does not move the others.
        let taken = if position == 0 { events.pop_front() } else { events.remove(position) };
        if let Queues::ByHandle(queues) = self
            && queues.get(&StreamId(place)).is_some_and(VecDeque::is_empty)
        {
            queues.remove(&StreamId(place));
        }
        taken
    }

    /// Removes all events.
    fn drain(&mut self) -> Vec<E> {
        let places: Vec<u64> = self.places().collect();
        let mut events = Vec::new();
        for place in places {
            events.extend(core::iter::from_fn(|| self.take(place, 0)).map(|(event, _)| event));
        }
        events
    }

    fn places(&self) -> impl Iterator<Item = u64> {
        core::iter::successors(self.place_from(0), |place| self.place_from(place.checked_add(1)?))
    }

    /// The streams that have or have had events, with their queues, in order.
    fn iter(&self) -> impl Iterator<Item = (StreamId, &Events<E>)> {
        let stream_at = |place: u64| match self {
            Queues::ByHandle(_) => Some(StreamId(place)),
            Queues::Hashed { table, .. } => table.at(place as usize).map(|&(stream, _)| stream),
        };
        self.places().filter_map(move |place| Some((stream_at(place)?, self.at(place)?)))
    }

    /// Forgets queues without events, as PyTorch does.
    fn forget_empty(&mut self) {
        if let Queues::Hashed { table, unused, .. } = self {
            let mut place = 0;
            while place < table.places() {
                // The key after a removed key moves to its position.
                if !table.at(place).is_some_and(|(_, events)| events.is_empty()) {
                    place += 1;
                } else if let Some((_, events)) = table.remove_at(place)
                    && unused.len() < KEPT_EMPTY
                {
                    unused.push(events);
                }
            }
        }
    }
}

/// The allocator's information about a graph capture.
#[derive(Clone, Debug)]
pub(crate) struct CaptureNotes {
    /// The pool that serves the capture's requests.
    pool_number: u16,
    /// The nodes for which each stream of the capture waits.
    awaited: BTreeMap<StreamId, BTreeSet<GraphNode>>,
}

/// Stream uses and event queues of one allocator. Blocks are identified by slot.
#[derive(Clone, Debug)]
pub(crate) struct Pending<E> {
    order: StreamOrder,
    /// All uses of blocks that several other streams use. If only one stream does, the use is stored in the block
    /// itself.
    uses: BTreeMap<u32, FlatTable<StreamId, ()>>,
    queues: Queues<E>,
    /// The number of incomplete events and deferred blocks.
    outstanding: usize,
    /// Unused events, a stack.
    spare: Vec<E>,
    /// Freed blocks, oldest first, whose events have not all been recorded yet, because a graph was being captured or
    /// the device failed.
    deferred: VecDeque<u32>,
    /// Uses recorded while a graph was captured. They are forgotten if the block is freed during the capture
    /// (spec 3.8).
    captured_uses: BTreeMap<u32, BTreeSet<StreamId>>,
    /// For each deferred block, the nodes at which the captured graph ended on all streams that use the block, when it
    /// was freed.
    pub(crate) ends: BTreeMap<u32, Vec<GraphNode>>,
    /// The captures, by number.
    pub(crate) captures: BTreeMap<u64, CaptureNotes>,
}

impl<E> Pending<E> {
    pub(crate) fn new(order: StreamOrder) -> Pending<E> {
        Pending {
            order,
            uses: BTreeMap::new(),
            queues: Queues::new(order),
            outstanding: 0,
            spare: Vec::new(),
            deferred: VecDeque::new(),
            captured_uses: BTreeMap::new(),
            ends: BTreeMap::new(),
            captures: BTreeMap::new(),
        }
    }

    /// Whether no block is waiting.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    /// Records that `stream` uses the allocated block; `is_deferring` states whether a graph is being captured.
    pub(crate) fn add_use(&mut self, arena: &mut Arena, index: u32, stream: StreamId, is_deferring: bool) {
        self.insert_use(arena, index, stream);
        if is_deferring {
            self.captured_uses.entry(index).or_default().insert(stream);
        }
    }

    fn insert_use(&mut self, arena: &mut Arena, index: u32, stream: StreamId) {
        let block = arena.at_mut(index);
        let Some(first) = block.first_use() else { return block.set_first_use(Some(stream)) };
        if first == stream {
            return;
        }
        let order = self.order;
        let uses = self.uses.entry(index).or_insert_with(|| {
            let mut uses = FlatTable::default();
            uses.insert(order.hash(first), first, ());
            uses
        });
        if uses.find(order.hash(stream), stream).is_none() {
            uses.insert(order.hash(stream), stream, ());
        }
    }

    /// Forgets the uses of a deferred block that were recorded during a capture. PyTorch inserts the other uses again,
    /// in order.
    pub(crate) fn remove_captured_uses(&mut self, arena: &mut Arena, index: u32) {
        self.ends.remove(&index);
        let Some(captured) = self.captured_uses.remove(&index) else { return };
        for stream in self.take_uses(arena, index).into_iter().filter(|stream| !captured.contains(stream)) {
            self.insert_use(arena, index, stream);
        }
    }

    /// Removes all uses of a block and returns them in order.
    fn take_uses(&mut self, arena: &mut Arena, index: u32) -> Vec<StreamId> {
        let mut uses = Vec::new();
        while let Some(stream) = self.next_use(arena, index) {
            self.remove_use(arena, index, stream);
            uses.push(stream);
        }
        uses
    }

    /// The streams that use the block and have no event yet, in PyTorch's order.
    pub(crate) fn uses(&self, arena: &Arena, index: u32) -> Vec<StreamId> {
        match self.uses.get(&index) {
            Some(uses) => uses.iter().map(|(stream, ())| stream).collect(),
            None => arena.at(index).first_use().into_iter().collect(),
        }
    }

    /// Records that the block is freed after the capture, so uses recorded during the capture become ordinary uses.
    pub(crate) fn keep_captured_uses(&mut self, index: u32) {
        self.captured_uses.remove(&index);
    }

    /// The first stream, in PyTorch's order, that uses the block and has no event yet.
    pub(crate) fn next_use(&self, arena: &Arena, index: u32) -> Option<StreamId> {
        let first = arena.at(index).first_use()?;
        let next = self.uses.get(&index).and_then(|uses| uses.iter().next());
        Some(next.map_or(first, |(stream, ())| stream))
    }

    /// Forgets a use whose event has been recorded.
    pub(crate) fn remove_use(&mut self, arena: &mut Arena, index: u32, stream: StreamId) {
        let block = arena.at_mut(index);
        let Some(uses) = self.uses.get_mut(&index) else {
            if block.first_use() == Some(stream) {
                block.set_first_use(None);
            }
            return;
        };
        uses.remove(self.order.hash(stream), stream);
        let mut left = uses.iter().map(|(stream, ())| stream);
        let (next, is_last) = (left.next(), left.next().is_none());
        block.set_first_use(next);
        if is_last {
            drop(left);
            self.uses.remove(&index);
        }
    }

    pub(crate) fn defer(&mut self, index: u32) {
        self.outstanding += 1;
        self.deferred.push_back(index);
    }

    pub(crate) fn first_deferred(&self) -> Option<u32> {
        self.deferred.front().copied()
    }

    pub(crate) fn drop_first_deferred(&mut self) {
        if self.deferred.pop_front().is_some() {
            self.outstanding -= 1;
        }
    }

    /// Removes the deferred blocks that match and returns them, oldest first.
    pub(crate) fn take_deferred(&mut self, matches: impl Fn(u32) -> bool) -> Vec<u32> {
        let taken: Vec<u32> = self.deferred.iter().copied().filter(|&index| matches(index)).collect();
        self.deferred.retain(|&index| !matches(index));
        self.outstanding -= taken.len();
        taken
    }

    /// The nodes for which a stream waits in a capture. `None` if the capture is unknown and no pool serves its
    /// requests, that is, if `pool_number` is 0.
    pub(crate) fn awaited(&mut self, capture: u64, pool_number: u16, stream: StreamId) -> Option<&mut BTreeSet<GraphNode>> {
        if pool_number == 0 && !self.captures.contains_key(&capture) {
            return None;
        }
        let notes = self.captures.entry(capture).or_insert(CaptureNotes { pool_number, awaited: BTreeMap::new() });
        Some(notes.awaited.entry(stream).or_default())
    }

    /// The newest capture whose requests the pool serves, and its streams.
    pub(crate) fn newest_capture(&self, pool_number: u16) -> Option<(u64, Vec<StreamId>)> {
        let (&capture, notes) = self.captures.iter().rev().find(|(_, notes)| notes.pool_number == pool_number)?;
        Some((capture, notes.awaited.keys().copied().collect()))
    }

    /// Removes and returns the stream's deferred blocks whose other uses end before the stream's next work in the
    /// capture, oldest first, and forgets these uses.
    pub(crate) fn take_ordered(&mut self, arena: &mut Arena, capture: u64, stream: StreamId, stream_slot: u16) -> Vec<u32> {
        let Some(awaited) = self.captures.get(&capture).and_then(|notes| notes.awaited.get(&stream)) else { return Vec::new() };
        let is_passed = |index: u32| self.ends.get(&index).is_some_and(|ends| ends.iter().all(|end| awaited.contains(end)));
        let is_taken = |&index: &u32| arena.at(index).stream == stream_slot && is_passed(index);
        let (taken, left): (Vec<u32>, Vec<u32>) = core::mem::take(&mut self.deferred).into_iter().partition(is_taken);
        self.deferred = left.into();
        self.outstanding -= taken.len();
        for &index in &taken {
            self.ends.remove(&index);
            self.captured_uses.remove(&index);
            self.take_uses(arena, index);
        }
        taken
    }

    pub(crate) fn take_spare_event(&mut self) -> Option<E> {
        self.spare.pop()
    }

    pub(crate) fn return_spare_event(&mut self, event: E) {
        self.spare.push(event);
    }

    /// Removes all events, in use or not.
    pub(crate) fn drain_events(&mut self) -> impl Iterator<Item = E> {
        let mut events = core::mem::take(&mut self.spare);
        events.extend(self.queues.drain());
        events.into_iter()
    }

    /// Every stream that uses a block or for which a block waits, with repetitions.
    pub(crate) fn streams(&self, arena: &Arena) -> impl Iterator<Item = StreamId> {
        let first = arena.occupied().filter_map(|index| arena.at(index).first_use());
        let waited_for = self.queues.iter().filter(|(_, events)| !events.is_empty()).map(|(stream, _)| stream);
        first.chain(self.uses.values().flat_map(|uses| uses.iter().map(|(stream, ())| stream))).chain(waited_for)
    }

    /// Records that the block waits for an event that was recorded on the stream.
    pub(crate) fn push(&mut self, arena: &mut Arena, stream: StreamId, event: E, index: u32) {
        self.queues.push(stream, event, index);
        self.outstanding += 1;
        if let Some(block) = arena.get_mut(index) {
            block.set_events(block.events() + 1);
        }
    }

    /// The first queue at or after `queue`, counted from 0. The order stays the same until an event is added for
    /// another stream or [`Pending::forget_empty_queues`] is called. The queue may be empty.
    pub(crate) fn queue_from(&self, queue: u64) -> Option<u64> {
        self.queues.place_from(queue)
    }

    /// The oldest event of a queue.
    pub(crate) fn front(&self, queue: u64) -> Option<&E> {
        self.event_at((queue, 0))
    }

    /// The first event at or after `from`, by stream and age, whose block matches: its queue and its position there.
    pub(crate) fn first_where(&self, from: (u64, usize), wanted: impl Fn(u32) -> bool) -> Option<(u64, usize)> {
        let mut next = Some(from);
        while let Some((from, passed)) = next {
            let queue = self.queues.place_from(from)?;
            let passed = if queue == from { passed } else { 0 };
            let mut places = self.queues.at(queue).into_iter().flatten().enumerate().skip(passed);
            if let Some((place, _)) = places.find(|(_, (_, index))| wanted(*index)) {
                return Some((queue, place));
            }
            next = queue.checked_add(1).map(|queue| (queue, 0));
        }
        None
    }

    /// The event at this position of this queue.
    pub(crate) fn event_at(&self, (queue, place): (u64, usize)) -> Option<&E> {
        self.queues.at(queue)?.get(place).map(|(event, _)| event)
    }

    /// Removes the oldest event of a queue, which is complete, and returns its block. The event can be reused.
    pub(crate) fn pop(&mut self, arena: &mut Arena, queue: u64) -> Option<u32> {
        self.take_at(arena, (queue, 0))
    }

    /// Removes the event at this position of this queue, and returns its block.
    pub(crate) fn take_at(&mut self, arena: &mut Arena, (queue, place): (u64, usize)) -> Option<u32> {
        let (event, index) = self.queues.take(queue, place)?;
        self.spare.push(event);
        self.outstanding -= 1;
        let block = arena.at_mut(index);
        block.set_events(block.events().saturating_sub(1));
        Some(index)
    }

    /// Forgets queues without events.
    pub(crate) fn forget_empty_queues(&mut self) {
        self.queues.forget_empty();
    }

    /// The number of events for which each block waits, counted in the queues. Used by the heap check.
    pub(crate) fn waiting(&self) -> BTreeMap<u32, u32> {
        let mut waiting = BTreeMap::new();
        for (_, index) in self.queues.iter().flat_map(|(_, events)| events) {
            *waiting.entry(*index).or_insert(0) += 1;
        }
        waiting
    }

    /// Whether the recorded uses belong to blocks that several streams use, what is known from captures belongs to blocks
    /// that captures still concern, and the counts of events and deferred blocks are correct. Used by the heap check.
    pub(crate) fn is_consistent(&self, arena: &Arena) -> bool {
        let events: usize = self.queues.iter().map(|(_, events)| events.len()).sum();
        let is_known = |(&index, uses): (&u32, &FlatTable<StreamId, ()>)| {
            let first = arena.get(index).filter(|block| block.size != 0).and_then(|block| block.first_use());
            uses.len() > 1 && first.is_some_and(|first| uses.find(self.order.hash(first), first).is_some())
        };
        let is_in_use = |&index: &u32| {
            arena.get(index).is_some_and(|block| matches!(block.state, BlockState::Allocated | BlockState::Pending))
        };
        let is_counted = self.outstanding == events + self.deferred.len();
        let is_of_captures = self.captured_uses.keys().all(is_in_use) && self.ends.keys().all(|index| self.is_deferred(*index));
        is_counted && is_of_captures && self.uses.iter().all(is_known)
    }

    pub(crate) fn is_deferred(&self, index: u32) -> bool {
        self.deferred.contains(&index)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::block::Block;

    fn arena() -> Arena {
        let mut arena = Arena::new(false);
        arena.insert(Block { size: 512, requested: 512, stamp: 3, state: BlockState::Allocated, ..Block::VACANT });
        arena
    }

    const HASHED: StreamOrder = StreamOrder::Hashed(0);

    /// The order equals that of the real container for streams 0x1000 to 0x9000 of device 0.
    #[test]
    fn uses_are_a_set_and_come_in_the_order_of_the_real_table() {
        let (mut arena, mut pending) = (arena(), Pending::<()>::new(HASHED));
        assert_eq!(pending.next_use(&arena, 0), None);
        for stream in [5, 3, 5, 9, 3, 7, 9] {
            pending.add_use(&mut arena, 0, StreamId(stream * 0x1000), false);
        }
        pending.remove_use(&mut arena, 0, StreamId(0x4000));
        let mut seen = Vec::new();
        while let Some(stream) = pending.next_use(&arena, 0) {
            assert!(pending.is_consistent(&arena));
            pending.remove_use(&mut arena, 0, stream);
            seen.push(stream.0 / 0x1000);
        }
        assert_eq!(seen, [9, 7, 3, 5]);
        assert!(!arena.at(0).has_uses() && pending.uses.is_empty());
    }

    fn places(pending: &Pending<u64>) -> Vec<u64> {
        let after = |&place: &u64| pending.queue_from(place + 1);
        core::iter::successors(pending.queue_from(0), after).collect()
    }

    /// The order of the queues equals that of the real container, even though two queues were removed in the meantime.
    #[test]
    fn queues_are_in_the_order_of_the_real_table() {
        let (mut arena, mut pending) = (arena(), Pending::new(HASHED));
        arena.at_mut(0).state = BlockState::Pending;
        arena.at_mut(0).set_events(0);
        let streams = |pending: &Pending<u64>| -> Vec<u64> {
            places(pending).iter().filter_map(|&queue| pending.front(queue)).copied().collect()
        };
        for stream in 1..=7 {
            pending.push(&mut arena, StreamId(stream * 0x1000), stream, 0);
        }
        assert_eq!(streams(&pending), [2, 7, 5, 3, 1, 6, 4]);
        for gone in [4, 2] {
            let place = places(&pending).into_iter().find(|&place| pending.front(place) == Some(&gone));
            assert_eq!(pending.pop(&mut arena, place.unwrap()), Some(0));
        }
        pending.forget_empty_queues();
        for stream in [9, 8, 2] {
            pending.push(&mut arena, StreamId(stream * 0x1000), stream, 0);
        }
        assert_eq!(streams(&pending), [2, 9, 7, 5, 3, 1, 8, 6]);
    }

    #[test]
    fn queues_by_handle_go_with_their_last_events() {
        let (mut arena, mut pending) = (arena(), Pending::new(StreamOrder::ByHandle));
        arena.at_mut(0).state = BlockState::Pending;
        arena.at_mut(0).set_events(0);
        // In descending order, so that each stream comes before all others.
        for stream in (0..100).rev() {
            pending.push(&mut arena, StreamId(stream), stream, 0);
        }
        pending.push(&mut arena, StreamId(90), 90, 0);
        assert_eq!((places(&pending).len(), arena.at(0).events()), (100, 101));
        for queue in 0..80 {
            assert_eq!(pending.front(queue), Some(&queue));
            assert_eq!(pending.pop(&mut arena, queue), Some(0));
            assert_eq!(pending.queue_from(0), Some(queue + 1));
        }
        assert_eq!(
            (pending.first_where((85, 0), |_| true), pending.first_where((90, 1), |_| true)),
            (Some((85, 0)), Some((90, 1)))
        );
        assert_eq!((pending.take_at(&mut arena, (90, 1)), pending.first_where((90, 1), |_| true)), (Some(0), Some((91, 0))));
        assert!(!pending.is_idle() && pending.is_consistent(&arena));
        assert_eq!((places(&pending).len(), pending.drain_events().count(), arena.at(0).events()), (20, 101, 20));
    }
}
