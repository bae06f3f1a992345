//! The device contract, call by call: each row of the measured driver facts as an entry.
//!
//! A row asserts the same on every backend: result codes, sizes, and whether a call waits. Its text contains nothing else, so
//! it can be compared between backends; values that may differ, such as addresses and times, go into `measured`.
//!
//! One sub-row of the facts has no entry: mapping a part of a handle from an offset (801). The core's device trait can only map
//! whole handles.

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
