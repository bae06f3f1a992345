//! The ranges that cudaMalloc and cuMemAddressReserve have returned: which of them are live, what their addresses are
//! called in the log, and how small cudaMallocs share a page.

use std::collections::{BTreeMap, BTreeSet};

use crate::calls::AddressName;
use crate::memory::PAGE_BYTES;
use crate::range_maps::Holes;

/// One range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// The length of its addresses in bytes.
    pub(crate) bytes: u64,
    /// Its number among the successful calls of its kind.
    pub(crate) ordinal: u64,
    /// The address of the page that it shares; `None` if it does not share its pages.
    pub(crate) shared_page: Option<u64>,
    kind: RangeKind,
    live: bool,
}

/// The call that returned a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RangeKind {
    Malloc,
    Reservation,
}

/// Every range that has been returned, by start address.
///
/// A range is named by the number of its successful cudaMalloc (`c0`, `c1`, ...), a reservation by the number of its
/// successful cuMemAddressReserve (`v0`, `v1`, ...). A freed range keeps its name until a later range covers its start,
/// as in the fake driver with which logs are compared.
#[derive(Clone, Default, Debug)]
pub(crate) struct Ranges {
    by_start: BTreeMap<u64, Range>,
    next_malloc: u64,
    next_reservation: u64,
}

impl Ranges {
    /// Adds a range from cudaMalloc and drops the names that it covers. Returns its number.
    pub(crate) fn insert(&mut self, start: u64, bytes: u64, shared_page: Option<u64>) -> u64 {
        let ordinal = self.next_malloc;
        self.next_malloc += 1;
        self.add(start, Range { bytes, ordinal, shared_page, kind: RangeKind::Malloc, live: true });
        ordinal
    }

    /// Adds a range from cuMemAddressReserve and drops the names that it covers. Returns its
    /// number.
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

    /// Returns the live cudaMalloc that starts at `start`.
    pub(crate) fn live(&self, start: u64) -> Option<Range> {
        self.by_start.get(&start).copied().filter(|range| range.live && range.kind == RangeKind::Malloc)
    }

    /// Marks a range as freed; its name is kept.
    pub(crate) fn end(&mut self, start: u64) {
        if let Some(range) = self.by_start.get_mut(&start) {
            range.live = false;
        }
    }

    /// Returns the log's name for an address.
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

    /// Returns the start and bytes of the live cudaMallocs, lowest first.
    pub(crate) fn iter_live(&self) -> impl Iterator<Item = (u64, u64)> {
        let live = |range: &Range| range.live && range.kind == RangeKind::Malloc;
        self.by_start.iter().filter(move |(_, range)| live(range)).map(|(&start, range)| (start, range.bytes))
    }
}

/// The largest cudaMalloc that shares a page with others, in bytes (facts: Sizes and addresses).
pub(crate) const SMALL_BYTES: u64 = 1 << 20;
/// Ranges that share a page begin at multiples of this size, in bytes (facts: Sizes and addresses).
pub(crate) const SPACING_BYTES: u64 = 512;

/// The pages that small cudaMallocs share, by address: a 2 MiB page holds several of up to 1 MiB.
///
/// The following was measured (facts: Sizes and addresses; facts: Holes): ranges are spaced by their size rounded up
/// to 512 bytes, a new page costs 2 MiB, a range that fits in a page already taken costs nothing, and the page is
/// returned with its last range.
///
/// The following was not measured; it is this model's choice. Ranges of different sizes share pages. Among the pages
/// with room, the model uses the one whose longest hole is shortest; if there are several, the one with the lowest
/// address. In that page, it uses the lowest hole that is long enough.
#[derive(Clone, Default, Debug)]
pub(crate) struct SharedPages {
    pages: BTreeMap<u64, SharedPage>,
    /// The longest hole in bytes and the page address of every page, used to find room without visiting all pages.
    by_room: BTreeSet<(u64, u64)>,
}

#[derive(Clone, Debug)]
struct SharedPage {
    holes: Holes,
    longest_bytes: u64,
    live_ranges: u32,
}

/// Returns the bytes that a cudaMalloc of `bytes` takes in its page.
pub(crate) fn spaced_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(SPACING_BYTES)
}

impl SharedPages {
    /// Finds `spaced` bytes in a page already taken. Returns the addresses of the page and of the bytes, or `None` if
    /// no page has room.
    pub(crate) fn place(&mut self, spaced: u64) -> Option<(u64, u64)> {
        let &(_, page_address) = self.by_room.range((spaced, 0)..).next()?;
        self.place_in(page_address, spaced).map(|address| (page_address, address))
    }

    /// Adds a page that was just taken, and finds `spaced` bytes in it. Returns `None` only if `spaced` exceeds a page.
    pub(crate) fn place_in_new(&mut self, page_address: u64, spaced: u64) -> Option<u64> {
        let mut holes = Holes::default();
        holes.insert(page_address, PAGE_BYTES);
        self.pages.insert(page_address, SharedPage { holes, longest_bytes: PAGE_BYTES, live_ranges: 0 });
        self.by_room.insert((PAGE_BYTES, page_address));
        self.place_in(page_address, spaced)
    }

    /// Frees bytes in a page. Returns true if they were the last ones in the page; the page is then removed here, and
    /// the caller returns it.
    pub(crate) fn leave(&mut self, page_address: u64, address: u64, spaced: u64) -> bool {
        let Some(page) = self.pages.get_mut(&page_address) else { return false };
        page.holes.insert(address, spaced);
        page.live_ranges = page.live_ranges.saturating_sub(1);
        let empty = page.live_ranges == 0;
        self.refresh(page_address);
        if empty && let Some(page) = self.pages.remove(&page_address) {
            self.by_room.remove(&(page.longest_bytes, page_address));
        }
        empty
    }

    fn place_in(&mut self, page_address: u64, spaced: u64) -> Option<u64> {
        let page = self.pages.get_mut(&page_address)?;
        let address = page.holes.take_first_fit(spaced)?;
        page.live_ranges += 1;
        self.refresh(page_address);
        Some(address)
    }

    /// Updates the index by room after the page's holes have changed.
    fn refresh(&mut self, page_address: u64) {
        if let Some(page) = self.pages.get_mut(&page_address) {
            self.by_room.remove(&(page.longest_bytes, page_address));
            page.longest_bytes = page.holes.longest();
            self.by_room.insert((page.longest_bytes, page_address));
        }
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
        assert_eq!(ranges.name(1150).to_string(), "0x47e", "the range whose start is covered no longer has a name");
        assert_eq!(ranges.insert_reservation(5000, 10), 0);
        assert_eq!(ranges.name(5003).to_string(), "v0+3");
        assert!(ranges.live(5000).is_none(), "not a cudaMalloc");
        assert_eq!(ranges.iter_live().collect::<Vec<_>>(), [(1000, 100), (1090, 60)]);
    }

    #[test]
    fn spacing_is_the_size_rounded_up_to_512() {
        assert_eq!([700, 5_000, 700_000, 512, 1].map(spaced_bytes), [1_024, 5_120, 700_416, 512, 512]);
    }

    #[test]
    fn a_freed_place_is_used_again_and_the_page_goes_with_its_last_range() {
        let mut shared = SharedPages::default();
        assert_eq!(shared.place(512), None);
        let half = PAGE_BYTES / 2;
        assert_eq!(shared.place_in_new(PAGE_BYTES, half), Some(PAGE_BYTES));
        assert_eq!(shared.place(half), Some((PAGE_BYTES, PAGE_BYTES + half)));
        assert_eq!(shared.place(512), None);
        assert!(!shared.leave(PAGE_BYTES, PAGE_BYTES, half));
        assert_eq!(shared.place(half + 512), None);
        assert_eq!(shared.place(512), Some((PAGE_BYTES, PAGE_BYTES)));
        assert!(!shared.leave(PAGE_BYTES, PAGE_BYTES + half, half));
        assert!(shared.leave(PAGE_BYTES, PAGE_BYTES, 512));
        assert_eq!(shared.place(512), None, "the page was returned");
    }
}
