//! A handle is broken: parts of it get memory of their own, with the same contents.
//!
//! The driver has no such call. It is a wait for the device, one cuMemUnmap and cuMemRelease, and for each part a cuMemCreate,
//! cuMemMap and cuMemSetAccess, between a copy to the host's memory and one back, which cost nothing here. If any of the calls
//! is to fail, it fails before anything has changed: whoever does this on a real device keeps memory of the host ready that
//! could be mapped instead.

use parkade::device::BackendError;
use parkade::units::{Bytes, DeviceAddress};

use super::state::SimDevice;
use crate::calls::{CallName, CallSubject, INVALID_VALUE, OUT_OF_MEMORY, driver_error};
use crate::memory::{PAGE_BYTES, Stretch};
use crate::virtual_memory::{SimPhysical, is_whole_pages};

impl SimDevice {
    /// Breaks the handle that is mapped, open, at an address and nowhere else.
    pub(super) fn break_mapped(
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

    /// Fails, as the first call that would, if not all of the calls that follow will succeed. Nothing has changed then.
    fn foresee(&mut self, address: u64, memory: &SimPhysical, parts: &[(Bytes, Bytes)]) -> Result<(), BackendError> {
        if !self.is_breakable(address, memory, parts) {
            return self.fail_early(CallName::MemUnmap, INVALID_VALUE);
        }
        let of_all = [CallName::MemUnmap, CallName::MemRelease].map(|call| (call, 1));
        let of_parts = [CallName::MemCreate, CallName::MemMap, CallName::MemSetAccess].map(|call| (call, parts.len() as u64));
        let calls: Vec<_> = of_all.into_iter().chain(of_parts).collect();
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

    /// Whether the memory is mapped at the address, and the parts are whole pages of it in order.
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
