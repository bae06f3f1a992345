//! From addresses to physical bytes: what work on the device touches, or why it cannot.

use parkade::units::{Bytes, DeviceAddress};

use super::state::SimDevice;
use crate::kernel::AccessError;
use crate::memory::{ByteRange, PAGE_BYTES, PageId, PageRun, bytes_of};

impl SimDevice {
    /// The physical page behind an address.
    ///
    /// # Errors
    /// If the device may not touch the address; on a real GPU that is an illegal access.
    pub fn page_behind(&self, address: DeviceAddress) -> Result<PageId, AccessError> {
        let ranges = self.bytes_behind(address, Bytes(1))?;
        ranges.first().map(|range| PageId(range.start / PAGE_BYTES)).ok_or(AccessError::NotMapped)
    }

    /// The physical pages of the cudaMalloc, shared page or mapping that covers an address. Empty if none does.
    #[must_use]
    pub fn pages_at(&self, address: DeviceAddress) -> &[PageRun] {
        self.unit_at(address.get()).map_or(&[], |unit| unit.runs)
    }

    /// The physical bytes behind `size` bytes at an address, which may span several cudaMallocs and mappings.
    /// As on the real device, access goes by page: the unused rest of a page that small cudaMallocs share can
    /// be touched too.
    pub(super) fn bytes_behind(&self, address: DeviceAddress, size: Bytes) -> Result<Vec<ByteRange>, AccessError> {
        let mut ranges = Vec::new();
        let mut at = address.get();
        let end = at.checked_add(size.get()).ok_or(AccessError::NotMapped)?;
        while at < end {
            let unit = self.unit_at(at).ok_or(AccessError::NotMapped)?;
            if !unit.has_access {
                return Err(AccessError::NoAccess);
            }
            let until = unit.end().min(end);
            if until <= at {
                return Err(AccessError::NotMapped);
            }
            unit.push_bytes(at, until, &mut ranges);
            at = until;
        }
        Ok(ranges)
    }

    /// The physical bytes that are mapped in a range.
    pub(super) fn bytes_mapped(&self, address: u64, size: u64) -> Vec<ByteRange> {
        let mut ranges = Vec::new();
        let range_end = address.saturating_add(size);
        for start in self.virtual_memory.mappings_in(address, range_end) {
            let mut at = start.max(address);
            let end = self.virtual_memory.mapping_end(start).map_or(at, |end| end.min(range_end));
            while at < end
                && let Some(unit) = self.unit_at(at)
            {
                let until = unit.end().min(end);
                unit.push_bytes(at, until, &mut ranges);
                at = until;
            }
        }
        ranges
    }

    fn unit_at(&self, address: u64) -> Option<Unit<'_>> {
        if let Some((start, _, runs)) = self.placed.covering(address) {
            return Some(Unit { start, runs, has_access: true });
        }
        let backing = self.virtual_memory.backing(address)?;
        Some(Unit { start: backing.start, runs: backing.runs, has_access: backing.has_access })
    }
}

/// A cudaMalloc, a shared page or a mapping: pages at consecutive addresses.
struct Unit<'a> {
    start: u64,
    runs: &'a [PageRun],
    has_access: bool,
}

impl Unit<'_> {
    fn end(&self) -> u64 {
        self.runs.iter().fold(self.start, |end, &run| end.saturating_add(bytes_of(run).1))
    }

    /// Appends the physical bytes behind addresses `from..until`, joining consecutive ones.
    fn push_bytes(&self, from: u64, until: u64, ranges: &mut Vec<ByteRange>) {
        let mut run_address = self.start;
        for &run in self.runs {
            let (run_start, run_bytes) = bytes_of(run);
            let run_end = run_address.saturating_add(run_bytes);
            let (address, end) = (from.max(run_address), until.min(run_end));
            if address < end {
                let (start, bytes) = (run_start + (address - run_address), end - address);
                match ranges.last_mut() {
                    Some(last) if last.end() == start && last.address + last.bytes == address => last.bytes += bytes,
                    _ => ranges.push(ByteRange { start, bytes, address }),
                }
            }
            run_address = run_end;
        }
    }
}
