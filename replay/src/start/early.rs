//! What existed before a recording's first entry, as the walk backwards finds it.

use parkade::units::PoolId;
use rustc_hash::FxHashMap;

/// A block that is in use before the first entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyBlock {
    pub(crate) address: u64,
    pub(crate) requested: u64,
    /// Its size, where the recording still lists the block at its end.
    pub(crate) size: Option<u64>,
    /// It was given back before the first entry, and waits for events.
    pub(crate) is_pending: bool,
    /// The entry at which it was given back, if in the trace.
    pub(crate) freed_at: Option<u32>,
    /// The entry at which it became free, if in the trace.
    pub(crate) completed_at: Option<u32>,
}

/// A segment that exists before the first entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlySegment {
    pub(crate) address: u64,
    pub(crate) total: u64,
    pub(crate) stream: u64,
    pub(crate) large: bool,
    /// A run of an expandable segment that has memory.
    pub(crate) expandable: bool,
    /// The pool that it belongs to, as far as the recording says.
    pub(crate) pool: PoolId,
}

/// What the backward walk finds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rewound {
    /// In no order.
    pub(crate) blocks: Vec<EarlyBlock>,
    /// In no order.
    pub(crate) segments: Vec<EarlySegment>,
    /// The private pools of the segments that the trace makes, by entry.
    pub(crate) made: FxHashMap<u32, PoolId>,
    /// For each block that did not become free at once: the entry at which it was given back, and the one at which it became free,
    /// or `None` if that is not in the trace.
    pub(crate) deferred: FxHashMap<u32, Option<u32>>,
}
