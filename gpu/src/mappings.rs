//! Where memory is mapped in one reservation, and which of it the device may touch: books only, which ask no driver.
//!
//! They follow what the driver has done; what it would refuse is its own business.

use std::collections::BTreeMap;

/// The mappings of one reservation. No two overlap: the driver refuses to map over what is mapped.
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
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Enters a mapping that was made, which the device may not touch yet.
    pub(crate) fn insert(&mut self, address: u64, bytes: u64) {
        self.by_start.insert(address, Mapping { bytes, is_open: false });
    }

    /// Notes that the device was given access to a range. A mapping that lies in it only in part stays as it was: what the device
    /// may touch is said too small rather than too large.
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

    /// Whether the device may touch the whole range, which may cross from one mapping into the next.
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

    /// What the device may touch, as (address, bytes), neighbours joined, lowest first.
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

    /// The starts of the mappings that lie in a range whole.
    fn starts_within(&self, address: u64, bytes: u64) -> Vec<u64> {
        let end = address.saturating_add(bytes);
        let whole = |start: u64, mapping: &Mapping| mapping.bytes <= end - start;
        self.by_start.range(address..end).filter(|&(&start, mapping)| whole(start, mapping)).map(|(&start, _)| start).collect()
    }
}

#[cfg(test)]
mod tests;
