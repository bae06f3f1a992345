//! cudaMalloc, cudaFree and cudaMemGetInfo.

use parkade::device::{BackendError, MemoryInfo};
use parkade::units::{Bytes, MIB};
use parkade_sim::{CallName, CallSubject, PAGE_BYTES, RaceUse};

use super::{INVALID_VALUE, Kind, OUT_OF_MEMORY, Outcome, Placed, PlainDevice, Range, UNKNOWN, code, driver, gaps, order};

impl PlainDevice {
    pub(in super::super) fn malloc(&mut self, bytes: u64) -> Result<u64, BackendError> {
        let call = CallName::Malloc;
        let outcome = self.try_malloc(bytes);
        // A refused call costs as much as the smallest successful one.
        self.pay(call, outcome.map_or(0, |(from, to)| to - from));
        let range = outcome.ok().map(|(from, to)| (self.name_range(Kind::Malloc, from, to - from), from));
        self.note(call, code(&outcome), CallSubject::Allocation { bytes, range });
        match outcome {
            Err(OUT_OF_MEMORY) => Err(BackendError::OutOfMemory { requested: Bytes(bytes) }),
            outcome => driver(call, outcome.map(|(from, _)| from)),
        }
    }

    fn try_malloc(&mut self, bytes: u64) -> Outcome<Range> {
        self.plan.next(CallName::Malloc)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        if self.fail_next > 0 {
            self.fail_next -= 1;
            return Err(OUT_OF_MEMORY);
        }
        if self.options.shares_pages && bytes <= MIB { self.malloc_small(bytes) } else { self.malloc_large(bytes) }
    }

    fn malloc_large(&mut self, bytes: u64) -> Outcome<Range> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let address = self.place(pages, bytes, false)?;
        let range = (address, address + pages * PAGE_BYTES);
        self.placed.last_mut().into_iter().for_each(|placed| placed.live.push(range));
        Ok(range)
    }

    /// Takes a hole in the shared page whose longest hole is shortest, or a new page.
    fn malloc_small(&mut self, bytes: u64) -> Outcome<Range> {
        let spaced = bytes.div_ceil(512) * 512;
        let holes = |placed: &Placed| gaps((placed.address, placed.address + PAGE_BYTES), placed.live.iter().copied());
        let longest = |placed: &Placed| holes(placed).iter().map(|(from, to)| to - from).max().unwrap_or(0);
        let shared = self.placed.iter().enumerate().filter(|(_, placed)| placed.is_shared && longest(placed) >= spaced);
        let chosen = shared.min_by_key(|(_, placed)| (longest(placed), placed.address)).map(|(index, _)| index);
        let index = match chosen {
            Some(index) => index,
            None => {
                self.place(1, bytes, true)?;
                self.placed.len() - 1
            }
        };
        let fits = holes(&self.placed[index]).into_iter().find(|(from, to)| to - from >= spaced);
        let (start, _) = fits.ok_or(UNKNOWN)?;
        self.placed[index].live.push((start, start + spaced));
        Ok((start, start + spaced))
    }

    /// Takes pages and places them.
    fn place(&mut self, pages: u64, request: u64, is_shared: bool) -> Outcome<u64> {
        let bytes = pages.checked_mul(PAGE_BYTES).ok_or(OUT_OF_MEMORY)?;
        if !self.has_room(0, pages) {
            return Err(OUT_OF_MEMORY);
        }
        let address = self.malloc_rule.place(bytes, request).ok_or(OUT_OF_MEMORY)?;
        if address == 0 || !address.is_multiple_of(512) || !self.is_vacant(address, bytes) {
            return Err(UNKNOWN);
        }
        let pages = self.take(pages).ok_or(OUT_OF_MEMORY)?;
        self.placed.push(Placed { address, pages, live: Vec::new(), is_shared });
        Ok(address)
    }

    /// Whether neither a cudaMalloc nor a reservation has any of these addresses.
    pub(super) fn is_vacant(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let placed = self.placed.iter().map(|one| (one.address, one.address + super::count(&one.pages) * PAGE_BYTES));
        let mut held = placed.chain(self.reservations.iter().copied());
        held.all(|(from, to)| to <= address || end <= from)
    }

    pub(in super::super) fn free(&mut self, address: u64) -> Result<(), BackendError> {
        let call = CallName::Free;
        let planned = self.plan.next(call);
        let live = self.placed.iter().flat_map(|placed| &placed.live).copied().find(|(from, _)| *from == address);
        let outcome = planned.and_then(|()| live.ok_or(INVALID_VALUE));
        self.pay(call, outcome.map_or(0, |(from, to)| to - from));
        if let Ok(range) = outcome {
            if self.options.free_waits {
                self.wait_for_device(call);
            }
            self.end(range);
        }
        let name = self.name(address);
        self.note(call, code(&outcome), CallSubject::Release { address, name });
        driver(call, outcome.map(|_| ()))
    }

    /// Ends a range, and gives back its pages if no other range is in them.
    fn end(&mut self, (start, end): Range) {
        let spans = self.behind(start, end - start).unwrap_or_default();
        let side = order::host_side("cudaFree", RaceUse::Freed, (start, end - start), self.clock.now_ns);
        self.order.ended(side, &spans);
        spans.iter().for_each(|span| self.order.lost(span.physical));
        self.journal.lose(spans.iter().map(|span| span.physical).collect());
        let Some(index) = self.placed.iter().position(|placed| placed.live.contains(&(start, end))) else { return };
        self.placed[index].live.retain(|range| *range != (start, end));
        if self.placed[index].live.is_empty() {
            let placed = self.placed.remove(index);
            self.lose(&placed.pages);
            self.malloc_rule.release(placed.address, super::count(&placed.pages) * PAGE_BYTES);
        }
    }

    pub(in super::super) fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        let call = CallName::MemGetInfo;
        self.pay(call, 0);
        let (free, total) = (self.room_after(0), self.options.total.unwrap_or(self.capacity));
        let outcome = self.plan.next(call).map(|()| MemoryInfo { free: Bytes(free), total: Bytes(total) });
        let (free_bytes, total_bytes) = outcome.map_or((0, 0), |info| (info.free.get(), info.total.get()));
        self.note(call, code(&outcome), CallSubject::Info { free_bytes, total_bytes });
        driver(call, outcome)
    }
}
