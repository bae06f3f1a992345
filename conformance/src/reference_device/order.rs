//! Races, from the order of all uses: for each stream, event and the host, the set of earlier uses that are known to be done.
//!
//! Every pair of uses is compared, byte by byte.

use std::collections::{BTreeMap, BTreeSet};

use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::{AccessKind, RaceAccess, RaceUse};

use super::gaps::{Range, common, gaps};

/// The numbers of uses that are known to be done.
pub(super) type Known = BTreeSet<u64>;

/// Bytes at consecutive addresses: the physical bytes, and the first address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) physical: Range,
    pub(super) address: u64,
}

impl Span {
    /// Identifies the mapping through which these bytes are used.
    fn way(&self) -> u64 {
        self.address.wrapping_sub(self.physical.0)
    }
}

/// A use by a stream whose memory may still be there.
#[derive(Clone, Debug)]
struct Use {
    side: RaceAccess,
    stream: u64,
    kind: AccessKind,
    spans: Vec<Span>,
    /// The uses that it knew to be done, beyond the earlier ones of its own stream.
    known: Known,
}

/// All uses of a device.
#[derive(Clone, Default, Debug)]
pub(super) struct Order {
    uses: Vec<Use>,
    /// The number of uses by streams and the host.
    numbers: u64,
    /// Whether a stream has used memory; before that, nothing is numbered.
    has_begun: bool,
    host: Known,
    streams: BTreeMap<u64, Known>,
    pub(super) races: Vec<(RaceAccess, RaceAccess)>,
}

impl Order {
    /// Returns the uses that are done when a mark that is recorded on a stream now is complete.
    pub(super) fn at_mark(&self, stream: u64) -> Known {
        self.streams.get(&stream).map_or_else(Known::new, |known| known | &self.host)
    }

    pub(super) fn stream_waits(&mut self, stream: u64, known: &Known) {
        self.streams.entry(stream).or_default().extend(known);
    }

    pub(super) fn host_waits(&mut self, known: &Known) {
        self.host.extend(known);
    }

    pub(super) fn host_waits_for(&mut self, stream: u64) {
        let known = self.at_mark(stream);
        self.host.extend(known);
    }

    pub(super) fn host_waits_for_all(&mut self) {
        self.host.extend(1..=self.numbers);
    }

    /// Records a use by a stream's next work.
    pub(super) fn launched(&mut self, mut side: RaceAccess, kind: AccessKind, spans: Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        self.has_begun = true;
        let StreamId(stream) = side.stream.unwrap_or(StreamId(0));
        side.number = self.next();
        let known = self.streams.get(&stream).map_or_else(|| self.host.clone(), |known| known | &self.host);
        let races = |first: &Use| {
            let is_behind = first.stream == stream || known.contains(&first.side.number);
            !is_behind && (first.kind == AccessKind::Write || kind == AccessKind::Write)
        };
        self.report(&side, &spans, |first, _, _| races(first));
        self.streams.entry(stream).or_default().extend(known.iter().copied().chain([side.number]));
        self.uses.push(Use { side, stream, kind, spans, known });
    }

    /// Records that the host reads bytes.
    pub(super) fn read(&mut self, side: RaceAccess, spans: &[Span]) {
        if self.has_begun {
            let side = RaceAccess { number: self.next(), ..side };
            self.report(&side, spans, |first, _, is_known| first.kind == AccessKind::Write && !is_known);
        }
    }

    /// Records that the host unmaps or frees these bytes.
    pub(super) fn ended(&mut self, side: RaceAccess, spans: &[Span]) {
        if self.has_begun {
            let side = RaceAccess { number: self.next(), ..side };
            self.report(&side, spans, |_, is_same_way, is_known| is_same_way && !is_known);
        }
    }

    /// Records that these physical bytes belong to different memory from now on.
    pub(super) fn lost(&mut self, lost: Range) {
        for one in &mut self.uses {
            let rest = one.spans.iter().flat_map(|span| {
                let left = gaps(span.physical, [lost]);
                left.into_iter().map(|left| Span { physical: left, address: span.address + (left.0 - span.physical.0) })
            });
            one.spans = rest.collect();
        }
    }

    fn next(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Reports the uses that race with a new one. `races` receives an earlier use, whether the two share bytes through the
    /// same way, and whether the host knows that it is done.
    fn report(&mut self, second: &RaceAccess, spans: &[Span], races: impl Fn(&Use, bool, bool) -> bool) {
        let mut found = Vec::new();
        for first in &self.uses {
            let is_known = self.host.contains(&first.side.number);
            let pairs = first.spans.iter().flat_map(|one| spans.iter().map(move |other| (one, other)));
            let is_racing = pairs.into_iter().any(|(one, other)| {
                let shared = common(one.physical, other.physical);
                shared.is_some_and(|shared| {
                    races(first, one.way() == other.way(), is_known) && !self.is_hidden(first, one.way(), shared)
                })
            });
            if is_racing {
                found.push((first.side.clone(), second.clone()));
            }
        }
        self.races.extend(found);
    }

    /// Whether later uses stand for an earlier one in all of these bytes: they are ordered after it, go the same way, and do not
    /// read what it wrote.
    fn is_hidden(&self, first: &Use, way: u64, bytes: Range) -> bool {
        let stands_for = |later: &&Use| {
            let is_behind = later.stream == first.stream || later.known.contains(&first.side.number);
            later.side.number > first.side.number && is_behind && later.kind >= first.kind
        };
        let spans = self.uses.iter().filter(stands_for).flat_map(|later| &later.spans);
        gaps(bytes, spans.filter(|span| span.way() == way).map(|span| span.physical)).is_empty()
    }
}

/// Returns a side of a race by the host.
pub(super) fn host_side(label: &'static str, what: RaceUse, (address, bytes): (u64, u64), now_ns: u64) -> RaceAccess {
    RaceAccess {
        number: 0,
        label: label.into(),
        stream: None,
        what,
        address: DeviceAddress(address),
        size: Bytes(bytes),
        start_ns: now_ns,
        end_ns: now_ns,
    }
}

/// Returns the text of a race.
pub(super) fn text((first, second): &(RaceAccess, RaceAccess)) -> String {
    let side = |side: &RaceAccess| {
        let verb = match side.what {
            RaceUse::Read => "read",
            RaceUse::Written => "written",
            RaceUse::Unmapped => "unmapped",
            RaceUse::Freed => "freed",
        };
        let place = side.stream.map_or("the host".to_owned(), |stream| format!("stream {stream}"));
        let RaceAccess { label, number, size, address, start_ns, end_ns, .. } = side;
        format!("{verb} by `{label}` on {place} (access {number}, {size} bytes at {address}, {start_ns} to {end_ns} ns)")
    };
    format!("{} and {}, with no order between them", side(first), side(second))
}
