//! Contents of memory as a program on the device sees them: one tag a page, written and read through addresses.
//!
//! A tag belongs to the physical page. It is seen through every address at which the page is mapped, follows it to the next one,
//! and is gone once the page was given back; so a page that an allocator loses, or hands out twice, shows.

use std::fmt;

use parkade::units::DeviceAddress;

use super::PAGE_BYTES;
use super::pages::{PageId, PageRun, PhysicalMemory};
use super::sim::SimDevice;

/// Why a program cannot touch an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// There is no memory behind it.
    NotMapped,
    /// There is, but no cuMemSetAccess said that the device may touch it.
    NoAccess,
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessError::NotMapped => "no memory is mapped at the address",
            AccessError::NoAccess => "the device has no access to what is mapped at the address",
        })
    }
}

impl std::error::Error for AccessError {}

impl SimDevice {
    /// Writes the page behind an address, from a cudaMalloc or a mapping.
    ///
    /// # Errors
    /// Where a program would end with an illegal access.
    pub fn write_tag(&mut self, address: DeviceAddress, tag: u64) -> Result<(), AccessError> {
        let page = self.page_behind(address)?;
        self.memory.set_tag(page, tag);
        Ok(())
    }

    /// Reads the page behind an address: `None` if nothing was written since it was taken.
    ///
    /// # Errors
    /// Where a program would end with an illegal access.
    pub fn read_tag(&self, address: DeviceAddress) -> Result<Option<u64>, AccessError> {
        self.page_behind(address).map(|page| self.memory.tag(page))
    }

    /// The physical page behind an address that the device may touch.
    ///
    /// # Errors
    /// Where a program would end with an illegal access.
    pub fn page_behind(&self, address: DeviceAddress) -> Result<PageId, AccessError> {
        let address = address.get();
        if let Some((start, _, runs)) = self.placed.covering(address) {
            return page_at(runs, address - start).ok_or(AccessError::NotMapped);
        }
        let backing = self.virtual_memory.backing(address).ok_or(AccessError::NotMapped)?;
        if !backing.has_access {
            return Err(AccessError::NoAccess);
        }
        page_at(backing.runs, backing.offset_bytes).ok_or(AccessError::NotMapped)
    }

    /// The physical pages behind the cudaMalloc, the shared page or the mapping that covers an address; empty where nothing is.
    #[must_use]
    pub fn pages_at(&self, address: DeviceAddress) -> &[PageRun] {
        let placed = self.placed.covering(address.get()).map(|(_, _, runs)| runs.as_slice());
        placed.or_else(|| self.virtual_memory.backing(address.get()).map(|backing| backing.runs)).unwrap_or(&[])
    }

    /// The physical memory, to read tags from by page.
    #[must_use]
    pub fn physical(&self) -> &PhysicalMemory {
        &self.memory
    }
}

/// The page so many bytes from the start of consecutive runs.
fn page_at(runs: &[PageRun], offset_bytes: u64) -> Option<PageId> {
    let mut pages = offset_bytes / PAGE_BYTES;
    for run in runs {
        if pages < run.count {
            return Some(PageId(run.first.0 + pages));
        }
        pages -= run.count;
    }
    None
}
