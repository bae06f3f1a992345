//! Comparing the heap at the end of a replay with the segments and blocks in the recording.

use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::PoolClass;
use parkade_recording::{Block, BlockState, Segment};

use super::tally::{Mismatch, Tally};

/// Compares segment by segment and block by block, and adds the result to the tally.
pub(crate) fn compare(recorded: &[Segment], replayed: &[SegmentInfo], tally: &mut Tally) {
    let (mut theirs, mut ours) = (recorded.iter().peekable(), replayed.iter().peekable());
    loop {
        let (their, our) = (theirs.peek(), ours.peek());
        let (their_address, our_address) = (their.map(|s| s.address), our.map(|s| s.address.get()));
        match (their, our) {
            (None, None) => return,
            (Some(their), Some(our)) if their_address == our_address => {
                compare_segment(their, our, tally);
                theirs.next();
                ours.next();
            }
            (Some(their), _) if our_address.is_none_or(|address| their.address < address) => {
                differ(tally, their.address, || segment(their.address, their.total_bytes), || "no segment".to_owned());
                theirs.next();
            }
            (_, our) => {
                let our = our.map(|our| (our.address.get(), our.total.get()));
                let (address, total) = our.unwrap_or_default();
                differ(tally, address, || "no segment".to_owned(), || segment(address, total));
                ours.next();
            }
        }
    }
}

fn differ(tally: &mut Tally, address: u64, recorded: impl FnOnce() -> String, replayed: impl FnOnce() -> String) {
    tally.decisions += 1;
    tally.mismatches += 1;
    if tally.first.is_none() {
        let (recorded, replayed) = (recorded(), replayed());
        tally.first = Some(Mismatch { entry: None, recorded, replayed, addresses: vec![address] });
    }
}

fn compare_segment(recorded: &Segment, replayed: &SegmentInfo, tally: &mut Tally) {
    let class = if recorded.large { PoolClass::Large } else { PoolClass::Small };
    let describe = |total: u64, stream: u64, class: PoolClass| {
        format!("a {} segment at {:#x} of {total} bytes on stream {stream:#x}", class.name(), recorded.address)
    };
    let theirs = describe(recorded.total_bytes, recorded.stream, class);
    let ours = describe(replayed.total.get(), replayed.stream.get(), replayed.class);
    if theirs == ours {
        tally.decisions += 1;
    } else {
        differ(tally, recorded.address, || theirs, || ours);
    }
    for (block, own) in recorded.blocks.iter().zip(&replayed.blocks) {
        if agrees(block, own) {
            tally.decisions += 1;
        } else {
            differ(tally, block.address, || recorded_block(block), || replayed_block(own));
        }
    }
    let common = recorded.blocks.len().min(replayed.blocks.len());
    for block in &recorded.blocks[common..] {
        differ(tally, block.address, || recorded_block(block), || "no block".to_owned());
    }
    for own in &replayed.blocks[common..] {
        differ(tally, own.address.get(), || "no block".to_owned(), || replayed_block(own));
    }
}

/// Whether two blocks agree. The requested size counts only while a block is in use (spec 7.3).
fn agrees(recorded: &Block, replayed: &BlockInfo) -> bool {
    let (state, is_active) = match recorded.state {
        BlockState::ActiveAllocated => (BlockActivity::Allocated, true),
        BlockState::ActivePendingFree => (BlockActivity::PendingFree, true),
        BlockState::Inactive => (BlockActivity::Inactive, false),
    };
    let same_request = !is_active || recorded.requested.is_none_or(|requested| requested == replayed.requested.get());
    recorded.address == replayed.address.get() && recorded.size == replayed.size.get() && state == replayed.state && same_request
}

fn segment(address: u64, total: u64) -> String {
    format!("a segment at {address:#x} of {total} bytes")
}

fn recorded_block(block: &Block) -> String {
    let requested = block.requested.map_or("an unknown number of".to_owned(), |requested| requested.to_string());
    format!("a block at {:#x} of {} bytes, {} ({requested} requested)", block.address, block.size, block.state.name())
}

fn replayed_block(block: &BlockInfo) -> String {
    format!(
        "a block at {:#x} of {} bytes, {} ({} requested)",
        block.address.get(),
        block.size,
        block.state.name(),
        block.requested
    )
}
