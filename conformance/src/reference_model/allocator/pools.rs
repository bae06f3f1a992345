//! Checkpoints of private pools, and the check that one fits its pool (spec 5.8).

use parkade::CheckpointError;
use parkade::checkpoint::SavedState;
use parkade::device::BackendError;
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};

use super::{Block, Reference, Segment, State, Wanted};

/// A segment in a checkpoint: its first byte, its stream and its blocks.
pub type SavedRun = (DeviceAddress, StreamId, Vec<(Bytes, SavedState)>);

/// The saved state of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Saved {
    /// The pool.
    pub pool: PoolId,
    /// Its segments, in the order in which they are restored.
    pub segments: Vec<SavedRun>,
}

/// The blocks that a restore took back and handed out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restoration {
    /// The addresses of the blocks taken back, in order.
    pub freed: Vec<u64>,
    /// The addresses of the blocks handed out, in order.
    pub allocations: Vec<u64>,
}

impl Reference {
    /// Returns the pool's segments in the order in which they are saved: first those whose first block is in use, by
    /// address, then those whose first block is free, in the order of free blocks. A segment whose start is unmapped is
    /// left out.
    fn saved_order(&self, pool: PoolId) -> Vec<u64> {
        let own = self.segments.iter().filter(|segment| segment.pool == pool);
        let is_used = |segment: &&Segment| matches!(segment.blocks[0].state, State::Allocated | State::Pending);
        let mut order: Vec<u64> = own.filter(is_used).map(|segment| segment.base).collect();
        order.sort_unstable();
        for class in [PoolClass::Small, PoolClass::Large] {
            let free = self.free_blocks(pool, class).into_iter().map(|block| block.address);
            order.extend(free.filter(|&address| self.segment_at(address).base == address));
        }
        order
    }

    /// Saves a pool.
    pub fn save(&mut self, pool: PoolId) -> Result<Saved, CheckpointError> {
        if self.rules.settles_before_saving {
            self.flush_deferred()?;
        }
        if !self.has_pool(pool) {
            return Err(CheckpointError::UnknownPool(pool));
        }
        let mut segments = Vec::new();
        for base in self.saved_order(pool) {
            let segment = self.segment_at(base);
            let mut blocks = Vec::new();
            for block in &segment.blocks {
                let state = match block.state {
                    // If no event has been recorded for the block, nothing shows that it is
                    // waiting.
                    State::Pending if !self.is_waiting(block.address) => SavedState::Free,
                    State::Pending => return Err(CheckpointError::EventsPending(DeviceAddress(block.address))),
                    State::Allocated => SavedState::Allocated,
                    State::Unmapped => SavedState::Unmapped,
                    State::Free | State::Taken => SavedState::Free,
                };
                blocks.push((Bytes(block.size), state));
            }
            segments.push((DeviceAddress(base), StreamId(segment.stream), blocks));
        }
        Ok(Saved { pool, segments })
    }

    /// Restores a pool: takes back all its blocks, then hands out the saved ones and frees those that were free.
    pub fn restore(&mut self, saved: &Saved) -> Result<Restoration, CheckpointError> {
        if !self.has_pool(saved.pool) {
            return Err(CheckpointError::LostPool(saved.pool));
        }
        if self.is_freeable(saved.pool) {
            return Err(CheckpointError::Abandoned(saved.pool));
        }
        self.check_fit(saved)?;
        let (mut freed, mut outcome): (_, Result<(), BackendError>) = (Vec::new(), Ok(()));
        for base in self.saved_order(saved.pool) {
            let blocks = self.segment_at(base).blocks.clone();
            for block in blocks.iter().filter(|block| block.state == State::Allocated) {
                freed.push(block.address);
                outcome = outcome.and(self.free(block.address));
            }
        }
        outcome?;
        let mut allocations = Vec::new();
        for (base, stream, blocks) in &saved.segments {
            self.restore_run(base.get(), *stream, blocks, &mut allocations)?;
        }
        Ok(Restoration { freed, allocations })
    }

    fn restore_run(
        &mut self,
        base: u64,
        stream: StreamId,
        blocks: &[(Bytes, SavedState)],
        allocations: &mut Vec<u64>,
    ) -> Result<(), CheckpointError> {
        let (pool, class) = (self.segment_at(base).pool, self.segment_at(base).class);
        let (mut address, mut unused) = (base, Vec::new());
        for &(size, state) in blocks.iter().filter(|(_, state)| *state != SavedState::Unmapped) {
            let size = size.get();
            let wanted = Wanted { requested: size, size, pool, class, stream: stream.get(), is_expandable: false };
            let splits = self.block(address).size > size;
            self.hand_out_part(address, &wanted, splits);
            if state == SavedState::Allocated {
                allocations.push(address)
            } else {
                unused.push(address)
            }
            address += self.block(address).size;
        }
        for address in unused {
            self.free(address)?;
        }
        Ok(())
    }

    /// Checks every saved segment, and returns the error of the first one that does not fit.
    fn check_fit(&self, saved: &Saved) -> Result<(), CheckpointError> {
        let mut used = Vec::new();
        for run in &saved.segments {
            let address = run.0;
            let holds = |segment: &&Segment| segment.pool == saved.pool && segment.stream == run.1.get();
            let place = self.segments.iter().filter(holds).find_map(|segment| {
                let place = segment.blocks.iter().position(|block| block.address == address.get())?;
                let begins = comes_free(&segment.blocks[place]) && (place == 0 || !comes_free(&segment.blocks[place - 1]));
                begins.then_some((segment, place))
            });
            let place = place.filter(|_| !used.contains(&address));
            let (segment, place) = place.ok_or(CheckpointError::SegmentMissing(address))?;
            used.push(address);
            check_run(segment, place, run, self.rules.restores_grown_segments)?;
        }
        Ok(())
    }
}

/// Returns whether the block is free once everything is freed. A block that other streams use is pending instead.
fn comes_free(block: &Block) -> bool {
    block.state == State::Free || (block.state == State::Allocated && block.uses.is_empty())
}

/// Lays out the saved blocks in the free bytes that begin at `place`.
fn check_run(segment: &Segment, place: usize, (address, _, saved): &SavedRun, takes_grown: bool) -> Result<(), CheckpointError> {
    let free = segment.blocks[place..].iter().take_while(|block| comes_free(block)).count();
    let mut room: u64 = segment.blocks[place..place + free].iter().map(|block| block.size).sum();
    let behind = &segment.blocks[place + free..];
    let mut at = address.get();
    for (number, &(size, state)) in saved.iter().enumerate() {
        let (size, is_last) = (size.get(), number + 1 == saved.len());
        if state == SavedState::Unmapped {
            if !takes_grown {
                check_same_tail(room, behind, *address)?;
                return if is_last { Ok(()) } else { Err(CheckpointError::SizeDiffers(DeviceAddress(at))) };
            }
            let fits = is_last && is_tail(room, behind);
            return if fits { Ok(()) } else { Err(CheckpointError::TailInUse(*address)) };
        }
        match behind.first() {
            None if room == 0 => return Err(CheckpointError::LengthDiffers(*address)),
            Some(next) if size > room && room == 0 && next.state != State::Unmapped && size <= next.size => {
                return Err(CheckpointError::BlockPending(DeviceAddress(at)));
            }
            _ if size > room => return Err(CheckpointError::SizeDiffers(DeviceAddress(at))),
            _ => {}
        }
        room -= size;
        at += size;
        if is_last && room == 0 && behind.is_empty() {
            return Ok(());
        }
    }
    Err(CheckpointError::LengthDiffers(*address))
}

/// Checks that only the unmapped end of the segment follows the saved blocks, which leave `room` free bytes.
fn check_same_tail(room: u64, behind: &[Block], address: DeviceAddress) -> Result<(), CheckpointError> {
    let is_mapped = room > 0 || behind.first().is_none_or(|next| next.state != State::Unmapped);
    match usize::from(room > 0) + behind.len() {
        2.. => Err(CheckpointError::TailGrew(address)),
        _ if is_mapped => Err(CheckpointError::TailMapped(address)),
        _ => Ok(()),
    }
}

/// Returns whether the saved blocks are followed by at most one block with memory, and then only by addresses without
/// memory.
fn is_tail(room: u64, behind: &[Block]) -> bool {
    let rest = match behind.first() {
        None => return room != 0,
        Some(next) if room == 0 && next.state != State::Unmapped => &behind[1..],
        Some(_) => behind,
    };
    rest.is_empty() || (rest.len() == 1 && rest[0].state == State::Unmapped)
}
