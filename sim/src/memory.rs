//! Physical memory: pages and bytes by number, the amount of memory, its owners, and its contents.
//!
//! Page numbers are unbounded, and the lowest free number is taken first. Any range may get any pages, because the
//! driver backs any range with any pages (facts: Holes). Room is computed in bytes, because the capacity need not be a
//! whole number of pages and other processes may hold any number of bytes.

use std::ops::Deref;
use std::slice;

use crate::range_maps::{Holes, Pieces};

/// The size of a physical page in bytes, which is the granularity of the virtual memory calls (facts: Sizes and
/// addresses).
pub const PAGE_BYTES: u64 = 2 << 20;

/// A physical page by its number, which is unrelated to any address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageId(pub u64);

/// Consecutive physical pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRun {
    /// The first page's number.
    pub first: PageId,
    /// The number of pages.
    pub count: u64,
}

/// The pages of one piece of memory. They are usually consecutive, so no list is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PageRuns {
    /// Consecutive pages.
    One(PageRun),
    /// Several runs, in the order of the memory's bytes; or no pages.
    Many(Vec<PageRun>),
}

impl PageRuns {
    /// Keeps the first `pages` pages and returns the rest.
    pub(crate) fn split_off(&mut self, pages: u64) -> PageRuns {
        let (mut kept, mut rest) = (Vec::new(), Vec::new());
        let mut room = pages;
        for &PageRun { first, count } in &**self {
            let here = count.min(room);
            room -= here;
            if here > 0 {
                kept.push(PageRun { first, count: here });
            }
            if here < count {
                rest.push(PageRun { first: PageId(first.0 + here), count: count - here });
            }
        }
        *self = PageRuns::of(kept);
        PageRuns::of(rest)
    }

    fn of(runs: Vec<PageRun>) -> PageRuns {
        match *runs {
            [run] => PageRuns::One(run),
            _ => PageRuns::Many(runs),
        }
    }
}

impl Default for PageRuns {
    /// Creates an empty set of pages.
    fn default() -> PageRuns {
        PageRuns::Many(Vec::new())
    }
}

impl Deref for PageRuns {
    type Target = [PageRun];

    fn deref(&self) -> &[PageRun] {
        match self {
            PageRuns::One(run) => slice::from_ref(run),
            PageRuns::Many(runs) => runs,
        }
    }
}

/// Consecutive physical bytes at consecutive addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ByteRange {
    /// The first physical byte: the page's number times the page size, plus the offset in the page.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// The address of the first byte.
    pub(crate) address: u64,
}

impl ByteRange {
    /// Returns the position after the last physical byte.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// Returns the physical bytes of consecutive pages: the first byte, and the number of bytes.
pub(crate) fn bytes_of(run: PageRun) -> (u64, u64) {
    // This does not overflow: pages in use fit into 64 bits of bytes, and the numbers of freed pages are reused
    // first.
    (run.first.0.saturating_mul(PAGE_BYTES), run.count.saturating_mul(PAGE_BYTES))
}

/// The physical memory of one device: how many 2 MiB pages are taken, which ones they are, and how much other
/// processes hold. All quantities are in bytes unless their names say pages.
#[derive(Clone, Debug)]
pub(crate) struct PhysicalMemory {
    capacity_bytes: u64,
    base_bytes: u64,
    withheld_bytes: u64,
    external_bytes: u64,
    taken_pages: u64,
    peak_pages: u64,
    free: Holes,
    /// Pages with this number or a higher one have never been taken.
    next_fresh: u64,
    contents: Contents,
}

impl PhysicalMemory {
    /// Creates a memory of `capacity_bytes`, of which the driver's context holds `base_bytes` from
    /// the start.
    pub(crate) fn new(capacity_bytes: u64, base_bytes: u64) -> Self {
        PhysicalMemory {
            capacity_bytes,
            base_bytes,
            withheld_bytes: 0,
            external_bytes: 0,
            taken_pages: 0,
            peak_pages: 0,
            free: Holes::default(),
            next_fresh: 0,
            contents: Contents::default(),
        }
    }

    /// Returns the bytes that no process holds; zero if other processes hold more than the
    /// capacity.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_after(0)
    }

    /// Returns the bytes that would be free after `returned_bytes` of the taken bytes are returned.
    fn free_after(&self, returned_bytes: u64) -> u64 {
        let used = self.used_bytes().saturating_sub(returned_bytes);
        let held = self.base_bytes.saturating_add(self.external_bytes).saturating_add(used);
        self.capacity_bytes.saturating_sub(held)
    }

    /// Returns the bytes of the pages that are taken.
    pub(crate) fn used_bytes(&self) -> u64 {
        // `take` has ensured that the product fits.
        self.taken_pages * PAGE_BYTES
    }

    /// Returns the highest value that [`PhysicalMemory::used_bytes`] has had.
    pub(crate) fn peak_used_bytes(&self) -> u64 {
        self.peak_pages * PAGE_BYTES
    }

    /// Returns the bytes that the driver's context holds.
    pub(crate) fn base_bytes(&self) -> u64 {
        self.base_bytes
    }

    /// Returns the bytes of the entire device.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Changes the capacity. Pages already taken stay taken.
    pub(crate) fn set_capacity(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
    }

    /// Sets how many bytes all other processes hold in total; this may exceed the capacity.
    pub(crate) fn set_external(&mut self, external_bytes: u64) {
        self.external_bytes = external_bytes;
    }

    /// Returns the bytes that are reported as free but cannot be taken.
    pub(crate) fn withheld_bytes(&self) -> u64 {
        self.withheld_bytes
    }

    /// Keeps the last `withheld_bytes` free bytes from being taken. They are still reported as free.
    pub(crate) fn set_withheld(&mut self, withheld_bytes: u64) {
        self.withheld_bytes = withheld_bytes;
    }

    /// Returns the bytes that can be taken.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.free_bytes().saturating_sub(self.withheld_bytes)
    }

    /// Returns whether there will be room for `pages` pages once `returned_bytes` are returned.
    pub(crate) fn has_room_after(&self, returned_bytes: u64, pages: u64) -> bool {
        let room_bytes = self.free_after(returned_bytes).saturating_sub(self.withheld_bytes);
        pages.checked_mul(PAGE_BYTES).is_some_and(|bytes| bytes <= room_bytes)
    }

    /// Returns whether there is room for `pages` more pages.
    pub(crate) fn has_room(&self, pages: u64) -> bool {
        self.has_room_after(0, pages)
    }

    /// Takes pages, lowest numbers first. If there is not enough room for all of them, returns `None` and changes
    /// nothing.
    pub(crate) fn take(&mut self, pages: u64) -> Option<PageRuns> {
        if !self.has_room(pages) {
            return None;
        }
        let first = self.take_run(pages);
        let runs = if first.count == pages { PageRuns::One(first) } else { self.take_more(first, pages) };
        self.taken_pages += pages;
        self.peak_pages = self.peak_pages.max(self.taken_pages);
        Some(runs)
    }

    /// Takes up to `most` consecutive pages.
    fn take_run(&mut self, most: u64) -> PageRun {
        let (first, count) = self.free.take_lowest(most).unwrap_or_else(|| self.take_fresh(most));
        PageRun { first: PageId(first), count }
    }

    /// Takes more runs until, together with the first run, there are `pages` pages.
    fn take_more(&mut self, first: PageRun, pages: u64) -> PageRuns {
        let mut missing = pages - first.count;
        let mut runs = vec![first];
        while missing > 0 {
            let run = self.take_run(missing);
            missing -= run.count;
            runs.push(run);
        }
        PageRuns::Many(runs)
    }

    /// Returns pages to the device and drops their contents. The caller must hold the pages, and must return them only
    /// once.
    pub(crate) fn give_back(&mut self, runs: &[PageRun]) {
        for run in runs {
            self.free.insert(run.first.0, run.count);
            self.taken_pages = self.taken_pages.saturating_sub(run.count);
            let (start, bytes) = bytes_of(*run);
            self.contents.forget(start, bytes);
        }
    }

    /// Returns the contents of all pages.
    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the contents of all pages for writing.
    pub(crate) fn contents_mut(&mut self) -> &mut Contents {
        &mut self.contents
    }

    fn take_fresh(&mut self, pages: u64) -> (u64, u64) {
        let first = self.next_fresh;
        // This does not overflow: pages in use fit into 64 bits of bytes, and the numbers of freed pages are reused
        // first.
        self.next_fresh += pages;
        (first, pages)
    }
}

/// The value of a byte that has not been written since its memory was taken, or that a kernel
/// wrote.
pub const UNWRITTEN: u8 = 0xdb;

/// Four repeating bytes. The first byte is at multiples of 4, counted by physical byte number in [`Contents`] and by
/// offset in a [`Stretch`].
pub(crate) type Pattern = [u8; 4];

/// A part of a sequence of bytes in which one pattern repeats. Offsets count from the start of the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stretch {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The pattern; `None` for bytes that are not written.
    pub(crate) pattern: Option<Pattern>,
}

/// The contents of all physical memory, byte for byte: what fills and copies wrote.
///
/// The contents belong to the physical bytes: they are visible through every address where the memory is mapped, move
/// with it to its next address, and are lost when it is returned. They are stored as stretches of one repeated 4-byte
/// pattern, so a fill of a gigabyte is one entry.
#[derive(Clone, Default, Debug)]
pub(crate) struct Contents {
    patterns: Pieces<Pattern>,
}

impl Contents {
    /// Returns whether no byte is written.
    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Drops the contents of physical bytes.
    pub(crate) fn forget(&mut self, start: u64, bytes: u64) {
        if !self.patterns.is_empty() {
            self.patterns.update(start, start.saturating_add(bytes), |_| None);
        }
    }

    /// Returns the contents of these ranges as one sequence of bytes.
    pub(crate) fn get(&self, ranges: &[ByteRange]) -> Vec<Stretch> {
        let mut stretches = Vec::new();
        let mut offset = 0;
        for range in ranges {
            let turn = range.start.wrapping_sub(offset);
            let mut at = range.start;
            for (start, end, &pattern) in self.patterns.overlapping(range.start, range.end()) {
                push(&mut stretches, start - at, None);
                push(&mut stretches, end - start, Some(turned(pattern, turn)));
                at = end;
            }
            push(&mut stretches, range.end() - at, None);
            offset += range.bytes;
        }
        stretches
    }

    /// Writes stretches into these ranges, whose total length is that of the stretches.
    pub(crate) fn put(&mut self, ranges: &[ByteRange], stretches: &[Stretch]) {
        let mut offset = 0;
        for range in ranges {
            let turn = offset_turn(offset, range.start);
            let range_end = offset + range.bytes;
            let first = stretches.partition_point(|stretch| stretch.end <= offset);
            for stretch in stretches.iter().skip(first).take_while(|stretch| stretch.start < range_end) {
                let (start, end) = (stretch.start.max(offset), stretch.end.min(range_end));
                let pattern = stretch.pattern.map(|pattern| turned(pattern, turn));
                self.patterns.update(range.start + (start - offset), range.start + (end - offset), |_| pattern);
            }
            offset = range_end;
        }
    }
}

impl Stretch {
    /// Writes the stretch's bytes to their position in the entire sequence.
    pub(crate) fn write_to(&self, into: &mut [u8]) {
        // The sequence is in host memory, so offsets fit.
        let part = into.get_mut(self.start as usize..self.end as usize).unwrap_or_default();
        let pattern = turned(self.pattern.unwrap_or([UNWRITTEN; 4]), self.start);
        let mut done = part.len().min(pattern.len());
        part[..done].copy_from_slice(&pattern[..done]);
        // The part written so far consists of whole patterns, so it can be copied again; only the last copy may cut a
        // pattern.
        while done < part.len() {
            let more = done.min(part.len() - done);
            part.copy_within(..more, done);
            done += more;
        }
    }
}

fn push(stretches: &mut Vec<Stretch>, bytes: u64, pattern: Option<Pattern>) {
    if bytes > 0 {
        let start = stretches.last().map_or(0, |last| last.end);
        stretches.push(Stretch { start, end: start + bytes, pattern });
    }
}

/// Returns the pattern, rotated so that its byte at `by` is first.
fn turned(mut pattern: Pattern, by: u64) -> Pattern {
    pattern.rotate_left((by % 4) as usize);
    pattern
}

/// Returns how far a pattern rotates when the byte at `offset` in a sequence is stored at a physical byte. The result
/// is exact modulo 4 even if the difference wraps.
fn offset_turn(offset: u64, physical: u64) -> u64 {
    offset.wrapping_sub(physical)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_pages_are_handed_out_again_in_any_order() {
        let mut memory = PhysicalMemory::new(10 * PAGE_BYTES, 0);
        let a = memory.take(3).unwrap();
        let b = memory.take(3).unwrap();
        let c = memory.take(3).unwrap();
        memory.give_back(&a);
        memory.give_back(&c);
        assert_eq!(*b, [PageRun { first: PageId(3), count: 3 }]);
        let scattered = memory.take(7).expect("room need not be contiguous");
        assert_eq!(
            *scattered,
            [
                PageRun { first: PageId(0), count: 3 },
                PageRun { first: PageId(6), count: 3 },
                PageRun { first: PageId(9), count: 1 }
            ]
        );
        assert_eq!(memory.take(1), None);
        assert_eq!(memory.peak_used_bytes(), 10 * PAGE_BYTES);
    }

    #[test]
    fn free_bytes_never_fall_below_zero() {
        let mut memory = PhysicalMemory::new(5 * PAGE_BYTES + 77, PAGE_BYTES);
        assert_eq!(memory.free_bytes(), 4 * PAGE_BYTES + 77);
        memory.set_external(u64::MAX);
        assert_eq!(memory.free_bytes(), 0);
        assert_eq!(memory.take(1), None);
        memory.set_external(4 * PAGE_BYTES);
        assert_eq!(memory.free_bytes(), 77);
        assert_eq!(memory.take(1), None, "77 bytes are less than a page");
        memory.set_capacity(6 * PAGE_BYTES);
        assert!(memory.take(1).is_some());
    }

    #[test]
    fn a_request_beyond_64_bits_is_refused() {
        let mut memory = PhysicalMemory::new(u64::MAX, 0);
        assert_eq!(memory.take(u64::MAX / PAGE_BYTES + 1), None);
        assert!(memory.take(u64::MAX / PAGE_BYTES).is_some());
        assert_eq!(memory.take(1), None);
    }

    fn range(start: u64, bytes: u64) -> ByteRange {
        ByteRange { start, bytes, address: 0 }
    }

    fn bytes(contents: &Contents, ranges: &[ByteRange]) -> Vec<u8> {
        let mut into = vec![0; ranges.iter().map(|range| range.bytes as usize).sum()];
        contents.get(ranges).iter().for_each(|stretch| stretch.write_to(&mut into));
        into
    }

    #[test]
    fn a_copy_to_an_odd_place_keeps_every_byte() {
        let mut contents = Contents::default();
        let word = |start, end, pattern| Stretch { start, end, pattern: Some(pattern) };
        contents.put(&[range(8, 8)], &[word(0, 8, [1, 2, 3, 4])]);
        contents.put(&[range(101, 3), range(202, 9)], &contents.get(&[range(6, 12)]));
        let copied = [UNWRITTEN, UNWRITTEN, 1, 2, 3, 4, 1, 2, 3, 4, UNWRITTEN, UNWRITTEN];
        assert_eq!(bytes(&contents, &[range(6, 12)]), copied);
        assert_eq!(bytes(&contents, &[range(101, 3), range(202, 9)]), copied);
        assert_eq!(bytes(&contents, &[range(203, 5)]), copied[4..9]);
        contents.forget(203, 1);
        assert_eq!(bytes(&contents, &[range(202, 3)]), [2, UNWRITTEN, 4]);
    }

    #[test]
    fn random_copies_agree_with_an_array() {
        let (mut contents, mut naive, mut state) = (Contents::default(), [UNWRITTEN; 64], 7_u64);
        for step in 0..2000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = state >> 33;
            let (from, to, length) = (draw % 48, draw / 48 % 48, draw / 5000 % 16);
            if step % 3 == 0 {
                let (to, length) = (to / 4 * 4, length / 4 * 4);
                let word = (draw as u32).to_le_bytes();
                contents.put(&[range(to, length)], &[Stretch { start: 0, end: length, pattern: Some(word) }]);
                for (offset, byte) in (0..length).zip(word.into_iter().cycle()) {
                    naive[(to + offset) as usize] = byte;
                }
            } else {
                let cut = length / 2;
                let source = contents.get(&[range(from, cut), range(from + cut, length - cut)]);
                contents.put(&[range(to, length / 3), range(to + length / 3, length - length / 3)], &source);
                naive.copy_within(from as usize..(from + length) as usize, to as usize);
            }
            assert_eq!(bytes(&contents, &[range(0, 64)]), naive);
        }
    }

    #[test]
    fn a_large_fill_is_one_piece() {
        let mut contents = Contents::default();
        let whole = Stretch { start: 0, end: 1 << 40, pattern: Some([1, 1, 1, 2]) };
        contents.put(&[range(0, 1 << 39), range(1 << 39, 1 << 39)], &[whole]);
        assert_eq!(contents.patterns.count(), 1);
        assert_eq!(bytes(&contents, &[range((1 << 39) - 1, 2)]), [2, 1]);
    }
}
