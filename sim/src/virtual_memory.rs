//! Virtual memory as books: which addresses are reserved, which memory was created, and what is mapped where.
//!
//! Which operation is refused, and with which code, is decided here (facts: Virtual memory calls); an operation that is refused
//! changes nothing. Time and the log are the business of the calls in `mapping`.
//!
//! Where the facts are silent: memory that was released cannot be mapped or released again, access is given to whole mappings
//! only, and all three operations on addresses stay inside one reservation; anything else is refused with `INVALID_VALUE`.

use super::PAGE_BYTES;
use super::intervals::Intervals;
use super::page_map::PageMap;
use super::pages::{PageRun, PageRuns};
use super::sim::{INVALID_VALUE, NOT_SUPPORTED};

/// Memory of a [`SimDevice`](super::SimDevice) that was created and may be mapped. Means something only to the device that
/// created it and to that device's clones.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimPhysical {
    ordinal: u64,
    bytes: u64,
    slot: u32,
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
    ordinal: u64,
    bytes: u64,
    runs: PageRuns,
    /// How often it is mapped.
    mappings: u64,
    released: bool,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    /// The slot of the memory.
    handle: u32,
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

/// What a call did that is about the mappings in a range.
#[derive(Clone, Default, Debug)]
pub(super) struct Touched {
    /// The size of each mapping.
    pub(super) handle_bytes: Vec<u64>,
    /// The pages that nobody holds any more.
    pub(super) returned: Vec<PageRun>,
}

impl Touched {
    /// Forgets everything; its memory is used again.
    pub(super) fn clear(&mut self) {
        self.handle_bytes.clear();
        self.returned.clear();
    }
}

/// The books.
#[derive(Clone, Default, Debug)]
pub(super) struct VirtualMemory {
    reservations: Intervals<()>,
    /// The reservation that was asked about last, start and bytes.
    asked_last: Option<(u64, u64)>,
    /// By the number of the first page of addresses.
    mappings: PageMap<Mapping>,
    /// By slot.
    handles: Vec<Option<Handle>>,
    vacant_handles: Vec<u32>,
    next_ordinal: u64,
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
        self.handles.len() - self.vacant_handles.len()
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
        if !whole || self.mappings_in(address, address + bytes).next().is_some() {
            return Err(INVALID_VALUE);
        }
        self.reservations.remove(address);
        self.asked_last = None;
        Ok(())
    }

    /// Enters new memory.
    pub(super) fn create(&mut self, bytes: u64, runs: PageRuns) -> SimPhysical {
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        let handle = Some(Handle { ordinal, bytes, runs, mappings: 0, released: false });
        let slot = match self.vacant_handles.pop() {
            Some(slot) => {
                self.handles[slot as usize] = handle;
                slot
            }
            None => {
                self.handles.push(handle);
                // 2^32 pages of 2 MiB are eight exbibytes.
                u32::try_from(self.handles.len() - 1).expect("fewer than 2^32 pieces of memory")
            }
        };
        SimPhysical { ordinal, bytes, slot }
    }

    /// Memory that can be mapped or released.
    fn handle_mut(&mut self, memory: &SimPhysical) -> Result<&mut Handle, u32> {
        let handle = self.handles.get_mut(memory.slot as usize).and_then(Option::as_mut);
        handle.filter(|handle| handle.ordinal == memory.ordinal && !handle.released).ok_or(INVALID_VALUE)
    }

    /// Releases memory; the pages that nobody holds any more, which are none while it is mapped.
    pub(super) fn release(&mut self, memory: &SimPhysical) -> Result<PageRuns, u32> {
        self.handle_mut(memory)?.released = true;
        Ok(self.drop_unused(memory.slot))
    }

    /// Maps memory, whole, where nothing is mapped. The same memory may be mapped several times.
    pub(super) fn map(&mut self, address: u64, bytes: u64, memory: &SimPhysical) -> Result<(), u32> {
        let is_free = is_whole_pages_at(address, bytes) && self.is_reserved(address, bytes) && self.is_unmapped(address, bytes);
        let handle = self.handle_mut(memory)?;
        if is_whole_pages_at(address, bytes) && bytes != handle.bytes {
            return Err(NOT_SUPPORTED);
        }
        if !is_free {
            return Err(INVALID_VALUE);
        }
        handle.mappings += 1;
        self.mappings.insert(address / PAGE_BYTES, Mapping { bytes, handle: memory.slot, has_access: false });
        Ok(())
    }

    /// Gives the device access to the mappings that make up a range without a gap; enters their sizes.
    pub(super) fn set_access(&mut self, address: u64, bytes: u64, handle_bytes: &mut Vec<u64>) -> Result<(), u32> {
        self.check_whole(address, bytes)?;
        if let Some(mapping) = self.mappings.get_mut(address / PAGE_BYTES).filter(|mapping| mapping.bytes == bytes) {
            mapping.has_access = true;
            handle_bytes.push(bytes);
            return Ok(());
        }
        let end = address + bytes; // inside a reservation
        let mut at = address;
        while at < end {
            let mapping =
                self.mappings.get_mut(at / PAGE_BYTES).filter(|mapping| mapping.bytes <= end - at).ok_or(INVALID_VALUE)?;
            handle_bytes.push(mapping.bytes);
            at += mapping.bytes;
        }
        let mut at = address;
        for bytes in handle_bytes {
            if let Some(mapping) = self.mappings.get_mut(at / PAGE_BYTES) {
                mapping.has_access = true;
            }
            at += *bytes;
        }
        Ok(())
    }

    /// Ends the mappings in a range, which may have gaps or be empty but must not cut a mapping; enters what that did.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64, unmapped: &mut Touched) -> Result<(), u32> {
        self.check_whole(address, bytes)?;
        let first = address / PAGE_BYTES;
        if let Some(mapping) = self.mappings.get(first).filter(|mapping| mapping.bytes == bytes) {
            self.end_mapping(first, mapping, unmapped);
            return Ok(());
        }
        let end = address + bytes; // inside a reservation
        let cuts = |at: u64| self.covering(at).is_some_and(|(start, mapping)| start < address || mapping.bytes > end - start);
        if cuts(address) || cuts(end - 1) {
            return Err(INVALID_VALUE);
        }
        let mut page = first;
        while let Some((start, mapping)) = self.mappings.first_in(page, end / PAGE_BYTES) {
            self.end_mapping(start, mapping, unmapped);
            page = start + 1;
        }
        Ok(())
    }

    /// Ends the mapping that begins at a page.
    fn end_mapping(&mut self, page: u64, mapping: Mapping, unmapped: &mut Touched) {
        self.mappings.remove(page);
        unmapped.handle_bytes.push(mapping.bytes);
        if let Some(handle) = &mut self.handles[mapping.handle as usize] {
            handle.mappings = handle.mappings.saturating_sub(1);
        }
        unmapped.returned.extend_from_slice(&self.drop_unused(mapping.handle));
    }

    /// Whether nothing is mapped in some pages: the last mapping that begins up to their end does not reach them.
    fn is_unmapped(&self, address: u64, bytes: u64) -> bool {
        let last = (address + bytes) / PAGE_BYTES - 1; // inside a reservation
        let before = self.mappings.last_up_to(last).map(|(page, mapping)| (page * PAGE_BYTES, mapping.bytes));
        before.is_none_or(|(start, size)| start < address && address - start >= size)
    }

    /// The mapping that covers an address, and where it begins.
    fn covering(&self, address: u64) -> Option<(u64, Mapping)> {
        let (page, mapping) = self.mappings.last_up_to(address / PAGE_BYTES)?;
        let start = page * PAGE_BYTES;
        (address - start < mapping.bytes).then_some((start, mapping))
    }

    /// What is mapped at an address.
    pub(super) fn backing(&self, address: u64) -> Option<Backing<'_>> {
        let (start, mapping) = self.covering(address)?;
        let handle = self.handles.get(mapping.handle as usize)?.as_ref()?;
        Some(Backing { runs: &handle.runs, offset_bytes: address - start, has_access: mapping.has_access })
    }

    /// Where the mappings begin that overlap the addresses from `start` to before `end`.
    pub(super) fn mappings_in(&self, start: u64, end: u64) -> impl Iterator<Item = u64> {
        let further = move |page: u64| self.mappings.first_in(page, end.div_ceil(PAGE_BYTES)).map(|(page, _)| page);
        let first = self.covering(start).map(|(first, _)| first / PAGE_BYTES);
        let first = first.or_else(|| further(start.div_ceil(PAGE_BYTES)));
        std::iter::successors(first, move |&page| further(page + 1)).map(|page| page * PAGE_BYTES)
    }

    /// Whether these are whole pages of one reservation.
    fn check_whole(&mut self, address: u64, bytes: u64) -> Result<(), u32> {
        let whole = is_whole_pages_at(address, bytes) && self.is_reserved(address, bytes);
        if whole { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// Whether a range lies in one of the reservations, of which the same is asked about again and again.
    fn is_reserved(&mut self, address: u64, bytes: u64) -> bool {
        let is_inside =
            |(start, size): (u64, u64)| address >= start && address - start < size && bytes <= size - (address - start);
        if self.asked_last.is_none_or(|last| !is_inside(last)) {
            self.asked_last = self.reservations.covering(address).map(|(start, size, ())| (start, size));
        }
        self.asked_last.is_some_and(is_inside)
    }

    /// Forgets memory that is released and nowhere mapped; its pages.
    fn drop_unused(&mut self, slot: u32) -> PageRuns {
        let place = &mut self.handles[slot as usize];
        match place.take_if(|handle| handle.released && handle.mappings == 0) {
            Some(handle) => {
                self.vacant_handles.push(slot);
                handle.runs
            }
            None => PageRuns::default(),
        }
    }
}

/// Whether a range begins at a page and is some pages long.
fn is_whole_pages_at(address: u64, bytes: u64) -> bool {
    address.is_multiple_of(PAGE_BYTES) && VirtualMemory::is_whole_pages(bytes)
}
