//! The state before a recording's first entry, made on a core.

use std::collections::BTreeSet;

use parkade::AdoptedContent;
use parkade::policy::PyTorch;
use parkade::units::PoolId;
use parkade_recording::DeviceRecording;
use rustc_hash::FxHashMap;

use super::block_sizes::cut;
use super::early::{EarlyBlock, Rewound};
use super::inferred_sizes::Extents;
use super::rewind::rewind;
use crate::error::VerifyError;
use crate::pools::{AssumedPools, RecordedPools};

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
pub(crate) struct Start {
    pub(crate) extents: Extents,
    /// Blocks given back before the first entry and not yet free, by address.
    pub(crate) pending: FxHashMap<u64, Option<u32>>,
    /// For each entry that gives back a block which does not become free at once: when it does.
    pub(crate) deferred: FxHashMap<u32, Option<u32>>,
    /// Which private pools there are, and which segments are theirs.
    pub(crate) pools: RecordedPools,
    pub(crate) lost: Option<LostBeginning>,
    pub(crate) reserved_bytes: u64,
    /// Requests before which not the likeliest happened but the next that leaves the same entries and other statistics.
    pub(crate) otherwise: BTreeSet<usize>,
}

impl Start {
    /// Walks back through the trace.
    pub(crate) fn find(recording: &DeviceRecording, policy: &PyTorch) -> Result<Start, VerifyError> {
        let Rewound { mut blocks, mut segments, made, deferred } = rewind(recording, policy.settings.large_segment_bytes)?;
        segments.sort_unstable_by_key(|segment| segment.address);
        blocks.sort_unstable_by_key(|block| block.address);
        let extents = cut(&segments, &blocks, &recording.trace, policy)?;
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
        let private = segments.iter().filter(|segment| !segment.expandable && segment.pool != PoolId::DEFAULT);
        let private = private.map(|segment| (segment.address, segment.address + segment.total, segment.pool));
        let pools = RecordedPools::new(&recording.segments, private.collect(), made);
        Ok(Start { extents, pending: pending.collect(), deferred, pools, lost, reserved_bytes, otherwise: BTreeSet::new() })
    }

    /// Takes pools that were worked out for those that the file names.
    pub(crate) fn assume(&mut self, assumption: &AssumedPools) {
        for segment in &mut self.extents.segments {
            segment.pool = assumption.before.get(&segment.address.get()).copied().unwrap_or(segment.pool);
        }
        self.pools.assume(&self.extents.segments, assumption);
    }

    /// The state before the first entry, with what replaying has shown of it.
    pub(crate) fn lost_beginning(&self) -> Option<LostBeginning> {
        let inferred_sizes = self.extents.inferred();
        let assumed_sizes = self.extents.assumed.len() - inferred_sizes;
        self.lost.map(|lost| LostBeginning { assumed_sizes, inferred_sizes, ..lost })
    }
}

/// A block that was in use before the first entry, as the request that it answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyRequest {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) pool: PoolId,
    /// If it was given back before the first entry already: the entry at which it becomes free, if it does.
    pub(crate) freed: Option<Option<u32>>,
}

impl Start {
    /// What was in use before the first entry, segment by segment.
    pub(crate) fn early_requests(&self) -> Vec<EarlyRequest> {
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
