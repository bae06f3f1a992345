//! How far into the recording a replay is.

use std::cell::Cell;

/// How far the replay is; shared by the runner, the device, the policy and the observer.
#[derive(Debug, Default)]
pub(crate) struct Position {
    /// The entry that the core must reproduce next.
    pub(crate) next: Cell<usize>,
    /// One past the last entry of the current operation.
    pub(crate) end: Cell<usize>,
    /// Events that completed before this entry are reported as complete.
    pub(crate) visible: Cell<usize>,
    /// How many requests for a segment were refused because the recording has no segment there.
    pub(crate) refusals: Cell<u64>,
    /// How many blocks were copied to try readings, in all.
    pub(crate) copied: Cell<u64>,
}
