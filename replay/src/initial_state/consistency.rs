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
#[derive(Default)]
struct Map {
    /// Segments, and mapped runs of expandable segments; adjacent runs are merged.
    memory: BTreeMap<u64, u64>,
    /// Blocks in use or waiting to become free, with their requested sizes: the trace does not say more.
    blocks: BTreeMap<u64, u64>,
    /// The youngest of them, not sorted yet: most are gone before memory is given back, which is when the order matters.
    young: FxHashMap<u64, u64>,
    /// The memory looked up last: consecutive requests are often in the same segment.
    recent: (u64, u64),
}

/// Checks a trace from the state before its first entry on.
///
/// # Errors
/// [`VerifyError::Contradiction`] for the first entry that is not possible.
pub(crate) fn check_consistency(trace: &[Entry], before: &[AdoptedSegment]) -> Result<(), VerifyError> {
    let mut map = Map::default();
    for segment in before {
        map.adopt(segment);
    }
    for (at, entry) in trace.iter().enumerate() {
        map.follow(entry).map_err(|problem| VerifyError::contradiction(at, entry.action, entry.address, problem))?;
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

    fn follow(&mut self, entry: &Entry) -> Result<(), &'static str> {
        let (address, end) = (entry.address, entry.address.saturating_add(entry.size));
        match entry.action {
            Action::Alloc => {
                if !self.has_memory(address, end) {
                    return Err("but no segment is there at that time");
                }
                self.young.insert(address, end);
            }
            Action::FreeCompleted => {
                if self.young.remove(&address).is_none() {
                    self.blocks.remove(&address);
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
                self.blocks.extend(self.young.drain());
                if is_touched(&self.blocks, address, end) {
                    return Err("but a block is still in use there");
                }
                if !self.take(address, end) {
                    return Err("but there is no memory at that time");
                }
            }
            Action::FreeRequested | Action::Oom | Action::Snapshot => {}
        }
        Ok(())
    }

    #[inline]
    fn has_memory(&mut self, address: u64, end: u64) -> bool {
        if !(self.recent.0 <= address && end <= self.recent.1) {
            self.recent = self.memory.range(..=address).next_back().map_or((0, 0), |(&from, &to)| (from, to));
        }
        self.recent.0 <= address && end <= self.recent.1
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
        if !self.has_memory(address, end) {
            return false;
        }
        let (from, to) = std::mem::take(&mut self.recent);
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
