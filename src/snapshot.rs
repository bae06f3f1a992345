//! A heap as plain data, in the shape of PyTorch's snapshots (spec 7.3).

use alloc::vec::Vec;

use crate::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};

/// A segment of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    /// Its first byte.
    pub address: DeviceAddress,
    /// The sum of its blocks' sizes.
    pub total: Bytes,
    /// Bytes of blocks that are handed out.
    pub allocated: Bytes,
    /// Bytes of blocks that are handed out or pending.
    pub active: Bytes,
    /// What was asked for, of the active blocks.
    pub requested: Bytes,
    /// The stream that it was made for.
    pub stream: StreamId,
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// The pool's collection.
    pub class: PoolClass,
    /// Whether this is a run of an expandable segment that has memory.
    pub expandable: bool,
    /// Tells segments apart by age, the oldest first; 0 under rules that do not count segments. Not a part of PyTorch's pickles.
    pub rank: u32,
    /// Its blocks, by address.
    pub blocks: Vec<BlockInfo>,
}

/// A block of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockInfo {
    /// Its first byte.
    pub address: DeviceAddress,
    /// Its size.
    pub size: Bytes,
    /// What was last asked for; stale if the block is inactive (spec 7.3).
    pub requested: Bytes,
    /// What it is doing.
    pub state: BlockActivity,
}

/// What a block of a snapshot is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockActivity {
    /// Handed out.
    Allocated,
    /// Given back, waiting for events.
    PendingFree,
    /// Free.
    Inactive,
}

impl BlockActivity {
    /// PyTorch's word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BlockActivity::Allocated => "active_allocated",
            BlockActivity::PendingFree => "active_pending_free",
            BlockActivity::Inactive => "inactive",
        }
    }
}
