//! Whether a checkpoint fits its pool (spec 5.8).

use parkade::CheckpointError;
use parkade::checkpoint::SavedState;
use parkade::units::DeviceAddress;

use super::Reference;
use super::blocks::{Block, Segment, State};
use super::checkpoint::{Saved, SavedRun};

/// Whether the block is free once everything is given back. What other streams use will wait instead.
fn comes_free(block: &Block) -> bool {
    block.state == State::Free || (block.state == State::Allocated && block.uses.is_empty())
}

impl Reference {
    /// Checks every saved segment; the first that does not fit is the error.
    pub(super) fn check_fit(&self, saved: &Saved) -> Result<(), CheckpointError> {
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

/// Lays the saved blocks out in the free bytes that begin at `place`.
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

/// Checks that the saved blocks, with `room` free bytes left behind them, are followed by the end of the segment, which has no memory.
fn check_same_tail(room: u64, behind: &[Block], address: DeviceAddress) -> Result<(), CheckpointError> {
    let is_mapped = room > 0 || behind.first().is_none_or(|next| next.state != State::Unmapped);
    match usize::from(room > 0) + behind.len() {
        2.. => Err(CheckpointError::TailGrew(address)),
        _ if is_mapped => Err(CheckpointError::TailMapped(address)),
        _ => Ok(()),
    }
}

/// Whether what follows the saved blocks is at most one block with memory, and then addresses without.
fn is_tail(room: u64, behind: &[Block]) -> bool {
    let rest = match behind.first() {
        None => return room != 0,
        Some(next) if room == 0 && next.state != State::Unmapped => &behind[1..],
        Some(_) => behind,
    };
    rest.is_empty() || (rest.len() == 1 && rest[0].state == State::Unmapped)
}
