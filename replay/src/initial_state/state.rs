//! The state before a recording's first entry, as data.

use std::collections::BTreeSet;

use parkade::AdoptedContent;
use parkade::policy::PyTorch;
use parkade::units::PoolId;
use parkade_recording::DeviceRecording;
use rustc_hash::FxHashMap;

use super::block_sizes::cut;
use super::consistency::check_consistency;
use super::early::{EarlyBlock, Rewound};
use super::inferred_sizes::Extents;
use super::rewind::rewind;
use crate::error::VerifyError;
use crate::pools::{AssumedPools, RecordedPools};

/// What existed before a trace's first entry, because the recording began later
/// than the program or lost its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LostBeginning {
    /// Segments before the first entry.
    pub segments: usize,
    /// Blocks in use before it.
    pub blocks: usize,
    /// Bytes in those segments.
    pub reserved_bytes: u64,
    /// Blocks that may be up to 1 MiB longer than their rounded request, though nothing shows
    /// it. The rounded request is assumed.
    pub assumed_sizes: usize,
    /// Such blocks that must be longer, because a request did not fit after them. The least
    /// length that explains it is assumed.
    pub inferred_sizes: usize,
}

/// The state before the first entry.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) extents: Extents,
    /// Blocks freed before the first entry that wait to become free, by address, with the entry at which they do.
    pub(crate) pending: FxHashMap<u64, Option<u32>>,
    /// For each entry that frees a block which does not become free for reuse at once:
    /// the entry at which it does, if any.
    pub(crate) deferred: FxHashMap<u32, Option<u32>>,
    /// The private pools and their segments.
    pub(crate) pools: RecordedPools,
    pub(crate) lost: Option<LostBeginning>,
    pub(crate) reserved_bytes: u64,
    /// Requests whose entries are not read in the likeliest way, but in the next one that leads to other stats.
    pub(crate) read_differently: BTreeSet<usize>,
    /// The entry that restored checkpoints of private pools are to explain: those that end before it are not looked for.
    pub(crate) restores_from: Option<usize>,
}

impl Start {
    /// Works out the state by walking back through the trace.
    ///
    /// # Errors
    /// [`VerifyError`] if the trace contradicts itself.
    pub(crate) fn find(recording: &DeviceRecording, policy: &PyTorch) -> Result<Start, VerifyError> {
        let Rewound { mut blocks, mut segments, made, deferred } = rewind(recording, policy.settings.large_segment_bytes)?;
        segments.sort_unstable_by_key(|segment| segment.address);
        blocks.sort_unstable_by_key(|block| block.address);
        let extents = cut(&segments, &blocks, &recording.trace, policy)?;
        check_consistency(&recording.trace, &extents.segments)?;
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
        Ok(Start {
            extents,
            pending: pending.collect(),
            deferred,
            pools,
            lost,
            reserved_bytes,
            read_differently: BTreeSet::new(),
            restores_from: None,
        })
    }

    /// Adopts a guess at the pools that the file does not name.
    pub(crate) fn assume(&mut self, assumption: &AssumedPools) {
        for segment in &mut self.extents.segments {
            segment.pool = assumption.before.get(&segment.address.get()).copied().unwrap_or(segment.pool);
        }
        self.pools.assume(&self.extents.segments, assumption);
    }

    /// What existed before the first entry, with what replaying has shown of it.
    pub(crate) fn lost_beginning(&self) -> Option<LostBeginning> {
        let inferred_sizes = self.extents.inferred();
        let assumed_sizes = self.extents.assumed.len() - inferred_sizes;
        self.lost.map(|lost| LostBeginning { assumed_sizes, inferred_sizes, ..lost })
    }
}

/// A block that was in use before the first entry, as a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyRequest {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) pool: PoolId,
    /// If it was freed before the first entry: the entry at which it becomes free for reuse, if any.
    pub(crate) freed: Option<Option<u32>>,
}

impl Start {
    /// The requests for what was in use before the first entry, in the order of addresses within each segment.
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
