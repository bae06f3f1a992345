//! Draws programs: options and steps. Sizes, addresses and times are drawn close to borders: a page more or less, exactly the room
//! that is left, the first and last byte of a range, zero, and the largest numbers.

use parkade::units::MIB;
use parkade_sim::address::{ASCENDING_START, DESCENDING_END, FALLBACK_START, RESERVATION_FALLBACK_START};
use parkade_sim::{CallName, PAGE_BYTES as PAGE};

use super::addresses::Rule;
use super::faults::Fault;
use super::prices::Prices;
use super::setup::{Ready, Setup, Timing};
use super::step::{Base, LAST, Size, Spot, Step, Use};
use crate::program::search::Draws;

/// What a program is mostly about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Focus {
    /// cudaMalloc, cudaFree, other processes, faults, the log.
    Memory,
    /// Reservations, created memory and mappings.
    Virtual,
    /// Pages that are created, mapped and unmapped in one call, and handles that are broken.
    Runs,
    /// Streams, events and time.
    Streams,
    /// Captures.
    Captures,
    /// The order of kernels, copies and reads.
    Races,
    /// What is written to memory.
    Contents,
}

/// Draws one program.
pub(crate) struct Pen {
    draws: Draws,
    focus: Focus,
    steps: Vec<Step>,
}

/// Draws a program about something.
pub(crate) fn program(focus: Focus, seed: u64) -> (Setup, Vec<Step>) {
    let mut pen = Pen { draws: Draws::new(seed), focus, steps: Vec::new() };
    let setup = pen.setup();
    pen.prelude();
    let length = 8 + pen.draws.below(44) as usize;
    while pen.steps.len() < length {
        pen.next();
    }
    (setup, pen.steps)
}

impl Pen {
    /// Begins to draw numbers, without a program.
    pub(super) fn new(seed: u64) -> Pen {
        Pen { draws: Draws::new(seed), focus: Focus::Memory, steps: Vec::new() }
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.draws.below(bound)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(super) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn maybe<T: Clone>(&mut self, one_in: u64, of: &[T]) -> Option<T> {
        if self.one_in(one_in) { Some(self.pick(of)) } else { None }
    }

    fn which(&mut self) -> usize {
        self.below(12) as usize
    }

    fn stream(&mut self) -> usize {
        if self.one_in(5) { self.which() } else { self.below(3) as usize }
    }

    fn setup(&mut self) -> Setup {
        let pages = 1 + self.below(24);
        let odd = self.pick(&[0, 0, 0, 1, 77, PAGE - 1]);
        let is_huge = self.one_in(16);
        let capacity = if is_huge { self.pick(&[u64::MAX, 1 << 62, 150_109_880_320]) } else { pages * PAGE + odd };
        let seeded = Timing::Seeded(self.below(1000));
        // Under the other timings, what a query completes would be complete anyway.
        let other = if self.focus == Focus::Streams { seeded } else { Timing::Clock };
        let timings = [Timing::Clock, other, Timing::Eager, Timing::Lazy, seeded];
        let prices = [Prices::Telling, Prices::Telling, Prices::Measured, Prices::Free];
        let prices = if self.one_in(40) { Prices::Exhausting } else { self.pick(&prices) };
        let ready = match self.below(12) {
            0 => Ready::H200,
            1 => Ready::Fake,
            _ => Ready::No,
        };
        let most = self.below(6);
        Setup {
            ready,
            capacity,
            index: self.maybe(3, &[1, 7]),
            total: self.maybe(4, &[0, 5, 1 << 40]),
            base: self.maybe(3, &[1, PAGE - 1, PAGE, 3 * PAGE, u64::MAX]).filter(|&base| base < u64::MAX || is_huge),
            withheld: self.maybe(4, &[0, 1, PAGE - 1, PAGE, 2 * PAGE]),
            malloc: if self.one_in(4) { None } else { Some(self.rule(false)) },
            reserve: if self.one_in(4) { None } else { Some(self.rule(true)) },
            probes_fabric: self.maybe(2, &[true, true, false]),
            prices: if self.one_in(5) { None } else { Some(prices) },
            timing: if self.one_in(6) { None } else { Some(self.pick(&timings)) },
            shares_pages: self.maybe(3, &[true, false]),
            free_waits: self.maybe(2, &[true, false]),
            reports_processes: self.maybe(5, &[true, false]),
            most_handles: self.maybe(4, &[0, 1, 2, 4, 4 + most]),
        }
    }

    /// Draws the rule that places ranges. Reservations are adjacent more often than gigabytes apart.
    pub(super) fn rule(&mut self, is_reservation: bool) -> Rule {
        // Pages are kept in groups of 64.
        let near = 0x4000_0000_0000 + PAGE * if is_reservation { 56 + self.below(9) } else { self.below(40) };
        match self.below(if is_reservation { 9 } else { 8 }) {
            0 => Rule::Up(ASCENDING_START, 0),
            1 => Rule::Up(near, self.below(3) * PAGE),
            2 => Rule::Down(near, self.below(3) * PAGE),
            3 => Rule::Reuse(self.pick(&[ASCENDING_START, near])),
            4 if is_reservation => Rule::Apart,
            4 => Rule::Observed,
            5 => Rule::Listed(self.addresses(near), is_reservation),
            6 => {
                let answer = |pen: &mut Pen| if pen.one_in(10) { None } else { Some(pen.address(near)) };
                Rule::Answers((0..4).map(|_| answer(self)).collect())
            }
            7 => self.pick(&[
                Rule::Up(u64::MAX - 20 * PAGE + 1, 0),
                Rule::Down(5 * PAGE, 0),
                Rule::Down(DESCENDING_END, 0),
                Rule::Up(PAGE, PAGE),
            ]),
            _ => Rule::Up(near, 0),
        }
    }

    fn addresses(&mut self, near: u64) -> Vec<u64> {
        let count = self.below(8);
        (0..count).map(|_| self.address(near)).collect()
    }

    /// Draws an address that a list may hold: most can be used, and many lie side by side.
    fn address(&mut self, near: u64) -> u64 {
        let page = self.below(24) * PAGE;
        match self.below(16) {
            0 => 0,
            1 => near + page + 512,
            2 => near + page + 100,
            3 => u64::MAX - PAGE + 1,
            4 => FALLBACK_START + page,
            5 => RESERVATION_FALLBACK_START + page,
            _ => near + page,
        }
    }

    /// Draws the first steps, which create what the other steps of this kind use.
    fn prelude(&mut self) {
        if self.one_in(3) {
            let level = self.below(3) as u8;
            self.steps.push(Step::Log(level));
        }
        match self.focus {
            Focus::Memory | Focus::Captures => {}
            Focus::Virtual | Focus::Runs => {
                let pages = if self.one_in(6) { 1200 } else { 4 + self.below(12) };
                self.steps.push(Step::Reserve(Size::Bytes(pages * PAGE)));
            }
            Focus::Streams => (0..4).for_each(|_| self.steps.push(Step::CreateEvent)),
            Focus::Races | Focus::Contents => {
                (0..4).for_each(|_| self.steps.push(Step::CreateEvent));
                let small = self.pick(&[4096, 1000, MIB]);
                self.steps.extend([small, small, PAGE].map(|bytes| Step::Malloc(Size::Bytes(bytes))));
                self.steps.push(Step::Reserve(Size::Bytes(6 * PAGE)));
                let pages = 1 + self.below(2);
                self.mapped(pages, 0);
                if self.one_in(3) {
                    self.mapped(1, 5 * PAGE as i64);
                }
                if self.focus == Focus::Races && self.one_in(300) {
                    self.crowd();
                }
                // The same memory a second time.
                if self.one_in(2) {
                    let memory = self.which();
                    self.map_there(memory, 3 * PAGE as i64);
                }
            }
        }
    }

    /// Uses so much memory that the device forgets the uses that are done.
    fn crowd(&mut self) {
        let (at, stream, other) = (self.spot(Base::Malloc), self.stream(), self.stream());
        let crowd = |stream, count, offset| Step::Crowd(stream, count, Spot { offset, which: 2, ..at }, true);
        self.steps.extend([crowd(stream, 300, 0), Step::Record(0, stream), crowd(other, 300, 2400), Step::Wait(0)]);
        self.steps.extend([crowd(stream, 300, 4800), crowd(stream, 200, 7200)]);
        let uses = [Use { at: Spot { which: 2, ..at }, size: Size::Bytes(4096), writes: false }];
        self.steps.push(Step::Kernel(other + 1, 1, uses.to_vec()));
    }

    fn next(&mut self) {
        let own = match self.focus {
            Focus::Memory => Pen::memory,
            Focus::Virtual => Pen::virtual_memory,
            Focus::Runs => Pen::runs,
            Focus::Streams => Pen::streams,
            Focus::Captures => Pen::captures,
            Focus::Races => Pen::races,
            Focus::Contents => Pen::contents,
        };
        let others = [
            Pen::memory,
            Pen::virtual_memory,
            Pen::runs,
            Pen::streams,
            Pen::captures,
            Pen::races,
            Pen::contents,
            Pen::settings,
            Pen::settings,
            Pen::settings,
        ];
        let step = if self.one_in(6) { self.pick(&others) } else { own };
        step(self);
    }

    /// Draws the size of a cudaMalloc.
    fn malloc_size(&mut self) -> Size {
        let small = 1 + self.below(MIB);
        let pages = 1 + self.below(6);
        let around = self.pick(&[-1_i64, 0, 0, 1]);
        match self.below(16) {
            0..4 => Size::Bytes(small),
            4..6 => Size::Bytes(512 * (1 + self.below(2048))),
            6 => Size::Bytes(self.pick(&[MIB, MIB / 2, 512, MIB - 512]).saturating_add_signed(around)),
            7..10 => Size::Bytes((pages * PAGE).saturating_add_signed(around)),
            10..12 => {
                let more = self.pick(&[0, 0, 1, -1, PAGE as i64, -(PAGE as i64)]);
                Size::Room(more)
            }
            12 => Size::Bytes(self.pick(&[0, u64::MAX, u64::MAX - PAGE + 1, u64::MAX - PAGE + 2, 1 << 63])),
            13 => self.measured_size(),
            _ => Size::Bytes(MIB + 1 + self.below(3 * PAGE)),
        }
    }

    /// Draws a size close to one whose price was measured.
    fn measured_size(&mut self) -> Size {
        let mib = self.pick(&[2, 20, 128, 256, 1024, 10_240]);
        let around = self.pick(&[0, 1, -1, PAGE as i64, -(PAGE as i64), 5 * PAGE as i64]);
        Size::Bytes((mib * MIB).saturating_add_signed(around))
    }

    /// Draws a number of bytes close to one whose price was measured, or any number.
    pub(super) fn measured_bytes(&mut self) -> u64 {
        match self.measured_size() {
            Size::Bytes(bytes) if !self.one_in(4) => bytes,
            _ => {
                let bits = self.below(64);
                (u64::MAX - self.below(1 << 62)) >> bits
            }
        }
    }

    /// Draws whole pages that a model may have to place: often as many as an earlier range had, rarely very many.
    pub(super) fn placed_bytes(&mut self) -> u64 {
        match self.below(24) {
            0 => self.pick(&[1 << 30, (1 << 30) + PAGE, (1 << 30) - PAGE, 1 << 44, 1 << 63, u64::MAX - PAGE + 1]),
            1 => PAGE * (1 + self.below(300)),
            _ => self.pick(&[1, 1, 1, 2, 10, 10, 14, 15, 16, 17, 18, 31, 32, 33, 36, 74]) * PAGE,
        }
    }

    /// Draws a size of whole pages, with a few exceptions.
    fn pages_size(&mut self, most: u64) -> Size {
        let pages = 1 + self.below(most);
        match self.below(20) {
            0 => Size::Bytes(self.pick(&[0, 1, MIB, PAGE - 1, PAGE + 1, PAGE + 512, u64::MAX, u64::MAX - PAGE + 1, 1 << 63])),
            1 => Size::Room(0),
            2 => {
                let mib = self.pick(&[20, 128, 256, 1024]);
                Size::Bytes(mib * MIB)
            }
            _ => Size::Bytes(pages * PAGE),
        }
    }

    fn spot(&mut self, base: Base) -> Spot {
        Spot { base, which: self.which(), from_end: false, offset: 0 }
    }

    /// Draws an address in or beside a range, in whole pages unless `is_fine`.
    fn spot_near(&mut self, base: Base, is_fine: bool) -> Spot {
        let from_end = self.one_in(4);
        let page = PAGE as i64;
        let offset = match self.below(8) {
            0..4 => 0,
            4 => self.below(6) as i64 * page,
            5 => -(self.below(3) as i64) * page,
            _ if is_fine => self.pick(&[512, 4, 1, -1, -4, -512, page - 4, 4096, MIB as i64]),
            _ => self.pick(&[page, 2 * page, -page, 512]),
        };
        Spot { from_end, offset, ..self.spot(base) }
    }

    fn memory(&mut self) {
        let step = match self.below(24) {
            0..9 => Step::Malloc(self.malloc_size()),
            9..16 => Step::Free(self.spot(Base::Malloc)),
            16 => Step::Free(self.spot_near(Base::Malloc, true)),
            17 => {
                let base = self.pick(&[Base::Ever, Base::Reservation, Base::Mapping, Base::Space]);
                Step::Free(self.spot(base))
            }
            18 => Step::Info,
            19 => {
                let base = self.pick(&[Base::Malloc, Base::Ever]);
                Step::Ask(self.spot_near(base, true))
            }
            20 => {
                let writes = Use { at: self.spot(Base::Malloc), size: Size::Rest(0), writes: true };
                let (stream, ns) = (self.stream(), self.below(1000) * 1000);
                Step::Kernel(stream, ns, vec![writes])
            }
            21 => Step::Fill(self.spot(Base::Malloc), Size::Bytes(512), 0x0403_0201, self.stream()),
            _ => return self.settings(),
        };
        self.steps.push(step);
    }

    /// What tests set: other processes, limits, faults, the log, addresses, time.
    fn settings(&mut self) {
        let step = match self.below(18) {
            0 => {
                let size = self.pick(&[Size::Room(0), Size::Room(1), Size::Bytes(0), Size::Bytes(PAGE), Size::Bytes(u64::MAX)]);
                Step::SetExternal(size)
            }
            1 | 2 => {
                let size = self.pick(&[Size::Bytes(0), Size::Bytes(1), Size::Bytes(PAGE), Size::Room(0), Size::Bytes(u64::MAX)]);
                Step::SetProcess(self.pick(&[12, 77, 3]), size)
            }
            3 => {
                let pages = self.below(24);
                Step::SetCapacity(Size::Bytes(pages * PAGE + self.pick(&[0, 1, PAGE - 1])))
            }
            4 => Step::FailNext(self.below(4)),
            5..9 => {
                let faults = 1 + self.below(4);
                Step::Plan((0..faults).map(|_| self.fault()).collect())
            }
            9 | 10 => Step::Log(self.below(3) as u8),
            11 => Step::Processes,
            12 => {
                let address = 0x4000_0000_0000 + self.below(24) * PAGE;
                let address = if self.one_in(4) { None } else { Some(address) };
                Step::Addresses(self.one_in(2), address)
            }
            13 => Step::Moment(self.below(9)),
            14 => Step::Clone,
            15 => Step::Advance(self.pick(&[1, 1000, 1_000_000, u64::MAX / 3])),
            16 => Step::Plan(Vec::new()),
            _ => Step::Info,
        };
        self.steps.push(step);
    }

    fn fault(&mut self) -> Fault {
        let kinds: &[CallName] = match self.focus {
            Focus::Memory => &[CallName::Malloc, CallName::Free, CallName::MemGetInfo],
            Focus::Streams | Focus::Captures | Focus::Races | Focus::Contents => &[
                CallName::EventCreate,
                CallName::EventRecord,
                CallName::EventQuery,
                CallName::EventSynchronize,
                CallName::StreamSynchronize,
                CallName::StreamWaitEvent,
            ],
            Focus::Virtual | Focus::Runs => &[
                CallName::AddressReserve,
                CallName::AddressFree,
                CallName::MemCreate,
                CallName::MemMap,
                CallName::MemSetAccess,
                CallName::MemUnmap,
                CallName::MemRelease,
            ],
        };
        let kind = self.pick(kinds) as usize;
        let kind = if self.one_in(3) { None } else { Some(kind) };
        Fault { kind, n: self.below(7), code: self.pick(&[0, 2, 719]) }
    }

    /// Creates memory, maps it in the latest reservation, and grants access.
    fn mapped(&mut self, pages: u64, offset: i64) {
        self.steps.push(Step::Create(Size::Bytes(pages * PAGE)));
        self.map_there(LAST, offset);
    }

    /// Maps memory at an offset in the first reservation, and grants access.
    fn map_there(&mut self, memory: usize, offset: i64) {
        let at = Spot { base: Base::Reservation, which: 0, from_end: false, offset };
        self.steps.push(Step::Map(at, Size::Same(0), memory));
        self.steps.push(Step::SetAccess(at, Size::Same(0)));
    }

    fn virtual_memory(&mut self) {
        let page = PAGE as i64;
        let step = match self.below(32) {
            0 => Step::Reserve(self.pages_size(14)),
            1 => Step::Unreserve(self.spot(Base::Reservation), Size::Rest(0)),
            2 => {
                let more = self.pick(&[0, page, -page]);
                Step::Unreserve(self.spot_near(Base::Reservation, false), Size::Rest(more))
            }
            3..7 => Step::Create(self.pages_size(4)),
            7..13 => {
                let at = if self.one_in(3) { self.spot_near(Base::Mapping, false) } else { self.spot(Base::Reservation) };
                let offset = at.offset + if at.base == Base::Reservation { self.below(14) as i64 * page } else { 0 };
                let size = if self.one_in(8) { self.pick(&[page, -page, 512]) } else { 0 };
                let from_end = at.base == Base::Mapping;
                Step::Map(Spot { offset, from_end, ..at }, Size::Same(size), self.which())
            }
            13..16 => Step::SetAccess(self.spot(Base::Mapping), Size::Rest(0)),
            16 => Step::SetAccess(self.spot(Base::Reservation), Size::Rest(0)),
            17 | 18 => Step::SetAccess(self.spot_near(Base::Mapping, false), self.pages_size(5)),
            19 | 20 => Step::Unmap(self.spot(Base::Mapping), Size::Rest(0)),
            21 => Step::Unmap(self.spot(Base::Reservation), Size::Rest(0)),
            22 | 23 => Step::Unmap(self.spot_near(Base::Mapping, false), self.pages_size(5)),
            24 => {
                let base = self.pick(&[Base::Reservation, Base::Malloc, Base::Ever, Base::Space]);
                Step::Unmap(self.spot_near(base, true), self.pages_size(5))
            }
            25..28 => Step::Release(self.which()),
            28 => Step::ReleaseAgain(self.which()),
            29 => Step::MapAgain(self.spot_near(Base::Reservation, false), self.which()),
            30 => Step::Fill(self.spot_near(Base::Mapping, false), Size::Bytes(4096), self.below(1 << 32) as u32, self.stream()),
            _ => Step::Ask(self.spot_near(Base::Mapping, true)),
        };
        self.steps.push(step);
    }

    fn runs(&mut self) {
        let step = match self.below(20) {
            0..5 => {
                let page = self.pick(&[1, 1, 1, 2, 10]) * PAGE;
                let page = if self.one_in(12) { self.pick(&[0, PAGE + 512, MIB, u64::MAX - PAGE + 1]) } else { page };
                Step::CreateRun(page, self.pick(&[0, 1, 2, 3, 4, 6, 20, u64::MAX]))
            }
            5..8 => {
                let which = if self.one_in(2) { LAST } else { self.which() };
                let offset = self.below(6) as i64 * PAGE as i64;
                self.map_there(which, offset);
                if self.one_in(2) {
                    return;
                }
                // A part of the run, in whole pieces or not.
                let at = Spot { base: Base::Reservation, which: 0, from_end: false, offset };
                let at = Spot { offset: offset + self.below(3) as i64 * PAGE as i64, ..at };
                let size = Size::Bytes(PAGE * (1 + self.below(2)));
                if self.one_in(2) { Step::Unmap(at, size) } else { Step::SetAccess(at, size) }
            }
            8..10 => {
                let is_whole = !self.one_in(6);
                Step::SplitRun(self.which(), self.below(5), is_whole)
            }
            10..13 => {
                let base = self.pick(&[Base::Mapping, Base::Mapping, Base::Mapping, Base::Space, Base::Ever]);
                Step::UnmapRun(self.spot_near(base, false), self.which(), self.pick(&[0, 1, 2, 3, 4, 1 << 60]))
            }
            13..16 => return self.breaking(),
            16 => Step::Release(self.which()),
            17 => {
                let level = self.below(3) as u8;
                self.pick(&[Step::Plan(Vec::new()), Step::Log(level), Step::Log(0)])
            }
            18 => Step::Fill(self.spot(Base::Mapping), Size::Rest(0), self.below(1 << 32) as u32, self.stream()),
            _ => return self.virtual_memory(),
        };
        self.steps.push(step);
    }

    /// Breaks memory, sometimes while a call of it must fail.
    fn breaking(&mut self) {
        if self.one_in(3) {
            let faults = 1 + self.below(4);
            let faults = (0..faults).map(|_| self.fault()).collect();
            self.steps.push(Step::Plan(faults));
        }
        let fails = self.one_in(6);
        if self.one_in(4) {
            let pages = 2 + self.below(4);
            let offset = self.below(6) as i64 * PAGE as i64;
            self.mapped(pages, offset);
        }
        let mut at = self.below(2);
        let mut parts = Vec::new();
        for _ in 0..self.below(4) {
            let pages = if self.one_in(20) { 0 } else { 1 + self.below(2) };
            parts.push((at, pages));
            at += pages + self.below(2);
            if self.one_in(12) {
                at = at.saturating_sub(1);
            }
        }
        let spot = Spot { offset: if self.one_in(10) { PAGE as i64 } else { 0 }, ..self.spot(Base::Mapping) };
        let more = if self.one_in(20) { 512 } else { 0 };
        let which = if self.one_in(2) { LAST } else { self.which() };
        if fails {
            let calls = 1 + self.below(2);
            self.steps.push(Step::FailNext(calls));
        }
        self.steps.push(Step::Break(which, spot, parts, more));
        if fails {
            // Whether the next calls fail shows how many failures the break has used up.
            self.steps.extend([Step::Create(Size::Bytes(PAGE)), Step::Create(Size::Bytes(PAGE))]);
        }
    }

    /// Records two events on a stream, makes a second stream wait for them in any order, and often a third one for the second.
    /// Then completes an event of the last one, in every way in which the host can, and asks for all of them.
    fn chain(&mut self) {
        let first = self.stream();
        let [one, two, three, four] = [0, 1, 2, 3].map(|number| self.which() * 4 + number);
        let ns = self.pick(&[0, 1000, 1_000_000]);
        self.steps.extend([Step::Spin(first, ns), Step::Record(one, first), Step::Record(two, first)]);
        let mut last = self.stream();
        let waits = if self.one_in(2) { [one, two] } else { [two, one] };
        self.steps.extend(waits.map(|event| Step::StreamWait(last, event, false)));
        self.steps.push(Step::Record(three, last));
        let mut ended = three;
        if self.one_in(2) {
            last = self.stream();
            ended = four;
            self.steps.extend([Step::StreamWait(last, three, false), Step::Record(four, last)]);
        }
        if self.one_in(2) {
            self.steps.push(Step::Advance(ns));
        }
        let ends = [
            Step::Query(ended),
            Step::Query(ended),
            Step::Wait(ended),
            Step::CompleteOne(last),
            Step::Complete(last),
            Step::SynchronizeStream(last),
            Step::WaitFor(last),
        ];
        let end = self.pick(&ends);
        // Under a seeded timing, a query may miss what is complete.
        let count = if matches!(end, Step::Query(_)) { 4 } else { 1 };
        self.steps.extend((0..count).map(|_| end.clone()));
        self.steps.extend([Step::Query(one), Step::Query(two), Step::Query(three)]);
    }

    /// Uses a stream's handle after the stream was destroyed.
    fn reuse(&mut self) {
        let (stream, other, event) = (self.stream(), self.stream(), self.which());
        let ns = self.pick(&[0, 1000]);
        self.steps.extend([Step::Spin(stream, 1000), Step::Record(event, stream), Step::DestroyStream(stream)]);
        if self.one_in(2) {
            self.steps.push(Step::Advance(1000));
        }
        self.steps.extend([Step::Spin(stream, ns), Step::Record(event + 1, stream), Step::Advance(ns)]);
        let end = self.pick(&[Step::Complete(stream), Step::Query(event + 1), Step::CompleteAll]);
        self.steps.extend([end, Step::DestroyStream(other), Step::CreateStream, Step::CreateStream]);
        self.steps.extend([Step::Record(event, stream), Step::Query(event), Step::Query(event)]);
    }

    fn streams(&mut self) {
        match self.below(12) {
            0 => return self.chain(),
            1 if self.one_in(2) => return self.reuse(),
            _ => {}
        }
        let ns = self.pick(&[0, 1, 1000, 50_000, 1_000_000, 3_000_000, u64::MAX / 2]);
        let step = match self.below(30) {
            0 => Step::CreateEvent,
            1..7 => Step::Record(self.which(), self.stream()),
            7..10 => Step::Query(self.which()),
            10 | 11 => Step::Wait(self.which()),
            12..15 => Step::StreamWait(self.stream(), self.which(), self.one_in(2)),
            15 => Step::DestroyEvent(self.which()),
            16 => Step::IsIdle(self.stream()),
            17 => Step::SynchronizeStream(self.stream()),
            18 => self.pick(&[Step::Synchronize, Step::CompleteAll]),
            19 => Step::CreateStream,
            20 => Step::DestroyStream(self.stream()),
            21 => Step::WaitFor(self.stream()),
            22..25 => Step::Spin(self.stream(), ns),
            25 | 26 => Step::Advance(self.pick(&[1, 1000, 50_000, 1_000_000])),
            27 => Step::Complete(self.stream()),
            28 => Step::CompleteOne(self.stream()),
            _ => return self.memory(),
        };
        self.steps.push(step);
    }

    fn captures(&mut self) {
        let step = match self.below(16) {
            0..3 => Step::BeginCapture(self.stream()),
            3 => Step::EndCapture(self.stream()),
            4..8 => Step::CaptureWork(self.stream()),
            8..12 => Step::CaptureWait(self.stream(), self.stream()),
            12..15 => Step::Capture(self.stream(), self.below(6)),
            _ => return self.streams(),
        };
        self.steps.push(step);
    }

    /// Draws a few bytes somewhere in memory. Ranges often begin or end where others do.
    fn used(&mut self) -> (Spot, Size) {
        let base = self.pick(&[Base::Malloc, Base::Malloc, Base::Mapping, Base::Mapping, Base::Mapping]);
        let cell = self.below(4) as i64 * 512;
        let at = Spot { offset: cell, which: self.below(5) as usize, ..self.spot(base) };
        let size = match self.below(10) {
            0 => Size::Rest(0),
            1 => Size::Bytes(0),
            2 => Size::Bytes(PAGE),
            3 => Size::Bytes(self.pick(&[4, 508, 516, 1])),
            _ => Size::Bytes(512 * (1 + self.below(3))),
        };
        (at, size)
    }

    fn kernel(&mut self) {
        let count = 1 + self.below(2);
        let draw = |pen: &mut Pen| {
            let (at, size) = pen.used();
            Use { at, size, writes: pen.one_in(2) }
        };
        let uses = (0..count).map(|_| draw(self)).collect();
        let (stream, ns) = (self.stream(), self.pick(&[0, 1000, 1_000_000]));
        self.steps.push(Step::Kernel(stream, ns, uses));
        // Often something waits for it, so that several waits add up.
        let event = self.which();
        if self.one_in(3) {
            self.steps.push(Step::Record(event, stream));
        }
        if self.one_in(3) {
            let waits = Step::StreamWait(self.stream(), event, self.one_in(2));
            self.steps.push(waits);
        }
    }

    fn races(&mut self) {
        let step = match self.below(30) {
            0..10 => return self.kernel(),
            10..13 => Step::Record(self.which(), self.stream()),
            13..16 => Step::StreamWait(self.stream(), self.which(), self.one_in(2)),
            16 | 17 => Step::Query(self.which()),
            18 => Step::Wait(self.which()),
            19 => Step::SynchronizeStream(self.stream()),
            20 => self.pick(&[Step::Synchronize, Step::Advance(1000)]),
            21 | 22 => Step::Read(self.used().0, self.pick(&[1, 4, 512])),
            23 => Step::Free(self.spot(Base::Malloc)),
            24 => Step::Malloc(Size::Bytes(self.pick(&[4096, 1000, PAGE]))),
            25 => Step::Unmap(self.spot(Base::Mapping), Size::Rest(0)),
            26 => {
                let offset = self.below(6) as i64 * PAGE as i64;
                let memory = self.which();
                return self.map_there(memory, offset);
            }
            27 => {
                let (from, size) = self.used();
                Step::Copy(from, self.used().0, size, self.stream())
            }
            28 if self.one_in(2) => return self.scattered(),
            28 => {
                let all = self.spot(Base::Reservation);
                self.pick(&[Step::Release(0), Step::Release(1), Step::Unmap(all, Size::Rest(0))])
            }
            _ => return self.many_races(),
        };
        self.steps.push(step);
    }

    /// Creates memory piece by piece, so that its pages are mostly consecutive, maps it in this or the opposite order with gaps or
    /// without, uses a few bytes of it, and unmaps several pieces at once.
    fn scattered(&mut self) {
        let all = Spot { which: 0, ..self.spot(Base::Reservation) };
        self.steps.push(Step::Unmap(all, Size::Rest(0)));
        let places =
            self.pick(&[[0, 1, 2], [0, 1, 3], [0, 2, 3], [0, 2, 4], [1, 3, 5], [5, 3, 1], [4, 2, 0], [3, 1, 0], [2, 1, 0]]);
        places.into_iter().for_each(|page| self.mapped(1, page * PAGE as i64));
        for _ in 0..2 {
            self.kernel();
        }
        let from = self.below(2) as i64 * PAGE as i64;
        let size = if self.one_in(2) { Size::Rest(0) } else { Size::Bytes(4 * PAGE) };
        self.steps.push(Step::Unmap(Spot { offset: from, ..all }, size));
    }

    /// Reads what was written too early, so often that not all races are kept.
    fn many_races(&mut self) {
        let (at, stream) = (self.spot(Base::Malloc), self.stream());
        let used = |writes| vec![Use { at, size: Size::Bytes(512), writes }];
        if self.one_in(10) {
            self.steps.push(Step::Kernel(stream, 1, used(true)));
            let other = stream + 1;
            (0..40).for_each(|_| self.steps.push(Step::Kernel(other, 1, [used(true), used(false), used(false)].concat())));
            (0..40).for_each(|_| self.steps.push(Step::Kernel(stream, 1, [used(true), used(false), used(false)].concat())));
        }
    }

    fn contents(&mut self) {
        let word = self.below(1 << 32) as u32;
        let step = match self.below(24) {
            0..7 => {
                let (at, size) = self.used();
                Step::Fill(at, size, word, self.stream())
            }
            7..11 => {
                let (from, size) = self.used();
                let (to, _) = self.used();
                let odd = self.pick(&[0, 0, 1, 2, 3, 515]);
                Step::Copy(from, Spot { offset: to.offset + odd, ..to }, size, self.stream())
            }
            11..15 => {
                let (at, _) = self.used();
                let odd = self.pick(&[0, -3, -1, 1, 2, 509]);
                Step::Read(Spot { offset: at.offset + odd, ..at }, self.pick(&[0, 1, 3, 4, 7, 12]))
            }
            15 => return self.kernel(),
            16 => {
                // Across the border of two mappings.
                let at = Spot { from_end: true, offset: -self.pick(&[4_i64, 8, 512]), ..self.spot(Base::Mapping) };
                Step::Fill(at, Size::Bytes(1024), word, self.stream())
            }
            17 => {
                let at = Spot { from_end: true, offset: -self.pick(&[1_i64, 2, 4]), ..self.spot(Base::Mapping) };
                Step::Read(at, 7)
            }
            18 => Step::Free(self.spot(Base::Malloc)),
            19 => Step::Malloc(Size::Bytes(self.pick(&[4096, 1000, PAGE, 3 * PAGE]))),
            20 => return self.breaking(),
            21 => Step::Unmap(self.spot(Base::Mapping), Size::Rest(0)),
            22 => {
                let (pages, offset) = (1 + self.below(2), self.below(6) as i64 * PAGE as i64);
                return self.mapped(pages, offset);
            }
            _ => Step::Release(self.which()),
        };
        self.steps.push(step);
    }
}
