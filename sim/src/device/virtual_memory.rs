//! Virtual memory as books: which addresses are reserved, which memory was created, and what is mapped where.
//!
//! Which operation is refused, and with which code, is decided here (facts: Virtual memory calls); an operation that is refused
//! changes nothing. Time and the log are the business of the calls in `mapping`.
//!
//! Where the facts are silent: memory that was released cannot be mapped or released again, access is given to whole mappings
//! only, and all three operations on addresses stay inside one reservation; anything else is refused with `INVALID_VALUE`.

use std::collections::BTreeMap;

use super::PAGE_BYTES;
use super::intervals::Intervals;
use super::pages::PageRun;
use super::sim::{INVALID_VALUE, NOT_SUPPORTED};

/// Memory of a [`SimDevice`](super::SimDevice) that was created and may be mapped. Means something only to the device that
/// created it and to that device's clones.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimPhysical {
    ordinal: u64,
    bytes: u64,
}

impl SimPhysical {
    /// Its number among the memory created on its device, as it appears in the log.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Memory that was created and is not the device's again.
#[derive(Clone, Debug)]
struct Handle {
    bytes: u64,
    runs: Vec<PageRun>,
    /// How often it is mapped.
    mappings: u64,
    released: bool,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    handle: u64,
    has_access: bool,
}

/// What is behind an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backing<'a> {
    /// The pages of the whole memory that is mapped here.
    pub(super) runs: &'a [PageRun],
    /// Bytes from the start of that memory.
    pub(super) offset_bytes: u64,
    /// Whether the device may touch it.
    pub(super) has_access: bool,
}

/// What an unmapping did.
#[derive(Clone, Default, Debug)]
pub(super) struct Unmapped {
    /// The size of each mapping that ended.
    pub(super) handle_bytes: Vec<u64>,
    /// The pages that nobody holds any more.
    pub(super) returned: Vec<PageRun>,
}

/// The books.
#[derive(Clone, Default, Debug)]
pub(super) struct VirtualMemory {
    reservations: Intervals<()>,
    mappings: Intervals<Mapping>,
    handles: BTreeMap<u64, Handle>,
    next_handle: u64,
}

impl VirtualMemory {
    /// Whether a size is one that reserving, creating and mapping accept.
    pub(super) fn is_whole_pages(bytes: u64) -> bool {
        bytes > 0 && bytes.is_multiple_of(PAGE_BYTES)
    }

    /// How many ranges are reserved.
    pub(super) fn live_reservations(&self) -> usize {
        self.reservations.count()
    }

    /// How many pieces of memory were created and are not the device's again.
    pub(super) fn live_handles(&self) -> usize {
        self.handles.len()
    }

    /// Whether no reservation has any of these addresses.
    pub(super) fn is_unreserved(&self, address: u64, bytes: u64) -> bool {
        self.reservations.overlap_end(address, bytes).is_none()
    }

    /// Enters a reservation whose addresses are free.
    pub(super) fn reserve(&mut self, address: u64, bytes: u64) {
        self.reservations.insert(address, bytes, ());
    }

    /// Ends a reservation: only the whole, and with nothing mapped.
    pub(super) fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), u32> {
        let whole = self.reservations.covering(address).is_some_and(|(start, size, ())| (start, size) == (address, bytes));
        if !whole || self.mappings.overlap_end(address, bytes).is_some() {
            return Err(INVALID_VALUE);
        }
        self.reservations.remove(address);
        Ok(())
    }

    /// Enters new memory.
    pub(super) fn create(&mut self, bytes: u64, runs: Vec<PageRun>) -> SimPhysical {
        let ordinal = self.next_handle;
        self.next_handle += 1;
        self.handles.insert(ordinal, Handle { bytes, runs, mappings: 0, released: false });
        SimPhysical { ordinal, bytes }
    }

    /// Releases memory; the pages that nobody holds any more, which are none while it is mapped.
    pub(super) fn release(&mut self, memory: &SimPhysical) -> Result<Vec<PageRun>, u32> {
        let handle = self.handles.get_mut(&memory.ordinal).filter(|handle| !handle.released).ok_or(INVALID_VALUE)?;
        handle.released = true;
        Ok(self.drop_unused(memory.ordinal))
    }

    /// Maps memory, whole, where nothing is mapped. The same memory may be mapped several times.
    pub(super) fn map(&mut self, address: u64, bytes: u64, memory: &SimPhysical) -> Result<(), u32> {
        let on_pages = address.is_multiple_of(PAGE_BYTES) && VirtualMemory::is_whole_pages(bytes);
        let handle = self.handles.get_mut(&memory.ordinal).filter(|handle| !handle.released && on_pages).ok_or(INVALID_VALUE)?;
        if bytes != handle.bytes {
            return Err(NOT_SUPPORTED);
        }
        let reserved = is_inside_one(&self.reservations, address, bytes);
        if !reserved || !self.mappings.insert(address, bytes, Mapping { handle: memory.ordinal, has_access: false }) {
            return Err(INVALID_VALUE);
        }
        handle.mappings += 1;
        Ok(())
    }

    /// Gives the device access to the mappings that make up a range without a gap; their sizes.
    pub(super) fn set_access(&mut self, address: u64, bytes: u64) -> Result<Vec<u64>, u32> {
        let mapped = self.whole_mappings(address, bytes)?;
        let handle_bytes: Vec<u64> = mapped.iter().map(|&(_, bytes)| bytes).collect();
        if handle_bytes.iter().sum::<u64>() != bytes {
            return Err(INVALID_VALUE);
        }
        for (start, _) in mapped {
            if let Some(mapping) = self.mappings.get_mut(start) {
                mapping.has_access = true;
            }
        }
        Ok(handle_bytes)
    }

    /// Ends the mappings in a range, which may have gaps or be empty but must not cut a mapping.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64) -> Result<Unmapped, u32> {
        let mut unmapped = Unmapped::default();
        for (start, _) in self.whole_mappings(address, bytes)? {
            let Some((bytes, mapping)) = self.mappings.remove(start) else { continue };
            unmapped.handle_bytes.push(bytes);
            if let Some(handle) = self.handles.get_mut(&mapping.handle) {
                handle.mappings = handle.mappings.saturating_sub(1);
            }
            unmapped.returned.extend(self.drop_unused(mapping.handle));
        }
        Ok(unmapped)
    }

    /// What is mapped at an address.
    pub(super) fn backing(&self, address: u64) -> Option<Backing<'_>> {
        let (start, _, mapping) = self.mappings.covering(address)?;
        let handle = self.handles.get(&mapping.handle)?;
        Some(Backing { runs: &handle.runs, offset_bytes: address - start, has_access: mapping.has_access })
    }

    /// Where the mappings begin that overlap the addresses from `start` to before `end`.
    pub(super) fn mappings_in(&self, start: u64, end: u64) -> impl Iterator<Item = u64> {
        self.mappings.overlapping(start, end).map(|(start, _, _)| start)
    }

    /// The mappings in a range of one reservation, start and bytes; an error if one of them is cut.
    fn whole_mappings(&self, address: u64, bytes: u64) -> Result<Vec<(u64, u64)>, u32> {
        let on_pages = address.is_multiple_of(PAGE_BYTES) && VirtualMemory::is_whole_pages(bytes);
        if !on_pages || !is_inside_one(&self.reservations, address, bytes) {
            return Err(INVALID_VALUE);
        }
        let end = address + bytes; // inside a reservation
        let whole = |start: u64, bytes: u64| start >= address && bytes <= end - start;
        let found = self.mappings.overlapping(address, end);
        found.map(|(start, bytes, _)| if whole(start, bytes) { Ok((start, bytes)) } else { Err(INVALID_VALUE) }).collect()
    }

    /// Forgets memory that is released and nowhere mapped; its pages.
    fn drop_unused(&mut self, ordinal: u64) -> Vec<PageRun> {
        if self.handles.get(&ordinal).is_none_or(|handle| !handle.released || handle.mappings > 0) {
            return Vec::new();
        }
        self.handles.remove(&ordinal).map_or_else(Vec::new, |handle| handle.runs)
    }
}

/// Whether `bytes` bytes at `address` lie in one of the ranges.
fn is_inside_one(ranges: &Intervals<()>, address: u64, bytes: u64) -> bool {
    ranges.covering(address).is_some_and(|(start, size, ())| bytes <= size - (address - start))
}
