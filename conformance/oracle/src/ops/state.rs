//! What a script has in hand: its live allocations by name, and what the watcher saw during one operation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parkade::Allocation;
use parkade::trace::{Observer, TraceEntry, TraceRing};
use parkade::units::DeviceAddress;

/// What an allocation's name stands for.
#[derive(Debug)]
pub(super) enum Held {
    /// A request of no bytes: a null pointer.
    Null,
    /// A block of the allocator.
    Block(Allocation),
    /// Memory of the device, taken while caching was off.
    Direct(DeviceAddress),
}

impl Held {
    pub(super) fn address(&self) -> Option<DeviceAddress> {
        match self {
            Held::Null => None,
            Held::Block(allocation) => Some(allocation.address()),
            Held::Direct(address) => Some(*address),
        }
    }
}

/// The names, shared with the callback that may free some of them in the middle of a request.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) live: BTreeMap<String, Held>,
    pub(super) raw: BTreeMap<String, Held>,
    /// What the next callback frees.
    pub(super) freed_on_miss: Vec<String>,
}

/// A shared handle to the names.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedNames(Arc<Mutex<Names>>);

impl SharedNames {
    /// The names. Never held across a request, whose callback asks for them too.
    pub(super) fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which streams are being captured, and which is the current one.
#[derive(Debug, Default)]
pub(super) struct Captures {
    begun: u64,
    streams: BTreeSet<i64>,
    /// That of the last request; a request is for the current stream.
    pub(super) current_stream: i64,
}

impl Captures {
    /// A capture begins; its number, from 1.
    pub(super) fn begin(&mut self, stream: i64) -> u64 {
        self.begun += 1;
        self.streams.insert(stream);
        self.begun
    }

    pub(super) fn end(&mut self, stream: i64) {
        self.streams.remove(&stream);
    }

    pub(super) fn is_capturing(&self) -> bool {
        self.streams.contains(&self.current_stream)
    }
}

/// One thing seen during an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    Entry(TraceEntry),
    /// The callback ran; whether it freed anything.
    Callback(bool),
}

/// Watches the allocator for the script.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    pub(super) seen: Vec<Seen>,
    /// The memory history, while it is on.
    pub(super) history: Option<TraceRing>,
}

impl Observer for Watcher {
    fn observe(&mut self, entry: &TraceEntry) {
        self.seen.push(Seen::Entry(*entry));
        if let Some(history) = &mut self.history {
            history.observe(entry);
        }
    }
}
