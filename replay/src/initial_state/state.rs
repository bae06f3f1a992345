//! The state before a recording's first entry, as data, and a check that the trace is possible from that state.
//!
//! Walking backwards ([`super::rewind`]) finds entries that are missing or occur twice. A second, forward pass finds the
//! other contradictions, which no allocator can produce: blocks where there is no memory, memory allocated where there
//! already is some, and memory freed while in use.

use std::collections::{BTreeMap, BTreeSet};

use parkade::policy::PyTorch;
use parkade::units::PoolId;
use parkade::{AdoptedContent, AdoptedSegment};
use parkade_recording::{Action, DeviceRecording, Entry};
use rustc_hash::FxHashMap;

use super::extents::{Extents, cut};
use super::rewind::{EarlyBlock, Rewound, rewind};
use crate::entries::SEGMENT_ACTIONS;
use crate::error::{Missing, VerifyError};
use crate::pools::{AssumedPools, RecordedPools};

/// The memory that existed before a trace's first entry, because the recording began later than the program or its
/// oldest entries are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LostBeginning {
    /// The segments before the first entry.
    pub segments: usize,
    /// The blocks in use before the first entry.
    pub blocks: usize,
    /// The total bytes in these segments.
    pub reserved_bytes: u64,
    /// Blocks that may be up to 1 MiB longer than their rounded request, although no entry shows it. They are assumed to be
    /// as long as the rounded request.
    pub assumed_sizes: usize,
    /// The blocks that must be longer than their rounded request, because a request did not fit after them. The smallest
    /// length that explains this is assumed.
    pub inferred_sizes: usize,
}

/// The state before the first entry.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) extents: Extents,
    /// Blocks freed before the first entry that are waiting to become free, by address, with the entry at which they become
    /// free.
    pub(crate) pending: FxHashMap<u64, Option<u32>>,
    /// For each entry that frees a block which does not immediately become free for reuse: the entry at which it does, if
    /// any.
    pub(crate) deferred: FxHashMap<u32, Option<u32>>,
    /// The private pools and their segments.
    pub(crate) pools: RecordedPools,
    pub(crate) lost: Option<LostBeginning>,
    pub(crate) reserved_bytes: u64,
    /// The requests whose entries are read not in the likeliest way but in the next one that leads to different stats.
    pub(crate) read_differently: BTreeSet<usize>,
    /// The entry that restored checkpoints of private pools should explain: the replay ignores restores that end before
    /// it.
    pub(crate) restores_from: Option<usize>,
}

impl Start {
    /// Reconstructs the state by walking back through the trace.
    ///
    /// # Errors
    /// Returns [`VerifyError`] if the trace contradicts itself.
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

    /// Adopts a guess for the pools that the file does not name.
    pub(crate) fn assume(&mut self, assumption: &AssumedPools) {
        for segment in &mut self.extents.segments {
            segment.pool = assumption.before.get(&segment.address.get()).copied().unwrap_or(segment.pool);
        }
        self.pools.assume(&self.extents.segments, assumption);
    }

    /// Returns the memory that existed before the first entry, including facts that the replay has revealed about it.
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
    /// If the block was freed before the first entry: the entry at which it becomes free for reuse, if any.
    pub(crate) freed: Option<Option<u32>>,
}

impl Start {
    /// Returns the requests for what was in use before the first entry, in address order within each segment.
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

/// The memory and blocks at one point of the trace. Ranges are maps from their address to their end.
struct Map {
    /// Segments, and mapped runs of expandable segments; adjacent runs are merged.
    memory: BTreeMap<u64, u64>,
    /// The blocks in use or waiting to become free, with their requested sizes, because the trace states nothing more.
    blocks: BTreeMap<u64, u64>,
    /// The number of entries that `blocks` reflects. The positions of blocks matter only when memory is released, and most
    /// blocks are gone by then.
    settled: usize,
    /// Memory that was looked up recently, indexed by the lowest bits of its page: a program keeps returning to a few
    /// segments.
    recent: [(u64, u64); RECENT],
}

/// The number of recent lookups to keep; a power of two.
const RECENT: usize = 64;
/// The size of the smallest segments.
const PAGE_BYTES: u64 = 2 << 20;

/// Checks a trace, starting from the state before its first entry.
///
/// # Errors
/// Returns [`VerifyError::Contradiction`] for the first entry that is not possible.
fn check_consistency(trace: &[Entry], before: &[AdoptedSegment]) -> Result<(), VerifyError> {
    let mut map = Map { memory: BTreeMap::new(), blocks: BTreeMap::new(), settled: 0, recent: [(0, 0); RECENT] };
    for segment in before {
        map.adopt(segment);
    }
    for (at, entry) in trace.iter().enumerate() {
        map.follow(trace, at).map_err(|problem| {
            // If some segments are taken and released within the trace and others are not, an entry is wrong; no kind of
            // entry is missing.
            let missing: Missing = if entry.action == Action::Alloc { &[&SEGMENT_ACTIONS] } else { &[] };
            VerifyError::contradiction(at, entry.action, entry.address, problem).unless_missing(missing)
        })?;
    }
    Ok(())
}

impl Map {
    fn adopt(&mut self, segment: &AdoptedSegment) {
        let mut at = segment.address.get();
        for block in &segment.blocks {
            let end = at.saturating_add(block.size.get());
            match block.content {
                AdoptedContent::Unmapped => {}
                AdoptedContent::Free => self.join(at, end),
                AdoptedContent::Allocated(requested) => {
                    self.join(at, end);
                    self.blocks.insert(at, at.saturating_add(requested.get().max(1)));
                }
            }
            at = end;
        }
    }

    fn follow(&mut self, trace: &[Entry], at: usize) -> Result<(), &'static str> {
        let entry = &trace[at];
        let (address, end) = (entry.address, entry.address.saturating_add(entry.size));
        match entry.action {
            Action::Alloc => {
                if !self.has_memory(address, end) {
                    return Err("but no segment covers that address at that point");
                }
            }
            Action::SegmentAlloc | Action::SegmentMap => {
                if is_touched(&self.memory, address, end) {
                    return Err("but memory is already reserved there");
                }
                if entry.action == Action::SegmentMap {
                    self.join(address, end);
                } else {
                    self.memory.insert(address, end);
                }
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                self.settle(&trace[self.settled..at]);
                self.settled = at;
                if is_touched(&self.blocks, address, end) {
                    return Err("but a block is still in use there");
                }
                if !self.take(address, end) {
                    return Err("but no memory is reserved there at that point");
                }
            }
            Action::FreeCompleted | Action::FreeRequested | Action::Oom | Action::Snapshot => {}
        }
        Ok(())
    }

    /// Brings `blocks` up to date. Blocks that are allocated and freed within these entries are never added.
    fn settle(&mut self, entries: &[Entry]) {
        let mut young = FxHashMap::default();
        for entry in entries {
            if entry.action == Action::Alloc {
                young.insert(entry.address, entry.address.saturating_add(entry.size));
            } else if entry.action == Action::FreeCompleted && young.remove(&entry.address).is_none() {
                self.blocks.remove(&entry.address);
            }
        }
        self.blocks.extend(young);
    }

    #[inline]
    fn has_memory(&mut self, address: u64, end: u64) -> bool {
        let recent = &mut self.recent[(address / PAGE_BYTES) as usize % RECENT];
        if !(recent.0 <= address && end <= recent.1) {
            *recent = self.memory.range(..=address).next_back().map_or((0, 0), |(&from, &to)| (from, to));
        }
        recent.0 <= address && end <= recent.1
    }

    /// Adds memory and merges it with adjacent memory.
    fn join(&mut self, mut address: u64, mut end: u64) {
        if let Some((&from, &to)) = self.memory.range(..address).next_back()
            && to == address
        {
            address = from;
        }
        if let Some(to) = self.memory.remove(&end) {
            end = to;
        }
        self.memory.insert(address, end);
    }

    /// Removes memory. Returns false if some of it does not exist.
    fn take(&mut self, address: u64, end: u64) -> bool {
        let Some((&from, &to)) = self.memory.range(..=address).next_back().filter(|&(_, &to)| end <= to) else { return false };
        self.recent = [(0, 0); RECENT];
        self.memory.remove(&from);
        if from < address {
            self.memory.insert(from, address);
        }
        if end < to {
            self.memory.insert(end, to);
        }
        true
    }
}

/// Returns whether any of the ranges overlaps this one.
fn is_touched(ranges: &BTreeMap<u64, u64>, address: u64, end: u64) -> bool {
    ranges.range(..end).next_back().is_some_and(|(_, &to)| to > address)
}

#[cfg(test)]
mod tests {
    use parkade::AdoptedBlock;
    use parkade::units::{Bytes, DeviceAddress, PoolClass, StreamId};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The pages of each of two places in memory. The places are [`RECENT`] pages apart, so that pages of one take the places
    /// of pages of the other among the recent lookups.
    const PAGES: usize = 3;
    const QUARTER: u64 = PAGE_BYTES / 4;

    fn page_address(page: usize) -> u64 {
        (1 << 40) + ((page / PAGES * RECENT + page % PAGES) as u64) * PAGE_BYTES
    }

    /// Memory page by page, as the rules describe it, without ranges and lookups.
    #[derive(Default)]
    struct Pages {
        reserved: [bool; 2 * PAGES],
        /// Whether a page belongs together with the one before it: both are in one segment, or one was mapped beside the
        /// other.
        continues: [bool; 2 * PAGES],
        /// The blocks that are not free for reuse: address and end.
        blocks: Vec<(u64, u64)>,
    }

    impl Pages {
        fn reserve(&mut self, pages: std::ops::Range<usize>, joins: bool) {
            for page in pages.clone() {
                self.reserved[page] = true;
                self.continues[page] = page > pages.start;
            }
            if joins {
                self.continues[pages.start] = !pages.start.is_multiple_of(PAGES) && self.reserved[pages.start - 1];
                if !pages.end.is_multiple_of(PAGES) && self.reserved[pages.end] {
                    self.continues[pages.end] = true;
                }
            }
        }

        fn release(&mut self, pages: std::ops::Range<usize>) {
            for page in pages.clone() {
                self.reserved[page] = false;
                self.continues[page] = false;
            }
            if pages.end < 2 * PAGES {
                self.continues[pages.end] = false;
            }
        }

        fn are_one(&self, pages: std::ops::Range<usize>) -> bool {
            pages.clone().all(|page| self.reserved[page] && (page == pages.start || self.continues[page]))
        }

        fn are_in_use(&self, pages: std::ops::Range<usize>) -> bool {
            let (from, to) = (page_address(pages.start), page_address(pages.end - 1) + PAGE_BYTES);
            self.blocks.iter().any(|&(address, end)| address < to && end > from)
        }

        /// Performs one step of a program. Returns its entry and whether it is possible, or `None` if it is not for the
        /// check to judge: the walk backwards finds blocks that overlap and frees of nothing.
        fn step(&mut self, (kind, first, count, quarters): (u8, usize, usize, u64)) -> Option<(Entry, bool)> {
            let end = (first / PAGES + 1) * PAGES;
            let pages = first..(first + count).min(end);
            let (address, bytes) = (page_address(first), pages.len() as u64 * PAGE_BYTES);
            let memory = |action| Entry::new(action, address, bytes, 0);
            match kind {
                0 | 1 => {
                    let action = if kind == 0 { Action::SegmentAlloc } else { Action::SegmentMap };
                    let is_free = !pages.clone().any(|page| self.reserved[page]);
                    self.reserve(pages, kind == 1);
                    Some((memory(action), is_free))
                }
                2 | 3 => {
                    let action = if kind == 2 { Action::SegmentFree } else { Action::SegmentUnmap };
                    let is_there = self.are_one(pages.clone()) && !self.are_in_use(pages.clone());
                    self.release(pages);
                    Some((memory(action), is_there))
                }
                4..7 => {
                    let address = address + quarters % 4 * QUARTER;
                    let block = (address, address + (1 + quarters) * QUARTER);
                    if self.blocks.iter().any(|&(from, to)| from < block.1 && to > block.0) {
                        return None;
                    }
                    let last = first + ((block.1 - 1 - page_address(first)) / PAGE_BYTES) as usize;
                    let is_covered = last < end && self.are_one(first..last + 1);
                    self.blocks.push(block);
                    Some((Entry::new(Action::Alloc, block.0, block.1 - block.0, 0), is_covered))
                }
                _ if self.blocks.is_empty() => None,
                _ => {
                    let (address, end) = self.blocks.swap_remove(first % self.blocks.len());
                    Some((Entry::new(Action::FreeCompleted, address, end - address, 0), true))
                }
            }
        }
    }

    /// Returns a segment from before the first entry, whose pages are unmapped (0), free (1) or in use.
    fn early(kinds: &[u8]) -> AdoptedSegment {
        let content = |kind| match kind {
            0 => AdoptedContent::Unmapped,
            1 => AdoptedContent::Free,
            kind => AdoptedContent::Allocated(Bytes(PAGE_BYTES / u64::from(kind))),
        };
        AdoptedSegment {
            address: DeviceAddress(page_address(0)),
            stream: StreamId::DEFAULT,
            pool: PoolId::DEFAULT,
            class: PoolClass::Large,
            page: None,
            blocks: kinds.iter().map(|&kind| AdoptedBlock { size: Bytes(PAGE_BYTES), content: content(kind) }).collect(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        /// The first entry that is not possible page by page is the one that is refused.
        #[test]
        fn a_trace_is_possible_if_it_is_possible_page_by_page(
            before in vec(0..4_u8, 0..=PAGES),
            steps in vec((0..9_u8, 0..2 * PAGES, 1..4_usize, 0..9_u64), 1..40),
            mut left_out in 0..12_usize,
        ) {
            let mut pages = Pages::default();
            let segment = early(&before);
            for (page, &kind) in before.iter().enumerate().filter(|&(_, &kind)| kind > 0) {
                pages.reserve(page..page + 1, true);
                if kind > 1 {
                    pages.blocks.push((page_address(page), page_address(page) + PAGE_BYTES / u64::from(kind)));
                }
            }
            let mut trace: Vec<Entry> = Vec::new();
            let mut refused = None;
            for step in steps {
                // The first steps that are not possible are left out, so that longer programs remain.
                let (reserved, continues, blocks) = (pages.reserved, pages.continues, pages.blocks.clone());
                let Some((entry, is_possible)) = pages.step(step) else { continue };
                if !is_possible && left_out > 0 {
                    left_out -= 1;
                    pages = Pages { reserved, continues, blocks };
                    continue;
                }
                trace.push(entry);
                if !is_possible {
                    refused = Some(trace.len() - 1);
                    break;
                }
            }
            let found = match check_consistency(&trace, &[segment]) {
                Ok(()) => None,
                Err(VerifyError::Contradiction { entry, .. }) => Some(entry),
                Err(error) => panic!("{error}"),
            };
            prop_assert_eq!(found, refused, "{:?}", trace);
        }
    }
}
