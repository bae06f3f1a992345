//! Where memory is mapped in one reservation, and which of it the device may touch.
//!
//! Book-keeping only: it records what the driver has done, makes no driver calls, and does not judge what the
//! driver would refuse.

use std::collections::BTreeMap;

/// The mappings of one reservation. They never overlap, because the driver refuses to map over a mapping.
#[derive(Default, Debug)]
pub(crate) struct Mappings {
    by_start: BTreeMap<u64, Mapping>,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    /// Whether the device was given access.
    is_open: bool,
}

impl Mappings {
    /// How many mappings there are.
    pub(crate) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Adds a mapping. The device has no access to it yet.
    pub(crate) fn insert(&mut self, address: u64, bytes: u64) {
        self.by_start.insert(address, Mapping { bytes, is_open: false });
    }

    /// Notes that the device was given access to a range. A mapping that lies in it only in part stays
    /// without access, which errs on the safe side.
    pub(crate) fn open(&mut self, address: u64, bytes: u64) {
        for start in self.starts_within(address, bytes) {
            if let Some(mapping) = self.by_start.get_mut(&start) {
                mapping.is_open = true;
            }
        }
    }

    /// Notes that everything in a range was unmapped.
    pub(crate) fn remove(&mut self, address: u64, bytes: u64) {
        for start in self.starts_within(address, bytes) {
            self.by_start.remove(&start);
        }
    }

    /// Whether the device may touch the whole range, which may span several adjacent mappings.
    pub(crate) fn are_open(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let Some((&first, _)) = self.by_start.range(..=address).next_back() else { return false };
        let mut reached = first;
        for (&start, mapping) in self.by_start.range(first..) {
            if start != reached || !mapping.is_open {
                return false;
            }
            reached = start + mapping.bytes;
            if reached >= end {
                return reached > address;
            }
        }
        false
    }

    /// The mappings that the device may touch under a range, all of which is mapped, lowest first: (address, bytes). The first may
    /// begin before the range, the last end beyond it. `None` if a part of it has none.
    pub(crate) fn under(&self, address: u64, bytes: u64) -> Option<Vec<(u64, u64)>> {
        if !self.are_open(address, bytes) {
            return None;
        }
        let (&first, _) = self.by_start.range(..=address).next_back()?;
        let mappings = self.by_start.range(first..address.checked_add(bytes)?);
        Some(mappings.map(|(&start, mapping)| (start, mapping.bytes)).collect())
    }

    /// The ranges that the device may touch, lowest first, adjacent ones merged: (address, bytes).
    pub(crate) fn open_runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (&start, mapping) in self.by_start.iter().filter(|(_, mapping)| mapping.is_open) {
            match runs.last_mut() {
                Some((address, bytes)) if *address + *bytes == start => *bytes += mapping.bytes,
                _ => runs.push((start, mapping.bytes)),
            }
        }
        runs
    }

    /// The starts of the mappings that lie wholly in a range.
    fn starts_within(&self, address: u64, bytes: u64) -> Vec<u64> {
        let end = address.saturating_add(bytes);
        let whole = |start: u64, mapping: &Mapping| mapping.bytes <= end - start;
        self.by_start.range(address..end).filter(|&(&start, mapping)| whole(start, mapping)).map(|(&start, _)| start).collect()
    }
}

#[cfg(test)]
mod tests;
