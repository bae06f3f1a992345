//! Checkpoints of private pools: saving and restoring a pool's state, as CUDA graph trees do (spec 5.8).
//!
//! A checkpoint is plain data: it lists a pool's segments, how they were split, and which blocks were allocated. It holds no
//! memory, and can be restored as long as its segments still belong to the pool.
//!
//! A restore frees all of the pool's blocks and then splits the saved segments again, block by block: it hands out
//! every saved block, then frees the blocks that were free when saved. Statistics and trace entries show exactly these
//! allocations and frees. `Fit` checks that the checkpoint fits before anything changes.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;

use super::allocate::Take;
use super::{Allocation, Allocator};
use crate::block::{Block, BlockState, NIL};
use crate::device::{BackendError, DeviceBackend};
use crate::heap::{Heap, PoolSlot};
use crate::policy::{Policy, Request};
use crate::trace::Observer;
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
    /// There is no room for this block of a saved segment, or the saved block has 0 bytes.
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

/// What a restore did (PyTorch's `CheckpointDelta`).
#[derive(PartialEq, Eq, Debug)]
#[must_use = "restored memory that is not freed stays allocated"]
pub struct Restored {
    /// The pool's blocks that the restore took back, in order. Their [`Allocation`]s are invalid: freeing one of them
    /// fails with [`crate::FreeError::NotAllocated`], even if a restored block has the same address.
    pub freed: Vec<DeviceAddress>,
    /// The blocks that were allocated when the checkpoint was made, segment by segment, by address within each
    /// segment.
    pub allocations: Vec<Allocation>,
}

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Saves the state of a private pool. Records the events of deferred blocks first.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownPool`]; [`CheckpointError::EventsPending`] if a block of the pool is waiting for
    /// other streams; [`CheckpointError::Device`].
    pub fn checkpoint_pool(&mut self, id: PoolId) -> Result<PoolCheckpoint, CheckpointError> {
        if self.profile.flushes_before_saving {
            self.flush_deferred()?;
        }
        let pool_number = self.heap.private_pool_number(id).ok_or(CheckpointError::UnknownPool(id))?;
        let heads = self.heap.heads_of(pool_number);
        let segments = heads.into_iter().map(|head| self.heap.save_segment(self.heap.arena.at(head)));
        let segments = segments.collect::<Result<_, _>>()?;
        // A restore needs all memory that the pool has now.
        self.heap.note_all_handed_out(pool_number);
        Ok(PoolCheckpoint { pool: id, segments })
    }

    /// Restores the state of a private pool. First takes back everything that is currently allocated in the pool.
    /// Segments added since the checkpoint are kept and become free. If an expandable segment has grown, its last free
    /// block is larger than before.
    ///
    /// # Errors
    /// [`CheckpointError::LostPool`], [`CheckpointError::Abandoned`], [`CheckpointError::Parted`], or the reason why
    /// the pool's segments do not fit the checkpoint; a checkpoint from a different allocator does not fit either.
    /// Nothing has changed, except after [`CheckpointError::Device`].
    pub fn restore_pool(&mut self, checkpoint: &PoolCheckpoint) -> Result<Restored, CheckpointError> {
        let id = checkpoint.pool;
        let pool_number = self.heap.private_pool_number(id).ok_or(CheckpointError::LostPool(id))?;
        if self.heap.private_pools().is_abandoned(pool_number) {
            return Err(CheckpointError::Abandoned(id));
        }
        if self.heap.is_parted(pool_number) {
            return Err(CheckpointError::Parted);
        }
        Fit { heap: &self.heap, pool_number, takes_grown: self.profile.restores_grown_segments }.check(checkpoint)?;
        let freed = self.take_back(pool_number)?;
        self.coalesce_all(Some(pool_number));
        let mut allocations = Vec::new();
        let starts = self.heap.free_starts(pool_number);
        for segment in &checkpoint.segments {
            let start = starts.get(&segment.address.0).ok_or(CheckpointError::SegmentMissing(segment.address))?;
            self.restore_segment(*start, segment, &mut allocations)?;
        }
        allocations.iter().for_each(|allocation| self.note_allocated(allocation));
        Ok(Restored { freed, allocations })
    }

    /// Whether exactly these blocks of a private pool are allocated (`checkPoolLiveAllocations`).
    ///
    /// # Errors
    /// [`CheckpointError::UnknownPool`].
    pub fn pool_live_allocations_are(&self, id: PoolId, expected: &[DeviceAddress]) -> Result<bool, CheckpointError> {
        let pool_number = self.heap.private_pool_number(id).ok_or(CheckpointError::UnknownPool(id))?;
        let blocks = self.heap.arena.occupied().map(|index| self.heap.arena.at(index));
        let live =
            blocks.filter(|block| block.state == BlockState::Allocated && PoolSlot(block.pool).pool_number() == pool_number);
        let live: BTreeSet<DeviceAddress> = live.map(|block| DeviceAddress(block.address)).collect();
        Ok(live == expected.iter().copied().collect())
    }

    /// Takes back all allocated blocks of the pool, and continues after an error. Returns the first error.
    fn take_back(&mut self, pool_number: u16) -> Result<Vec<DeviceAddress>, CheckpointError> {
        let mut freed = Vec::new();
        let mut outcome = Ok(());
        for mut index in self.heap.heads_of(pool_number) {
            // A freed block keeps its slot, regardless of which neighbours it absorbs.
            while let Some(block) = self.heap.arena.get(index) {
                if block.state == BlockState::Allocated {
                    freed.push(DeviceAddress(block.address));
                    self.note_freed(index);
                    // The caller still has the old id.
                    self.heap.arena.rename(index);
                    outcome = outcome.and(self.give_back(index));
                }
                index = self.heap.arena.at(index).next;
            }
        }
        outcome.map(|()| freed).map_err(CheckpointError::Device)
    }

    /// Hands out the saved blocks one by one, then frees those that were free when saved.
    fn restore_segment(
        &mut self,
        start: u32,
        segment: &SavedSegment,
        allocations: &mut Vec<Allocation>,
    ) -> Result<(), CheckpointError> {
        let (mut index, mut unused) = (start, Vec::new());
        let mut restored = Vec::new();
        for saved in segment.blocks.iter().filter(|saved| saved.state != SavedState::Unmapped) {
            let block = self.heap.arena.at(index);
            let (pool, take) = (PoolSlot(block.pool), if block.size > saved.size.0 { Take::LowEnd } else { Take::Whole });
            let request = Request { requested: saved.size, size: saved.size, pool, stream: segment.stream, is_expandable: false };
            let allocation = self.hand_out(index, &request, take);
            index = self.heap.arena.at(allocation.id().index).next;
            if saved.state == SavedState::Allocated { restored.push(allocation) } else { unused.push(allocation) }
        }
        for allocation in unused {
            self.give_back(allocation.id().index)?;
        }
        allocations.append(&mut restored);
        Ok(())
    }
}

impl Heap {
    fn private_pool_number(&self, id: PoolId) -> Option<u16> {
        self.private_pools().number_of(id).filter(|&pool_number| pool_number != 0)
    }

    /// The first blocks of a pool's segments, except those that begin unmapped: first the blocks in use, by address;
    /// then the free blocks, small before large, in the order of the pool's free blocks.
    fn heads_of(&self, pool_number: u16) -> Vec<u32> {
        let is_used = |block: &Block| matches!(block.state, BlockState::Allocated | BlockState::Pending);
        let is_head = |block: &Block| block.prev == NIL && PoolSlot(block.pool).pool_number() == pool_number;
        let mut heads: Vec<u32> = self.arena.occupied().collect();
        heads.retain(|&index| is_head(self.arena.at(index)) && is_used(self.arena.at(index)));
        heads.sort_unstable_by_key(|&index| self.arena.at(index).address);
        heads.extend(self.free_of(pool_number).filter(|&index| self.arena.at(index).prev == NIL));
        heads
    }

    /// Whether adjacent blocks of the pool belong to different streams.
    fn is_parted(&self, pool_number: u16) -> bool {
        let differ = |block: &Block| self.arena.get(block.prev).is_some_and(|before| before.stream != block.stream);
        let of_pool = |block: &Block| PoolSlot(block.pool).pool_number() == pool_number;
        self.mixes_streams()
            && self.arena.occupied().map(|index| self.arena.at(index)).any(|block| of_pool(block) && differ(block))
    }

    /// The free blocks of a pool, small ones first.
    fn free_of(&self, pool_number: u16) -> impl Iterator<Item = u32> + '_ {
        let slots = self.pool_slots().filter(move |slot| slot.pool_number() == pool_number);
        slots.flat_map(|slot| self.free_blocks(slot)).map(|block| block.id.index)
    }

    /// The free blocks of a pool by address.
    fn free_starts(&self, pool_number: u16) -> BTreeMap<u64, u32> {
        self.free_of(pool_number).map(|index| (self.arena.at(index).address, index)).collect()
    }

    fn save_segment(&self, head: &Block) -> Result<SavedSegment, CheckpointError> {
        let saved = |block: &Block| {
            let state = match block.state {
                // The block was freed during a capture, so its events are not recorded, and nothing shows that it is
                // waiting for them.
                BlockState::Pending if block.events() == 0 => SavedState::Free,
                BlockState::Pending => return Err(CheckpointError::EventsPending(DeviceAddress(block.address))),
                BlockState::Allocated => SavedState::Allocated,
                BlockState::Unmapped => SavedState::Unmapped,
                BlockState::Free | BlockState::Detached => SavedState::Free,
            };
            Ok(SavedBlock { size: Bytes(block.size), state })
        };
        let blocks = self.chain(head).map(saved).collect::<Result<_, _>>()?;
        Ok(SavedSegment { address: DeviceAddress(head.address), stream: self.stream(head.stream), blocks })
    }
}

/// Checks whether a checkpoint will fit after all allocated blocks of its pool have been freed.
struct Fit<'a> {
    heap: &'a Heap,
    pool_number: u16,
    /// Whether an expandable segment may have grown.
    takes_grown: bool,
}

impl Fit<'_> {
    fn check(&self, checkpoint: &PoolCheckpoint) -> Result<(), CheckpointError> {
        let arena = &self.heap.arena;
        let is_start = |index: &u32| {
            let block = arena.at(*index);
            PoolSlot(block.pool).pool_number() == self.pool_number && self.will_be_free(*index) && !self.will_be_free(block.prev)
        };
        let mut starts: BTreeMap<u64, u32> =
            arena.occupied().filter(is_start).map(|index| (arena.at(index).address, index)).collect();
        for segment in &checkpoint.segments {
            let start = starts.remove(&segment.address.0);
            let start = start.filter(|&start| self.heap.stream(arena.at(start).stream) == segment.stream);
            self.check_segment(start.ok_or(CheckpointError::SegmentMissing(segment.address))?, segment)?;
        }
        Ok(())
    }

    /// Whether the block is free, or will be free after the program's blocks are taken back. A block that other
    /// streams use will be pending instead.
    fn will_be_free(&self, index: u32) -> bool {
        self.heap.arena.get(index).is_some_and(|block| match block.state {
            BlockState::Free => true,
            BlockState::Allocated => !block.has_uses(),
            BlockState::Pending | BlockState::Detached | BlockState::Unmapped => false,
        })
    }

    fn check_segment(&self, start: u32, segment: &SavedSegment) -> Result<(), CheckpointError> {
        let (mut room, mut after) = (0, start);
        while self.will_be_free(after) {
            room += self.heap.arena.at(after).size;
            after = self.heap.arena.at(after).next;
        }
        let (mut at, mut blocks) = (segment.address.0, segment.blocks.iter().peekable());
        while let Some(saved) = blocks.next() {
            let is_last = blocks.peek().is_none();
            if saved.state == SavedState::Unmapped {
                if !self.takes_grown {
                    self.check_same_tail(room, after, segment.address)?;
                    // The blocks after it have lost their memory.
                    return if is_last { Ok(()) } else { Err(CheckpointError::SizeDiffers(DeviceAddress(at))) };
                }
                let fits = is_last && self.is_tail(room, after);
                return if fits { Ok(()) } else { Err(CheckpointError::TailInUse(segment.address)) };
            }
            if room == 0 && after == NIL {
                break;
            }
            if saved.size == Bytes::ZERO {
                return Err(CheckpointError::SizeDiffers(DeviceAddress(at)));
            }
            if saved.size.0 > room {
                let is_pending = room == 0 && !self.heap.is_unmapped(after) && saved.size.0 <= self.heap.arena.at(after).size;
                let address = DeviceAddress(at);
                return Err(if is_pending {
                    CheckpointError::BlockPending(address)
                } else {
                    CheckpointError::SizeDiffers(address)
                });
            }
            room -= saved.size.0;
            at += saved.size.0;
            // A part of another segment has no unmapped end, but may still have grown.
            let may_be_part = self.takes_grown && self.heap.has_parts_elsewhere() && self.heap.arena.at(start).is_expandable();
            let has_grown = may_be_part && self.is_tail(room, after);
            if is_last && (has_grown || room == 0 && after == NIL) {
                return Ok(());
            }
        }
        Err(CheckpointError::LengthDiffers(segment.address))
    }

    /// Checks that the saved blocks and `room` free bytes are followed only by unmapped addresses.
    fn check_same_tail(&self, room: u64, after: u32, segment: DeviceAddress) -> Result<(), CheckpointError> {
        let next = if room == 0 { self.heap.arena.get(after).map_or(NIL, |block| block.next) } else { after };
        if next != NIL {
            Err(CheckpointError::TailGrew(segment))
        } else if room != 0 || !self.heap.is_unmapped(after) {
            Err(CheckpointError::TailMapped(segment))
        } else {
            Ok(())
        }
    }

    /// Whether the rest of an expandable segment (`room` free bytes and the blocks from `after`) consists of at most
    /// one mapped block, followed by unmapped addresses (spec 5.8). That block may wait for events, because a restore
    /// does not change it.
    fn is_tail(&self, room: u64, after: u32) -> bool {
        let arena = &self.heap.arena;
        let unmapped = match arena.get(after) {
            Some(block) if room == 0 && block.state != BlockState::Unmapped => block.next,
            Some(_) => after,
            None => return room != 0,
        };
        unmapped == NIL || arena.get(unmapped).is_some_and(|block| block.state == BlockState::Unmapped && block.next == NIL)
    }
}
