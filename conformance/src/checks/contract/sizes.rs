//! How much a request takes from the device and where it is placed (facts: Sizes and addresses), and what a full device
//! can still serve after every other range has been freed (facts: Holes).
//!
//! The hole tests repeat the experiments behind the facts, scaled down: a ballast leaves little of the device's memory.

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, DeviceAddress};

use super::probe::{ends_empty, ensure, fill_up, free_bytes, open, pages};
use crate::backend::{AnyBackend, AnyDevice, DeviceFacts, TestDevice};
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// Request sizes in bytes for which ranges share a page (raw lines `malloc_cost` and
/// `small_spacing`).
const SMALL: [u64; 12] = [1, 512, 700, 3_000, 4_096, 5_000, 65_536, 70_000, 300_000, 524_288, 700_000, 1_048_576];

/// The smallest fraction of a page that is worth measuring.
const SMALLEST_PART: u64 = 4096;

/// The sizes of [`SMALL`] that share a page on this device, each with the distance between two adjacent ranges.
fn spacings(facts: &DeviceFacts) -> Vec<(u64, u64)> {
    let Some(sharing) = facts.sharing else { return Vec::new() };
    let those = SMALL.into_iter().filter(|&bytes| bytes <= sharing.largest.get());
    those.map(|bytes| (bytes, bytes.next_multiple_of(sharing.spacing.get()))).collect()
}

/// Request sizes in bytes for which ranges take whole pages: the smallest one, and sizes around one page and many pages
/// (raw line `malloc_cost`).
fn large_sizes(facts: &DeviceFacts) -> [u64; 9] {
    let (page, shared) = (facts.page.get(), facts.sharing.map_or(0, |sharing| sharing.largest.get()));
    [shared + 1, page, page + 1, page * 3 / 2, 10 * page, 10 * page + 1, page * 21 / 2, 512 * page, 512 * page + 1]
}

/// The entries of these rows.
pub(super) fn entries() -> Vec<Entry> {
    let entry = |name, says, check: fn(&AnyBackend, &Effort) -> Verdict| Entry::new(Group::Contract, name, says, check);
    vec![
        entry("sizes/granularity", "memory is reserved, created and mapped in whole pages", granularity)
            .requires(Requirement::VirtualMemory),
        entry("sizes/small-ones-share-a-page", "small ranges share a page", small)
            .requires(Requirement::SharedPages(SMALLEST_PART)),
        entry("sizes/small-ones-fill-a-page", "a range that does not fit into a shared page starts a new one", third)
            .requires(Requirement::SharedPages(2)),
        entry("sizes/large-ones-take-pages", "larger ranges take whole pages and do not share them", large),
        entry("sizes/alignment", "ranges start at multiples of 512 bytes, whole-page ranges at multiples of a page", alignment),
        entry("sizes/create-takes-memory", "cuMemCreate takes the memory immediately", create)
            .requires(Requirement::VirtualMemory),
    ]
}

/// The smallest handle and reservation is one page; half a page is refused.
fn granularity(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let (page, refused) = (facts.page, facts.codes.invalid_value);
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for (halves, expected) in [(1, refused), (2, 0), (3, refused), (4, 0)] {
        let size = Bytes(halves * page.get() / 2);
        let created = device.create(size);
        let found = facts.codes.of(&created);
        ensure(found == expected, || format!("creating {size} bytes returned code {found}, not {expected}"))?;
        if let Ok(memory) = created {
            device.release(memory).map_err(|(_, error)| Trouble::from(error))?;
        }
        text += &format!("creating {size} bytes: returned code {found}\n");
    }
    let base = device.reserve(page)?;
    ensure(base.get().is_multiple_of(page.get()), || format!("a page was reserved at {base}"))?;
    device.unreserve(base, page)?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 8, ..Evidence::default() })
}

fn small(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let (page, spacings) = (facts.page.get(), spacings(&facts));
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for &(bytes, spacing) in &spacings {
        let first = device.malloc(Bytes(bytes))?;
        let first_took = before - free_bytes(&mut device)?;
        let second = device.malloc(Bytes(bytes))?;
        let both_took = before - free_bytes(&mut device)?;
        ensure(first_took == page, || format!("one range of {bytes} bytes took {first_took} bytes, not one page"))?;
        ensure(both_took == page, || format!("two ranges of {bytes} bytes took {both_took} bytes, not one page"))?;
        let apart = first.get().abs_diff(second.get());
        ensure(apart == spacing, || format!("two ranges of {bytes} bytes are {apart} bytes apart, not {spacing}"))?;
        device.free(first)?;
        // The page is freed together with its last range.
        let kept = before - free_bytes(&mut device)?;
        ensure(kept == page, || {
            format!("with only one of two ranges of {bytes} bytes freed, {kept} bytes are still taken, not one page")
        })?;
        device.free(second)?;
        ends_empty(&mut device, before)?;
        text += &format!("ranges of {bytes} bytes: two per page, {spacing} bytes apart\n");
    }
    Ok(Evidence { text, operations: 4 * spacings.len() as u64, ..Evidence::default() })
}

/// Ranges of a little more than a third of a page: two fit into a page, a third does not.
fn third(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let page = facts.page.get();
    let Some(sharing) = facts.sharing else { return Ok(Evidence::default()) };
    let bytes = (page / 3 + 1).next_multiple_of(sharing.spacing.get());
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    let mut ranges = Vec::new();
    for (number, expected) in [1, 1, 2].into_iter().enumerate() {
        ranges.push(device.malloc(Bytes(bytes))?);
        let took = before - free_bytes(&mut device)?;
        ensure(took == expected * page, || format!("{} ranges of {bytes} bytes took {took} bytes", number + 1))?;
        text += &format!("{} of {bytes}: {took}\n", number + 1);
    }
    ranges.into_iter().try_for_each(|address| device.free(address))?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 6, ..Evidence::default() })
}

fn large(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let sizes = large_sizes(&facts);
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for bytes in sizes {
        let expected = bytes.next_multiple_of(facts.page.get());
        let mut ranges = Vec::new();
        for number in 1..=2 {
            ranges.push(device.malloc(Bytes(bytes))?);
            let took = before - free_bytes(&mut device)?;
            ensure(took == number * expected, || format!("{number} ranges of {bytes} bytes took {took} bytes"))?;
        }
        ranges.into_iter().try_for_each(|address| device.free(address))?;
        ends_empty(&mut device, before)?;
        text += &format!("{bytes}: takes {expected}\n");
    }
    Ok(Evidence { text, operations: 4 * sizes.len() as u64, ..Evidence::default() })
}

/// Larger alignments have been observed but are not guaranteed, so the row measures them and does not assert them.
fn alignment(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let (mut text, mut measured) = (String::new(), Vec::new());
    let small = spacings(&facts).into_iter().map(|(bytes, _)| (bytes, 512));
    let sizes = small.chain(large_sizes(&facts).map(|bytes| (bytes, facts.page.get())));
    let mut ranges = Vec::new();
    for (bytes, expected) in sizes {
        let address = device.malloc(Bytes(bytes))?;
        ensure(address.get().is_multiple_of(expected), || {
            format!("a range of {bytes} bytes begins at {address}, not at a multiple of {expected}")
        })?;
        text += &format!("ranges of {bytes} bytes begin at multiples of {expected}\n");
        measured.push(format!("{bytes} at {}", 1_u64 << address.get().trailing_zeros().min(63)));
        ranges.push(address);
    }
    let operations = 2 * ranges.len() as u64;
    ranges.into_iter().try_for_each(|address| device.free(address))?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations, measured: format!("observed alignments in bytes: {}", measured.join(", ")) })
}

fn create(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for size in [1, 10, 512].map(|count| pages(&facts, count)) {
        let memory = device.create(size)?;
        let took = before - free_bytes(&mut device)?;
        ensure(took == size.get(), || format!("creating {size} bytes took {took} bytes"))?;
        device.release(memory).map_err(|(_, error)| Trouble::from(error))?;
        ends_empty(&mut device, before)?;
        text += &format!("creating {size} bytes takes {took} bytes\n");
    }
    Ok(Evidence { text, operations: 6, ..Evidence::default() })
}

/// The device for large ranges: 32 of them, of 32 pages each.
const LARGE_PAGES: u64 = 32;
const LARGE_COUNT: usize = 32;
/// The device for small ranges, in pages.
const PAGES: u64 = 64;
/// A range larger than any hole between small ranges, in pages.
const WIDE_PAGES: u64 = 4;

/// The entries of these rows.
pub(super) fn hole_entries() -> Vec<Entry> {
    let says = "any pages can back any address range: scattered holes serve one range, down to the last page";
    let entry = Entry::new(Group::Contract, "holes/pages-are-remapped", says, scattered);
    let mut entries = vec![entry.requires(Requirement::RemappedPages)];
    let says = "freeing every other sub-page range frees no page: a larger range does not fit, but one of the same size does";
    // Named after sizes on an H200: half a page and a quarter of a page.
    for (name, part) in [("holes/below-a-page-1024-kib", 2), ("holes/below-a-page-512-kib", 4)] {
        let entry = Entry::new(Group::Contract, name, says, move |backend, _| below_a_page(backend, part));
        entries.push(entry.requires(Requirement::SharedPages(part)));
    }
    let says = "a range of three quarters of a page takes the whole page, and freeing it frees that page";
    let entry = Entry::new(Group::Contract, "holes/of-1536-kib", says, of_a_page);
    entries.push(entry.requires(Requirement::RemappedPages));
    entries
}

/// A full device in which every other range has been freed.
struct Holes {
    device: AnyDevice,
    facts: DeviceFacts,
    free_before: u64,
    free_when_full: u64,
    count: usize,
    kept: Vec<DeviceAddress>,
}

impl Holes {
    fn new(backend: &AnyBackend, capacity: Bytes, size: Bytes) -> Result<Holes, Trouble> {
        let mut device = open(backend, Some(capacity))?;
        let free_before = free_bytes(&mut device)?;
        let ranges = fill_up(&mut device, size)?;
        let (free_when_full, count, mut kept) = (free_bytes(&mut device)?, ranges.len(), Vec::new());
        for (number, address) in ranges.into_iter().enumerate() {
            if number % 2 == 0 {
                device.free(address)?;
            } else {
                kept.push(address);
            }
        }
        Ok(Holes { device, facts: backend.facts(), free_before, free_when_full, count, kept })
    }

    /// The number of bytes that the holes added to free memory.
    fn given_back(&mut self) -> Result<u64, Trouble> {
        Ok(free_bytes(&mut self.device)?.saturating_sub(self.free_when_full))
    }

    /// Returns a request's result code; its range is freed immediately.
    fn code_of(&mut self, size: Bytes) -> Result<u32, Trouble> {
        let answer = self.device.malloc(size);
        if let Ok(address) = answer {
            self.device.free(address)?;
        }
        Ok(self.facts.codes.of(&answer))
    }

    fn finish(mut self) -> Result<u64, Trouble> {
        self.kept.drain(..).try_for_each(|address| self.device.free(address))?;
        ends_empty(&mut self.device, self.free_before)?;
        Ok(2 * self.count as u64)
    }
}

fn scattered(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let (page, large) = (facts.page.get(), pages(&facts, LARGE_PAGES));
    let mut holes = Holes::new(backend, Bytes(large.get() * LARGE_COUNT as u64), large)?;
    let (count, back) = (holes.count, holes.given_back()?);
    ensure(count == LARGE_COUNT, || format!("{count} ranges of {large} bytes filled the device, not {LARGE_COUNT}"))?;
    let freed = large.get() * LARGE_COUNT.div_ceil(2) as u64;
    ensure(back == freed, || format!("{freed} bytes were freed, but free memory grew by {back} bytes"))?;
    let mut text =
        format!("{count} ranges of {large} bytes, every other one of which was freed, returned {back} bytes to the device\n");
    // All free memory except what the driver withholds can be allocated in one piece, but not one page more.
    let had = (free_bytes(&mut holes.device)? - holes.device.withheld_bytes().get()) / page * page;
    let refused = facts.codes.out_of_memory;
    for (size, expected) in [(2 * large.get(), 0), (10 * large.get(), 0), (had, 0), (had + 1, refused)] {
        let found = holes.code_of(Bytes(size))?;
        ensure(found == expected, || format!("requesting one range of {size} bytes returned code {found}, not {expected}"))?;
        text += &format!("requesting one range of {size} bytes: returned code {found}\n");
    }
    let measured = format!("{} bytes are free when the device is full", holes.free_when_full);
    Ok(Evidence { text, measured, operations: holes.finish()? })
}

fn below_a_page(backend: &AnyBackend, part: u64) -> Verdict {
    let facts = backend.facts();
    let size = Bytes(facts.page.get() / part);
    let mut holes = Holes::new(backend, pages(&facts, PAGES), size)?;
    let (count, back) = (holes.count, holes.given_back()?);
    let expected = PAGES * part;
    ensure(count as u64 == expected, || format!("{count} ranges of {size} bytes filled {PAGES} pages, not {expected}"))?;
    ensure(back == 0, || format!("{back} bytes were returned to the device"))?;
    let wide = pages(&facts, WIDE_PAGES);
    let (larger, same) = (holes.code_of(wide)?, holes.code_of(size)?);
    let found = (larger, same);
    ensure(found == (facts.codes.out_of_memory, 0), || {
        format!("ranges of {wide} and {size} bytes returned the codes {found:?}")
    })?;
    let text = format!(
        "{count} ranges of {size} bytes, every other one of which was freed, returned {back} bytes to the device\nrequesting \
         {wide} bytes: returned code {larger}\nrequesting {size} bytes: returned code {same}\n"
    );
    Ok(Evidence {
        text,
        measured: format!("{} bytes are free when the device is full", holes.free_when_full),
        operations: holes.finish()?,
    })
}

fn of_a_page(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let size = Bytes(facts.page.get() / 4 * 3);
    let mut holes = Holes::new(backend, pages(&facts, PAGES), size)?;
    let (count, back) = (holes.count, holes.given_back()?);
    ensure(count as u64 == PAGES, || format!("{count} ranges of {size} bytes filled {PAGES} pages"))?;
    let freed = count.div_ceil(2) as u64 * facts.page.get();
    ensure(back == freed, || format!("{back} bytes were returned to the device, not {freed}"))?;
    let wide = pages(&facts, WIDE_PAGES);
    let found = holes.code_of(wide)?;
    ensure(found == 0, || format!("requesting {wide} bytes: returned code {found}"))?;
    let text = format!(
        "{count} ranges of {size} bytes, every other one of which was freed, returned {back} bytes to the device\nrequesting \
                 {wide} bytes: returned code {found}\n"
    );
    Ok(Evidence {
        text,
        measured: format!("{} bytes are free when the device is full", holes.free_when_full),
        operations: holes.finish()?,
    })
}
