//! How far into the recording a replay is.

use std::cell::Cell;

/// What the runner, the device and the observer share: how far into the recording the replay is.
#[derive(Debug, Default)]
pub(crate) struct Position {
    /// The entry that the core is to reproduce next.
    pub(crate) next: Cell<usize>,
    /// One past the last entry of the operation under way.
    pub(crate) end: Cell<usize>,
    /// Events that completed before this entry are visible to a query.
    pub(crate) visible: Cell<usize>,
    /// Requests for a segment that were refused because the recording has no segment there.
    pub(crate) refusals: Cell<u64>,
}
