//! Checkpoints of private pools, as plain data (spec 5.8).
//!
//! A checkpoint lists a pool's segments, how they were split, and which blocks were allocated. It holds no
//! memory: restoring it ([`crate::Allocator::restore_pool`]) works as long as its segments still belong to
//! the pool.

use alloc::vec::Vec;
use core::fmt;

use crate::device::BackendError;
use crate::units::{Bytes, DeviceAddress, PoolId, StreamId};

/// The state of a private pool ([`crate::Allocator::checkpoint_pool`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolCheckpoint {
    /// The pool.
    pub pool: PoolId,
    /// Its segments, in the order in which they are restored. [`crate::Allocator::checkpoint_pool`] lists those
    /// that begin with a block in use, by address, then the others in the order of the pool's free blocks, small
    /// ones first. PyTorch restores the former in hash order.
    pub segments: Vec<SavedSegment>,
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
    /// Its state.
    pub state: SavedState,
}

/// The state of a block in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SavedState {
    /// Cached.
    Free,
    /// Handed out.
    Allocated,
    /// Addresses of an expandable segment without memory.
    Unmapped,
}

/// Why a pool cannot be saved, restored or examined. Displays as PyTorch's message; 2.11 and 2.15 have the
/// same ones.
///
/// After any of these except [`CheckpointError::Device`] nothing has changed. PyTorch gives the pool's blocks
/// back before it checks whether the checkpoint fits; after an error it leaks them, and what it has restored
/// so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointError {
    /// There is no such private pool.
    UnknownPool(PoolId),
    /// The private pool to restore no longer exists.
    LostPool(PoolId),
    /// The pool has no uses left: it can be saved, but not restored.
    Abandoned(PoolId),
    /// This block was given back while other streams used it and waits for their events.
    EventsPending(DeviceAddress),
    /// No free memory of the pool begins where the saved segment did.
    SegmentMissing(DeviceAddress),
    /// A saved block's memory is now a block that waits for other streams, or will once it is given back.
    /// PyTorch hands that block out if it is large enough, and a second time once its events are complete.
    BlockPending(DeviceAddress),
    /// There is no room for this block of a saved segment.
    SizeDiffers(DeviceAddress),
    /// The saved segment, named by its first byte, has become longer or shorter.
    LengthDiffers(DeviceAddress),
    /// The expandable segment, named by its first byte, has more after the saved blocks than one free block.
    TailInUse(DeviceAddress),
    /// The expandable segment, named by its first byte, has grown, which releases before 2.11 do not restore. There is
    /// a free block, or the first of several, after the saved blocks.
    TailGrew(DeviceAddress),
    /// The same where memory is mapped up to the segment's end.
    TailMapped(DeviceAddress),
    /// Free neighbours stay apart because blocks changed streams, so the saved splits cannot be redone. Not PyTorch's.
    Parted,
    /// The device failed to record an event. A save has changed nothing. A restore has given back all the
    /// pool's blocks (the one in question stays pending until a later request succeeds) and handed out
    /// nothing.
    Device(BackendError),
}

/// The end of PyTorch's message for a check without a text of its own.
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
            CheckpointError::Parted => {
                f.write_str("a pool cannot be restored where free neighbours stay apart because they belong to different streams")
            }
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
