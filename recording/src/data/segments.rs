//! The heap at the end of a recording: segments and their blocks (spec 7.3).

use super::stacks::StackId;

/// Memory that was obtained from the driver: one `cudaMalloc`, or one contiguous mapped run of an expandable segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// First byte.
    pub address: u64,
    /// Length, the sum of its blocks.
    pub total_bytes: u64,
    /// Handle of the stream it belongs to; 0 is the default stream.
    pub stream: u64,
    /// Whether it belongs to the pool of large blocks. A file that does not say is judged by size: a small segment is 2 MiB.
    pub large: bool,
    /// The private pool's id; `(0, 0)` is the default pool, `None` a file that does not say.
    pub pool: Option<(u64, u64)>,
    /// Whether it is a run of an expandable segment.
    pub expandable: bool,
    /// Bytes in allocated blocks, if said.
    pub allocated_bytes: Option<u64>,
    /// Bytes in active blocks, if said.
    pub active_bytes: Option<u64>,
    /// Bytes requested of active blocks, if said.
    pub requested_bytes: Option<u64>,
    /// Where it was created; `NONE` once it was ever split (spec 7.3).
    pub stack: StackId,
    /// Its blocks, by address, without gaps.
    pub blocks: Vec<Block>,
}

/// A block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// First byte.
    pub address: u64,
    /// Length.
    pub size: u64,
    /// Bytes requested, if said. Stale unless the block is active (spec 7.3).
    pub requested: Option<u64>,
    /// What it is used for.
    pub state: BlockState,
    /// Where it was allocated.
    pub stack: StackId,
}

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockState {
    /// In use.
    ActiveAllocated,
    /// Freed, while another stream may still use it. Also spelled `active_awaiting_free`.
    ActivePendingFree,
    /// Cached, free.
    Inactive,
}

impl BlockState {
    /// PyTorch's spelling.
    pub fn name(self) -> &'static str {
        match self {
            BlockState::ActiveAllocated => "active_allocated",
            BlockState::ActivePendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        }
    }
}
