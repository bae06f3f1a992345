//! Whether a trace is possible at all, whatever the allocator's rules: blocks must be where memory is.
//!
//! Walking backwards ([`super::rewind`]) finds entries that are missing or occur twice. This pass,
//! forwards, finds the rest: blocks where there is no memory, memory allocated where there is some
//! already, and memory freed that is in use.

use std::collections::BTreeMap;

use parkade::{AdoptedContent, AdoptedSegment};
use parkade_recording::{Action, Entry};
use rustc_hash::FxHashMap;

use crate::error::VerifyError;

/// What is where at one point of the trace. Ranges are maps from their address to their end.
struct Map {
    /// Segments, and mapped runs of expandable segments; adjacent runs are merged.
    memory: BTreeMap<u64, u64>,
    /// Blocks in use or waiting to become free, with their requested sizes: the trace does not say more.
    blocks: BTreeMap<u64, u64>,
    /// How many entries `blocks` has followed. Where blocks lie matters only when memory is given back, and most are gone by then.
    settled: usize,
    /// Memory looked up lately, by the lowest bits of its page: a program returns to few segments.
    recent: [(u64, u64); RECENT],
}

/// How much of the memory looked up lately is kept. A power of two.
const RECENT: usize = 64;
/// No segment is smaller.
const PAGE_BYTES: u64 = 2 << 20;

/// Checks a trace from the state before its first entry on.
///
/// # Errors
/// [`VerifyError::Contradiction`] for the first entry that is not possible.
pub(crate) fn check_consistency(trace: &[Entry], before: &[AdoptedSegment]) -> Result<(), VerifyError> {
    let mut map = Map { memory: BTreeMap::new(), blocks: BTreeMap::new(), settled: 0, recent: [(0, 0); RECENT] };
    for segment in before {
        map.adopt(segment);
    }
    for (at, entry) in trace.iter().enumerate() {
        map.follow(trace, at).map_err(|problem| VerifyError::contradiction(at, entry.action, entry.address, problem))?;
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
                    return Err("but no segment is there at that time");
                }
            }
            Action::SegmentAlloc | Action::SegmentMap => {
                if is_touched(&self.memory, address, end) {
                    return Err("but there is memory already");
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
                    return Err("but there is no memory at that time");
                }
            }
            Action::FreeCompleted | Action::FreeRequested | Action::Oom | Action::Snapshot => {}
        }
        Ok(())
    }

    /// Brings `blocks` up to date. Blocks that come and go within these entries are never sorted.
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

    /// Removes memory; false if some of it is not there.
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

/// Whether any of the ranges overlaps this one.
fn is_touched(ranges: &BTreeMap<u64, u64>, address: u64, end: u64) -> bool {
    ranges.range(..end).next_back().is_some_and(|(_, &to)| to > address)
}
