//! The virtual memory calls about many pages at once: the same effects, counts and prices as one call for each
//! page, but time and memory for one.
//!
//! Only while nobody looks at single calls. Under a log or a fault plan each page has a call of its own.

use parkade::device::BackendError;
use parkade::units::Bytes;

use super::state::SimDevice;
use crate::calls::{CallName, INVALID_VALUE, driver_error};
use crate::memory::PAGE_BYTES;
use crate::virtual_memory::{SimPhysical, is_whole_pages};

impl SimDevice {
    /// Whether single calls make no difference now.
    pub(super) fn takes_runs(&self) -> bool {
        !self.log.shows(CallName::MemCreate) && !self.faults.is_waiting()
    }

    /// As many cuMemCreates of `page` bytes as there is room for, at most `pages`. If there is none for the
    /// first, that call's error.
    pub(super) fn mem_create_run(&mut self, page: Bytes, pages: u64) -> Result<(SimPhysical, u64), BackendError> {
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

    /// A cuMemUnmap for each page.
    pub(super) fn mem_unmap_run(&mut self, address: u64, page_bytes: u64, pages: u64) -> Result<(), BackendError> {
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
pub(super) fn split_physical(memory: &mut SimPhysical, page: Bytes, pages: u64) -> Result<SimPhysical, BackendError> {
    let rest = if memory.piece_bytes() == page.get() { memory.split_off(pages) } else { None };
    rest.ok_or(driver_error(CallName::MemRelease, INVALID_VALUE))
}
