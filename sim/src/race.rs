//! Accesses of kernels, and the race detector: which accesses it keeps, which of these race with a new access, and how
//! it reports them.
//!
//! A [`Kernel`] is plain data: how long it takes and which bytes it accesses; [`AccessError`] states why an access is
//! illegal.
//!
//! The detector keeps accesses by physical byte, so it finds a race no matter through which addresses the bytes are
//! accessed. When memory is returned, it drops the memory's accesses, because a later range there counts as different
//! memory.
//!
//! It keeps only accesses that can still be part of a race. It drops accesses that the host knows to be done, because
//! all later work is ordered after them. A later access replaces an earlier one to the same bytes through the same
//! address if it is ordered after it and writes, or if both read. The detector therefore keeps at most two accesses per
//! byte, stream and address, no matter how long a program runs without a wait.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::memory::{ByteRange, PageRun, bytes_of};
use crate::range_maps::Pieces;

/// Whether an access reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AccessKind {
    /// The access reads.
    Read,
    /// The access writes.
    Write,
}

/// Bytes that work on the device reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// The address of the first byte.
    pub address: DeviceAddress,
    /// The number of bytes. An access of zero bytes is legal at any address and has no effect.
    pub size: Bytes,
    /// Whether the bytes are read or written. Work that does both declares two accesses.
    pub kind: AccessKind,
}

impl Access {
    /// Creates a read.
    #[must_use]
    pub fn read(address: DeviceAddress, size: Bytes) -> Self {
        Access { address, size, kind: AccessKind::Read }
    }

    /// Creates a write.
    #[must_use]
    pub fn write(address: DeviceAddress, size: Bytes) -> Self {
        Access { address, size, kind: AccessKind::Write }
    }
}

/// Work on the device: how long it takes and which bytes it accesses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// The stream on which it is queued.
    pub stream: StreamId,
    /// Its duration, in nanoseconds.
    pub duration_ns: u64,
    /// Its name in race reports.
    pub label: Cow<'static, str>,
    /// The bytes that it accesses while it runs.
    pub accesses: Vec<Access>,
}

/// An access and the physical bytes behind it.
pub(crate) struct PhysicalAccess {
    pub(crate) access: Access,
    pub(crate) ranges: Vec<ByteRange>,
}

/// The reason why work on the device cannot access an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// No memory is mapped there.
    NotMapped,
    /// Memory is mapped there, but cuMemSetAccess has not granted the device access.
    NoAccess,
    /// The address or size is not a multiple of 4 bytes in a call that writes 32-bit words.
    NotWords,
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessError::NotMapped => "no memory is mapped at the address",
            AccessError::NoAccess => "the device has no access to the memory mapped at the address",
            AccessError::NotWords => "the address and the size must be multiples of 4 bytes",
        })
    }
}

impl std::error::Error for AccessError {}

/// The way in which one side of a race used the bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RaceUse {
    /// Read them.
    Read,
    /// Wrote them.
    Written,
    /// Unmapped them from the address (cuMemUnmap).
    Unmapped,
    /// Freed them (cudaFree).
    Freed,
}

impl From<AccessKind> for RaceUse {
    fn from(kind: AccessKind) -> Self {
        match kind {
            AccessKind::Read => RaceUse::Read,
            AccessKind::Write => RaceUse::Written,
        }
    }
}

/// One of the two sides of a race.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RaceAccess {
    /// Its number among all uses that the detector has recorded on the device, counted from 1 in program order.
    pub number: u64,
    /// The kernel's label, or the name of the host's call.
    pub label: Cow<'static, str>,
    /// The stream; `None` for the host.
    pub stream: Option<StreamId>,
    /// The way in which this side used the bytes.
    pub what: RaceUse,
    /// The address of the first byte that it uses.
    pub address: DeviceAddress,
    /// The number of bytes that it uses.
    pub size: Bytes,
    /// Its start, in nanoseconds on the device's clock.
    pub start_ns: u64,
    /// Its end, in nanoseconds on the device's clock.
    pub end_ns: u64,
}

/// Two uses of the same physical bytes, not both reads, of which the second may start before the first ends:
/// - both are on streams, with no order between them (uses are ordered if they are on the same stream, if a stream
///   waited for an event, or if the host waited before the launch);
/// - or the second one is by the host, which reads, unmaps or frees the bytes without knowing that the first use is
///   done.
///
/// A race is a property of the program, not of its timing: the detector reports it even if the two uses did not
/// overlap on the clock. It reports each pair once. If several ordered accesses through the same address all race with
/// a later access, it reports only the last of them (but a read does not hide a write), because work ordered after
/// that one is also ordered after the others.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Race {
    /// The use that is first in program order.
    pub first: Arc<RaceAccess>,
    /// The use that is later in program order.
    pub second: Arc<RaceAccess>,
}

impl fmt::Display for RaceAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            RaceUse::Read => "read",
            RaceUse::Written => "written",
            RaceUse::Unmapped => "unmapped",
            RaceUse::Freed => "freed",
        };
        write!(f, "{what} by `{}` ", self.label)?;
        match self.stream {
            Some(stream) => write!(f, "on stream {stream}")?,
            None => f.write_str("on the host")?,
        }
        write!(f, " (access {}, {} bytes at {}, ", self.number, self.size, self.address)?;
        write!(f, "{} to {} ns)", self.start_ns, self.end_ns)
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}, with no order between them", self.first, self.second)
    }
}

/// The number of the last access that is known to be done, by stream.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Order {
    last: BTreeMap<u64, u64>,
}

impl Order {
    fn knows(&self, stream: u64, number: u64) -> bool {
        self.last.get(&stream).is_some_and(|&last| last >= number)
    }

    fn learn(&mut self, stream: u64, number: u64) {
        let last = self.last.entry(stream).or_default();
        *last = number.max(*last);
    }

    fn join(&mut self, other: &Order) {
        other.last.iter().for_each(|(&stream, &number)| self.learn(stream, number));
    }
}

#[derive(Clone, Default, Debug)]
struct StreamClock {
    /// The number of the last access queued on the stream.
    last: u64,
    /// The accesses for which the stream has waited, beyond those that the host knew to be done at that time.
    knows: Order,
}

/// The accesses that are known to be done: vector clocks of the streams and the host.
///
/// Accesses are numbered 1, 2, 3, ... across the entire device, and streams are first in, first out. One number
/// therefore describes everything that is known about a stream: its accesses up to that number are done. Launched work
/// knows what its stream has waited for and what the host knew at the launch. The host's knowledge never shrinks.
#[derive(Clone, Default, Debug)]
struct Clocks {
    /// The number up to which the host knows that all accesses are done.
    floor: u64,
    /// The accesses beyond that which the host knows to be done.
    host: Order,
    streams: BTreeMap<u64, StreamClock>,
}

impl Clocks {
    /// Returns whether the host knows that an access on a stream is done.
    fn host_knows(&self, stream: u64, number: u64) -> bool {
        number <= self.floor || self.host.knows(stream, number)
    }

    /// Returns whether work that is queued on `stream` now starts after an access on `other`.
    fn stream_knows(&self, stream: u64, other: u64, number: u64) -> bool {
        let waited = || self.streams.get(&stream).is_some_and(|clock| clock.knows.knows(other, number));
        stream == other || self.host_knows(other, number) || waited()
    }

    /// Records that an access was queued on a stream.
    fn launched(&mut self, stream: u64, number: u64) {
        self.streams.entry(stream).or_default().last = number;
    }

    /// Returns the accesses, beyond those that the host knows to be done, that are known to be done once a mark
    /// recorded on the stream now is complete; `None` if there are none.
    fn recorded(&self, stream: u64) -> Option<Arc<Order>> {
        let order = self.news(stream);
        (!order.last.is_empty()).then(|| Arc::new(order))
    }

    /// Records that a stream waits for a mark.
    fn stream_waits(&mut self, stream: u64, order: &Order) {
        let mut knows = self.streams.get(&stream).map_or_else(Order::default, |clock| clock.knows.clone());
        knows.join(order);
        knows.last.retain(|&other, &mut number| !self.host_knows(other, number));
        self.streams.entry(stream).or_default().knows = knows;
    }

    /// Records that the host has seen a mark complete.
    fn host_waits(&mut self, order: &Order) {
        self.host.join(order);
    }

    /// Records that the host has waited for an entire stream.
    fn host_waits_for(&mut self, stream: u64) {
        let news = self.news(stream);
        self.host.join(&news);
        self.streams.remove(&stream);
    }

    /// Records that the host has waited for everything up to `number`, the last access.
    fn host_waits_for_all(&mut self, number: u64) {
        *self = Clocks { floor: number, ..Clocks::default() };
    }

    fn news(&self, stream: u64) -> Order {
        let Some(clock) = self.streams.get(&stream) else { return Order::default() };
        let mut order = clock.knows.clone();
        order.learn(stream, clock.last);
        order.last.retain(|&other, &mut number| !self.host_knows(other, number));
        order
    }
}

/// The maximum number of races to keep. Later ones are only counted.
const MAX_RACES: usize = 100;
/// With fewer pieces than this, it is not worthwhile to sweep out finished accesses.
const MIN_SWEEP_PIECES: usize = 1024;

/// The time during which work runs, in nanoseconds on the device's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
}

/// An access that is kept for some bytes.
#[derive(Clone, Debug)]
struct Kept {
    access: Arc<RaceAccess>,
    stream: u64,
    kind: AccessKind,
    /// The address minus the physical byte, which identifies the mapping that was used.
    shift: u64,
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        (self.access.number, self.shift) == (other.access.number, other.shift)
    }
}

/// The detector of one device. It is created at the first access, because there is nothing to order before that.
#[derive(Clone, Default, Debug)]
pub(crate) struct Detector {
    clocks: Clocks,
    kept: Pieces<Vec<Kept>>,
    /// The number of accesses that have been numbered.
    numbers: u64,
    found: Vec<Race>,
    more: u64,
    /// The number of pieces above which finished accesses are swept out.
    sweep_at: usize,
}

/// Order between streams and the host.
impl Detector {
    /// Returns the accesses that are done when an event that is recorded on a stream now is complete.
    pub(crate) fn recorded(&self, stream: u64) -> Option<Arc<Order>> {
        self.clocks.recorded(stream)
    }

    /// Records that a stream waits for an event.
    pub(crate) fn stream_waits(&mut self, stream: u64, order: &Order) {
        self.clocks.stream_waits(stream, order);
    }

    /// Records that the host has seen an event complete.
    pub(crate) fn host_waits(&mut self, order: &Order) {
        self.clocks.host_waits(order);
    }

    /// Records that the host has waited for a stream.
    pub(crate) fn host_waits_for(&mut self, stream: u64) {
        self.clocks.host_waits_for(stream);
    }

    /// Records that the host has waited for the device.
    pub(crate) fn host_waits_for_all(&mut self) {
        self.clocks.host_waits_for_all(self.numbers);
        self.kept = Pieces::default();
    }
}

/// Accesses.
impl Detector {
    /// Records that work with accesses was queued on a stream.
    pub(crate) fn launched(&mut self, stream: StreamId, label: Cow<'static, str>, span: Span, touched: &[PhysicalAccess]) {
        for PhysicalAccess { access, ranges } in touched.iter().filter(|touched| !touched.ranges.is_empty()) {
            let number = self.next_number();
            let side = Arc::new(RaceAccess {
                number,
                label: label.clone(),
                stream: Some(stream),
                what: access.kind.into(),
                address: access.address,
                size: access.size,
                start_ns: span.start_ns,
                end_ns: span.end_ns,
            });
            let conflicts = |kept: &Kept, clocks: &Clocks| {
                access.kind.max(kept.kind) == AccessKind::Write
                    && !clocks.stream_knows(stream.get(), kept.stream, kept.access.number)
            };
            self.report(&side, ranges, |_, kept, clocks| conflicts(kept, clocks));
            self.keep(&side, stream.get(), access.kind, ranges);
            self.clocks.launched(stream.get(), number);
        }
        self.sweep_if_due();
    }

    /// Records a read by the host. The read is done when it returns, so nothing later can race with
    /// it.
    pub(crate) fn read_by_host(&mut self, read: &PhysicalAccess, now_ns: u64) {
        let side = self.host_side("read", RaceUse::Read, (read.access.address.get(), read.access.size.get()), now_ns);
        self.report(&side, &read.ranges, |_, kept, clocks| {
            kept.kind == AccessKind::Write && !clocks.host_knows(kept.stream, kept.access.number)
        });
    }

    /// Records that the host unmapped a range with these bytes. Only accesses through these
    /// addresses count.
    pub(crate) fn unmapped(&mut self, address: u64, bytes: u64, ranges: &[ByteRange], now_ns: u64) {
        let side = self.host_side("cuMemUnmap", RaceUse::Unmapped, (address, bytes), now_ns);
        self.report_end(&side, ranges);
    }

    /// Records that the host freed a range, after the wait that cudaFree may include.
    pub(crate) fn freed(&mut self, address: u64, bytes: u64, ranges: &[ByteRange], now_ns: u64) {
        let side = self.host_side("cudaFree", RaceUse::Freed, (address, bytes), now_ns);
        self.report_end(&side, ranges);
        for range in ranges {
            self.kept.update(range.start, range.end(), |_| None);
        }
    }

    /// Records that pages were returned.
    pub(crate) fn given_back(&mut self, runs: &[PageRun]) {
        for &run in runs {
            let (start, bytes) = bytes_of(run);
            self.kept.update(start, start.saturating_add(bytes), |_| None);
        }
    }

    /// Returns the first races found.
    pub(crate) fn found(&self) -> &[Race] {
        &self.found
    }

    /// Returns how many more races were found.
    pub(crate) fn more(&self) -> u64 {
        self.more
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn host_side(&mut self, label: &'static str, what: RaceUse, (address, bytes): (u64, u64), now_ns: u64) -> Arc<RaceAccess> {
        Arc::new(RaceAccess {
            number: self.next_number(),
            label: Cow::Borrowed(label),
            stream: None,
            what,
            address: DeviceAddress(address),
            size: Bytes(bytes),
            start_ns: now_ns,
            end_ns: now_ns,
        })
    }

    fn report_end(&mut self, side: &Arc<RaceAccess>, ranges: &[ByteRange]) {
        self.report(side, ranges, |range, kept, clocks| {
            kept.shift == shift(range) && !clocks.host_knows(kept.stream, kept.access.number)
        });
    }

    /// Reports the kept accesses to some bytes that race with a new one, each of them once.
    fn report(&mut self, second: &Arc<RaceAccess>, ranges: &[ByteRange], races: impl Fn(&ByteRange, &Kept, &Clocks) -> bool) {
        let mut firsts = BTreeMap::new();
        for range in ranges {
            let kept = self.kept.overlapping(range.start, range.end()).flat_map(|(_, _, kept)| kept);
            for first in kept.filter(|kept| races(range, kept, &self.clocks)) {
                firsts.entry(first.access.number).or_insert_with(|| Arc::clone(&first.access));
            }
        }
        for first in firsts.into_values() {
            if self.found.len() < MAX_RACES {
                self.found.push(Race { first, second: Arc::clone(second) });
            } else {
                self.more += 1;
            }
        }
    }

    /// Keeps an access, and drops the accesses that it hides and those that are done.
    fn keep(&mut self, access: &Arc<RaceAccess>, stream: u64, kind: AccessKind, ranges: &[ByteRange]) {
        let clocks = &self.clocks;
        for range in ranges {
            let new = Kept { access: Arc::clone(access), stream, kind, shift: shift(range) };
            let is_hidden = |old: &Kept| {
                let number = old.access.number;
                let is_weaker = old.shift == new.shift && old.kind <= kind;
                clocks.host_knows(old.stream, number) || (is_weaker && clocks.stream_knows(stream, old.stream, number))
            };
            self.kept.update(range.start, range.end(), |old| {
                let mut kept = old.unwrap_or_default();
                kept.retain(|old| !is_hidden(old));
                kept.push(new.clone());
                Some(kept)
            });
        }
    }

    /// Drops the accesses that the host knows to be done, each time the number of pieces has doubled.
    fn sweep_if_due(&mut self) {
        if self.kept.count() > self.sweep_at.max(MIN_SWEEP_PIECES) {
            let clocks = &self.clocks;
            self.kept.sweep(|mut kept| {
                kept.retain(|kept| !clocks.host_knows(kept.stream, kept.access.number));
                (!kept.is_empty()).then_some(kept)
            });
            self.sweep_at = 2 * self.kept.count();
        }
    }
}

fn shift(range: &ByteRange) -> u64 {
    range.address.wrapping_sub(range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_passes_from_stream_to_stream_to_host() {
        let mut clocks = Clocks::default();
        clocks.launched(1, 1);
        let first = clocks.recorded(1).unwrap();
        clocks.launched(1, 2);
        clocks.stream_waits(2, &first);
        assert_eq!([1, 2].map(|number| clocks.stream_knows(2, 1, number)), [true, false]);
        let second = clocks.recorded(2).unwrap();
        clocks.stream_waits(3, &second);
        assert!(clocks.stream_knows(3, 1, 1), "through stream 2");
        assert!(!clocks.host_knows(1, 1));
        clocks.host_waits(&second);
        assert_eq!([1, 2].map(|number| clocks.host_knows(1, number)), [true, false]);
        assert!(clocks.stream_knows(9, 1, 1), "a launch knows what the host knows");
        clocks.host_waits_for(1);
        assert!(clocks.host_knows(1, 2));
        assert_eq!(clocks.recorded(1), None);
    }

    #[test]
    fn a_mark_is_not_about_later_work() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.recorded(1), None);
        clocks.launched(1, 1);
        clocks.host_waits_for_all(1);
        assert_eq!(clocks.recorded(1), None, "the host knows");
        clocks.launched(1, 2);
        assert!(!clocks.host_knows(1, 2));
        assert!(clocks.stream_knows(1, 1, 2) && !clocks.stream_knows(2, 1, 2));
    }

    const AT: Span = Span { start_ns: 0, end_ns: 0 };

    fn touched(kind: AccessKind, start: u64, bytes: u64) -> [PhysicalAccess; 1] {
        let access = Access { address: DeviceAddress(1000 + start), size: Bytes(bytes), kind };
        [PhysicalAccess { access, ranges: vec![ByteRange { start, bytes, address: 1000 + start }] }]
    }

    fn launch(detector: &mut Detector, stream: u64, kind: AccessKind, start: u64, bytes: u64) {
        detector.launched(StreamId(stream), Cow::Borrowed("test"), AT, &touched(kind, start, bytes));
    }

    fn pairs(detector: &Detector) -> Vec<(u64, u64)> {
        detector.found().iter().map(|race| (race.first.number, race.second.number)).collect()
    }

    #[test]
    fn only_bytes_that_both_touch_count() {
        let mut detector = Detector::default();
        launch(&mut detector, 1, AccessKind::Write, 100, 100);
        launch(&mut detector, 2, AccessKind::Write, 200, 100);
        launch(&mut detector, 2, AccessKind::Read, 0, 100);
        assert_eq!(pairs(&detector), []);
        launch(&mut detector, 2, AccessKind::Read, 199, 1);
        launch(&mut detector, 1, AccessKind::Read, 99, 2);
        assert_eq!(pairs(&detector), [(1, 4)]);
        launch(&mut detector, 3, AccessKind::Write, 0, 300);
        assert_eq!(pairs(&detector)[1..], [(1, 6), (2, 6), (3, 6), (4, 6), (5, 6)]);
    }

    #[test]
    fn a_write_is_not_hidden_by_a_later_read() {
        let mut detector = Detector::default();
        launch(&mut detector, 1, AccessKind::Write, 0, 100);
        launch(&mut detector, 1, AccessKind::Read, 0, 100);
        launch(&mut detector, 2, AccessKind::Read, 0, 100);
        assert_eq!(pairs(&detector), [(1, 3)]);
        launch(&mut detector, 1, AccessKind::Write, 0, 100);
        launch(&mut detector, 3, AccessKind::Read, 0, 100);
        assert_eq!(pairs(&detector)[1..], [(3, 4), (4, 5)], "the later write represents all earlier ones on its stream");
    }

    #[test]
    fn without_any_wait_a_byte_keeps_two_accesses_a_stream() {
        let mut detector = Detector::default();
        for round in 0..1000 {
            let kind = if round % 3 == 0 { AccessKind::Write } else { AccessKind::Read };
            launch(&mut detector, round % 5, kind, 0, 100);
        }
        let most = detector.kept.overlapping(0, 100).map(|(_, _, kept)| kept.len()).max();
        assert_eq!(detector.kept.count(), 1);
        assert!(most <= Some(10), "{most:?}");
    }

    #[test]
    fn what_the_host_knows_to_be_done_is_dropped() {
        let mut detector = Detector::default();
        for round in 0..50_000 {
            // Each access has different bytes.
            launch(&mut detector, round % 4, AccessKind::Write, round * 200, 100);
            if round % 8 == 7 {
                (0..4).for_each(|stream| detector.host_waits_for(stream));
            }
            assert!(detector.kept.count() <= MIN_SWEEP_PIECES + 1, "round {round}");
        }
        detector.host_waits_for_all();
        assert!(detector.kept.is_empty());
        assert_eq!(pairs(&detector), []);
    }
}
