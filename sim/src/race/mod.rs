//! The race detector: which accesses it keeps, and which of them a new access races with.
//!
//! Accesses are kept by physical byte, so a race is found whichever addresses the bytes are touched through.
//! When memory is returned its accesses are dropped: what is placed there later is different memory.
//!
//! Only accesses that can still be in a race are kept. Those that the host knows to be done are dropped,
//! because everything launched later comes after them. A later access hides an earlier one of the same bytes
//! through the same address if it is ordered after it and writes, or both read. So at most two accesses are
//! kept per byte, stream and address, however long a program runs without a wait.

mod order;
mod report;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use order::Clocks;

use crate::kernel::{AccessKind, PhysicalAccess};
use crate::memory::{ByteRange, PageRun, bytes_of};
use crate::range_maps::Pieces;

pub(crate) use order::Order;
pub use report::{Race, RaceAccess, RaceUse};

/// How many races are kept. Later ones are only counted.
const MAX_RACES: usize = 100;
/// With fewer pieces than this, sweeping out finished accesses is not worth the time.
const MIN_SWEEP_PIECES: usize = 1024;

/// When work runs, in nanoseconds on the device's clock.
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
    /// Address minus physical byte: identifies the mapping that it went through.
    shift: u64,
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        (self.access.number, self.shift) == (other.access.number, other.shift)
    }
}

/// The detector of one device. It is created with the first access; before that there is nothing to order.
#[derive(Clone, Default, Debug)]
pub(crate) struct Detector {
    clocks: Clocks,
    kept: Pieces<Vec<Kept>>,
    /// How many accesses were numbered.
    numbers: u64,
    found: Vec<Race>,
    more: u64,
    /// When there are more pieces than this, finished accesses are swept out.
    sweep_at: usize,
}

/// Order between streams and the host.
impl Detector {
    /// What is done once an event that is recorded on a stream now is complete.
    pub(crate) fn recorded(&self, stream: u64) -> Option<Arc<Order>> {
        self.clocks.recorded(stream)
    }

    /// A stream waits for an event.
    pub(crate) fn stream_waits(&mut self, stream: u64, order: &Order) {
        self.clocks.stream_waits(stream, order);
    }

    /// The host has seen an event complete.
    pub(crate) fn host_waits(&mut self, order: &Order) {
        self.clocks.host_waits(order);
    }

    /// The host has waited for a stream.
    pub(crate) fn host_waits_for(&mut self, stream: u64) {
        self.clocks.host_waits_for(stream);
    }

    /// The host has waited for the device.
    pub(crate) fn host_waits_for_all(&mut self) {
        self.clocks.host_waits_for_all(self.numbers);
        self.kept = Pieces::default();
    }
}

/// Accesses.
impl Detector {
    /// Work with accesses was queued on a stream.
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

    /// The host reads. The read is done when it returns, so nothing later can race with it.
    pub(crate) fn read_by_host(&mut self, read: &PhysicalAccess, now_ns: u64) {
        let side = self.host_side("read", RaceUse::Read, (read.access.address.get(), read.access.size.get()), now_ns);
        self.report(&side, &read.ranges, |_, kept, clocks| {
            kept.kind == AccessKind::Write && !clocks.host_knows(kept.stream, kept.access.number)
        });
    }

    /// The host unmapped a range that had these bytes. Only accesses through these addresses count.
    pub(crate) fn unmapped(&mut self, address: u64, bytes: u64, ranges: &[ByteRange], now_ns: u64) {
        let side = self.host_side("cuMemUnmap", RaceUse::Unmapped, (address, bytes), now_ns);
        self.report_end(&side, ranges);
    }

    /// The host freed a range, after the wait that cudaFree may include.
    pub(crate) fn freed(&mut self, address: u64, bytes: u64, ranges: &[ByteRange], now_ns: u64) {
        let side = self.host_side("cudaFree", RaceUse::Freed, (address, bytes), now_ns);
        self.report_end(&side, ranges);
        for range in ranges {
            self.kept.update(range.start, range.end(), |_| None);
        }
    }

    /// Pages were returned.
    pub(crate) fn given_back(&mut self, runs: &[PageRun]) {
        for &run in runs {
            let (start, bytes) = bytes_of(run);
            self.kept.update(start, start.saturating_add(bytes), |_| None);
        }
    }

    /// The first races found.
    pub(crate) fn found(&self) -> &[Race] {
        &self.found
    }

    /// How many more races were found.
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

    /// Reports the kept accesses of some bytes that race with a new one, each once.
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

    /// Keeps an access, and drops those that it hides and those that are done.
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

    /// Drops what the host knows to be done, each time the number of pieces has doubled.
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
