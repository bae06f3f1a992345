//! Blocks that other streams use: what was recorded on them, and the events that they wait for (spec 3.5 to
//! 3.7).
//!
//! A block given back while other streams use it gets one event on each of those streams and becomes free
//! when all are complete. PyTorch keeps these streams in hash containers, without a defined order; here the
//! order is by stream handle, and within a stream the order of recording.
//!
//! Most such blocks are used by one other stream, and the same few streams come again and again. So a block's
//! first use and the number of its events are kept in the block itself, in fields that only free blocks need,
//! and the queue of a stream stays when its last event is complete.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::block::Arena;
use crate::units::StreamId;

/// How many queues without events are kept beside as many as have some.
const KEPT_EMPTY: usize = 16;

/// A stream's events, oldest first, each with its block.
#[derive(Clone, Debug)]
struct Queue<E> {
    stream: StreamId,
    events: VecDeque<(E, u32)>,
}

/// Stream uses and event queues of one allocator. Blocks go by their slots.
#[derive(Clone, Debug)]
pub(crate) struct Pending<E> {
    /// The uses of blocks beyond the first that was recorded on each, which the block has.
    more_uses: BTreeSet<(u32, StreamId)>,
    /// By stream.
    queues: Vec<Queue<E>>,
    /// Events that are not complete, and deferred blocks.
    unsettled: usize,
    /// Unused events, a stack.
    spare: Vec<E>,
    /// Blocks given back whose events are not all recorded yet, oldest first: a graph was being captured, or
    /// the device failed.
    deferred: VecDeque<u32>,
    /// Uses recorded while a graph was captured. They are forgotten if the block is given back during the
    /// capture (spec 3.8).
    captured_uses: BTreeMap<u32, BTreeSet<StreamId>>,
}

impl<E> Pending<E> {
    pub(crate) fn new() -> Pending<E> {
        Pending {
            more_uses: BTreeSet::new(),
            queues: Vec::new(),
            unsettled: 0,
            spare: Vec::new(),
            deferred: VecDeque::new(),
            captured_uses: BTreeMap::new(),
        }
    }

    /// Whether nothing waits.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.unsettled == 0
    }

    /// Notes that `stream` uses the allocated block; `is_deferring` says that a graph is being captured.
    pub(crate) fn add_use(&mut self, arena: &mut Arena, index: u32, stream: StreamId, is_deferring: bool) {
        let block = arena.at_mut(index);
        match block.first_use() {
            None => block.set_first_use(Some(stream)),
            Some(first) if first == stream => {}
            Some(_) => {
                self.more_uses.insert((index, stream));
            }
        }
        if is_deferring {
            self.captured_uses.entry(index).or_default().insert(stream);
        }
    }

    /// Forgets the uses of a deferred block that were recorded during a capture.
    pub(crate) fn remove_captured_uses(&mut self, arena: &mut Arena, index: u32) {
        for stream in self.captured_uses.remove(&index).unwrap_or_default() {
            self.remove_use(arena, index, stream);
        }
    }

    /// The block is given back after the capture: uses recorded during it become ordinary ones.
    pub(crate) fn keep_captured_uses(&mut self, index: u32) {
        self.captured_uses.remove(&index);
    }

    /// The first stream, by handle, that uses the block and has no event yet.
    pub(crate) fn next_use(&self, arena: &Arena, index: u32) -> Option<StreamId> {
        let first = arena.at(index).first_use()?;
        Some(self.next_of_more(index).map_or(first, |next| next.min(first)))
    }

    /// The first stream, by handle, among the uses that the block does not have itself.
    fn next_of_more(&self, index: u32) -> Option<StreamId> {
        if self.more_uses.is_empty() {
            return None;
        }
        self.more_uses.range((index, StreamId(0))..=(index, StreamId(u64::MAX))).next().map(|&(_, stream)| stream)
    }

    /// Forgets a use, whose event is recorded.
    pub(crate) fn remove_use(&mut self, arena: &mut Arena, index: u32, stream: StreamId) {
        let block = arena.at_mut(index);
        if block.first_use() != Some(stream) {
            self.more_uses.remove(&(index, stream));
            return;
        }
        let next = self.next_of_more(index);
        block.set_first_use(next);
        if let Some(next) = next {
            self.more_uses.remove(&(index, next));
        }
    }

    pub(crate) fn defer(&mut self, index: u32) {
        self.unsettled += 1;
        self.deferred.push_back(index);
    }

    pub(crate) fn first_deferred(&self) -> Option<u32> {
        self.deferred.front().copied()
    }

    pub(crate) fn drop_first_deferred(&mut self) {
        if self.deferred.pop_front().is_some() {
            self.unsettled -= 1;
        }
    }

    pub(crate) fn take_spare(&mut self) -> Option<E> {
        self.spare.pop()
    }

    pub(crate) fn return_spare(&mut self, event: E) {
        self.spare.push(event);
    }

    /// Takes all events, in use or not.
    pub(crate) fn drain_events(&mut self) -> impl Iterator<Item = E> {
        let queues = core::mem::take(&mut self.queues);
        let queued = queues.into_iter().flat_map(|queue| queue.events).map(|(event, _)| event);
        core::mem::take(&mut self.spare).into_iter().chain(queued)
    }

    /// Every stream that uses a block or that a block waits for, with repetitions.
    pub(crate) fn streams(&self, arena: &Arena) -> impl Iterator<Item = StreamId> {
        let first = arena.live().filter_map(|index| arena.at(index).first_use());
        let waited_for = self.queues.iter().filter(|queue| !queue.events.is_empty()).map(|queue| queue.stream);
        first.chain(self.more_uses.iter().map(|&(_, stream)| stream)).chain(waited_for)
    }

    /// Notes that the block waits for an event, which was recorded on the stream.
    pub(crate) fn push(&mut self, arena: &mut Arena, stream: StreamId, event: E, index: u32) {
        let place = match self.queues.binary_search_by_key(&stream, |queue| queue.stream) {
            Ok(place) => place,
            Err(place) => {
                self.queues.insert(place, Queue { stream, events: VecDeque::new() });
                place
            }
        };
        self.queues[place].events.push_back((event, index));
        self.unsettled += 1;
        if let Some(block) = arena.get_mut(index) {
            block.set_events(block.events() + 1);
        }
    }

    /// The number of queues. They are numbered from 0, in the order of their streams, until an event comes for
    /// another stream or [`Pending::forget_empty_queues`] is called. Some may be empty.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The oldest event of a queue.
    pub(crate) fn front(&self, queue: usize) -> Option<&E> {
        self.event_at(queue, 0)
    }

    /// The first event whose block matches, by stream, oldest first: its queue and its place there.
    pub(crate) fn first_where(&self, wanted: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        self.queues.iter().enumerate().find_map(|(number, queue)| {
            let place = queue.events.iter().position(|&(_, index)| wanted(index))?;
            Some((number, place))
        })
    }

    /// The event at this place of a queue.
    pub(crate) fn event_at(&self, queue: usize, place: usize) -> Option<&E> {
        self.queues.get(queue)?.events.get(place).map(|(event, _)| event)
    }

    /// Removes the oldest event of a queue, which is complete, and returns its block. The event can be reused.
    pub(crate) fn pop(&mut self, arena: &mut Arena, queue: usize) -> Option<u32> {
        self.take_at(arena, queue, 0)
    }

    /// The same for the event at this place of the queue.
    pub(crate) fn take_at(&mut self, arena: &mut Arena, queue: usize, place: usize) -> Option<u32> {
        let events = &mut self.queues.get_mut(queue)?.events;
        // The oldest is taken out without moving the others.
        let (event, index) = if place == 0 { events.pop_front() } else { events.remove(place) }?;
        self.spare.push(event);
        self.unsettled -= 1;
        let block = arena.at_mut(index);
        block.set_events(block.events().saturating_sub(1));
        Some(index)
    }

    /// Forgets queues without events, if they are many: polling looks at each.
    pub(crate) fn forget_empty_queues(&mut self) {
        let empty = self.queues.iter().filter(|queue| queue.events.is_empty()).count();
        if empty > self.queues.len() - empty + KEPT_EMPTY {
            self.queues.retain(|queue| !queue.events.is_empty());
        }
    }

    /// The number of events that each block waits for, from the queues; for the sweep.
    pub(crate) fn waiting(&self) -> BTreeMap<u32, u32> {
        let mut waiting = BTreeMap::new();
        for (_, index) in self.queues.iter().flat_map(|queue| &queue.events) {
            *waiting.entry(*index).or_insert(0) += 1;
        }
        waiting
    }

    /// Whether uses beyond the first are of blocks that have a first, and the counts of events and deferred
    /// blocks are right; for the sweep.
    pub(crate) fn is_consistent(&self, arena: &Arena) -> bool {
        let events: usize = self.queues.iter().map(|queue| queue.events.len()).sum();
        let is_further = |&(index, stream): &(u32, StreamId)| {
            let first = arena.get(index).filter(|block| block.size != 0).and_then(|block| block.first_use());
            first.is_some_and(|first| first != stream)
        };
        self.unsettled == events + self.deferred.len() && self.more_uses.iter().all(is_further)
    }

    pub(crate) fn is_deferred(&self, index: u32) -> bool {
        self.deferred.contains(&index)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::block::{Block, BlockState, Marks, NIL};

    fn arena() -> Arena {
        let mut arena = Arena::new(false);
        arena.insert(Block {
            address: 0,
            size: 512,
            requested: 512,
            stamp: 3,
            prev: NIL,
            next: NIL,
            link_prev: NIL,
            link_next: NIL,
            generation: 0,
            rank: 0,
            stream: 0,
            pool: 0,
            bin: 0,
            state: BlockState::Allocated,
            marks: Marks::default(),
        });
        arena
    }

    #[test]
    fn uses_are_a_set_and_come_by_handle() {
        let (mut arena, mut pending) = (arena(), Pending::<()>::new());
        assert_eq!(pending.next_use(&arena, 0), None);
        for stream in [5, 3, 5, 9, 3, 7, 9] {
            pending.add_use(&mut arena, 0, StreamId(stream), false);
        }
        pending.remove_use(&mut arena, 0, StreamId(4));
        let mut seen = Vec::new();
        while let Some(stream) = pending.next_use(&arena, 0) {
            assert!(pending.is_consistent(&arena));
            pending.remove_use(&mut arena, 0, stream);
            seen.push(stream.0);
        }
        assert_eq!(seen, [3, 5, 7, 9]);
        assert!(!arena.at(0).has_uses() && pending.more_uses.is_empty());
    }

    #[test]
    fn queues_go_once_most_are_empty() {
        let (mut arena, mut pending) = (arena(), Pending::new());
        arena.at_mut(0).state = BlockState::Pending;
        arena.at_mut(0).set_events(0);
        // Descending, so that each comes before all others.
        for stream in (0..100).rev() {
            pending.push(&mut arena, StreamId(stream), stream, 0);
        }
        assert_eq!((pending.queues(), arena.at(0).events()), (100, 100));
        for queue in 0..80 {
            assert_eq!(pending.front(queue), Some(&(queue as u64)));
            assert_eq!(pending.pop(&mut arena, queue), Some(0));
        }
        assert!(!pending.is_idle());
        pending.forget_empty_queues();
        assert_eq!((pending.queues(), pending.front(0), arena.at(0).events()), (20, Some(&80), 20));
    }
}
