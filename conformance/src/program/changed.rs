//! Checkpoints that are wrong, or merely different, in one place. A checkpoint is plain data, so a caller may restore one that
//! no allocator has saved: it must be restored exactly as it says, or refused.

use parkade::checkpoint::{PoolCheckpoint, SavedBlock, SavedSegment, SavedState};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::search::Draws;
use super::step::POOLS;
use crate::backend::STREAMS;

/// Returns a copy of the checkpoint with at most one change, drawn from this number: in the list of segments, in one segment, or in one
/// of its blocks. A checkpoint without segments stays as it is, or is for a different pool.
pub(super) fn changed(checkpoint: &PoolCheckpoint, how: u64) -> PoolCheckpoint {
    let (mut draws, mut copy) = (Draws::new(how), checkpoint.clone());
    let segments = copy.segments.len();
    match draws.below(8) {
        0 => copy.pool = POOLS[draws.below(POOLS.len() as u64) as usize],
        1..=3 => change_list(&mut draws, &mut copy.segments),
        _ if segments == 0 => {}
        4 => {
            let place = draws.below(segments as u64) as usize;
            let other = copy.segments[draws.below(segments as u64) as usize].address;
            let segment = &mut copy.segments[place];
            match draws.below(4) {
                0 => segment.stream = StreamId(STREAMS[draws.below(STREAMS.len() as u64) as usize]),
                1 => segment.address = other,
                2 => segment.address = DeviceAddress(segment.address.get().wrapping_add(512)),
                _ => segment.blocks.clear(),
            }
        }
        _ => {
            let place = draws.below(segments as u64) as usize;
            change_blocks(&mut draws, &mut copy.segments[place]);
        }
    }
    copy
}

/// Repeats, leaves out or swaps elements.
fn change_list<T: Clone>(draws: &mut Draws, list: &mut Vec<T>) {
    let Some(last) = list.len().checked_sub(1) else { return };
    let mut place = || draws.below(last as u64 + 1) as usize;
    let (first, second) = (place(), place());
    match draws.below(3) {
        0 => list.insert(second, list[first].clone()),
        1 => drop(list.remove(first)),
        _ => list.swap(first, second),
    }
}

/// Changes the list of a segment's blocks, or one of them.
fn change_blocks(draws: &mut Draws, segment: &mut SavedSegment) {
    let blocks = &mut segment.blocks;
    if blocks.is_empty() || draws.below(4) == 0 {
        return change_list(draws, blocks);
    }
    let place = draws.below(blocks.len() as u64) as usize;
    let size = blocks[place].size.get();
    match draws.below(5) {
        0 => {
            let others = [SavedState::Free, SavedState::Allocated, SavedState::Unmapped];
            blocks[place].state = others[draws.below(3) as usize];
        }
        1 => {
            let others = [0, 512, size.saturating_sub(512), size + 512, 2 * size, size / 1024 * 512, u64::MAX];
            blocks[place].size = Bytes(others[draws.below(others.len() as u64) as usize]);
        }
        2 if size > 512 => {
            // The same bytes as two blocks.
            blocks[place].size = Bytes(512);
            blocks.insert(place + 1, SavedBlock { size: Bytes(size - 512), ..blocks[place] });
        }
        // The same bytes as one block.
        3 if place + 1 < blocks.len() => blocks[place].size = Bytes(size + blocks.remove(place + 1).size.get()),
        _ => blocks.push(SavedBlock { size: Bytes(512), state: SavedState::Free }),
    }
}
