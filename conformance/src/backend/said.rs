//! What a device has said about events, stream by stream: how many were recorded, and up to which one they are known to be complete.

use std::collections::{BTreeMap, BTreeSet};

/// What a device reported about the events of one stream. Numbers count the stream's records from 1.
#[derive(Clone, Default, Debug)]
pub(super) struct Said {
    pub(super) recorded: u64,
    /// Known complete from a query, or from a wait in an earlier operation. Not always the first ones: a wait for one pool's events
    /// passes over those of others.
    done_at_search: BTreeSet<u64>,
    /// Known complete from a wait in this operation.
    waited_for: BTreeSet<u64>,
    /// Known complete from any answer.
    done: u64,
}

/// What a device reported about events, by stream handle.
#[derive(Clone, Default, Debug)]
pub struct Witness {
    pub(super) streams: BTreeMap<u64, Said>,
}

impl Witness {
    /// How many events have been recorded on the stream so far.
    #[must_use]
    pub fn recorded(&self, stream: u64) -> u64 {
        self.streams.get(&stream).map_or(0, |said| said.recorded)
    }

    /// Whether the allocator knows that the work queued on the stream when it had `recorded` events is done.
    #[must_use]
    pub fn is_known_done(&self, stream: u64, recorded: u64) -> bool {
        self.streams.get(&stream).is_some_and(|said| said.done > recorded)
    }

    /// Whether the stream's event of this number was known to be complete before the current operation began to wait: when it
    /// searched for a free block.
    #[must_use]
    pub fn was_known_at_search(&self, stream: u64, number: u64) -> bool {
        self.streams.get(&stream).is_some_and(|said| said.done_at_search.contains(&number))
    }

    pub(super) fn begin_operation(&mut self) {
        for said in self.streams.values_mut() {
            said.done_at_search.append(&mut said.waited_for);
        }
    }

    pub(super) fn done<E>(&mut self, event: &WitnessedEvent<E>, by_query: bool) {
        let said = self.streams.entry(event.stream).or_default();
        said.done = said.done.max(event.number);
        if by_query {
            said.done_at_search.insert(event.number);
        } else {
            said.waited_for.insert(event.number);
        }
    }
}

/// An event with the stream and number of its newest record.
#[derive(Debug)]
pub struct WitnessedEvent<E> {
    pub(super) event: E,
    /// Events are numbered from 1 in the order in which they are made.
    pub(super) id: u64,
    pub(super) stream: u64,
    pub(super) number: u64,
}
