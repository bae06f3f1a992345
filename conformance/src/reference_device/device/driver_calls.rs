//! The driver's calls: cudaMalloc, cudaFree and cudaMemGetInfo, the calls about events and streams, and the virtual memory calls.
//!
//! Memory that was created in one call for several pages is a list of pieces, and each virtual memory call for it treats the
//! pieces one by one.

use parkade::device::{BackendError, MemoryInfo};
use parkade::units::{Bytes, MIB};
use parkade_sim::{CallName, CallSubject, PAGE_BYTES, RaceUse};

use super::{
    Event, INVALID_HANDLE, INVALID_VALUE, Kind, Known, Mapping, Memory, NOT_PERMITTED, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY,
    Outcome, Piece, Placed, PlainDevice, Range, Span, UNKNOWN, code, driver, gaps, order, spans_of,
};

impl PlainDevice {
    pub(in super::super) fn create_event(&mut self) -> Result<Event, BackendError> {
        let call = CallName::EventCreate;
        self.pay(call, 0);
        let outcome = self.plan.next(call);
        let ordinal = self.events.len() as u64;
        if outcome.is_ok() {
            self.events.push(true);
        }
        self.note_event(call, outcome, ordinal, Some(2))?;
        Ok(Event { ordinal, mark: None, known: Known::new() })
    }

    pub(in super::super) fn record(&mut self, event: &mut Event, stream: u64) -> Result<(), BackendError> {
        let call = CallName::EventRecord;
        let outcome = self.begin(call, event);
        if outcome.is_ok() {
            event.known = self.order.at_mark(stream);
            event.mark = Some(self.streams.record(stream, self.clock.now_ns));
        }
        self.note_event(call, outcome, event.ordinal, Some(stream))
    }

    pub(in super::super) fn query(&mut self, event: &Event) -> Result<bool, BackendError> {
        let call = CallName::EventQuery;
        let outcome = self.begin(call, event);
        if outcome.is_err() {
            return self.note_event(call, outcome, event.ordinal, None).map(|()| false);
        }
        let is_done = event.mark.is_none_or(|mark| self.streams.query(mark, self.clock.now_ns));
        if is_done {
            self.order.host_waits(&event.known);
        }
        let result = if is_done { 0 } else { NOT_READY };
        self.note(call, result, CallSubject::Event { ordinal: event.ordinal, argument: None });
        Ok(is_done)
    }

    pub(in super::super) fn wait(&mut self, event: &Event) -> Result<(), BackendError> {
        let call = CallName::EventSynchronize;
        let outcome = self.begin(call, event);
        if let (Ok(()), Some(mark)) = (outcome, event.mark) {
            self.clock.wait(call, self.streams.ready_ns(mark));
            self.streams.finish(mark);
            self.order.host_waits(&event.known);
        }
        self.note_event(call, outcome, event.ordinal, None)
    }

    /// cudaStreamWaitEvent by the allocator.
    pub(in super::super) fn stream_wait(&mut self, stream: u64, event: &Event) -> Result<(), BackendError> {
        let call = CallName::StreamWaitEvent;
        let outcome = self.begin(call, event);
        if outcome.is_ok() {
            self.hold_back(stream, event);
        }
        self.note_event(call, outcome, event.ordinal, Some(stream))
    }

    /// cudaStreamWaitEvent by the program.
    pub(in super::super) fn hold_back(&mut self, stream: u64, event: &Event) {
        if let Some(mark) = event.mark {
            self.streams.wait(stream, mark);
        }
        self.order.stream_waits(stream, &event.known);
    }

    pub(in super::super) fn destroy_event(&mut self, event: &Event) {
        let call = CallName::EventDestroy;
        self.pay(call, 0);
        let exists = std::mem::take(&mut self.events[event.ordinal as usize]);
        let result = if exists { 0 } else { INVALID_HANDLE };
        self.note(call, result, CallSubject::Event { ordinal: event.ordinal, argument: None });
    }

    /// Records an event and asks for it.
    pub(in super::super) fn is_idle(&mut self, stream: u64) -> Result<bool, BackendError> {
        let mut event = self.create_event()?;
        let is_idle = self.record(&mut event, stream).and_then(|()| self.query(&event));
        self.destroy_event(&event);
        is_idle
    }

    pub(in super::super) fn synchronize_stream(&mut self, stream: u64) -> Result<(), BackendError> {
        let call = CallName::StreamSynchronize;
        self.pay(call, 0);
        let outcome = self.plan.next(call);
        if outcome.is_ok() {
            self.clock.wait(call, self.streams.idle_ns(stream));
            self.has_waited_for(stream);
        }
        self.note(call, code(&outcome), CallSubject::Stream(stream));
        driver(call, outcome)
    }

    /// cudaDeviceSynchronize, which cannot fail.
    pub(in super::super) fn synchronize(&mut self) {
        let call = CallName::DeviceSynchronize;
        self.pay(call, 0);
        self.wait_for_device(call);
        self.note(call, 0, CallSubject::Device);
    }

    pub(super) fn has_waited_for(&mut self, stream: u64) {
        self.streams.complete(stream, self.clock.now_ns);
        self.order.host_waits_for(stream);
    }

    /// Pays for a call about an event. Its error is the code with which the call fails.
    fn begin(&mut self, call: CallName, event: &Event) -> Outcome<()> {
        self.pay(call, 0);
        self.plan.next(call)?;
        if self.events[event.ordinal as usize] { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    fn note_event(
        &mut self,
        call: CallName,
        outcome: Outcome<()>,
        ordinal: u64,
        argument: Option<u64>,
    ) -> Result<(), BackendError> {
        self.note(call, code(&outcome), CallSubject::Event { ordinal, argument });
        driver(call, outcome)
    }
}

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

fn is_whole(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(PAGE_BYTES)
}

impl PlainDevice {
    pub(in super::super) fn reserve(&mut self, bytes: u64) -> Result<u64, BackendError> {
        let call = CallName::AddressReserve;
        let outcome = self.try_reserve(bytes);
        self.pay(call, outcome.map_or(0, |_| bytes));
        let range = outcome.ok().map(|address| (self.name_range(Kind::Reservation, address, bytes), address));
        self.note(call, code(&outcome), CallSubject::Reservation { bytes, range });
        driver(call, outcome)
    }

    fn try_reserve(&mut self, bytes: u64) -> Outcome<u64> {
        self.plan.next(CallName::AddressReserve)?;
        if !is_whole(bytes) {
            return Err(INVALID_VALUE);
        }
        let address = self.reserve_rule.place(bytes, bytes).ok_or(OUT_OF_MEMORY)?;
        if address == 0 || !address.is_multiple_of(PAGE_BYTES) || !self.is_vacant(address, bytes) {
            return Err(UNKNOWN);
        }
        self.reservations.push((address, address + bytes));
        Ok(address)
    }

    pub(in super::super) fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), BackendError> {
        let call = CallName::AddressFree;
        let planned = self.plan.next(call);
        let whole = self.reservations.iter().position(|&(from, to)| from == address && to - from == bytes);
        let outcome = planned.and_then(|()| whole.filter(|_| self.inside(address, bytes).is_empty()).ok_or(INVALID_VALUE));
        if let Ok(index) = outcome {
            self.reservations.remove(index);
            self.reserve_rule.release(address, bytes);
        }
        self.pay(call, outcome.map_or(0, |_| bytes));
        let name = self.name(address);
        self.note(call, code(&outcome), CallSubject::ReservationEnd { address, name, bytes });
        driver(call, outcome.map(|_| ()))
    }

    pub(in super::super) fn create(&mut self, bytes: u64) -> Result<Memory, BackendError> {
        let call = CallName::MemCreate;
        if std::mem::take(&mut self.is_probe_due) {
            self.note_probe(bytes);
        }
        let outcome = self.try_create(bytes);
        self.pay(call, outcome.map_or(0, |_| bytes));
        let handle = outcome.ok().map(|first| first as u64);
        self.note(call, code(&outcome), CallSubject::Creation { bytes, handle_type: 1, handle });
        match outcome {
            Err(OUT_OF_MEMORY) => Err(BackendError::OutOfMemory { requested: Bytes(bytes) }),
            outcome => driver(call, outcome.map(|first| Memory { first, pieces: 1, piece_bytes: bytes })),
        }
    }

    /// Logs the attempt with the fabric handle type, which counts neither as a call nor as a failure.
    fn note_probe(&mut self, bytes: u64) {
        let clock = self.clock.clone();
        self.note(CallName::MemCreate, NOT_PERMITTED, CallSubject::Creation { bytes, handle_type: 8, handle: None });
        self.clock = clock;
    }

    fn try_create(&mut self, bytes: u64) -> Outcome<usize> {
        self.plan.next(CallName::MemCreate)?;
        if !is_whole(bytes) {
            return Err(INVALID_VALUE);
        }
        if self.fail_next > 0 {
            self.fail_next -= 1;
            return Err(OUT_OF_MEMORY);
        }
        if self.live_pieces() as u64 >= self.options.most_handles {
            return Err(OUT_OF_MEMORY);
        }
        let pages = self.take(bytes / PAGE_BYTES).ok_or(OUT_OF_MEMORY)?;
        self.pieces.push(Piece { bytes, pages, is_released: false, has_siblings: false });
        Ok(self.pieces.len() - 1)
    }

    /// Returns how many pages one call may treat.
    pub(in super::super) fn run_pages(&self) -> u64 {
        if self.shows(CallName::MemCreate) || self.plan.is_waiting() { 1 } else { u64::MAX }
    }

    /// Creates pieces as long as that succeeds, at most as many as one call may treat.
    pub(in super::super) fn create_run(&mut self, page: u64, pages: u64) -> Result<(Memory, u64), BackendError> {
        let mut memory = self.create(page)?;
        while (memory.pieces as u64) < pages.min(self.run_pages())
            && (self.live_pieces() as u64) < self.options.most_handles
            && self.has_room(0, page / PAGE_BYTES)
        {
            self.create(page)?;
            memory.pieces += 1;
        }
        memory.numbers().for_each(|piece| self.pieces[piece].has_siblings = memory.pieces > 1);
        let pieces = memory.pieces as u64;
        Ok((memory, pieces))
    }

    /// Returns the mappings that have any of these addresses.
    fn inside(&self, address: u64, bytes: u64) -> Vec<usize> {
        let (from, to) = (address, address.saturating_add(bytes));
        let mapped = self.mapped();
        (0..mapped.len()).filter(|&index| mapped[index].0 < to && from < mapped[index].1).collect()
    }

    /// Returns the mappings in a range of whole pages of one reservation that cuts none of them, lowest address first.
    fn uncut(&self, address: u64, bytes: u64) -> Outcome<Vec<usize>> {
        if !address.is_multiple_of(PAGE_BYTES) || !is_whole(bytes) || !self.is_reserved(address, bytes) {
            return Err(INVALID_VALUE);
        }
        let (mapped, mut inside) = (self.mapped(), self.inside(address, bytes));
        if inside.iter().any(|&index| mapped[index].0 < address || address + bytes < mapped[index].1) {
            return Err(INVALID_VALUE);
        }
        inside.sort_by_key(|&index| mapped[index].0);
        Ok(inside)
    }

    fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        let end = address.checked_add(bytes);
        end.is_some_and(|end| self.reservations.iter().any(|&(from, to)| from <= address && end <= to))
    }

    /// Whether all pieces of memory can still be mapped and released.
    fn is_held(&self, memory: &Memory) -> bool {
        memory.numbers().all(|piece| !self.pieces[piece].is_released)
    }

    pub(in super::super) fn map(&mut self, address: u64, bytes: u64, memory: &Memory) -> Result<(), BackendError> {
        let call = CallName::MemMap;
        let planned = self.plan.next(call);
        let outcome = planned.and_then(|()| self.check_map(address, bytes, memory));
        self.pay_for_all(call, memory, outcome.is_ok());
        if outcome.is_ok() {
            for (place, piece) in memory.numbers().enumerate() {
                let address = address + place as u64 * memory.piece_bytes;
                self.mappings.push(Mapping { address, piece, has_access: false });
            }
        }
        let (name, handle) = (self.name(address), Some(memory.first as u64));
        self.note(call, code(&outcome), CallSubject::Mapping { address, name, bytes, handle });
        driver(call, outcome)
    }

    fn check_map(&self, address: u64, bytes: u64, memory: &Memory) -> Outcome<()> {
        if !self.is_held(memory) {
            return Err(INVALID_VALUE);
        }
        if !address.is_multiple_of(PAGE_BYTES) || !is_whole(bytes) {
            return Err(INVALID_VALUE);
        }
        if bytes != memory.bytes() {
            return Err(NOT_SUPPORTED);
        }
        let is_free = self.is_reserved(address, bytes) && self.inside(address, bytes).is_empty();
        if is_free { Ok(()) } else { Err(INVALID_VALUE) }
    }

    pub(in super::super) fn set_access(&mut self, address: u64, bytes: u64) -> Result<(), BackendError> {
        let call = CallName::MemSetAccess;
        let planned = self.plan.next(call);
        let outcome = planned.and_then(|()| self.uncut(address, bytes)).and_then(|inside| {
            let sizes: Vec<u64> = inside.iter().map(|&index| self.pieces[self.mappings[index].piece].bytes).collect();
            if sizes.iter().sum::<u64>() == bytes { Ok((inside, sizes)) } else { Err(INVALID_VALUE) }
        });
        let sizes = outcome.as_ref().map_or(Vec::new(), |(_, sizes)| sizes.clone());
        self.clock.pay(call, self.options.prices.of_pieces(call, &sizes));
        if let Ok((inside, _)) = &outcome {
            inside.iter().for_each(|&index| self.mappings[index].has_access = true);
        }
        let (name, device) = (self.name(address), self.options.index);
        self.note(call, code(&outcome), CallSubject::Access { address, name, bytes, device });
        driver(call, outcome.map(|_| ()))
    }

    pub(in super::super) fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), BackendError> {
        let call = CallName::MemUnmap;
        let planned = self.plan.next(call);
        let outcome = planned.and_then(|()| self.uncut(address, bytes));
        let sizes: Vec<u64> = outcome.iter().flatten().map(|&index| self.pieces[self.mappings[index].piece].bytes).collect();
        // The host unmaps before it pays.
        if let Ok(inside) = &outcome {
            self.end_mappings(inside, address, bytes);
        }
        self.clock.pay(call, self.options.prices.of_pieces(call, &sizes));
        self.note_unmap(address, bytes, outcome.map(|_| ()))
    }

    fn note_unmap(&mut self, address: u64, bytes: u64, outcome: Outcome<()>) -> Result<(), BackendError> {
        let name = self.name(address);
        self.note(CallName::MemUnmap, code(&outcome), CallSubject::Mapping { address, name, bytes, handle: None });
        driver(CallName::MemUnmap, outcome)
    }

    fn end_mappings(&mut self, inside: &[usize], address: u64, bytes: u64) {
        let spans = self.mapped_spans(inside);
        let side = order::host_side("cuMemUnmap", RaceUse::Unmapped, (address, bytes), self.clock.now_ns);
        self.order.ended(side, &spans);
        let pieces: Vec<usize> = inside.iter().map(|&index| self.mappings[index].piece).collect();
        let left = self.mappings.iter().enumerate().filter(|(index, _)| !inside.contains(index));
        self.mappings = left.map(|(_, mapping)| mapping.clone()).collect();
        self.lose_unused(&pieces);
    }

    /// Gives back the pages of pieces that no longer exist.
    fn lose_unused(&mut self, pieces: &[usize]) {
        for &piece in pieces {
            if !self.exists(piece) {
                let pages = self.pieces[piece].pages.clone();
                self.lose(&pages);
            }
        }
    }

    fn mapped_spans(&self, inside: &[usize]) -> Vec<Span> {
        let units = inside.iter().map(|&index| &self.mappings[index]);
        units.flat_map(|mapping| spans_of(mapping.address, &self.pieces[mapping.piece].pages)).collect()
    }

    /// Unmaps pages as if one by one; the race detector sees one range.
    pub(in super::super) fn unmap_run(&mut self, address: u64, page: u64, pages: u64) -> Result<(), BackendError> {
        let call = CallName::MemUnmap;
        let Some(bytes) = page.checked_mul(pages) else { return driver(call, Err(INVALID_VALUE)) };
        if pages <= 1 {
            return self.unmap(address, bytes);
        }
        let planned = self.plan.next(call);
        let outcome = planned.and_then(|()| self.uncut(address, bytes));
        match &outcome {
            Ok(inside) => {
                self.end_mappings(inside, address, bytes);
                (0..pages).for_each(|_| self.clock.pay(call, self.options.prices.of_pieces(call, &[page])));
            }
            Err(_) => self.pay(call, 0),
        }
        self.note_unmap(address, bytes, outcome.map(|_| ()))
    }

    /// Whether a range is mapped in pieces of this size without a gap, so that the pages can be unmapped one by one.
    pub(in super::super) fn is_in_pages(&self, address: u64, page: u64, pages: u64) -> bool {
        let mapped: Vec<Range> = self.mapped();
        let is_page = |place: u64| {
            let start = page.checked_mul(place).and_then(|offset| address.checked_add(offset));
            start.is_some_and(|start| mapped.iter().any(|&(from, to)| from == start && to - from == page))
        };
        (0..pages).all(is_page)
    }

    pub(in super::super) fn release(&mut self, memory: &Memory) -> Result<(), BackendError> {
        let call = CallName::MemRelease;
        let planned = self.plan.next(call);
        let outcome = planned.and_then(|()| if self.is_held(memory) { Ok(()) } else { Err(INVALID_VALUE) });
        if outcome.is_ok() {
            memory.numbers().for_each(|piece| self.pieces[piece].is_released = true);
            self.lose_unused(&memory.numbers().collect::<Vec<_>>());
        }
        self.pay_for_all(call, memory, outcome.is_ok());
        self.note(call, code(&outcome), CallSubject::Handle(memory.first as u64));
        driver(call, outcome)
    }

    /// Pays for a call for each piece; a failed call is one call, at the smallest price.
    fn pay_for_all(&mut self, call: CallName, memory: &Memory, succeeded: bool) {
        if succeeded {
            memory.numbers().for_each(|_| self.pay(call, memory.piece_bytes));
        } else {
            self.pay(call, 0);
        }
    }

    /// Replaces parts of a piece by new memory with the same contents: first, everything that could fail is looked for.
    pub(in super::super) fn break_handle(
        &mut self,
        address: u64,
        memory: &Memory,
        parts: &[(u64, u64)],
    ) -> Result<Vec<Memory>, BackendError> {
        self.synchronize();
        self.check_break(address, memory, parts)?;
        let kept: Vec<Vec<Range>> = parts.iter().map(|&(offset, bytes)| self.physical(address + offset, bytes)).collect();
        let before = self.journal.now();
        self.unmap(address, memory.bytes())?;
        self.release(memory)?;
        let mut pieces = Vec::new();
        for (&(offset, bytes), from) in parts.iter().zip(kept) {
            let piece = self.create(bytes)?;
            self.map(address + offset, bytes, &piece)?;
            self.set_access(address + offset, bytes)?;
            let to = self.physical(address + offset, bytes);
            self.journal.copy(before, from, to);
            pieces.push(piece);
        }
        Ok(pieces)
    }

    fn physical(&self, address: u64, bytes: u64) -> Vec<Range> {
        self.behind(address, bytes).unwrap_or_default().iter().map(|span| span.physical).collect()
    }

    fn check_break(&mut self, address: u64, memory: &Memory, parts: &[(u64, u64)]) -> Result<(), BackendError> {
        if !self.is_breakable(address, memory, parts) {
            return self.fail_early(CallName::MemUnmap, INVALID_VALUE);
        }
        let of_part = [CallName::MemCreate, CallName::MemMap, CallName::MemSetAccess];
        let mut calls = vec![CallName::MemUnmap, CallName::MemRelease];
        parts.iter().for_each(|_| calls.extend(of_part));
        if let Some((call, code)) = self.plan.foresee(&calls) {
            return self.fail_early(call, code);
        }
        let wanted: u64 = parts.iter().map(|part| part.1).sum();
        let handles = self.live_pieces() as u64 - 1 + parts.len() as u64;
        if self.fail_next > 0 || handles > self.options.most_handles || !self.has_room(memory.bytes(), wanted / PAGE_BYTES) {
            self.fail_next = self.fail_next.saturating_sub(1);
            return self.fail_early(CallName::MemCreate, OUT_OF_MEMORY);
        }
        Ok(())
    }

    /// Whether the memory is mapped there, with access, and nowhere else, and the parts are whole pages of it in order.
    fn is_breakable(&self, address: u64, memory: &Memory, parts: &[(u64, u64)]) -> bool {
        let mapped: Vec<&Mapping> = self.mappings.iter().filter(|mapping| mapping.piece == memory.first).collect();
        let is_there = matches!(mapped[..], [mapping] if mapping.address == address && mapping.has_access);
        let are_pages = parts.iter().all(|&(offset, bytes)| offset.is_multiple_of(PAGE_BYTES) && is_whole(bytes));
        let ends: Vec<Option<u64>> = parts.iter().map(|&(offset, bytes)| offset.checked_add(bytes)).collect();
        let starts = parts.iter().map(|part| Some(part.0)).skip(1).chain([Some(memory.bytes())]);
        let are_in_order = ends.iter().zip(starts).all(|(end, next)| end.is_some() && *end <= next);
        is_there && self.is_held(memory) && are_pages && are_in_order
    }

    fn fail_early(&mut self, call: CallName, code: u32) -> Result<(), BackendError> {
        self.pay(call, 0);
        self.note(call, code, CallSubject::Device);
        match (call, code) {
            (CallName::MemCreate, OUT_OF_MEMORY) => Err(BackendError::OutOfMemory { requested: Bytes(0) }),
            _ => driver(call, Err(code)),
        }
    }
}
