//! Holes: a full device of which every other range was freed (facts: Holes).
//!
//! These are the experiments of the facts, scaled down by a ballast that leaves little of the device.

use parkade::device::DeviceBackend as _;
use parkade::units::{Bytes, DeviceAddress};

use crate::backend::{AnyBackend, AnyDevice, DeviceFacts, TestDevice};
use crate::checks::contract::probe::{ends_empty, ensure, fill_up, free_bytes, open, pages};
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// The device for large ranges: 32 of them, of 32 pages each.
const LARGE_PAGES: u64 = 32;
const LARGE_COUNT: usize = 32;
/// The device for small ranges, in pages.
const PAGES: u64 = 64;
/// A range larger than any hole between small ones, in pages.
const WIDE_PAGES: u64 = 4;

/// The entries of these rows.
pub(super) fn entries() -> Vec<Entry> {
    let says = "any pages can back any range of addresses: scattered holes serve one range, exact to the page";
    let entry = Entry::new(Group::Contract, "holes/pages-are-remapped", says, scattered);
    let mut entries = vec![entry.requires(Requirement::RemappedPages)];
    let says = "freeing ranges below a page frees no page: a larger range fails, one of the same size succeeds";
    // Named after the page of an H200: half of it, and a quarter.
    for (name, part) in [("holes/below-a-page-1024-kib", 2), ("holes/below-a-page-512-kib", 4)] {
        let entry = Entry::new(Group::Contract, name, says, move |backend, _| below_a_page(backend, part));
        entries.push(entry.requires(Requirement::SharedPages(part)));
    }
    let says = "a range of three quarters of a page takes the whole page: each one freed frees a page";
    let entry = Entry::new(Group::Contract, "holes/of-1536-kib", says, of_a_page);
    entries.push(entry.requires(Requirement::RemappedPages));
    entries
}

/// A full device of which every other range was freed.
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

    /// How many bytes the holes added to free memory.
    fn given_back(&mut self) -> Result<u64, Trouble> {
        Ok(free_bytes(&mut self.device)?.saturating_sub(self.free_when_full))
    }

    /// The result code of a request; its range is freed at once.
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
    ensure(back == freed, || format!("{freed} bytes were freed, {back} came back"))?;
    let mut text = format!("{count} ranges of {large}, every other freed: {back} back\n");
    // All free memory except what the driver withholds can be had in one piece, and not a page more.
    let had = (free_bytes(&mut holes.device)? - holes.device.withheld_bytes().get()) / page * page;
    let refused = facts.codes.out_of_memory;
    for (size, expected) in [(2 * large.get(), 0), (10 * large.get(), 0), (had, 0), (had + 1, refused)] {
        let found = holes.code_of(Bytes(size))?;
        ensure(found == expected, || format!("one range of {size} bytes: code {found}, not {expected}"))?;
        text += &format!("one range of {size}: code {found}\n");
    }
    let measured = format!("{} bytes free when full", holes.free_when_full);
    Ok(Evidence { text, measured, operations: holes.finish()? })
}

fn below_a_page(backend: &AnyBackend, part: u64) -> Verdict {
    let facts = backend.facts();
    let size = Bytes(facts.page.get() / part);
    let mut holes = Holes::new(backend, pages(&facts, PAGES), size)?;
    let (count, back) = (holes.count, holes.given_back()?);
    let expected = PAGES * part;
    ensure(count as u64 == expected, || format!("{count} ranges of {size} bytes filled {PAGES} pages, not {expected}"))?;
    ensure(back == 0, || format!("{back} bytes came back"))?;
    let wide = pages(&facts, WIDE_PAGES);
    let (larger, same) = (holes.code_of(wide)?, holes.code_of(size)?);
    let found = (larger, same);
    ensure(found == (facts.codes.out_of_memory, 0), || format!("codes {found:?} for {wide} and for {size} bytes"))?;
    let text = format!(
        "{count} ranges of {size}, every other freed: {back} back\n{wide} bytes: code {larger}\n{size} bytes: code {same}\n"
    );
    Ok(Evidence { text, measured: format!("{} bytes free when full", holes.free_when_full), operations: holes.finish()? })
}

fn of_a_page(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let size = Bytes(facts.page.get() / 4 * 3);
    let mut holes = Holes::new(backend, pages(&facts, PAGES), size)?;
    let (count, back) = (holes.count, holes.given_back()?);
    ensure(count as u64 == PAGES, || format!("{count} ranges of {size} bytes filled {PAGES} pages"))?;
    let freed = count.div_ceil(2) as u64 * facts.page.get();
    ensure(back == freed, || format!("{back} bytes came back, not {freed}"))?;
    let wide = pages(&facts, WIDE_PAGES);
    let found = holes.code_of(wide)?;
    ensure(found == 0, || format!("{wide} bytes: code {found}"))?;
    let text = format!("{count} ranges of {size}, every other freed: {back} back\n{wide} bytes: code {found}\n");
    Ok(Evidence { text, measured: format!("{} bytes free when full", holes.free_when_full), operations: holes.finish()? })
}
