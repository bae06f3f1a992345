//! The driver's calls, and [`DeviceBackend`], whose methods forward to them.
//!
//! Memory calls are cudaMalloc, cudaFree, cudaMemGetInfo and the virtual memory calls, from cuMemAddressReserve to
//! cuMemRelease. Event calls create, record, query, wait for and destroy events; cudaStreamSynchronize is one of them.
//! As in CUDA, an event that has never been recorded counts as complete, and an event that has been recorded several
//! times follows its latest recording.
//!
//! A call that fails changes only the clock, the log and the call counts. Inside this module, failures are driver
//! codes; the calls turn them into the core's errors.

use std::collections::BTreeSet;

use parkade::device::{BackendError, Capture, DeviceBackend, GraphNode, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::SimDevice;
use crate::calls::{
    AddressName, CallName, CallSubject, INVALID_HANDLE, INVALID_VALUE, NOT_PERMITTED, NOT_READY, OUT_OF_MEMORY, UNKNOWN, code_of,
    driver_error,
};
use crate::memory::{PAGE_BYTES, Stretch};
use crate::ranges::{Range, SMALL_BYTES, SPACING_BYTES, spaced_bytes};
use crate::streams::SimEvent;
use crate::virtual_memory::{AffectedMappings, SimPhysical, is_whole_pages};

/// A handle type for cuMemCreate: a file descriptor, which other processes on this host can open.
const FILE_DESCRIPTOR: u32 = 1;
/// A handle type for cuMemCreate: fabric, which other hosts can open.
const FABRIC: u32 = 8;

/// The range that a cudaMalloc returns.
struct NewRange {
    address: u64,
    ordinal: u64,
    bytes: u64,
}

/// cudaMalloc, cudaFree and cudaMemGetInfo.
impl SimDevice {
    /// cudaMalloc. Does not wait for the device (facts: Waiting for the device). Size 0 is refused, because
    /// the driver would return a null pointer.
    fn cuda_malloc(&mut self, requested: Bytes) -> Result<u64, BackendError> {
        let outcome = self.try_malloc(requested.get());
        // The price of a refused cudaMalloc was not measured; it costs as much as the smallest one.
        self.charge(CallName::Malloc, outcome.as_ref().map_or(0, |range| range.bytes));
        let code = outcome.as_ref().err().copied().unwrap_or(0);
        let range = outcome.as_ref().ok().map(|range| (range.ordinal, range.address));
        self.note(CallName::Malloc, code, || CallSubject::Allocation { bytes: requested.get(), range });
        outcome.map(|range| range.address).map_err(|code| match code {
            OUT_OF_MEMORY => BackendError::OutOfMemory { requested },
            code => driver_error(CallName::Malloc, code),
        })
    }

    fn try_malloc(&mut self, bytes: u64) -> Result<NewRange, u32> {
        self.planned_failure(CallName::Malloc)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        if self.fail_next > 0 {
            self.fail_next -= 1;
            return Err(OUT_OF_MEMORY);
        }
        if self.shares_pages && bytes <= SMALL_BYTES { self.malloc_shared(bytes) } else { self.malloc_own(bytes) }
    }

    /// Takes whole pages for one range (facts: Sizes and addresses).
    fn malloc_own(&mut self, bytes: u64) -> Result<NewRange, u32> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let address = self.place_pages(pages, bytes)?;
        let bytes = pages * PAGE_BYTES; // this cannot overflow because the pages were placed
        let ordinal = self.ranges.insert(address, bytes, None);
        Ok(NewRange { address, ordinal, bytes })
    }

    /// Takes a place in a shared page (facts: Sizes and addresses).
    fn malloc_shared(&mut self, bytes: u64) -> Result<NewRange, u32> {
        let spaced = spaced_bytes(bytes);
        let (page, address) = match self.shared_pages.place(spaced) {
            Some(place) => place,
            None => {
                let page = self.place_pages(1, bytes)?;
                (page, self.shared_pages.place_in_new(page, spaced).ok_or(UNKNOWN)?)
            }
        };
        let ordinal = self.ranges.insert(address, spaced, Some(page));
        Ok(NewRange { address, ordinal, bytes: spaced })
    }

    /// Takes pages and asks the address model where to place them. Returns that address.
    fn place_pages(&mut self, pages: u64, request: u64) -> Result<u64, u32> {
        let bytes = pages.checked_mul(PAGE_BYTES).ok_or(OUT_OF_MEMORY)?;
        if !self.memory.has_room(pages) {
            return Err(OUT_OF_MEMORY);
        }
        let address = self.address_model.place(bytes, request).ok_or(OUT_OF_MEMORY)?;
        let aligned = address > 0 && address.is_multiple_of(SPACING_BYTES);
        if !aligned || !self.is_unplaced(address, bytes) {
            return Err(UNKNOWN);
        }
        let runs = self.memory.take(pages).ok_or(OUT_OF_MEMORY)?;
        self.placed.insert(address, bytes, runs);
        Ok(address)
    }

    /// Returns whether no cudaMalloc and no reservation has any of these addresses.
    fn is_unplaced(&self, address: u64, bytes: u64) -> bool {
        self.placed.overlap_end(address, bytes).is_none() && self.virtual_memory.is_unreserved(address, bytes)
    }

    /// cudaFree of a live range by its first address; any other address is refused with `INVALID_VALUE`. Waits for the
    /// entire device.
    fn cuda_free(&mut self, address: u64) -> Result<(), BackendError> {
        let outcome = self.planned_failure(CallName::Free).and_then(|()| self.ranges.live(address).ok_or(INVALID_VALUE));
        self.charge(CallName::Free, outcome.as_ref().map_or(0, |range| range.bytes));
        if let Ok(range) = outcome {
            if self.free_waits {
                self.wait_for_device(CallName::Free);
            }
            self.forget_freed(address, range.bytes);
            self.release(address, range);
        }
        let code = outcome.as_ref().err().copied().unwrap_or(0);
        let name = self.ranges.name(address);
        self.note(CallName::Free, code, || CallSubject::Release { address, name });
        outcome.map(|_| ()).map_err(|code| driver_error(CallName::Free, code))
    }

    /// Drops the contents of a range and the accesses to it. This works on bytes, because the range may share its
    /// page.
    fn forget_freed(&mut self, address: u64, bytes: u64) {
        if self.races.is_none() && self.memory.contents().is_empty() {
            return;
        }
        let touched = self.bytes_behind(DeviceAddress(address), Bytes(bytes)).unwrap_or_default();
        if let Some(races) = &mut self.races {
            races.freed(address, bytes, &touched, self.clock.now_ns());
        }
        touched.iter().for_each(|range| self.memory.contents_mut().forget(range.start, range.bytes));
    }

    fn release(&mut self, address: u64, range: Range) {
        self.ranges.end(address);
        let placed_at = match range.shared_page {
            None => address,
            Some(page) if self.shared_pages.leave(page, address, range.bytes) => page,
            Some(_) => return, // other ranges in the page are still live
        };
        if let Some((bytes, runs)) = self.placed.remove(placed_at) {
            self.give_back(&runs);
            self.address_model.release(placed_at, bytes);
        }
    }

    /// cudaMemGetInfo.
    fn mem_get_info(&mut self) -> Result<MemoryInfo, BackendError> {
        self.charge(CallName::MemGetInfo, 0);
        let total_bytes = if self.total_is_fixed { self.total_bytes } else { self.memory.capacity_bytes() };
        let free_bytes = self.memory.free_bytes();
        let outcome = self.planned_failure(CallName::MemGetInfo);
        let (code, free_bytes, total_bytes) = outcome.map_or_else(|code| (code, 0, 0), |()| (0, free_bytes, total_bytes));
        self.note(CallName::MemGetInfo, code, || CallSubject::Info { free_bytes, total_bytes });
        outcome.map_err(|code| driver_error(CallName::MemGetInfo, code))?;
        Ok(MemoryInfo { free: Bytes(free_bytes), total: Bytes(total_bytes) })
    }
}

/// The virtual memory calls.
///
/// None of them waits for the device (facts: Waiting for the device). The price of a failed call was not measured; it
/// costs as much as the smallest successful one.
impl SimDevice {
    /// cuMemAddressReserve. Accepts whole pages only; fails with `OUT_OF_MEMORY` when the address model has
    /// no addresses left.
    fn address_reserve(&mut self, bytes: u64) -> Result<u64, BackendError> {
        let name = CallName::AddressReserve;
        let outcome = self.try_reserve(bytes);
        self.charge(name, outcome.map_or(0, |_| bytes));
        let range = outcome.ok().map(|address| (self.ranges.insert_reservation(address, bytes), address));
        self.note(name, code_of(&outcome), || CallSubject::Reservation { bytes, range });
        outcome.map_err(|code| driver_error(name, code))
    }

    fn try_reserve(&mut self, bytes: u64) -> Result<u64, u32> {
        self.planned_failure(CallName::AddressReserve)?;
        if !is_whole_pages(bytes) {
            return Err(INVALID_VALUE);
        }
        let address = self.reservation_model.place(bytes, bytes).ok_or(OUT_OF_MEMORY)?;
        if address == 0 || !address.is_multiple_of(PAGE_BYTES) || !self.is_unplaced(address, bytes) {
            return Err(UNKNOWN);
        }
        self.virtual_memory.reserve(address, bytes);
        Ok(address)
    }

    /// cuMemAddressFree.
    fn address_free(&mut self, address: u64, bytes: u64) -> Result<(), BackendError> {
        let call = CallName::AddressFree;
        let outcome = self.planned_failure(call).and_then(|()| self.virtual_memory.unreserve(address, bytes));
        if outcome.is_ok() {
            self.ranges.end(address);
            self.reservation_model.release(address, bytes);
        }
        self.charge(call, outcome.map_or(0, |()| bytes));
        let name = self.logged_name(call, address);
        self.note(call, code_of(&outcome), || CallSubject::ReservationEnd { address, name, bytes });
        outcome.map_err(|code| driver_error(call, code))
    }

    /// cuMemCreate. Takes the memory from the device immediately (facts: Sizes and addresses).
    fn mem_create(&mut self, requested: Bytes) -> Result<SimPhysical, BackendError> {
        let (name, bytes) = (CallName::MemCreate, requested.get());
        if std::mem::take(&mut self.fabric_probe_due) {
            let refused = || CallSubject::Creation { bytes, handle_type: FABRIC, handle: None };
            self.log.push(name, NOT_PERMITTED, self.clock.now_ns(), refused);
        }
        let outcome = self.try_create(bytes);
        self.charge(name, outcome.as_ref().map_or(0, |_| bytes));
        let handle = outcome.as_ref().ok().map(SimPhysical::ordinal);
        self.note(name, code_of(&outcome), || CallSubject::Creation { bytes, handle_type: FILE_DESCRIPTOR, handle });
        outcome.map_err(|code| match code {
            OUT_OF_MEMORY => BackendError::OutOfMemory { requested },
            code => driver_error(name, code),
        })
    }

    fn try_create(&mut self, bytes: u64) -> Result<SimPhysical, u32> {
        self.planned_failure(CallName::MemCreate)?;
        if !is_whole_pages(bytes) {
            return Err(INVALID_VALUE);
        }
        if self.fail_next > 0 {
            self.fail_next -= 1;
            return Err(OUT_OF_MEMORY);
        }
        if self.virtual_memory.live_handles() >= self.most_handles {
            return Err(OUT_OF_MEMORY);
        }
        let runs = self.memory.take(bytes / PAGE_BYTES).ok_or(OUT_OF_MEMORY)?;
        Ok(self.virtual_memory.create(bytes, 1, runs))
    }

    /// cuMemMap.
    fn mem_map(&mut self, address: u64, bytes: u64, memory: &SimPhysical) -> Result<(), BackendError> {
        let call = CallName::MemMap;
        let outcome = self.planned_failure(call).and_then(|()| self.virtual_memory.map(address, bytes, memory));
        self.charge_pieces(call, memory, outcome.is_ok());
        let name = self.logged_name(call, address);
        let handle = Some(memory.ordinal());
        self.note(call, code_of(&outcome), || CallSubject::Mapping { address, name, bytes, handle });
        outcome.map_err(|code| driver_error(call, code))
    }

    /// cuMemSetAccess.
    fn mem_set_access(&mut self, address: u64, bytes: u64) -> Result<(), BackendError> {
        let call = CallName::MemSetAccess;
        let mut mapped = std::mem::take(&mut self.affected);
        let outcome =
            self.planned_failure(call).and_then(|()| self.virtual_memory.set_access(address, bytes, &mut mapped.handle_bytes));
        self.charge_handles(call, if outcome.is_ok() { &mapped.handle_bytes } else { &[] });
        self.keep_buffer(mapped);
        let (name, device) = (self.logged_name(call, address), self.index);
        self.note(call, code_of(&outcome), || CallSubject::Access { address, name, bytes, device });
        outcome.map_err(|code| driver_error(call, code))
    }

    /// cuMemUnmap.
    fn mem_unmap(&mut self, address: u64, bytes: u64) -> Result<(), BackendError> {
        let call = CallName::MemUnmap;
        match self.unmap_mappings(address, bytes) {
            Ok(unmapped) => {
                self.charge_handles(call, &unmapped.handle_bytes);
                self.keep_buffer(unmapped);
                self.note_unmap(address, bytes, &Ok(()))
            }
            Err(code) => {
                self.charge_handles(call, &[]);
                self.note_unmap(address, bytes, &Err(code))
            }
        }
    }

    /// Removes the mappings in a range unless a fault is due. Returns the affected mappings.
    fn unmap_mappings(&mut self, address: u64, bytes: u64) -> Result<AffectedMappings, u32> {
        let touched = if self.races.is_some() { self.bytes_mapped(address, bytes) } else { Vec::new() };
        self.planned_failure(CallName::MemUnmap)?;
        let mut unmapped = std::mem::take(&mut self.affected);
        if let Err(code) = self.virtual_memory.unmap(address, bytes, &mut unmapped) {
            self.keep_buffer(unmapped);
            return Err(code);
        }
        if let Some(races) = &mut self.races {
            races.unmapped(address, bytes, &touched, self.clock.now_ns());
        }
        self.give_back(&unmapped.returned);
        Ok(unmapped)
    }

    /// Logs the outcome of unmapping.
    fn note_unmap(&mut self, address: u64, bytes: u64, outcome: &Result<(), u32>) -> Result<(), BackendError> {
        let call = CallName::MemUnmap;
        let name = self.logged_name(call, address);
        self.note(call, code_of(outcome), || CallSubject::Mapping { address, name, bytes, handle: None });
        outcome.map_err(|code| driver_error(call, code))
    }

    /// cuMemRelease. Its price depends on the size even if the memory is kept because it is mapped; that case was not
    /// measured.
    fn mem_release(&mut self, memory: &SimPhysical) -> Result<(), BackendError> {
        let name = CallName::MemRelease;
        let outcome = self.planned_failure(name).and_then(|()| self.virtual_memory.release(memory));
        if let Ok(returned) = &outcome {
            self.give_back(returned);
        }
        self.charge_pieces(name, memory, outcome.is_ok());
        self.note(name, code_of(&outcome), || CallSubject::Handle(memory.ordinal()));
        outcome.map(|_| ()).map_err(|code| driver_error(name, code))
    }

    /// Returns the name of an address for the log. Skips the lookup if the call is not logged.
    fn logged_name(&self, call: CallName, address: u64) -> AddressName {
        if self.log.shows(call) { self.ranges.name(address) } else { AddressName::Unknown(address) }
    }

    /// Clears the buffer but keeps its memory for the next call.
    fn keep_buffer(&mut self, mut affected: AffectedMappings) {
        affected.clear();
        self.affected = affected;
    }

    /// Counts a call for several mappings and advances the clock by its price.
    fn charge_handles(&mut self, name: CallName, handle_bytes: &[(u64, u64)]) {
        let cost_ns = self.cost_model.cost_of_handles_ns(name, handle_bytes);
        self.clock.charge(name, cost_ns);
    }

    /// Counts a call for each piece of memory and advances the clock by their price; counts only one call if it failed.
    fn charge_pieces(&mut self, name: CallName, memory: &SimPhysical, succeeded: bool) {
        let (bytes, calls) = if succeeded { (memory.piece_bytes(), memory.pieces()) } else { (0, 1) };
        self.clock.charge_each(name, self.cost_model.cost_ns(name, bytes), calls);
    }
}

/// The virtual memory calls for many pages at once: they have the same effects, counts and prices as one call for each
/// page, but take only the host time and memory of a single call.
///
/// They apply only while single calls are not observed. With a log or a fault plan, each page gets a separate call.
impl SimDevice {
    /// Returns whether combining single calls currently makes no visible difference.
    fn takes_runs(&self) -> bool {
        !self.log.shows(CallName::MemCreate) && !self.faults.is_waiting()
    }

    /// Makes as many cuMemCreates of `page` bytes as there is room for, up to `pages`. If there is no room for the
    /// first one, returns that call's error.
    fn mem_create_run(&mut self, page: Bytes, pages: u64) -> Result<(SimPhysical, u64), BackendError> {
        let bytes = page.get();
        let is_run = pages > 1 && self.takes_runs() && self.fail_next == 0 && is_whole_pages(bytes);
        let most = self.most_handles.saturating_sub(self.virtual_memory.live_handles());
        let pages = if is_run { pages.min(self.memory.room_bytes() / bytes).min(most) } else { 1 };
        let physical_pages = pages.saturating_mul(bytes / PAGE_BYTES);
        let runs = if pages > 1 { self.memory.take(physical_pages) } else { None };
        let Some(runs) = runs else { return self.mem_create(page).map(|memory| (memory, 1)) };
        self.fabric_probe_due = false;
        let memory = self.virtual_memory.create(bytes, pages, runs);
        let cost_ns = self.cost_model.cost_ns(CallName::MemCreate, bytes);
        self.clock.charge_each(CallName::MemCreate, cost_ns, pages);
        Ok((memory, pages))
    }

    /// Makes a cuMemUnmap for each page.
    fn mem_unmap_run(&mut self, address: u64, page_bytes: u64, pages: u64) -> Result<(), BackendError> {
        let name = CallName::MemUnmap;
        let bytes = page_bytes.checked_mul(pages).ok_or(driver_error(name, INVALID_VALUE))?;
        if pages <= 1 {
            return self.mem_unmap(address, bytes);
        }
        match self.unmap_mappings(address, bytes) {
            Ok(unmapped) => {
                let cost_ns = self.cost_model.cost_of_handles_ns(name, &[(page_bytes, 1)]);
                self.clock.charge_each(name, cost_ns, pages);
                self.keep_buffer(unmapped);
                self.note_unmap(address, bytes, &Ok(()))
            }
            Err(code) => {
                self.charge_handles(name, &[]);
                self.note_unmap(address, bytes, &Err(code))
            }
        }
    }
}

/// Keeps the first pages of memory and returns the rest.
fn split_physical(memory: &mut SimPhysical, page: Bytes, pages: u64) -> Result<SimPhysical, BackendError> {
    let rest = if memory.piece_bytes() == page.get() { memory.split_off(pages) } else { None };
    rest.ok_or(driver_error(CallName::MemRelease, INVALID_VALUE))
}

/// Breaking a handle: parts of it get new memory with the same contents.
///
/// The driver has no such call. The simulated device counts it as a wait for the device, one cuMemUnmap and one
/// cuMemRelease, and a cuMemCreate, a cuMemMap and a cuMemSetAccess for each part. The copies to host memory and back
/// cost nothing here. If any of the calls would fail, this fails before anything has changed, whereas a real device
/// can map the host memory instead.
impl SimDevice {
    /// Breaks the handle that is mapped, with access, at this address and nowhere else.
    fn break_mapped(
        &mut self,
        address: u64,
        memory: &SimPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<SimPhysical>, BackendError> {
        self.synchronize();
        self.foresee(address, memory, parts)?;
        let kept: Vec<_> = parts.iter().map(|&(offset, size)| self.contents_at(address + offset.get(), size)).collect();
        self.mem_unmap(address, memory.bytes())?;
        self.mem_release(memory)?;
        let mut pieces = Vec::with_capacity(parts.len());
        for (&(offset, size), contents) in parts.iter().zip(kept) {
            let piece = self.mem_create(size)?;
            self.mem_map(address + offset.get(), size.get(), &piece)?;
            self.mem_set_access(address + offset.get(), size.get())?;
            let ranges = self.bytes_behind(DeviceAddress(address + offset.get()), size).unwrap_or_default();
            self.memory.contents_mut().put(&ranges, &contents);
            pieces.push(piece);
        }
        Ok(pieces)
    }

    fn contents_at(&self, address: u64, size: Bytes) -> Vec<Stretch> {
        let ranges = self.bytes_behind(DeviceAddress(address), size).unwrap_or_default();
        self.memory.contents().get(&ranges)
    }

    /// Checks whether all of the following calls will succeed. If not, returns the error of the first call that would
    /// fail; nothing has changed in that case.
    fn foresee(&mut self, address: u64, memory: &SimPhysical, parts: &[(Bytes, Bytes)]) -> Result<(), BackendError> {
        if !self.is_breakable(address, memory, parts) {
            return self.fail_early(CallName::MemUnmap, INVALID_VALUE);
        }
        let of_part = [CallName::MemCreate, CallName::MemMap, CallName::MemSetAccess];
        let calls: Vec<_> =
            [CallName::MemUnmap, CallName::MemRelease].into_iter().chain(parts.iter().flat_map(|_| of_part)).collect();
        if let Some((call, error)) = self.faults.foresee(&calls) {
            return self.fail_early(call, error.code());
        }
        let wanted: u64 = parts.iter().map(|(_, size)| size.get()).sum();
        let most = self.virtual_memory.live_handles() - 1 + parts.len() as u64;
        let has_room = self.memory.has_room_after(memory.bytes(), wanted / PAGE_BYTES);
        if self.fail_next > 0 || most > self.most_handles || !has_room {
            self.fail_next = self.fail_next.saturating_sub(1);
            return self.fail_early(CallName::MemCreate, OUT_OF_MEMORY);
        }
        Ok(())
    }

    /// Returns whether the memory is mapped at the address and the parts are whole pages of it, in order.
    fn is_breakable(&self, address: u64, memory: &SimPhysical, parts: &[(Bytes, Bytes)]) -> bool {
        let mut end = 0;
        let are_in_order = parts.iter().all(|(offset, size)| {
            let is_next = offset.get() >= end && is_whole_pages(size.get()) && offset.get().is_multiple_of(PAGE_BYTES);
            end = offset.get().saturating_add(size.get());
            is_next
        });
        are_in_order && end <= memory.bytes() && self.virtual_memory.is_only_at(address, memory)
    }

    fn fail_early<T>(&mut self, call: CallName, code: u32) -> Result<T, BackendError> {
        self.charge(call, 0);
        self.note(call, code, || CallSubject::Device);
        Err(if code == OUT_OF_MEMORY && call == CallName::MemCreate {
            BackendError::OutOfMemory { requested: Bytes(0) }
        } else {
            driver_error(call, code)
        })
    }
}

/// The flag with which the allocator creates its events: no time stamps.
const DISABLE_TIMING: u64 = 2;

impl SimDevice {
    /// cudaEventCreate.
    fn event_create(&mut self) -> Result<SimEvent, BackendError> {
        let name = CallName::EventCreate;
        self.charge(name, 0);
        let outcome = self.planned_failure(name);
        let ordinal = self.next_event;
        if outcome.is_ok() {
            self.next_event += 1;
            self.live_events.insert(ordinal);
        }
        self.conclude(name, outcome, ordinal, Some(DISABLE_TIMING))?;
        Ok(SimEvent::new(ordinal))
    }

    /// cudaEventRecord.
    fn event_record(&mut self, event: &mut SimEvent, stream: u64) -> Result<(), BackendError> {
        let name = CallName::EventRecord;
        self.charge(name, 0);
        let outcome = self.admit(name, event);
        if outcome.is_ok() {
            let order = self.races.as_ref().and_then(|races| races.recorded(stream));
            event.record(self.streams.record(stream, self.clock.now_ns()), order);
        }
        self.conclude(name, outcome, event.ordinal(), Some(stream))
    }

    /// cudaEventQuery.
    fn event_query(&mut self, event: &SimEvent) -> Result<bool, BackendError> {
        let name = CallName::EventQuery;
        self.charge(name, 0);
        if let Err(code) = self.admit(name, event) {
            return self.conclude(name, Err(code), event.ordinal(), None).map(|()| false);
        }
        let done = event.mark().is_none_or(|mark| self.streams.is_done(mark, self.clock.now_ns()));
        if done {
            self.note_complete(event);
        }
        let ordinal = event.ordinal();
        self.note(name, if done { 0 } else { NOT_READY }, || CallSubject::Event { ordinal, argument: None });
        Ok(done)
    }

    /// cudaEventSynchronize. Completes the event and everything before it in its stream.
    fn event_synchronize(&mut self, event: &SimEvent) -> Result<(), BackendError> {
        let name = CallName::EventSynchronize;
        self.charge(name, 0);
        let outcome = self.admit(name, event);
        if let (Ok(()), Some(mark)) = (outcome, event.mark()) {
            self.clock.wait_until(name, self.streams.ready_at_ns(mark));
            self.streams.complete_through(mark);
            self.note_complete(event);
        }
        self.conclude(name, outcome, event.ordinal(), None)
    }

    /// cudaStreamWaitEvent as a call by the allocator, which is logged, has a price, and can fail.
    fn event_hold_back(&mut self, event: &SimEvent, stream: StreamId) -> Result<(), BackendError> {
        let name = CallName::StreamWaitEvent;
        self.charge(name, 0);
        let outcome = self.admit(name, event);
        if outcome.is_ok() {
            SimDevice::stream_wait(self, stream, event);
        }
        self.conclude(name, outcome, event.ordinal(), Some(stream.get()))
    }

    /// cudaStreamSynchronize. Afterwards, everything in the stream is complete, under every event timing.
    fn stream_synchronize(&mut self, stream: u64) -> Result<(), BackendError> {
        let name = CallName::StreamSynchronize;
        self.charge(name, 0);
        let outcome = self.planned_failure(name);
        if outcome.is_ok() {
            self.clock.wait_until(name, self.streams.stream_idle_at_ns(stream));
            self.finish_stream(stream);
        }
        self.note(name, code_of(&outcome), || CallSubject::Stream(stream));
        outcome.map_err(|code| driver_error(name, code))
    }

    /// cudaEventDestroy. For an event that has already been destroyed (through a clone), it logs a failure and does
    /// nothing.
    fn event_destroy(&mut self, event: &SimEvent) {
        let name = CallName::EventDestroy;
        self.charge(name, 0);
        let code = if self.live_events.remove(&event.ordinal()) { 0 } else { INVALID_HANDLE };
        self.note(name, code, || CallSubject::Event { ordinal: event.ordinal(), argument: None });
    }

    /// Tells the race detector that the host has seen an event complete.
    fn note_complete(&mut self, event: &SimEvent) {
        if let (Some(races), Some(order)) = (&mut self.races, event.order()) {
            races.host_waits(order);
        }
    }

    /// Checks whether a call for this event may proceed.
    ///
    /// # Errors
    /// The code with which it fails.
    fn admit(&mut self, name: CallName, event: &SimEvent) -> Result<(), u32> {
        self.planned_failure(name)?;
        if self.live_events.contains(&event.ordinal()) { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    /// Logs a call about an event and turns its code into the core's error.
    fn conclude(
        &mut self,
        name: CallName,
        outcome: Result<(), u32>,
        ordinal: u64,
        argument: Option<u64>,
    ) -> Result<(), BackendError> {
        self.note(name, outcome.err().unwrap_or(0), || CallSubject::Event { ordinal, argument });
        outcome.map_err(|code| driver_error(name, code))
    }
}

impl DeviceBackend for SimDevice {
    type Event = SimEvent;
    type Physical = SimPhysical;

    fn index(&self) -> u32 {
        self.index
    }

    fn total_memory(&self) -> Bytes {
        Bytes(self.total_bytes)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        self.mem_get_info()
    }

    fn processes(&mut self) -> Vec<ProcessMemory> {
        if self.reports_processes { self.process_list() } else { Vec::new() }
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.cuda_malloc(size).map(DeviceAddress)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        self.cuda_free(address.get())
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.address_reserve(size.get()).map(DeviceAddress)
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.address_free(address.get(), size.get())
    }

    fn create(&mut self, size: Bytes) -> Result<SimPhysical, BackendError> {
        self.mem_create(size)
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &SimPhysical) -> Result<(), BackendError> {
        self.mem_map(address.get(), size.get(), memory)
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.mem_set_access(address.get(), size.get())
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.mem_unmap(address.get(), size.get())
    }

    fn release(&mut self, memory: SimPhysical) -> Result<(), (SimPhysical, BackendError)> {
        self.mem_release(&memory).map_err(|error| (memory, error))
    }

    fn waits_in_captures(&self) -> bool {
        true
    }

    fn breaks_handles(&self) -> bool {
        true
    }

    fn break_handle(
        &mut self,
        address: DeviceAddress,
        _: Bytes,
        memory: SimPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<SimPhysical>, (SimPhysical, BackendError)> {
        self.break_mapped(address.get(), &memory, parts).map_err(|error| (memory, error))
    }

    fn run_pages(&self) -> u64 {
        if self.takes_runs() { u64::MAX } else { 1 }
    }

    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<(SimPhysical, u64), BackendError> {
        self.mem_create_run(page, pages)
    }

    fn split_run(&mut self, memory: &mut SimPhysical, page: Bytes, pages: u64) -> Result<SimPhysical, BackendError> {
        split_physical(memory, page, pages)
    }

    fn unmap_run(&mut self, address: DeviceAddress, page: Bytes, pages: u64) -> Result<(), BackendError> {
        self.mem_unmap_run(address.get(), page.get(), pages)
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        self.stream_synchronize(stream.get())
    }

    fn create_event(&mut self) -> Result<SimEvent, BackendError> {
        self.event_create()
    }

    fn record_event(&mut self, event: &mut SimEvent, stream: StreamId) -> Result<(), BackendError> {
        self.event_record(event, stream.get())
    }

    fn is_complete(&mut self, event: &SimEvent) -> Result<bool, BackendError> {
        self.event_query(event)
    }

    fn wait(&mut self, event: &SimEvent) -> Result<(), BackendError> {
        self.event_synchronize(event)
    }

    fn stream_wait(&mut self, stream: StreamId, event: &SimEvent) -> Result<(), BackendError> {
        self.event_hold_back(event, stream)
    }

    fn capture(&mut self, stream: StreamId) -> Result<Option<Capture>, BackendError> {
        Ok(self.captures.of(stream.get()).cloned())
    }

    fn add_awaited(&mut self, stream: StreamId, awaited: &mut BTreeSet<GraphNode>) -> Result<(), BackendError> {
        self.captures.add_awaited(stream.get(), awaited);
        Ok(())
    }

    fn destroy_event(&mut self, event: SimEvent) {
        self.event_destroy(&event);
    }
}
