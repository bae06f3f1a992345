//! The virtual memory calls, from cuMemAddressReserve to cuMemRelease.
//!
//! None of them waits for the device (facts: Waiting for the device). A call that fails changes only the
//! clock, the log and the call counts. The price of a failed call was not measured; it is charged like the
//! smallest successful one.

use parkade::device::BackendError;
use parkade::units::Bytes;

use super::state::SimDevice;
use crate::calls::{
    AddressName, CallName, CallSubject, INVALID_VALUE, NOT_PERMITTED, OUT_OF_MEMORY, UNKNOWN, code_of, driver_error,
};
use crate::memory::PAGE_BYTES;
use crate::virtual_memory::{AffectedMappings, SimPhysical, is_whole_pages};

/// Handle type of cuMemCreate: a file descriptor, which other processes on this host can open.
const FILE_DESCRIPTOR: u32 = 1;
/// Handle type of cuMemCreate: fabric, which other hosts can open.
const FABRIC: u32 = 8;

impl SimDevice {
    /// cuMemAddressReserve. Accepts whole pages only; fails with `OUT_OF_MEMORY` when the address model has
    /// no addresses left.
    pub(super) fn address_reserve(&mut self, bytes: u64) -> Result<u64, BackendError> {
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
    pub(super) fn address_free(&mut self, address: u64, bytes: u64) -> Result<(), BackendError> {
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

    /// cuMemCreate. Takes the memory at once (facts: Sizes and addresses).
    pub(super) fn mem_create(&mut self, requested: Bytes) -> Result<SimPhysical, BackendError> {
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
    pub(super) fn mem_map(&mut self, address: u64, bytes: u64, memory: &SimPhysical) -> Result<(), BackendError> {
        let call = CallName::MemMap;
        let outcome = self.planned_failure(call).and_then(|()| self.virtual_memory.map(address, bytes, memory));
        self.charge_pieces(call, memory, outcome.is_ok());
        let name = self.logged_name(call, address);
        let handle = Some(memory.ordinal());
        self.note(call, code_of(&outcome), || CallSubject::Mapping { address, name, bytes, handle });
        outcome.map_err(|code| driver_error(call, code))
    }

    /// cuMemSetAccess.
    pub(super) fn mem_set_access(&mut self, address: u64, bytes: u64) -> Result<(), BackendError> {
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
    pub(super) fn mem_unmap(&mut self, address: u64, bytes: u64) -> Result<(), BackendError> {
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

    /// Removes the mappings in a range, unless a fault is due. Returns what was affected.
    pub(super) fn unmap_mappings(&mut self, address: u64, bytes: u64) -> Result<AffectedMappings, u32> {
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

    /// Logs how unmapping ended.
    pub(super) fn note_unmap(&mut self, address: u64, bytes: u64, outcome: &Result<(), u32>) -> Result<(), BackendError> {
        let call = CallName::MemUnmap;
        let name = self.logged_name(call, address);
        self.note(call, code_of(outcome), || CallSubject::Mapping { address, name, bytes, handle: None });
        outcome.map_err(|code| driver_error(call, code))
    }

    /// cuMemRelease. Priced by size even if the memory stays because it is mapped; that case was not measured.
    pub(super) fn mem_release(&mut self, memory: &SimPhysical) -> Result<(), BackendError> {
        let name = CallName::MemRelease;
        let outcome = self.planned_failure(name).and_then(|()| self.virtual_memory.release(memory));
        if let Ok(returned) = &outcome {
            self.give_back(returned);
        }
        self.charge_pieces(name, memory, outcome.is_ok());
        self.note(name, code_of(&outcome), || CallSubject::Handle(memory.ordinal()));
        outcome.map(|_| ()).map_err(|code| driver_error(name, code))
    }

    /// The name of an address for the log. Not looked up if the call is not logged.
    fn logged_name(&self, call: CallName, address: u64) -> AddressName {
        if self.log.shows(call) { self.ranges.name(address) } else { AddressName::Unknown(address) }
    }

    /// Clears the buffer and keeps its memory for the next call.
    pub(super) fn keep_buffer(&mut self, mut affected: AffectedMappings) {
        affected.clear();
        self.affected = affected;
    }

    /// Counts a call about several mappings and advances the clock by its price.
    pub(super) fn charge_handles(&mut self, name: CallName, handle_bytes: &[(u64, u64)]) {
        let cost_ns = self.cost_model.cost_of_handles_ns(name, handle_bytes);
        self.clock.charge(name, cost_ns);
    }

    /// Counts a call for each piece of memory and advances the clock by their price; one call if it failed.
    fn charge_pieces(&mut self, name: CallName, memory: &SimPhysical, succeeded: bool) {
        let (bytes, calls) = if succeeded { (memory.piece_bytes(), memory.pieces()) } else { (0, 1) };
        self.clock.charge_each(name, self.cost_model.cost_ns(name, bytes), calls);
    }
}
