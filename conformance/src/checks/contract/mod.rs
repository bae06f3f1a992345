//! The device contract, call by call: each row of the measured driver facts is an entry.
//!
//! A row makes the same assertions on every backend: result codes, sizes, and whether a call waits. Its text contains
//! only these, so the text can be compared between backends. Values that may differ, such as addresses and times, are
//! stored in `measured`.
//!
//! One sub-row of the facts has no entry: mapping part of a handle at an offset (801), because the core's device trait
//! can only map whole handles.

#[cfg(feature = "cuda")]
pub(super) mod neighbours;
mod ownership;
mod probe;
mod sizes;
mod timing;
mod virtual_memory;

use crate::backend::AnyBackend;
use crate::suite::Entry;

/// The entries of this group.
pub fn entries(backend: &AnyBackend) -> Vec<Entry> {
    [
        sizes::entries(),
        sizes::hole_entries(),
        virtual_memory::entries(backend),
        timing::waiting_entries(backend),
        timing::event_entries(),
        ownership::info_entries(),
        ownership::end_entries(backend),
        timing::cost_entries(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
