//! The queues of events, one for each stream that has some, in the order in which they are looked at.
//!
//! That order is the one of PyTorch's hash table of streams. A device whose events complete by handle has its
//! queues in the order of the handles instead. There may be one for each block that waits, and events may come for
//! any of them next, so a queue goes with its last event.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::flat_table::FlatTable;
use crate::units::StreamId;

/// The memory of how many empty queues of the table is kept.
const KEPT_EMPTY: usize = 16;

/// PyTorch's number for the type of device, which is part of a stream's hash.
const CUDA: u64 = 1;

/// A stream's events, oldest first, each with its block.
type Events<E> = VecDeque<(E, u32)>;

/// In which order streams are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamOrder {
    /// Ascending.
    ByHandle,
    /// That of PyTorch's tables, for the device with this index.
    Hashed(u32),
}

impl StreamOrder {
    /// The hash of a stream, as PyTorch's tables take it: 48 bits of the id, which is the handle, behind the
    /// device. Where only the order of handles matters the device is not asked for.
    pub(super) fn hash(self, stream: StreamId) -> u64 {
        let device = match self {
            StreamOrder::ByHandle => 0,
            StreamOrder::Hashed(device) => u64::from(device),
        };
        CUDA << 56 | device << 48 | stream.0 & ((1 << 48) - 1)
    }
}

/// All queues of one allocator.
#[derive(Clone, Debug)]
pub(super) enum Queues<E> {
    /// Ascending by handle.
    ByHandle(BTreeMap<StreamId, Events<E>>),
    /// In PyTorch's order; and unused queues, whose memory is used again.
    Hashed { table: FlatTable<StreamId, (StreamId, Events<E>)>, unused: Vec<Events<E>>, order: StreamOrder },
}

impl<E> Queues<E> {
    pub(super) fn new(order: StreamOrder) -> Queues<E> {
        match order {
            StreamOrder::ByHandle => Queues::ByHandle(BTreeMap::new()),
            StreamOrder::Hashed(_) => Queues::Hashed { table: FlatTable::default(), unused: Vec::new(), order },
        }
    }

    /// Adds an event to a stream's queue.
    pub(super) fn push(&mut self, stream: StreamId, event: E, block: u32) {
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

    /// The first place for a queue that is not before this one. There may be none at it, or an empty one.
    pub(super) fn place_from(&self, place: u64) -> Option<u64> {
        match self {
            Queues::ByHandle(queues) => queues.range(StreamId(place)..).next().map(|(stream, _)| stream.0),
            Queues::Hashed { table, .. } => Some(place).filter(|&place| place < table.places() as u64),
        }
    }

    /// The events at a place.
    pub(super) fn at(&self, place: u64) -> Option<&Events<E>> {
        match self {
            Queues::ByHandle(queues) => queues.get(&StreamId(place)),
            Queues::Hashed { table, .. } => table.at(place as usize).map(|(_, events)| events),
        }
    }

    /// Takes out the event at a position of the queue at a place, with its block.
    pub(super) fn take(&mut self, place: u64, position: usize) -> Option<(E, u32)> {
        let events = match self {
            Queues::ByHandle(queues) => queues.get_mut(&StreamId(place)),
            Queues::Hashed { table, .. } => table.at_mut(place as usize).map(|(_, events)| events),
        }?;
        // The oldest is taken out without moving the others.
        let taken = if position == 0 { events.pop_front() } else { events.remove(position) };
        if let Queues::ByHandle(queues) = self
            && queues.get(&StreamId(place)).is_some_and(VecDeque::is_empty)
        {
            queues.remove(&StreamId(place));
        }
        taken
    }

    /// Takes out all events.
    pub(super) fn drain(&mut self) -> Vec<E> {
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

    /// The streams that have events, or had some, with these, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (StreamId, &Events<E>)> {
        let stream_at = |place: u64| match self {
            Queues::ByHandle(_) => Some(StreamId(place)),
            Queues::Hashed { table, .. } => table.at(place as usize).map(|&(stream, _)| stream),
        };
        self.places().filter_map(move |place| Some((stream_at(place)?, self.at(place)?)))
    }

    /// Forgets queues without events, as PyTorch does.
    pub(super) fn forget_empty(&mut self) {
        if let Queues::Hashed { table, unused, .. } = self {
            let mut place = 0;
            while place < table.places() {
                // What is behind a key that goes comes to its place.
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
