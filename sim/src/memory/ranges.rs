//! Every range that cudaMalloc and cuMemAddressReserve returned: which are live, and the names of their
//! addresses in the log.
//!
//! A range is named by the number of its successful cudaMalloc (`c0`, `c1`, ...), a reservation by that of
//! its successful cuMemAddressReserve (`v0`, `v1`, ...). A freed range keeps its name until a later range
//! covers its start, as in the fake driver that logs are compared with.

use std::collections::BTreeMap;

use crate::calls::AddressName;

/// One range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// Its bytes of address space.
    pub(crate) bytes: u64,
    /// Its number among the successful calls of its kind.
    pub(crate) ordinal: u64,
    /// The address of the page that it shares; `None` if its pages are its own.
    pub(crate) shared_page: Option<u64>,
    kind: RangeKind,
    live: bool,
}

/// Which call returned a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RangeKind {
    Malloc,
    Reservation,
}

/// Ranges by start address.
#[derive(Clone, Default, Debug)]
pub(crate) struct Ranges {
    by_start: BTreeMap<u64, Range>,
    next_malloc: u64,
    next_reservation: u64,
}

impl Ranges {
    /// Adds a range of cudaMalloc and drops the names that it covers. Returns its number.
    pub(crate) fn insert(&mut self, start: u64, bytes: u64, shared_page: Option<u64>) -> u64 {
        let ordinal = self.next_malloc;
        self.next_malloc += 1;
        self.add(start, Range { bytes, ordinal, shared_page, kind: RangeKind::Malloc, live: true });
        ordinal
    }

    /// Adds a range of cuMemAddressReserve and drops the names that it covers. Returns its number.
    pub(crate) fn insert_reservation(&mut self, start: u64, bytes: u64) -> u64 {
        let ordinal = self.next_reservation;
        self.next_reservation += 1;
        self.add(start, Range { bytes, ordinal, shared_page: None, kind: RangeKind::Reservation, live: true });
        ordinal
    }

    fn add(&mut self, start: u64, range: Range) {
        while let Some((&stale, _)) = self.by_start.range(start..).next()
            && stale - start < range.bytes
        {
            self.by_start.remove(&stale);
        }
        self.by_start.insert(start, range);
    }

    /// The live cudaMalloc that starts at `start`.
    pub(crate) fn live(&self, start: u64) -> Option<Range> {
        self.by_start.get(&start).copied().filter(|range| range.live && range.kind == RangeKind::Malloc)
    }

    /// Marks a range as freed; its name stays.
    pub(crate) fn end(&mut self, start: u64) {
        if let Some(range) = self.by_start.get_mut(&start) {
            range.live = false;
        }
    }

    /// The log's name for an address.
    pub(crate) fn name(&self, address: u64) -> AddressName {
        match self.by_start.range(..=address).next_back() {
            Some((&start, range)) if address - start < range.bytes => {
                let (ordinal, offset_bytes) = (range.ordinal, address - start);
                match range.kind {
                    RangeKind::Malloc => AddressName::InRange { ordinal, offset_bytes },
                    RangeKind::Reservation => AddressName::InReservation { ordinal, offset_bytes },
                }
            }
            _ => AddressName::Unknown(address),
        }
    }

    /// The live cudaMallocs, lowest first: start and bytes.
    pub(crate) fn iter_live(&self) -> impl Iterator<Item = (u64, u64)> {
        let live = |range: &Range| range.live && range.kind == RangeKind::Malloc;
        self.by_start.iter().filter(move |(_, range)| live(range)).map(|(&start, range)| (start, range.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_outlives_its_range_until_it_is_covered() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.insert(1000, 100, None), 0);
        assert_eq!(ranges.insert(1100, 100, None), 1);
        assert_eq!(ranges.name(1100).to_string(), "c1+0");
        assert_eq!(ranges.name(1199).to_string(), "c1+99");
        assert_eq!(ranges.name(1200).to_string(), "0x4b0");
        ranges.end(1100);
        assert!(ranges.live(1100).is_none());
        assert_eq!(ranges.name(1150).to_string(), "c1+50");
        assert_eq!(ranges.insert(1090, 60, None), 2);
        assert_eq!(ranges.name(1100).to_string(), "c2+10");
        assert_eq!(ranges.name(1089).to_string(), "c0+89", "the older range is shadowed only where it is covered");
        assert_eq!(ranges.name(1150).to_string(), "0x47e", "and what the new one covered the start of is gone");
        assert_eq!(ranges.insert_reservation(5000, 10), 0);
        assert_eq!(ranges.name(5003).to_string(), "v0+3");
        assert!(ranges.live(5000).is_none(), "not a cudaMalloc");
        assert_eq!(ranges.iter_live().collect::<Vec<_>>(), [(1000, 100), (1090, 60)]);
    }
}
