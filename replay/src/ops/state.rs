//! The script's live allocations by name, and what the observer saw during one operation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parkade::Allocation;
use parkade::trace::{Observer, TraceEntry, TraceRing};
use parkade::units::DeviceAddress;

/// What an allocation's name stands for.
#[derive(Debug)]
pub(super) enum Held {
    /// The null pointer of a request for zero bytes.
    Null,
    /// A block from the allocator.
    Block(Allocation),
    /// Memory straight from the device, allocated while caching was off.
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

/// The names, shared with the callback that may free some of them during a request.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) live: BTreeMap<String, Held>,
    pub(super) raw: BTreeMap<String, Held>,
    /// The names that the next callback frees.
    pub(super) freed_on_miss: Vec<String>,
}

/// A handle to the shared names.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedNames(Arc<Mutex<Names>>);

impl SharedNames {
    /// Locks the names. Never held during a request, whose callback locks them too.
    pub(super) fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something observed during an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    Entry(TraceEntry),
    /// The callback ran, and freed something or not.
    Callback(bool),
}

/// The allocator's observer.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    pub(super) seen: Vec<Seen>,
    /// The memory history, while the script has it on.
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
