//! Checkpoints of private pools, as plain data (spec 5.8).
//!
//! A checkpoint says which segments a pool had, how they were cut into blocks, and which blocks were handed out. It holds no memory
//! and no claim: restoring it ([`crate::Allocator::restore_pool`]) works as long as its segments still belong to the pool.

use alloc::vec::Vec;
use core::fmt;

use crate::device::BackendError;
use crate::units::{Bytes, DeviceAddress, PoolId, StreamId};

/// What a private pool was like ([`crate::Allocator::checkpoint_pool`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolCheckpoint {
    pub(crate) pool: PoolId,
    pub(crate) segments: Vec<SavedSegment>,
}

impl PoolCheckpoint {
    /// The pool.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Its segments, in the order in which they are restored: those that begin with a block in use, by address, then the others as
    /// the pool's free blocks are ordered, the small ones first. PyTorch takes the former in hash order.
    #[must_use]
    pub fn segments(&self) -> &[SavedSegment] {
        &self.segments
    }
}

/// A segment of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedSegment {
    /// Its first byte.
    pub address: DeviceAddress,
    /// The stream that it was made for.
    pub stream: StreamId,
    /// Its blocks, by address, without gaps.
    pub blocks: Vec<SavedBlock>,
}

/// A block of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedBlock {
    /// Its size.
    pub size: Bytes,
    /// What it was used for.
    pub state: SavedState,
}

/// What a block of a checkpoint was used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SavedState {
    /// Nothing.
    Free,
    /// It was handed out.
    Allocated,
    /// Addresses of an expandable segment that had no memory.
    Unmapped,
}

/// Why a pool cannot be saved, restored or looked at. Displays as PyTorch's message; 2.11 and 2.15 have the same ones.
///
/// After any of these but [`CheckpointError::Device`] nothing has changed. PyTorch gives the pool's blocks back before it looks
/// whether the checkpoint fits, and leaves them and what it has restored so far to nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointError {
    /// There is no such private pool.
    UnknownPool(PoolId),
    /// The private pool to be restored does not exist any more.
    LostPool(PoolId),
    /// Nobody uses the pool any more: it can be saved, but not restored.
    Abandoned(PoolId),
    /// The block was given back while other streams used it, and waits for their events.
    EventsPending(DeviceAddress),
    /// No free memory of the pool begins where the saved segment did.
    SegmentMissing(DeviceAddress),
    /// Memory of a saved segment is a block that waits for other streams, or will once it is given back. PyTorch hands that block out if
    /// it is large enough, and again when its events are done.
    BlockPending(DeviceAddress),
    /// There is no room for this block of a saved segment.
    SizeDiffers(DeviceAddress),
    /// The saved segment, named by its first byte, has become longer or shorter.
    LengthDiffers(DeviceAddress),
    /// The expandable segment, named by its first byte, has blocks behind the saved ones that are not one free block.
    TailInUse(DeviceAddress),
    /// The policy keeps free neighbours apart, or blocks have changed streams: what is free cannot be cut again as it was. Not PyTorch's.
    Parted,
    /// The device failed to record an event. A save has changed nothing; a restore has given back everything that the pool had handed
    /// out, the block in question when a later request manages it, and has handed out nothing.
    Device(BackendError),
}

/// How PyTorch ends the message of a check that has no text of its own.
const UNEXPLAINED: &str = " to be true, but got false.  (Could this error message be improved?  If so, please report an \
                           enhancement request to PyTorch.)";

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointError::UnknownPool(_) => f.write_str("Could not find pool of id"),
            CheckpointError::LostPool(_) => f.write_str("Could not find private pool id"),
            CheckpointError::Abandoned(_) => f.write_str("Not expected to checkpoint freeable graph"),
            CheckpointError::EventsPending(_) => f.write_str("Events should have synchronized when checkpointing block"),
            CheckpointError::BlockPending(_) => f.write_str("Events should have synchronized when setting checkpointed block"),
            CheckpointError::SegmentMissing(address) => write!(f, " could not find {:#x}", address.0),
            CheckpointError::SizeDiffers(_) => write!(f, "Expected curr_block->size == block_state.size{UNEXPLAINED}"),
            CheckpointError::LengthDiffers(_) => {
                write!(f, "Expected (curr_block != nullptr) == ((i + 1) < (segment_len)){UNEXPLAINED}")
            }
            CheckpointError::TailInUse(_) => f.write_str("Invalid expandable segment structure during checkpoint restore"),
            CheckpointError::Parted => f.write_str(
                "a pool cannot be restored where free neighbours stay apart, by the policy's rule or for their streams",
            ),
            CheckpointError::Device(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for CheckpointError {}

impl From<BackendError> for CheckpointError {
    fn from(error: BackendError) -> CheckpointError {
        CheckpointError::Device(error)
    }
}
