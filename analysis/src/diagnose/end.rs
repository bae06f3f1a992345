//! A file without a trace: what its segments alone say.

use parkade::policy::PyTorch;
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};

use super::device::known_limit;
use super::{DiagnoseOptions, Diagnosis, GivenBack, LimitEvidence, Owners, Why, fences, judge, live_by_stack, stranded};
use parkade_recording::{Block, BlockState, DeviceRecording, Segment};

/// Diagnoses the heap at the end, with no request.
pub(super) fn diagnose_end(recording: &DeviceRecording, options: &DiagnoseOptions, policy: &PyTorch) -> Diagnosis {
    let segments: Vec<SegmentInfo> = recording.segments.iter().map(segment_info).collect();
    let owners = Owners::after(recording, 0);
    let heap = stranded(&segments, None, policy);
    let evidence = LimitEvidence { served: Some((heap.reserved_bytes, 0)), ..LimitEvidence::default() };
    let limit = evidence.conclude(known_limit(options), heap.reserved_bytes);
    let (verdict, steps) = judge(&heap, None, limit);
    Diagnosis {
        device: recording.device,
        why: Why::End,
        entry: None,
        time_us: None,
        request: None,
        is_for_request: false,
        met: heap.clone(),
        reserved_after_bytes: heap.reserved_bytes,
        given_back: GivenBack::default(),
        ooms: 0,
        retries: 0,
        assumed_limit_bytes: None,
        limit,
        evidence,
        verdict,
        steps,
        onset: None,
        stacks: live_by_stack(&segments, &owners),
        fences: fences(&segments, None, policy, &owners, options.fences),
        heap,
        exactness: None,
    }
}

/// A recorded segment in the shape of the core's.
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

/// A block without its requested size counts as asked for whole.
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
