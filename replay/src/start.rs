//! The state before a recording's first entry, made on a core.

use std::collections::BTreeSet;

use parkade::policy::PyTorch;
use parkade::units::PoolId;
use parkade::{AdoptedContent, AdoptedSegment, Allocation, Allocator};
use rustc_hash::FxHashMap;

use super::collections::Recorded;
use super::compare::Comparer;
use super::device::{RecordedDevice, stream_of};
use super::error::VerifyError;
use super::extents::{self, Extents};
use super::hidden::Assumption;
use super::pools::PoolMap;
use super::rewind::{EarlyBlock, Rewound, rewind};
use parkade_recording::DeviceRecording;

/// What a recording's trace does not show, because it began later than the program or lost its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LostBeginning {
    /// Segments that existed before the first entry.
    pub segments: usize,
    /// Blocks that were in use before it.
    pub blocks: usize,
    /// Bytes of those segments.
    pub reserved_bytes: u64,
    /// Blocks of which up to 1 MiB may lie in the free block behind them, where nothing shows whether it does. Taken as their
    /// rounded request.
    pub assumed_sizes: usize,
    /// Such blocks of which it shows that they own more, for a request did not fit behind them. Taken as the least that explains it.
    pub inferred_sizes: usize,
}

/// The state before the first entry, worked out.
#[derive(Clone)]
pub(super) struct Start {
    pub(super) extents: Extents,
    /// Blocks given back before the first entry and not yet free, by address.
    pending: FxHashMap<u64, Option<u32>>,
    /// For each entry that gives back a block which does not become free at once: when it does.
    pub(super) deferred: FxHashMap<u32, Option<u32>>,
    /// Which private pools there are, and which segments are theirs.
    pub(super) pools: PoolMap,
    pub(super) lost: Option<LostBeginning>,
    pub(super) reserved_bytes: u64,
    /// Requests before which not the likeliest happened but the next that leaves the same entries and other statistics.
    pub(super) otherwise: BTreeSet<usize>,
}

pub(super) type ReplayCore<'a> = Allocator<RecordedDevice<'a>, Recorded<'a>, Comparer<'a>>;

impl Start {
    /// Walks back through the trace.
    pub(super) fn find(recording: &DeviceRecording, policy: &PyTorch) -> Result<Start, VerifyError> {
        let Rewound { mut blocks, mut segments, made, deferred } = rewind(recording, policy.settings.large_segment_bytes)?;
        segments.sort_unstable_by_key(|segment| segment.address);
        blocks.sort_unstable_by_key(|block| block.address);
        let extents = extents::cut(&segments, &blocks, &recording.trace, policy)?;
        let reserved_bytes = segments.iter().map(|segment| segment.total).sum();
        let lost = (!segments.is_empty()).then_some(LostBeginning {
            segments: segments.len(),
            blocks: blocks.len(),
            reserved_bytes,
            assumed_sizes: extents.assumed.len(),
            inferred_sizes: 0,
        });
        let pending = blocks
            .iter()
            .filter(|block| block.is_pending)
            .map(|&EarlyBlock { address, completed_at, .. }| (address, completed_at));
        let pools = PoolMap::new(&recording.segments, &segments, made);
        Ok(Start { extents, pending: pending.collect(), deferred, pools, lost, reserved_bytes, otherwise: BTreeSet::new() })
    }

    /// Takes pools that were worked out for those that the file names.
    pub(super) fn assume(&mut self, assumption: &Assumption) {
        for segment in &mut self.extents.segments {
            segment.pool = assumption.before.get(&segment.address.get()).copied().unwrap_or(segment.pool);
        }
        self.pools.assume(&self.extents.segments, assumption);
    }

    /// The state before the first entry, with what replaying has shown of it.
    pub(super) fn lost_beginning(&self) -> Option<LostBeginning> {
        let inferred_sizes = self.extents.inferred();
        let assumed_sizes = self.extents.assumed.len() - inferred_sizes;
        self.lost.map(|lost| LostBeginning { assumed_sizes, inferred_sizes, ..lost })
    }

    /// Makes the state on a fresh core; returns the allocations that are out, by address.
    pub(super) fn restore(&self, core: &mut ReplayCore<'_>) -> Result<FxHashMap<u64, Allocation>, VerifyError> {
        let mut live = FxHashMap::default();
        for pool in self.pools.private() {
            let problem = "is one of too many private pools";
            core.create_pool(pool).map_err(|_| VerifyError::Start { what: "pool", address: pool.0, problem })?;
        }
        if self.lost.is_none() {
            return Ok(live);
        }
        core.observer_mut().muted = true;
        for segment in &self.extents.segments {
            let unusable =
                |_| VerifyError::Start { what: "segment", address: segment.address.get(), problem: "cannot be rebuilt" };
            if segment.page.is_some() {
                core.device_mut().adopt_range(segment.address.get(), end_of_memory(segment));
            }
            for allocation in core.adopt(segment, &mut |_| ()).map_err(unusable)? {
                let address = allocation.address().get();
                match self.pending.get(&address) {
                    None => {
                        live.insert(address, allocation);
                    }
                    Some(&completed_at) => {
                        core.record_stream(&allocation, stream_of(completed_at));
                        // The recorded device refuses no event, and the allocation is this core's.
                        let _ = core.free(allocation);
                    }
                }
            }
        }
        core.observer_mut().muted = false;
        core.reset_accumulated_stats();
        core.reset_peak_stats();
        Ok(live)
    }
}

/// A block that was in use before the first entry, as the request that it answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyRequest {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) pool: PoolId,
    /// If it was given back before the first entry already: the entry at which it becomes free, if it does.
    pub(super) freed: Option<Option<u32>>,
}

impl Start {
    /// What was in use before the first entry, segment by segment.
    pub(super) fn early_requests(&self) -> Vec<EarlyRequest> {
        let mut requests = Vec::new();
        for segment in &self.extents.segments {
            let mut address = segment.address.get();
            for block in &segment.blocks {
                if let AdoptedContent::Allocated(bytes) = block.content {
                    let freed = self.pending.get(&address).copied();
                    let (stream, pool) = (segment.stream.get(), segment.pool);
                    requests.push(EarlyRequest { address, bytes: bytes.get(), stream, pool, freed });
                }
                address += block.size.get();
            }
        }
        requests
    }
}

/// One past the last byte of an expandable segment that has memory.
fn end_of_memory(segment: &AdoptedSegment) -> u64 {
    let (mut at, mut end) = (segment.address.get(), segment.address.get());
    for block in &segment.blocks {
        at += block.size.get();
        if block.content != AdoptedContent::Unmapped {
            end = at;
        }
    }
    end
}
