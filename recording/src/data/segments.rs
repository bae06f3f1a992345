//! The heap at the end of a recording: segments and their blocks (spec 7.3).

use super::stacks::StackId;

/// What the driver is asked for where a small block is needed.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// Memory obtained from the driver: one `cudaMalloc`, or one contiguous mapped run of an expandable segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Address of its first byte.
    pub address: u64,
    /// Length in bytes, the sum of its blocks.
    pub total_bytes: u64,
    /// The handle of its stream; 0 is the default stream.
    pub stream: u64,
    /// Whether it belongs to the pool of large blocks.
    /// Where the file does not say, its size decides: a small segment is 2 MiB.
    pub large: bool,
    /// The id of its pool; `(0, 0)` is the default pool, `None` means that the file does not say.
    pub pool: Option<(u64, u64)>,
    /// Whether it is a run of an expandable segment.
    pub expandable: bool,
    /// Bytes in allocated blocks, if the file says.
    pub allocated_bytes: Option<u64>,
    /// Bytes in active blocks, if the file says.
    pub active_bytes: Option<u64>,
    /// Bytes requested for active blocks, if the file says.
    pub requested_bytes: Option<u64>,
    /// Where it was created; PyTorch drops this once a segment is split (spec 7.3).
    pub stack: StackId,
    /// Its blocks in the order of their addresses, without gaps.
    pub blocks: Vec<Block>,
}

impl Segment {
    /// A segment of these blocks on the default stream in the default pool, of large blocks if it is larger than the 2 MiB of a small
    /// segment (spec 1).
    ///
    /// It begins where the first block does; without blocks, at 0. Its sums are not given.
    pub fn new(blocks: Vec<Block>) -> Segment {
        let total_bytes = blocks.iter().fold(0_u64, |sum, block| sum.saturating_add(block.size));
        Segment {
            address: blocks.first().map_or(0, |block| block.address),
            total_bytes,
            stream: 0,
            large: total_bytes > SMALL_SEGMENT_BYTES,
            pool: Some((0, 0)),
            expandable: false,
            allocated_bytes: None,
            active_bytes: None,
            requested_bytes: None,
            stack: StackId::NONE,
            blocks,
        }
    }
}

/// A block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Address of its first byte.
    pub address: u64,
    /// Length in bytes.
    pub size: u64,
    /// Bytes requested, if the file says. Out of date unless the block is active (spec 7.3).
    pub requested: Option<u64>,
    /// Whether it is in use.
    pub state: BlockState,
    /// Where it was allocated.
    pub stack: StackId,
}

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockState {
    /// In use.
    ActiveAllocated,
    /// Freed, but another stream may still be using it. Also spelled `active_awaiting_free`.
    ActivePendingFree,
    /// Free: cached by the allocator.
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
