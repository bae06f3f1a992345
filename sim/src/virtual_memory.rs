//! Virtual memory: which addresses are reserved, which memory has been created, and where it is mapped.
//!
//! This module decides which operations are refused, and with which code (facts: Virtual memory calls). A refused
//! operation changes nothing. The calls in `device/driver_calls.rs` add time, faults and the log.
//!
//! Pieces that were created and mapped together form one mapping until a call affects only some of them.
//!
//! Some refusals were not measured; they are this model's choice. With `INVALID_VALUE`, the model refuses to map or
//! release memory that has already been released, to grant access to part of a mapping, and to map, grant access or
//! unmap across two reservations.

use std::collections::BTreeMap;

use crate::calls::{INVALID_VALUE, NOT_SUPPORTED};
use crate::memory::{PAGE_BYTES, PageRun, PageRuns};
use crate::range_maps::{Intervals, PageMap};

/// Memory created on a [`SimDevice`](crate::SimDevice), which can be mapped: one piece, or several of one size that
/// were created together. Valid only on that device and its clones.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimPhysical {
    ordinal: u64,
    piece_bytes: u64,
    pieces: u64,
}

impl SimPhysical {
    /// Returns the number of its first piece among those created on its device, counted from zero as in the log.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// Returns its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.piece_bytes * self.pieces // this is no more memory than the device has
    }

    /// Returns the number of its pieces.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        self.pieces
    }

    /// Returns the size of each piece in bytes.
    #[must_use]
    pub fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    /// Keeps the first `pieces` pieces and returns the rest, or `None` if either part would be
    /// empty.
    pub(crate) fn split_off(&mut self, pieces: u64) -> Option<SimPhysical> {
        let rest = self.pieces.checked_sub(pieces).filter(|&rest| rest > 0 && pieces > 0)?;
        self.pieces = pieces;
        Some(SimPhysical { ordinal: self.ordinal + pieces, pieces: rest, ..*self })
    }
}

/// Pieces of created memory with the same history.
#[derive(Clone, Debug)]
struct Handle {
    pieces: u64,
    piece_bytes: u64,
    runs: PageRuns,
    /// The number of times that each piece is mapped.
    mappings: u64,
    released: bool,
}

/// All created memory. It is kept until it is released and no longer mapped.
///
/// Pieces of one size that were created together are one entry, regardless of their number, until they are released or
/// mapped separately.
#[derive(Clone, Default, Debug)]
struct Handles {
    /// The entries, by the number of the first piece.
    by_ordinal: BTreeMap<u64, Handle>,
    pieces: u64,
    next_ordinal: u64,
}

impl Handles {
    /// Returns how many pieces of memory there are.
    fn count(&self) -> u64 {
        self.pieces
    }

    /// Adds new memory.
    #[inline]
    fn insert(&mut self, piece_bytes: u64, pieces: u64, runs: PageRuns) -> SimPhysical {
        let ordinal = self.next_ordinal;
        self.next_ordinal += pieces;
        self.pieces += pieces;
        self.by_ordinal.insert(ordinal, Handle { pieces, piece_bytes, runs, mappings: 0, released: false });
        SimPhysical { ordinal, piece_bytes, pieces }
    }

    /// Checks that memory may be mapped or released.
    ///
    /// # Errors
    /// `INVALID_VALUE` if any part of it has been released.
    fn check(&self, memory: &SimPhysical) -> Result<(), u32> {
        let end = memory.ordinal + memory.pieces;
        let mut at = memory.ordinal;
        while at < end {
            let (first, handle) = self.holding(at).ok_or(INVALID_VALUE)?;
            if handle.released || handle.piece_bytes != memory.piece_bytes {
                return Err(INVALID_VALUE);
            }
            at = first + handle.pieces;
        }
        Ok(())
    }

    /// Returns whether memory has not been released and is mapped at exactly one address.
    fn is_mapped_once(&self, memory: &SimPhysical) -> bool {
        self.check(memory).is_ok() && self.holding(memory.ordinal).is_some_and(|(_, handle)| handle.mappings == 1)
    }

    /// Returns the entry of a piece.
    #[inline]
    fn holding(&self, ordinal: u64) -> Option<(u64, &Handle)> {
        let (&first, handle) = self.by_ordinal.range(..=ordinal).next_back()?;
        (ordinal - first < handle.pieces).then_some((first, handle))
    }

    /// Returns the pages of a piece's entry, and the number of the entry's first piece.
    #[inline]
    fn runs(&self, ordinal: u64) -> Option<(u64, &[PageRun])> {
        self.holding(ordinal).map(|(first, handle)| (first, &*handle.runs))
    }

    /// Makes an entry begin at this piece unless one already does.
    fn cut(&mut self, ordinal: u64) {
        let Some((&first, handle)) = self.by_ordinal.range_mut(..ordinal).next_back() else { return };
        if ordinal - first >= handle.pieces {
            return;
        }
        let kept = ordinal - first;
        let runs = handle.runs.split_off(kept * handle.piece_bytes / PAGE_BYTES);
        let rest = Handle { pieces: handle.pieces - kept, runs, ..*handle };
        handle.pieces = kept;
        self.by_ordinal.insert(ordinal, rest);
    }

    /// Records that pieces are mapped once more.
    fn mapped(&mut self, first: u64, pieces: u64) {
        self.change(first, pieces, |handle| handle.mappings += 1);
    }

    /// Releases memory. Returns its pages, except those that are still mapped.
    fn release(&mut self, memory: &SimPhysical) -> Result<PageRuns, u32> {
        self.check(memory)?;
        Ok(self.change(memory.ordinal, memory.pieces, |handle| handle.released = true))
    }

    /// Records that one mapping of pieces has ended. Returns the pages of those pieces that have been released and are
    /// mapped nowhere else.
    fn unmapped(&mut self, first: u64, pieces: u64) -> PageRuns {
        self.change(first, pieces, |handle| handle.mappings = handle.mappings.saturating_sub(1))
    }

    /// Changes the entries of pieces, and removes those that are released and no longer mapped. Returns their pages.
    #[inline]
    fn change(&mut self, first: u64, pieces: u64, change: impl Fn(&mut Handle)) -> PageRuns {
        let is_over = |handle: &Handle| handle.released && handle.mappings == 0;
        // The pieces are usually a single entry.
        if let Some(handle) = self.by_ordinal.get_mut(&first).filter(|handle| handle.pieces == pieces) {
            change(handle);
            if !is_over(handle) {
                return PageRuns::default();
            }
            self.pieces -= pieces;
            return self.by_ordinal.remove(&first).map(|handle| handle.runs).unwrap_or_default();
        }
        self.cut(first);
        self.cut(first + pieces);
        let entries: Vec<u64> = self.by_ordinal.range(first..first + pieces).map(|(&ordinal, _)| ordinal).collect();
        let mut returned = Vec::new();
        for ordinal in entries {
            let Some(handle) = self.by_ordinal.get_mut(&ordinal) else { continue };
            change(handle);
            if is_over(handle) {
                self.pieces -= handle.pieces;
                returned.extend_from_slice(&handle.runs);
                self.by_ordinal.remove(&ordinal);
            }
        }
        PageRuns::Many(returned)
    }
}

/// Consecutive pieces of memory, each mapped as if by a separate call.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    /// The first piece.
    ordinal: u64,
    pieces: u64,
    piece_bytes: u64,
    has_access: bool,
}

impl Mapping {
    fn bytes(&self) -> u64 {
        self.piece_bytes * self.pieces // this is inside a reservation
    }
}

/// The memory behind an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backing<'a> {
    /// The pages of the memory that is mapped here, without gaps.
    pub(crate) runs: &'a [PageRun],
    /// The address of the first page.
    pub(crate) start: u64,
    /// Whether the device has access.
    pub(crate) has_access: bool,
}

/// The mappings that a call affected.
#[derive(Clone, Default, Debug)]
pub(crate) struct AffectedMappings {
    /// The sizes of the pieces, in order: each size, and how many pieces have it.
    pub(crate) handle_bytes: Vec<(u64, u64)>,
    /// The pages that are free again.
    pub(crate) returned: Vec<PageRun>,
}

impl AffectedMappings {
    /// Empties the lists but keeps their memory.
    pub(crate) fn clear(&mut self) {
        self.handle_bytes.clear();
        self.returned.clear();
    }
}

/// Reservations, created memory and mappings of one device.
#[derive(Clone, Default, Debug)]
pub(crate) struct VirtualMemory {
    reservations: Intervals<()>,
    /// The reservation that was looked up last: start and bytes.
    asked_last: Option<(u64, u64)>,
    /// The mappings, by first address divided by the page size.
    mappings: PageMap<Mapping>,
    handles: Handles,
}

impl VirtualMemory {
    /// Returns how many reservations there are.
    pub(crate) fn live_reservations(&self) -> usize {
        self.reservations.count()
    }

    /// Returns how many pieces of created memory there are: those not released or still mapped.
    pub(crate) fn live_handles(&self) -> u64 {
        self.handles.count()
    }

    /// Returns whether no reservation overlaps these addresses.
    pub(crate) fn is_unreserved(&self, address: u64, bytes: u64) -> bool {
        self.reservations.overlap_end(address, bytes).is_none()
    }

    /// Adds a reservation whose addresses are free.
    pub(crate) fn reserve(&mut self, address: u64, bytes: u64) {
        self.reservations.insert(address, bytes, ());
    }

    /// Removes a reservation. This works only on an entire reservation in which nothing is mapped.
    pub(crate) fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), u32> {
        let whole = self.reservations.covering(address).is_some_and(|(start, size, ())| (start, size) == (address, bytes));
        if !whole || self.mappings_in(address, address + bytes).next().is_some() {
            return Err(INVALID_VALUE);
        }
        self.reservations.remove(address);
        self.asked_last = None;
        Ok(())
    }

    /// Adds new memory: pieces of one size.
    pub(crate) fn create(&mut self, piece_bytes: u64, pieces: u64, runs: PageRuns) -> SimPhysical {
        self.handles.insert(piece_bytes, pieces, runs)
    }

    /// Releases memory. Returns the pages that are free again; there are none while the memory is
    /// mapped.
    pub(crate) fn release(&mut self, memory: &SimPhysical) -> Result<PageRuns, u32> {
        self.handles.release(memory)
    }

    /// Maps an entire piece of memory where nothing is mapped. The same memory may be mapped several times.
    pub(crate) fn map(&mut self, address: u64, bytes: u64, memory: &SimPhysical) -> Result<(), u32> {
        let is_free = is_whole_pages_at(address, bytes) && self.is_reserved(address, bytes) && self.is_unmapped(address, bytes);
        self.handles.check(memory)?;
        if is_whole_pages_at(address, bytes) && bytes != memory.bytes() {
            return Err(NOT_SUPPORTED);
        }
        if !is_free {
            return Err(INVALID_VALUE);
        }
        let (ordinal, pieces, piece_bytes) = (memory.ordinal(), memory.pieces(), memory.piece_bytes());
        self.handles.mapped(ordinal, pieces);
        self.mappings.insert(address / PAGE_BYTES, Mapping { ordinal, pieces, piece_bytes, has_access: false });
        Ok(())
    }

    /// Grants the device access to the pieces that make up a range without a gap, and appends their sizes.
    pub(crate) fn set_access(&mut self, address: u64, bytes: u64, handle_bytes: &mut Vec<(u64, u64)>) -> Result<(), u32> {
        self.check_whole(address, bytes)?;
        if let Some(mapping) = self.mappings.get_mut(address / PAGE_BYTES).filter(|mapping| mapping.bytes() == bytes) {
            mapping.has_access = true;
            handle_bytes.push((mapping.piece_bytes, mapping.pieces));
            return Ok(());
        }
        let end = address + bytes; // this is inside a reservation
        self.check_uncut(address, end)?;
        let mut at = address;
        while at < end {
            let (start, mapping) = self.covering(at).ok_or(INVALID_VALUE)?;
            at = start + mapping.bytes();
        }
        self.cut(address);
        self.cut(end);
        let mut at = address;
        while at < end
            && let Some(mapping) = self.mappings.get_mut(at / PAGE_BYTES)
        {
            mapping.has_access = true;
            handle_bytes.push((mapping.piece_bytes, mapping.pieces));
            at += mapping.bytes();
        }
        Ok(())
    }

    /// Removes the mappings in a range. The range may have gaps or be empty, but must not cut a piece. Appends the
    /// affected mappings.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64, unmapped: &mut AffectedMappings) -> Result<(), u32> {
        self.check_whole(address, bytes)?;
        let first = address / PAGE_BYTES;
        if let Some(mapping) = self.mappings.get(first).filter(|mapping| mapping.bytes() == bytes) {
            self.end_mapping(first, mapping, unmapped);
            return Ok(());
        }
        let end = address + bytes; // this is inside a reservation
        self.check_uncut(address, end)?;
        self.cut(address);
        self.cut(end);
        let mut page = first;
        while let Some((start, mapping)) = self.mappings.first_in(page, end / PAGE_BYTES) {
            self.end_mapping(start, mapping, unmapped);
            page = start + 1;
        }
        Ok(())
    }

    /// Removes the mapping that starts at a page.
    fn end_mapping(&mut self, page: u64, mapping: Mapping, unmapped: &mut AffectedMappings) {
        self.mappings.remove(page);
        unmapped.handle_bytes.push((mapping.piece_bytes, mapping.pieces));
        unmapped.returned.extend_from_slice(&self.handles.unmapped(mapping.ordinal, mapping.pieces));
    }

    /// Checks that neither end of a range is inside a piece.
    fn check_uncut(&self, address: u64, end: u64) -> Result<(), u32> {
        let is_inside_piece =
            |at: u64| self.covering(at).is_some_and(|(start, mapping)| !(at - start).is_multiple_of(mapping.piece_bytes));
        if is_inside_piece(address) || is_inside_piece(end) { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// Makes a mapping begin at an address inside an existing one, between two pieces.
    fn cut(&mut self, address: u64) {
        let Some((start, mapping)) = self.covering(address).filter(|(start, _)| *start < address) else { return };
        let kept = (address - start) / mapping.piece_bytes;
        let rest = Mapping { ordinal: mapping.ordinal + kept, pieces: mapping.pieces - kept, ..mapping };
        self.mappings.insert(start / PAGE_BYTES, Mapping { pieces: kept, ..mapping });
        self.mappings.insert(address / PAGE_BYTES, rest);
        self.handles.cut(rest.ordinal);
    }

    /// Returns whether nothing is mapped in a range: the last mapping that starts before the range's end does not reach
    /// into it.
    fn is_unmapped(&self, address: u64, bytes: u64) -> bool {
        let last = (address + bytes) / PAGE_BYTES - 1; // this is inside a reservation
        let before = self.mappings.last_up_to(last).map(|(page, mapping)| (page * PAGE_BYTES, mapping.bytes()));
        before.is_none_or(|(start, size)| start < address && address - start >= size)
    }

    /// Returns the mapping that covers an address, and where it starts.
    fn covering(&self, address: u64) -> Option<(u64, Mapping)> {
        let (page, mapping) = self.mappings.last_up_to(address / PAGE_BYTES)?;
        let start = page * PAGE_BYTES;
        (address - start < mapping.bytes()).then_some((start, mapping))
    }

    /// Returns whether an entire piece of memory is mapped at an address, with access, and nowhere
    /// else.
    pub(crate) fn is_only_at(&self, address: u64, memory: &SimPhysical) -> bool {
        // The memory may be part of a run that was mapped in one call.
        let is_it = self.covering(address).filter(|(_, mapping)| mapping.has_access).is_some_and(|(start, mapping)| {
            let offset = address - start;
            let is_piece = offset.is_multiple_of(mapping.piece_bytes) && memory.bytes() <= mapping.bytes() - offset;
            is_piece && mapping.ordinal + offset / mapping.piece_bytes == memory.ordinal()
        });
        is_it && self.handles.is_mapped_once(memory)
    }

    /// Returns the memory that is mapped at an address.
    pub(crate) fn backing(&self, address: u64) -> Option<Backing<'_>> {
        let (start, mapping) = self.covering(address)?;
        let piece = mapping.ordinal + (address - start) / mapping.piece_bytes;
        // An entry begins wherever one of its mappings begins, so the entire entry is mapped here.
        let (ordinal, runs) = self.handles.runs(piece)?;
        let start = start + (ordinal - mapping.ordinal) * mapping.piece_bytes;
        Some(Backing { runs, start, has_access: mapping.has_access })
    }

    /// Returns the end of the mapping that covers an address.
    pub(crate) fn mapping_end(&self, address: u64) -> Option<u64> {
        self.covering(address).map(|(start, mapping)| start + mapping.bytes())
    }

    /// Returns the starts of the mappings that overlap `start..end`.
    pub(crate) fn mappings_in(&self, start: u64, end: u64) -> impl Iterator<Item = u64> {
        let further = move |page: u64| self.mappings.first_in(page, end.div_ceil(PAGE_BYTES)).map(|(page, _)| page);
        let first = self.covering(start).map(|(first, _)| first / PAGE_BYTES);
        let first = first.or_else(|| further(start.div_ceil(PAGE_BYTES)));
        std::iter::successors(first, move |&page| further(page + 1)).map(|page| page * PAGE_BYTES)
    }

    /// Checks that a range consists of whole pages in one reservation.
    fn check_whole(&mut self, address: u64, bytes: u64) -> Result<(), u32> {
        let whole = is_whole_pages_at(address, bytes) && self.is_reserved(address, bytes);
        if whole { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// Returns whether a range is inside one reservation, which is usually the one from the last
    /// call.
    fn is_reserved(&mut self, address: u64, bytes: u64) -> bool {
        let is_inside =
            |(start, size): (u64, u64)| address >= start && address - start < size && bytes <= size - (address - start);
        if self.asked_last.is_none_or(|last| !is_inside(last)) {
            self.asked_last = self.reservations.covering(address).map(|(start, size, ())| (start, size));
        }
        self.asked_last.is_some_and(is_inside)
    }
}

/// Returns whether reserving, creating and mapping accept a size.
pub(crate) fn is_whole_pages(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(PAGE_BYTES)
}

/// Returns whether a range starts on a page boundary and consists of whole pages.
fn is_whole_pages_at(address: u64, bytes: u64) -> bool {
    address.is_multiple_of(PAGE_BYTES) && is_whole_pages(bytes)
}
