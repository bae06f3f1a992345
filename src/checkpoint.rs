//! Checkpoints of private pools, as plain data (spec 5.8).
//!
//! A checkpoint lists a pool's segments, how they were split, and which blocks were allocated. It holds no memory: it
//! can be restored ([`crate::Allocator::restore_pool`]) as long as its segments still belong to the pool.

use alloc::vec::Vec;
use core::fmt;

use crate::device::BackendError;
use crate::units::{Bytes, DeviceAddress, PoolId, StreamId};

/// The state of a private pool ([`crate::Allocator::checkpoint_pool`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolCheckpoint {
    /// The pool's id.
    pub pool: PoolId,
    /// The pool's segments, in the order in which they are restored. [`crate::Allocator::checkpoint_pool`] first lists
    /// the segments that begin with a block in use, by address, and then the others, in the order of the pool's free
    /// blocks, small before large. PyTorch restores the former in hash order.
    pub segments: Vec<SavedSegment>,
}

/// A segment in a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedSegment {
    /// The segment's first byte.
    pub address: DeviceAddress,
    /// The stream for which the segment was created.
    pub stream: StreamId,
    /// The segment's blocks, by address, without gaps.
    pub blocks: Vec<SavedBlock>,
}

/// A block in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedBlock {
    /// The block's size.
    pub size: Bytes,
    /// The block's state.
    pub state: SavedState,
}

/// The state of a block in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SavedState {
    /// Cached.
    Free,
    /// Handed out.
    Allocated,
    /// Addresses of an expandable segment that have no memory.
    Unmapped,
}

/// The reason why a pool cannot be saved, restored or examined. Displays PyTorch's message, which is the same in 2.11
/// and 2.15.
///
/// Nothing has changed after any of these errors except [`CheckpointError::Device`]. PyTorch frees the pool's blocks
/// before it checks whether the checkpoint fits; after an error, it leaks these blocks and those that it has restored
/// so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointError {
    /// The private pool does not exist.
    UnknownPool(PoolId),
    /// The private pool to restore no longer exists.
    LostPool(PoolId),
    /// The pool has no uses left: it can be saved, but not restored.
    Abandoned(PoolId),
    /// This block was freed while other streams used it, and is waiting for their events.
    EventsPending(DeviceAddress),
    /// No free memory of the pool begins where the saved segment began.
    SegmentMissing(DeviceAddress),
    /// The saved block's memory now belongs to a block that is waiting for other streams, or that will wait when it is
    /// freed. PyTorch hands out that block if it is large enough, and hands it out again when its events are complete.
    BlockPending(DeviceAddress),
    /// There is no room for this block of a saved segment.
    SizeDiffers(DeviceAddress),
    /// The saved segment, named by its first byte, has become longer or shorter.
    LengthDiffers(DeviceAddress),
    /// The expandable segment, named by its first byte, has more than one free block after the saved blocks.
    TailInUse(DeviceAddress),
    /// The expandable segment, named by its first byte, has grown. Releases before 2.11 do not restore it. At least
    /// one free block follows the saved blocks.
    TailGrew(DeviceAddress),
    /// The expandable segment has grown, and its memory is mapped up to its end.
    TailMapped(DeviceAddress),
    /// Adjacent free blocks cannot coalesce because blocks have changed streams, so the saved splits cannot be
    /// repeated. PyTorch has no such error.
    Parted,
    /// The device failed to record an event. A save has changed nothing. A restore has freed all of the pool's blocks
    /// and handed out nothing; the block in question stays pending until a later request succeeds.
    Device(BackendError),
}

/// The end of PyTorch's message for a check that has no text.
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
            CheckpointError::TailGrew(_) => write!(f, "Expected curr_block->next == nullptr{UNEXPLAINED}"),
            CheckpointError::TailMapped(_) => write!(f, "Expected !curr_block->mapped{UNEXPLAINED}"),
            CheckpointError::Parted => f.write_str(
                "a pool cannot be restored if adjacent free blocks cannot coalesce because they belong to different streams",
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
