//! Facts, Holes: a device that was full, and of which every other range was given back.
//!
//! The experiments of the facts, scaled down by a ballast that leaves little of the device.

use parkade::units::{Bytes, DeviceAddress, MIB};

use crate::backend::{Backend, TestDevice};
use crate::checks::contract::probe::{OUT_OF_MEMORY, PAGE, code, ends_empty, ensure, fill_up, free_bytes, open};
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// What the device has of large ranges: 32 of 64 MiB.
const LARGE: Bytes = Bytes(64 * MIB);
const LARGE_COUNT: usize = 32;
/// What it has of small ones: so many pages.
const PAGES: u64 = 64;

/// The entries of these rows.
pub(super) fn entries<B: Backend + 'static>() -> Vec<Entry<B>> {
    let says = "any range of addresses is backed by any pages: scattered holes serve one range, to 2 MiB exactly";
    let mut entries = vec![Entry::new(Group::Contract, "holes/pages-are-remapped", says, pages)];
    let says = "holes below a page give nothing back: a larger range fails, one of the same size succeeds";
    for kib in [1024, 512] {
        let name = format!("holes/below-a-page-{kib}-kib");
        entries.push(Entry::new(Group::Contract, name, says, move |backend, _| below_a_page(backend, Bytes(kib << 10))));
    }
    let says = "a range of 1.5 MiB is a page: each one freed gives 2 MiB back";
    entries.push(Entry::new(Group::Contract, "holes/of-1536-kib", says, of_a_page));
    entries
}

/// A full device of which every other range was given back.
struct Holes<D: TestDevice> {
    device: D,
    free_before: u64,
    free_when_full: u64,
    count: usize,
    kept: Vec<DeviceAddress>,
}

impl<D: TestDevice> Holes<D> {
    fn new<B: Backend<Device = D>>(backend: &B, capacity: Bytes, size: Bytes) -> Result<Holes<D>, Trouble> {
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
        Ok(Holes { device, free_before, free_when_full, count, kept })
    }

    /// By how much free memory has grown through the holes.
    fn given_back(&mut self) -> Result<u64, Trouble> {
        Ok(free_bytes(&mut self.device)?.saturating_sub(self.free_when_full))
    }

    /// The code of a request, whose range is given back at once.
    fn code_of(&mut self, size: Bytes) -> Result<u32, Trouble> {
        let answer = self.device.malloc(size);
        if let Ok(address) = answer {
            self.device.free(address)?;
        }
        Ok(code(&answer))
    }

    fn finish(mut self) -> Result<u64, Trouble> {
        self.kept.drain(..).try_for_each(|address| self.device.free(address))?;
        ends_empty(&mut self.device, self.free_before)?;
        Ok(2 * self.count as u64)
    }
}

fn pages<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let mut holes = Holes::new(backend, Bytes(LARGE.get() * LARGE_COUNT as u64), LARGE)?;
    let (count, back) = (holes.count, holes.given_back()?);
    ensure(count == LARGE_COUNT, || format!("{count} ranges of {LARGE} bytes filled the device, not {LARGE_COUNT}"))?;
    let freed = LARGE.get() * LARGE_COUNT.div_ceil(2) as u64;
    ensure(back == freed, || format!("{freed} bytes were freed, {back} came back"))?;
    let mut text = format!("{count} ranges of {LARGE}, every other freed: {back} back\n");
    // Of what is free all but what the driver withholds can be had in one piece, and not a page more.
    let had = (free_bytes(&mut holes.device)? - holes.device.withheld_bytes().get()) / PAGE.get() * PAGE.get();
    for (size, expected) in [(2 * LARGE.get(), 0), (10 * LARGE.get(), 0), (had, 0), (had + 1, OUT_OF_MEMORY)] {
        let found = holes.code_of(Bytes(size))?;
        ensure(found == expected, || format!("one range of {size} bytes: code {found}, not {expected}"))?;
        text += &format!("one range of {size}: code {found}\n");
    }
    let measured = format!("{} bytes free when full", holes.free_when_full);
    Ok(Evidence { text, measured, operations: holes.finish()? })
}

fn below_a_page<B: Backend>(backend: &B, size: Bytes) -> Verdict {
    let mut holes = Holes::new(backend, Bytes(PAGES * PAGE.get()), size)?;
    let (count, back) = (holes.count, holes.given_back()?);
    let expected = PAGES * (PAGE.get() / size.get());
    ensure(count as u64 == expected, || format!("{count} ranges of {size} bytes filled {PAGES} pages, not {expected}"))?;
    ensure(back == 0, || format!("{back} bytes came back"))?;
    let (larger, same) = (holes.code_of(Bytes(8 * MIB))?, holes.code_of(size)?);
    let found = (larger, same);
    ensure(found == (OUT_OF_MEMORY, 0), || format!("codes {found:?} for 8 MiB and for {size} bytes"))?;
    let text =
        format!("{count} ranges of {size}, every other freed: {back} back\n8 MiB: code {larger}\n{size} bytes: code {same}\n");
    Ok(Evidence { text, measured: format!("{} bytes free when full", holes.free_when_full), operations: holes.finish()? })
}

fn of_a_page<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let size = Bytes(3 * MIB / 2);
    let mut holes = Holes::new(backend, Bytes(PAGES * PAGE.get()), size)?;
    let (count, back) = (holes.count, holes.given_back()?);
    ensure(count as u64 == PAGES, || format!("{count} ranges of {size} bytes filled {PAGES} pages"))?;
    let freed = count.div_ceil(2) as u64 * PAGE.get();
    ensure(back == freed, || format!("{back} bytes came back, not {freed}"))?;
    let found = holes.code_of(Bytes(8 * MIB))?;
    ensure(found == 0, || format!("8 MiB: code {found}"))?;
    let text = format!("{count} ranges of {size}, every other freed: {back} back\n8 MiB: code {found}\n");
    Ok(Evidence { text, measured: format!("{} bytes free when full", holes.free_when_full), operations: holes.finish()? })
}
