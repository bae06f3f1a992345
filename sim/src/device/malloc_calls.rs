//! cudaMalloc, cudaFree and cudaMemGetInfo.
//!
//! A call that fails changes only the clock, the log and the call counts. Inside, failures are driver codes;
//! they become the core's errors on the way out.

use parkade::device::{BackendError, MemoryInfo};
use parkade::units::{Bytes, DeviceAddress};

use super::state::SimDevice;
use crate::calls::{CallName, CallSubject, INVALID_VALUE, OUT_OF_MEMORY, UNKNOWN, driver_error};
use crate::memory::PAGE_BYTES;
use crate::ranges::{Range, SMALL_BYTES, SPACING_BYTES, spaced_bytes};

/// The range that a cudaMalloc returns.
struct NewRange {
    address: u64,
    ordinal: u64,
    bytes: u64,
}

impl SimDevice {
    /// cudaMalloc. Does not wait for the device (facts: Waiting for the device). Size 0 is refused, because
    /// the driver would return a null pointer.
    pub(super) fn cuda_malloc(&mut self, requested: Bytes) -> Result<u64, BackendError> {
        let outcome = self.try_malloc(requested.get());
        // The price of a refused cudaMalloc was not measured: charged like the smallest one.
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
        let bytes = pages * PAGE_BYTES; // cannot overflow: the pages were placed
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

    /// Takes pages and asks the address model where they go. Returns the address.
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

    /// Whether no cudaMalloc and no reservation has any of these addresses.
    pub(super) fn is_unplaced(&self, address: u64, bytes: u64) -> bool {
        self.placed.overlap_end(address, bytes).is_none() && self.virtual_memory.is_unreserved(address, bytes)
    }

    /// cudaFree of the start of a live range; any other address is refused with `INVALID_VALUE`. Waits for
    /// the whole device.
    pub(super) fn cuda_free(&mut self, address: u64) -> Result<(), BackendError> {
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

    /// Drops the contents of a range and the accesses to it. Its page may be shared, so this goes by bytes.
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
            Some(_) => return, // others still live in the page
        };
        if let Some((bytes, runs)) = self.placed.remove(placed_at) {
            self.give_back(&runs);
            self.address_model.release(placed_at, bytes);
        }
    }

    /// cudaMemGetInfo.
    pub(super) fn mem_get_info(&mut self) -> Result<MemoryInfo, BackendError> {
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
