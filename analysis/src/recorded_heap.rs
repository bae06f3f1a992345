//! Converts the final heap of a recording to the core's types; a file without a trace contains no other heap.

use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
use parkade_recording::{Block, BlockState, Segment};

/// Converts recorded segments to the core's type.
pub(crate) fn recorded_heap(segments: &[Segment]) -> Vec<SegmentInfo> {
    segments.iter().map(segment_info).collect()
}

fn segment_info(segment: &Segment) -> SegmentInfo {
    let blocks: Vec<BlockInfo> = segment.blocks.iter().map(block_info).collect();
    let sum = |counts: fn(&BlockInfo) -> u64| Bytes(blocks.iter().map(counts).fold(0, u64::saturating_add));
    SegmentInfo {
        address: DeviceAddress(segment.address),
        total: Bytes(segment.total_bytes),
        allocated: sum(|block| if block.state == BlockActivity::Allocated { block.size.get() } else { 0 }),
        active: sum(|block| if block.state == BlockActivity::Inactive { 0 } else { block.size.get() }),
        requested: sum(|block| if block.state == BlockActivity::Inactive { 0 } else { block.requested.get() }),
        stream: StreamId(segment.stream),
        pool: segment.pool.map_or(PoolId::DEFAULT, |(first, second)| PoolId(first, second)),
        class: if segment.large { PoolClass::Large } else { PoolClass::Small },
        expandable: segment.expandable,
        rank: 0,
        blocks,
    }
}

/// If a block's requested size is not in the file, the block counts as requested in full.
fn block_info(block: &Block) -> BlockInfo {
    BlockInfo {
        address: DeviceAddress(block.address),
        size: Bytes(block.size),
        requested: Bytes(block.requested.unwrap_or(block.size)),
        state: match block.state {
            BlockState::ActiveAllocated => BlockActivity::Allocated,
            BlockState::ActivePendingFree => BlockActivity::PendingFree,
            BlockState::Inactive => BlockActivity::Inactive,
        },
    }
}
