//! The plain device: its parts, the steps that its calls share, and what tests set and read.

mod driver_calls;
mod work;

use std::collections::BTreeMap;

use parkade::device::{BackendError, ProcessMemory};
use parkade::units::Bytes;
use parkade_sim::{AddressName, Call, CallName, CallSubject, CallTotals, LogLevel, PAGE_BYTES, RaceAccess};

use super::addresses::Placer;
use super::faults::{Fault, Plan};
use super::gaps::{Range, common, gaps, joined};
use super::journal::Journal;
use super::order::{self, Known, Order, Span};
use super::prices::Clock;
use super::setup::{Complete, Setup};
use super::streams::{Captures, Streams};
use super::texts;

/// Which call returned a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Malloc,
    Reservation,
}

/// A range that the device has returned; the log uses it to name addresses.
#[derive(Clone, Debug)]
struct Named {
    start: u64,
    bytes: u64,
    kind: Kind,
    ordinal: u64,
}

/// Pages at consecutive addresses that the address model has placed.
#[derive(Clone, Debug)]
struct Placed {
    address: u64,
    pages: Vec<Range>,
    /// The live cudaMallocs in these pages: at most one, unless small cudaMallocs share the page.
    live: Vec<Range>,
    is_shared: bool,
}

/// A piece of created memory.
#[derive(Clone, Debug)]
struct Piece {
    bytes: u64,
    pages: Vec<Range>,
    is_released: bool,
    /// Whether it was created together with others.
    has_siblings: bool,
}

/// Created memory: the numbers of its pieces, which all have this size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Memory {
    pub(super) first: usize,
    pub(super) pieces: usize,
    pub(super) piece_bytes: u64,
}

impl Memory {
    pub(super) fn bytes(&self) -> u64 {
        self.piece_bytes * self.pieces as u64
    }

    pub(super) fn numbers(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.pieces
    }

    /// Keeps the first pieces and returns the rest, if both are left.
    pub(super) fn split(&mut self, page: u64, pages: u64) -> Result<Memory, BackendError> {
        let kept = usize::try_from(pages).unwrap_or(usize::MAX);
        if page != self.piece_bytes || kept == 0 || kept >= self.pieces {
            return Err(BackendError::Driver { call: "cuMemRelease", code: 1 });
        }
        let rest = Memory { first: self.first + kept, pieces: self.pieces - kept, ..*self };
        self.pieces = kept;
        Ok(rest)
    }
}

/// A piece at an address.
#[derive(Clone, Debug)]
struct Mapping {
    address: u64,
    piece: usize,
    has_access: bool,
}

/// An event: its latest recording, and the uses that are done when that recording is complete.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) ordinal: u64,
    mark: Option<usize>,
    known: Known,
}

/// The plain device. Pages, streams, ranges and uses are in lists that every call searches from beginning to end.
#[derive(Clone, Debug)]
pub(super) struct PlainDevice {
    options: Complete,
    capacity: u64,
    unlisted: u64,
    others: BTreeMap<u32, u64>,
    peak_pages: u64,
    placed: Vec<Placed>,
    reservations: Vec<Range>,
    pieces: Vec<Piece>,
    mappings: Vec<Mapping>,
    names: Vec<Named>,
    pub(super) malloc_rule: Placer,
    pub(super) reserve_rule: Placer,
    is_probe_due: bool,
    pub(super) clock: Clock,
    streams: Streams,
    pub(super) captures: Captures,
    order: Order,
    journal: Journal,
    /// Whether each event exists.
    events: Vec<bool>,
    fail_next: u64,
    pub(super) plan: Plan,
    log_level: LogLevel,
    log: Vec<Call>,
}

/// The outcome of a call inside the device: its error is a driver code.
type Outcome<T> = Result<T, u32>;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_HANDLE: u32 = 400;
const NOT_READY: u32 = 600;
const NOT_PERMITTED: u32 = 800;
const NOT_SUPPORTED: u32 = 801;
const UNKNOWN: u32 = 999;

fn driver<T>(call: CallName, outcome: Outcome<T>) -> Result<T, BackendError> {
    outcome.map_err(|code| BackendError::Driver { call: texts::name(call), code })
}

fn code<T>(outcome: &Outcome<T>) -> u32 {
    outcome.as_ref().err().copied().unwrap_or(0)
}

/// Returns the number of pages in ranges of pages.
fn count(pages: &[Range]) -> u64 {
    pages.iter().map(|(from, to)| to - from).sum()
}

impl PlainDevice {
    pub(super) fn new(setup: &Setup) -> PlainDevice {
        let options = setup.complete();
        PlainDevice {
            capacity: options.capacity,
            unlisted: 0,
            others: BTreeMap::new(),
            peak_pages: 0,
            placed: Vec::new(),
            reservations: Vec::new(),
            pieces: Vec::new(),
            mappings: Vec::new(),
            names: Vec::new(),
            malloc_rule: Placer::new(&options.malloc),
            reserve_rule: Placer::new(&options.reserve),
            is_probe_due: options.probes_fabric,
            clock: Clock::default(),
            streams: Streams::new(options.timing.of_device()),
            captures: Captures::default(),
            order: Order::default(),
            journal: Journal::default(),
            events: Vec::new(),
            fail_next: 0,
            plan: Plan::default(),
            log_level: LogLevel::Off,
            log: Vec::new(),
            options,
        }
    }

    /// Pays for a call.
    fn pay(&mut self, call: CallName, bytes: u64) {
        self.clock.pay(call, self.options.prices.of(call, bytes));
    }

    /// Counts the failure of a call, and logs it.
    fn note(&mut self, call: CallName, result: u32, subject: CallSubject) {
        if result != 0 && result != NOT_READY {
            self.clock.fail(call);
        }
        if self.shows(call) {
            self.log.push(Call { name: call, result, subject, at_ns: self.clock.now_ns });
        }
    }

    /// Whether a call is logged.
    fn shows(&self, call: CallName) -> bool {
        let is_about_events = matches!(
            call,
            CallName::EventCreate
                | CallName::EventRecord
                | CallName::EventQuery
                | CallName::EventSynchronize
                | CallName::EventDestroy
                | CallName::DeviceSynchronize
                | CallName::StreamSynchronize
                | CallName::StreamWaitEvent
        );
        match self.log_level {
            LogLevel::Off => false,
            LogLevel::Memory => !is_about_events,
            LogLevel::Events => true,
        }
    }

    /// Whether a piece of created memory still exists.
    fn exists(&self, piece: usize) -> bool {
        !self.pieces[piece].is_released || self.mappings.iter().any(|mapping| mapping.piece == piece)
    }

    fn existing(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().enumerate().filter(|(index, _)| self.exists(*index)).map(|(_, piece)| piece)
    }

    /// Returns all pages that are taken.
    fn taken(&self) -> Vec<Range> {
        let placed = self.placed.iter().flat_map(|placed| placed.pages.iter().copied());
        placed.chain(self.existing().flat_map(|piece| piece.pages.iter().copied())).collect()
    }

    /// Returns the bytes that can be taken after this many are given back.
    fn room_after(&self, returned: u64) -> u64 {
        let others = self.others.values().fold(self.unlisted, |sum, bytes| sum.saturating_add(*bytes));
        let held = self.options.base.saturating_add(others).saturating_add(self.used_bytes() - returned);
        self.capacity.saturating_sub(held)
    }

    fn has_room(&self, returned: u64, pages: u64) -> bool {
        let room = self.room_after(returned).saturating_sub(self.options.withheld);
        pages.checked_mul(PAGE_BYTES).is_some_and(|bytes| bytes <= room)
    }

    /// Takes the free pages with the lowest numbers.
    fn take(&mut self, pages: u64) -> Option<Vec<Range>> {
        if !self.has_room(0, pages) {
            return None;
        }
        let (mut found, mut missing) = (Vec::new(), pages);
        for (from, to) in gaps((0, u64::MAX), self.taken()) {
            let here = missing.min(to - from);
            if here > 0 {
                found.push((from, from + here));
            }
            missing -= here;
        }
        self.peak_pages = self.peak_pages.max(count(&self.taken()) + pages);
        Some(found)
    }

    /// Records that pages were returned.
    fn lose(&mut self, pages: &[Range]) {
        let bytes = pages.iter().map(|(from, to)| (from * PAGE_BYTES, to * PAGE_BYTES));
        let bytes: Vec<Range> = bytes.collect();
        bytes.iter().for_each(|&range| self.order.lost(range));
        self.journal.lose(bytes);
    }

    /// Names a range and returns its number.
    fn name_range(&mut self, kind: Kind, start: u64, bytes: u64) -> u64 {
        let ordinal = self.names_made(kind);
        self.names.push(Named { start, bytes, kind, ordinal });
        ordinal
    }

    fn names_made(&self, kind: Kind) -> u64 {
        self.names.iter().filter(|named| named.kind == kind).count() as u64
    }

    /// Returns the log's name for an address. A later range takes away the names of those whose start it covers; of the others,
    /// the one that starts closest below the address counts.
    fn name(&self, address: u64) -> AddressName {
        let covers = |named: &Named, at: u64| at >= named.start && at - named.start < named.bytes;
        let is_named = |index: usize| !self.names[index + 1..].iter().any(|later| covers(later, self.names[index].start));
        let named = (0..self.names.len()).filter(|&index| is_named(index)).map(|index| &self.names[index]);
        match named.filter(|named| named.start <= address).max_by_key(|named| named.start) {
            Some(named) if covers(named, address) => {
                let (ordinal, offset_bytes) = (named.ordinal, address - named.start);
                match named.kind {
                    Kind::Malloc => AddressName::InRange { ordinal, offset_bytes },
                    Kind::Reservation => AddressName::InReservation { ordinal, offset_bytes },
                }
            }
            _ => AddressName::Unknown(address),
        }
    }

    /// Waits until all streams are idle.
    fn wait_for_device(&mut self, call: CallName) {
        self.clock.wait(call, self.streams.all_idle_ns());
        self.streams.complete_all(self.clock.now_ns);
        self.order.host_waits_for_all();
    }
}

/// What tests set.
impl PlainDevice {
    pub(super) fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
    }

    pub(super) fn set_external(&mut self, bytes: u64) {
        self.unlisted = bytes;
    }

    pub(super) fn set_process(&mut self, pid: u32, bytes: u64) {
        self.others.insert(pid, bytes);
    }

    pub(super) fn set_fail_next(&mut self, calls: u64) {
        self.fail_next = calls;
    }

    pub(super) fn set_plan(&mut self, faults: &[Fault]) {
        self.plan = Plan::new(faults);
    }

    pub(super) fn set_log_level(&mut self, level: LogLevel) {
        self.log_level = level;
    }

    pub(super) fn take_log(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.log)
    }
}

/// What tests read.
impl PlainDevice {
    pub(super) fn index(&self) -> u32 {
        self.options.index
    }

    /// Returns the constant total.
    pub(super) fn total_memory(&self) -> u64 {
        self.options.total.unwrap_or(self.options.capacity)
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn withheld(&self) -> u64 {
        self.options.withheld
    }

    pub(super) fn used_bytes(&self) -> u64 {
        count(&self.taken()) * PAGE_BYTES
    }

    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_pages * PAGE_BYTES
    }

    /// Returns the bytes that can be taken.
    pub(super) fn room(&self) -> u64 {
        self.room_after(0).saturating_sub(self.options.withheld)
    }

    pub(super) fn processes(&self) -> Vec<ProcessMemory> {
        let mut list = Vec::new();
        if self.options.reports_processes {
            list.push(ProcessMemory { pid: None, used: Bytes(self.options.base.saturating_add(self.used_bytes())) });
            let others = self.others.iter().filter(|(_, bytes)| **bytes > 0);
            list.extend(others.map(|(&pid, &bytes)| ProcessMemory { pid: Some(pid), used: Bytes(bytes) }));
        }
        list
    }

    /// Returns the live cudaMallocs, lowest address first: start and bytes.
    pub(super) fn live_ranges(&self) -> Vec<Range> {
        let live = self.placed.iter().flat_map(|placed| &placed.live).map(|&(from, to)| (from, to - from));
        let mut live: Vec<Range> = live.collect();
        live.sort_unstable();
        live
    }

    pub(super) fn reservations(&self) -> &[Range] {
        &self.reservations
    }

    pub(super) fn live_pieces(&self) -> usize {
        self.existing().count()
    }

    /// Returns the ranges that have had names: start and end.
    pub(super) fn named(&self) -> Vec<Range> {
        self.names.iter().map(|named| (named.start, named.start + named.bytes)).collect()
    }

    /// Returns the mapped addresses.
    pub(super) fn mapped(&self) -> Vec<Range> {
        let range = |mapping: &Mapping| (mapping.address, mapping.address + self.pieces[mapping.piece].bytes);
        self.mappings.iter().map(range).collect()
    }

    /// Returns the address of the first mapping of a piece.
    pub(super) fn mapping_of(&self, piece: usize) -> Option<u64> {
        self.mappings.iter().find(|mapping| mapping.piece == piece).map(|mapping| mapping.address)
    }

    pub(super) fn live_events(&self) -> usize {
        self.events.iter().filter(|exists| **exists).count()
    }

    pub(super) fn totals(&self, call: CallName) -> CallTotals {
        self.clock.totals(call)
    }

    pub(super) fn races(&self) -> &[(RaceAccess, RaceAccess)] {
        &self.order.races
    }

    pub(super) fn name_text(&self, address: u64) -> String {
        match self.name(address) {
            AddressName::InRange { ordinal, offset_bytes } => format!("c{ordinal}+{offset_bytes}"),
            AddressName::InReservation { ordinal, offset_bytes } => format!("v{ordinal}+{offset_bytes}"),
            AddressName::Unknown(address) => format!("0x{address:x}"),
        }
    }

    /// Returns the first addresses of everything that was written and can be read now, as addresses.
    pub(super) fn written_borders(&self) -> Vec<u64> {
        let borders = self.journal.borders();
        let units = self.units();
        let mut found: Vec<u64> = units
            .iter()
            .filter(|unit| unit.has_access)
            .flat_map(|unit| unit.spans())
            .flat_map(|span| {
                let inside = borders.iter().filter(move |&&border| (span.physical.0..=span.physical.1).contains(&border));
                inside.map(move |border| span.address + (border - span.physical.0))
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// A placed range or a mapping: pages at consecutive addresses.
struct Unit {
    address: u64,
    pages: Vec<Range>,
    has_access: bool,
}

impl Unit {
    fn end(&self) -> u64 {
        self.address + count(&self.pages) * PAGE_BYTES
    }

    fn spans(&self) -> Vec<Span> {
        spans_of(self.address, &self.pages)
    }
}

/// Returns the bytes of pages that begin at an address.
fn spans_of(mut address: u64, pages: &[Range]) -> Vec<Span> {
    let span = |&(from, to): &Range| {
        let span = Span { physical: (from * PAGE_BYTES, to * PAGE_BYTES), address };
        address += (to - from) * PAGE_BYTES;
        span
    };
    pages.iter().map(span).collect()
}

impl PlainDevice {
    /// Returns all placed ranges and mappings.
    fn units(&self) -> Vec<Unit> {
        let placed = self.placed.iter().map(|one| Unit { address: one.address, pages: one.pages.clone(), has_access: true });
        let mapped = self.mappings.iter().map(|one| Unit {
            address: one.address,
            pages: self.pieces[one.piece].pages.clone(),
            has_access: one.has_access,
        });
        placed.chain(mapped).collect()
    }
}
