//! The queues of events, one for each stream that has some, in the order in which they are looked at.
//!
//! That order is the one of PyTorch's hash table of streams. A device whose events complete by handle has its
//! queues in the order of the handles instead, and of these, some empty ones stay: there may be a queue for each
//! block that waits.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::flat_table::FlatTable;
use crate::units::StreamId;

/// How many queues without events are kept beside as many as have some, and how many of those that the table had.
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
    ByHandle(Vec<(StreamId, Events<E>)>),
    /// In PyTorch's order; and unused queues, whose memory is used again.
    Hashed { table: FlatTable<StreamId, (StreamId, Events<E>)>, unused: Vec<Events<E>>, order: StreamOrder },
}

impl<E> Queues<E> {
    pub(super) fn new(order: StreamOrder) -> Queues<E> {
        match order {
            StreamOrder::ByHandle => Queues::ByHandle(Vec::new()),
            StreamOrder::Hashed(_) => Queues::Hashed { table: FlatTable::default(), unused: Vec::new(), order },
        }
    }

    /// Adds an event to a stream's queue.
    pub(super) fn push(&mut self, stream: StreamId, event: E, block: u32) {
        match self {
            Queues::ByHandle(queues) => {
                let place = match queues.binary_search_by_key(&stream, |(other, _)| *other) {
                    Ok(place) => place,
                    Err(place) => {
                        queues.insert(place, (stream, VecDeque::new()));
                        place
                    }
                };
                queues[place].1.push_back((event, block));
            }
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

    /// The number of places for queues. Some may have none, or an empty one.
    pub(super) fn places(&self) -> usize {
        match self {
            Queues::ByHandle(queues) => queues.len(),
            Queues::Hashed { table, .. } => table.places(),
        }
    }

    /// The queue at a place, with its stream.
    pub(super) fn at(&self, place: usize) -> Option<&(StreamId, Events<E>)> {
        match self {
            Queues::ByHandle(queues) => queues.get(place),
            Queues::Hashed { table, .. } => table.at(place),
        }
    }

    /// The events at a place, to change them.
    pub(super) fn at_mut(&mut self, place: usize) -> Option<&mut Events<E>> {
        let queue = match self {
            Queues::ByHandle(queues) => queues.get_mut(place),
            Queues::Hashed { table, .. } => table.at_mut(place),
        };
        queue.map(|(_, events)| events)
    }

    /// All queues, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(StreamId, Events<E>)> {
        (0..self.places()).filter_map(|place| self.at(place))
    }

    /// Forgets queues without events: all of the table's, as PyTorch does, and otherwise if they are many, since
    /// polling looks at each.
    pub(super) fn forget_empty(&mut self) {
        match self {
            Queues::ByHandle(queues) => {
                let empty = queues.iter().filter(|(_, events)| events.is_empty()).count();
                if empty > queues.len() - empty + KEPT_EMPTY {
                    queues.retain(|(_, events)| !events.is_empty());
                }
            }
            Queues::Hashed { table, unused, .. } => {
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
}
