//! Blocks that other streams use: what was recorded on them, and the events that they wait for (spec 3.5 to
//! 3.7).
//!
//! A block given back while other streams use it gets one event on each of those streams and becomes free
//! when all are complete. PyTorch keeps these streams in hash containers, without a defined order; here the
//! order is by stream handle, and within a stream the order of recording.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::Bound;

use crate::units::StreamId;

/// Stream uses and event queues of one allocator. Blocks go by their slots.
#[derive(Debug)]
pub(crate) struct Pending<E> {
    uses: BTreeMap<u32, BTreeSet<StreamId>>,
    queues: BTreeMap<StreamId, VecDeque<(E, u32)>>,
    /// How many events each block still waits for.
    counts: BTreeMap<u32, u32>,
    /// Unused events, a stack.
    spare: Vec<E>,
    /// Blocks given back whose events are not all recorded yet, oldest first: a graph was being captured, or
    /// the device failed.
    deferred: VecDeque<u32>,
    /// Uses recorded while a graph was captured. They are forgotten if the block is given back during the
    /// capture (spec 3.8).
    captured_uses: BTreeMap<u32, BTreeSet<StreamId>>,
}

impl<E: Clone> Clone for Pending<E> {
    fn clone(&self) -> Self {
        Pending {
            uses: self.uses.clone(),
            queues: self.queues.clone(),
            counts: self.counts.clone(),
            spare: self.spare.clone(),
            deferred: self.deferred.clone(),
            captured_uses: self.captured_uses.clone(),
        }
    }
}

impl<E> Pending<E> {
    pub(crate) fn new() -> Pending<E> {
        Pending {
            uses: BTreeMap::new(),
            queues: BTreeMap::new(),
            counts: BTreeMap::new(),
            spare: Vec::new(),
            deferred: VecDeque::new(),
            captured_uses: BTreeMap::new(),
        }
    }

    /// Whether nothing waits.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.is_empty() && self.deferred.is_empty()
    }

    /// Notes that `stream` uses the block; `is_deferring` says that a graph is being captured.
    pub(crate) fn add_use(&mut self, block: u32, stream: StreamId, is_deferring: bool) {
        self.uses.entry(block).or_default().insert(stream);
        if is_deferring {
            self.captured_uses.entry(block).or_default().insert(stream);
        }
    }

    /// Forgets the uses of a deferred block that were recorded during a capture.
    pub(crate) fn remove_captured_uses(&mut self, block: u32) {
        for stream in self.captured_uses.remove(&block).unwrap_or_default() {
            self.remove_use(block, stream);
        }
    }

    /// The first event whose block matches, by stream, oldest first: its stream and its place in the queue.
    pub(crate) fn first_where(&self, wanted: impl Fn(u32) -> bool) -> Option<(StreamId, usize)> {
        self.queues.iter().find_map(|(&stream, queue)| {
            let place = queue.iter().position(|&(_, block)| wanted(block))?;
            Some((stream, place))
        })
    }

    /// The event at this place of a stream's queue.
    pub(crate) fn event_at(&self, stream: StreamId, place: usize) -> Option<&E> {
        self.queues.get(&stream)?.get(place).map(|(event, _)| event)
    }

    /// The block is given back after the capture: uses recorded during it become ordinary ones.
    pub(crate) fn keep_captured_uses(&mut self, block: u32) {
        self.captured_uses.remove(&block);
    }

    /// The first stream that uses the block and has no event yet.
    pub(crate) fn next_use(&self, block: u32) -> Option<StreamId> {
        self.uses.get(&block)?.first().copied()
    }

    /// Forgets a use, whose event is recorded.
    pub(crate) fn remove_use(&mut self, block: u32, stream: StreamId) {
        if let Some(streams) = self.uses.get_mut(&block) {
            streams.remove(&stream);
            if streams.is_empty() {
                self.uses.remove(&block);
            }
        }
    }

    pub(crate) fn defer(&mut self, block: u32) {
        self.deferred.push_back(block);
    }

    pub(crate) fn first_deferred(&self) -> Option<u32> {
        self.deferred.front().copied()
    }

    pub(crate) fn drop_first_deferred(&mut self) {
        self.deferred.pop_front();
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
        core::mem::take(&mut self.spare).into_iter().chain(queues.into_values().flatten().map(|(event, _)| event))
    }

    /// Every stream that uses a block or that a block waits for, with repetitions.
    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.uses.values().flatten().chain(self.queues.keys()).copied()
    }

    pub(crate) fn push(&mut self, stream: StreamId, event: E, block: u32) {
        self.queues.entry(stream).or_default().push_back((event, block));
        *self.counts.entry(block).or_insert(0) += 1;
    }

    /// The first stream after `previous` that has events.
    pub(crate) fn stream_after(&self, previous: Option<StreamId>) -> Option<StreamId> {
        let after = previous.map_or(Bound::Unbounded, Bound::Excluded);
        self.queues.range((after, Bound::Unbounded)).next().map(|(&stream, _)| stream)
    }

    /// The oldest event of a stream.
    pub(crate) fn front(&self, stream: StreamId) -> Option<&E> {
        self.queues.get(&stream)?.front().map(|(event, _)| event)
    }

    /// Removes the oldest event of a stream, which is complete, and returns its block. The event can be reused.
    pub(crate) fn pop(&mut self, stream: StreamId) -> Option<u32> {
        self.take_at(stream, 0)
    }

    /// The same for the event at this place of the queue.
    pub(crate) fn take_at(&mut self, stream: StreamId, place: usize) -> Option<u32> {
        let queue = self.queues.get_mut(&stream)?;
        let (event, block) = queue.remove(place)?;
        if queue.is_empty() {
            self.queues.remove(&stream);
        }
        self.spare.push(event);
        self.count_down(block);
        Some(block)
    }

    /// Whether some event of the block is not complete yet.
    pub(crate) fn is_waiting(&self, block: u32) -> bool {
        self.counts.contains_key(&block)
    }

    fn count_down(&mut self, block: u32) {
        if let Some(count) = self.counts.get_mut(&block) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&block);
            }
        }
    }

    /// The number of events that the block waits for, as counted.
    pub(crate) fn count(&self, block: u32) -> u32 {
        self.counts.get(&block).copied().unwrap_or(0)
    }

    /// The number of events that each block waits for, from the queues; for the sweep.
    pub(crate) fn waiting(&self) -> BTreeMap<u32, u32> {
        let mut waiting = BTreeMap::new();
        for (_, block) in self.queues.values().flatten() {
            *waiting.entry(*block).or_insert(0) += 1;
        }
        waiting
    }

    pub(crate) fn is_deferred(&self, block: u32) -> bool {
        self.deferred.contains(&block)
    }
}
