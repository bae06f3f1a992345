//! What a recording says twice: the sums of its segments beside their blocks, and times beside the order of entries.
//!
//! The core decides neither. In a file of PyTorch they agree; in one that was changed by hand they need not.

use parkade_recording::{Block, BlockState, DeviceRecording, Segment};

use super::tally::{Mismatch, Tally};

/// Compares them, and adds what disagrees to the tally. A sum or time that the file does not have is not compared.
pub(crate) fn compare(recording: &DeviceRecording, tally: &mut Tally) {
    let times = recording.trace.iter().enumerate().filter_map(|(at, entry)| Some((at, entry.time()?)));
    let mut latest = 0;
    for (at, time) in times {
        if time < latest {
            let recorded = format!("a time of {time} us");
            differ(
                tally,
                Mismatch { entry: Some(at), recorded, replayed: format!("not before {latest} us"), addresses: Vec::new() },
            );
        }
        latest = latest.max(time);
    }
    for segment in &recording.segments {
        let sums = [
            (
                "allocated_size",
                segment.allocated_bytes,
                sum(segment, |block| (block.state == BlockState::ActiveAllocated).then_some(block.size)),
            ),
            ("active_size", segment.active_bytes, sum(segment, |block| is_active(block).then_some(block.size))),
            ("requested_size", segment.requested_bytes, requested(segment)),
        ];
        for (key, stated, found) in sums {
            if let (Some(stated), Some(found)) = (stated, found)
                && stated != found
            {
                let recorded = format!("a segment at {:#x} with {key} {stated}", segment.address);
                let replayed = format!("its blocks have {found}");
                differ(tally, Mismatch { entry: None, recorded, replayed, addresses: vec![segment.address] });
            }
        }
    }
}

fn differ(tally: &mut Tally, mismatch: Mismatch) {
    tally.decisions += 1;
    tally.mismatches += 1;
    tally.first.get_or_insert(mismatch);
}

fn is_active(block: &Block) -> bool {
    block.state != BlockState::Inactive
}

fn sum(segment: &Segment, of_block: impl Fn(&Block) -> Option<u64>) -> Option<u64> {
    segment.blocks.iter().filter_map(of_block).try_fold(0_u64, u64::checked_add)
}

/// The requested bytes of the active blocks; `None` if a block does not state them.
fn requested(segment: &Segment) -> Option<u64> {
    let mut active = segment.blocks.iter().filter(|block| is_active(block));
    active.try_fold(0_u64, |sum, block| sum.checked_add(block.requested?))
}
