//! The blocks and segments from before a recording's first entry, as the walk backwards finds them.

use parkade::units::PoolId;
use rustc_hash::FxHashMap;

/// A block that was in use before the first entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyBlock {
    pub(crate) address: u64,
    pub(crate) requested: u64,
    /// Its size, if the block still exists at the recording's end.
    pub(crate) size: Option<u64>,
    /// Whether it was freed before the first entry and waits for events.
    pub(crate) is_pending: bool,
    /// The entry at which it is freed, if that is in the trace.
    pub(crate) freed_at: Option<u32>,
    /// The entry at which it becomes free for reuse, if that is in the trace.
    pub(crate) completed_at: Option<u32>,
}

/// A segment that existed before the first entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlySegment {
    pub(crate) address: u64,
    pub(crate) total: u64,
    pub(crate) stream: u64,
    pub(crate) large: bool,
    /// Whether it is a mapped run of an expandable segment.
    pub(crate) expandable: bool,
    /// Its pool; the default one if the recording does not say.
    pub(crate) pool: PoolId,
    /// Whether the recording lists it at its end, so that its class and pool are known.
    pub(crate) is_listed: bool,
}

/// What the walk backwards finds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rewound {
    /// Blocks in use before the first entry, in no particular order.
    pub(crate) blocks: Vec<EarlyBlock>,
    /// Segments from before the first entry, in no particular order.
    pub(crate) segments: Vec<EarlySegment>,
    /// The private pools of segments that are allocated within the trace, by entry.
    pub(crate) made: FxHashMap<u32, PoolId>,
    /// For each entry that frees a block which does not become free for reuse at once: the entry at which it
    /// does, or `None` if that is not in the trace.
    pub(crate) deferred: FxHashMap<u32, Option<u32>>,
}
