//! A heap as plain data, structured like PyTorch's snapshots (spec 7.3).

use alloc::vec::Vec;

use crate::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};

/// A segment in a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    /// The segment's first byte.
    pub address: DeviceAddress,
    /// The sum of its blocks' sizes.
    pub total: Bytes,
    /// The bytes of its allocated blocks.
    pub allocated: Bytes,
    /// The bytes of its allocated and pending blocks.
    pub active: Bytes,
    /// The requested bytes of its active blocks.
    pub requested: Bytes,
    /// The stream for which the segment was created.
    pub stream: StreamId,
    /// The pool that the segment belongs to.
    pub pool: PoolId,
    /// The pool's collection: small or large.
    pub class: PoolClass,
    /// Whether this is a mapped run of an expandable segment.
    pub expandable: bool,
    /// The rank of the segment's age: older segments have lower ranks. 0 under rules that do not order by age.
    /// PyTorch's pickles do not contain it.
    pub rank: u32,
    /// Its blocks, by address.
    pub blocks: Vec<BlockInfo>,
}

/// A block in a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockInfo {
    /// The block's first byte.
    pub address: DeviceAddress,
    /// The block's size.
    pub size: Bytes,
    /// The most recently requested bytes; stale if the block is inactive (spec 7.3).
    pub requested: Bytes,
    /// The block's state.
    pub state: BlockActivity,
}

/// An allocated block and its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacedBlock {
    /// The block.
    pub block: BlockInfo,
    /// The first byte of its segment.
    pub segment: DeviceAddress,
    /// The segment's size.
    pub segment_size: Bytes,
    /// Whether the segment is expandable.
    pub is_expandable: bool,
    /// The stream for which the block was allocated.
    pub stream: StreamId,
}

/// The state of a block in a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockActivity {
    /// Handed out.
    Allocated,
    /// Pending: freed, but waiting for events.
    PendingFree,
    /// Free.
    Inactive,
}

impl BlockActivity {
    /// PyTorch's name for the state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BlockActivity::Allocated => "active_allocated",
            BlockActivity::PendingFree => "active_pending_free",
            BlockActivity::Inactive => "inactive",
        }
    }
}
