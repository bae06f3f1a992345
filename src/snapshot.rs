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
    /// Bytes of allocated blocks.
    pub allocated: Bytes,
    /// Bytes of allocated and pending blocks.
    pub active: Bytes,
    /// Requested bytes of the active blocks.
    pub requested: Bytes,
    /// The stream that it was made for.
    pub stream: StreamId,
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// The pool's collection: small or large.
    pub class: PoolClass,
    /// Whether this is a mapped run of an expandable segment.
    pub expandable: bool,
    /// The segment's age, the oldest lowest; 0 under rules that do not order by age. Not in PyTorch's pickles.
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
    /// The bytes last requested; stale if the block is inactive (spec 7.3).
    pub requested: Bytes,
    /// Its state.
    pub state: BlockActivity,
}

/// An allocated block and where it lies.
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
    /// The stream that it was allocated for.
    pub stream: StreamId,
}

/// The state of a block in a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockActivity {
    /// Handed out.
    Allocated,
    /// Pending: given back, waiting for events.
    PendingFree,
    /// Free.
    Inactive,
}

impl BlockActivity {
    /// PyTorch's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BlockActivity::Allocated => "active_allocated",
            BlockActivity::PendingFree => "active_pending_free",
            BlockActivity::Inactive => "inactive",
        }
    }
}
