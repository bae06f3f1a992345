//! What a request takes from the device, and where it is placed (facts: Sizes and addresses).

use parkade::device::DeviceBackend;
use parkade::units::Bytes;

use crate::backend::{AnyBackend, DeviceFacts};
use crate::checks::contract::probe::{ends_empty, ensure, free_bytes, open, pages};
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// Requested bytes where ranges share a page (raw lines `malloc_cost` and `small_spacing`).
const SMALL: [u64; 12] = [1, 512, 700, 3_000, 4_096, 5_000, 65_536, 70_000, 300_000, 524_288, 700_000, 1_048_576];

/// The smallest part of a page that is worth measuring.
const SMALLEST_PART: u64 = 4096;

/// The sizes of [`SMALL`] that share a page on this device, each with the distance between two ranges.
fn spacings(facts: &DeviceFacts) -> Vec<(u64, u64)> {
    let Some(sharing) = facts.sharing else { return Vec::new() };
    let those = SMALL.into_iter().filter(|&bytes| bytes <= sharing.largest.get());
    those.map(|bytes| (bytes, bytes.next_multiple_of(sharing.spacing.get()))).collect()
}

/// Requested bytes where ranges take whole pages: the smallest, and sizes around one page and many (raw line `malloc_cost`).
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
        entry("sizes/large-ones-take-pages", "larger ranges take their own whole pages", large),
        entry("sizes/alignment", "ranges start at multiples of 512, those of whole pages at multiples of a page", alignment),
        entry("sizes/create-takes-memory", "cuMemCreate takes the memory at once", create).requires(Requirement::VirtualMemory),
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
        ensure(found == expected, || format!("creating {size} bytes: code {found}, not {expected}"))?;
        if let Ok(memory) = created {
            device.release(memory).map_err(|(_, error)| Trouble::from(error))?;
        }
        text += &format!("create {size}: code {found}\n");
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
        ensure(first_took == page, || format!("{bytes} bytes took {first_took}, not a page"))?;
        ensure(both_took == page, || format!("twice {bytes} bytes took {both_took}, not a page"))?;
        let apart = first.get().abs_diff(second.get());
        ensure(apart == spacing, || format!("two ranges of {bytes} bytes are {apart} bytes apart, not {spacing}"))?;
        device.free(first)?;
        // The page is freed with its last range.
        let kept = before - free_bytes(&mut device)?;
        ensure(kept == page, || format!("the second range of {bytes} bytes keeps {kept} bytes, not a page"))?;
        device.free(second)?;
        ends_empty(&mut device, before)?;
        text += &format!("{bytes}: two in a page, {spacing} apart\n");
    }
    Ok(Evidence { text, operations: 4 * spacings.len() as u64, ..Evidence::default() })
}

/// Ranges of a little more than a third of a page: two fit into a page, the third does not.
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
        ensure(took == expected * page, || format!("{} ranges of {bytes} bytes took {took}", number + 1))?;
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
            ensure(took == number * expected, || format!("{number} ranges of {bytes} bytes took {took}"))?;
        }
        ranges.into_iter().try_for_each(|address| device.free(address))?;
        ends_empty(&mut device, before)?;
        text += &format!("{bytes}: takes {expected}\n");
    }
    Ok(Evidence { text, operations: 4 * sizes.len() as u64, ..Evidence::default() })
}

/// Larger alignments were seen but are not guaranteed: they are measured, not asserted.
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
        ensure(address.get().is_multiple_of(expected), || format!("{bytes} bytes at {address}, not a multiple of {expected}"))?;
        text += &format!("{bytes}: at a multiple of {expected}\n");
        measured.push(format!("{bytes} at {}", 1_u64 << address.get().trailing_zeros().min(63)));
        ranges.push(address);
    }
    let operations = 2 * ranges.len() as u64;
    ranges.into_iter().try_for_each(|address| device.free(address))?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations, measured: format!("alignments in bytes: {}", measured.join(", ")) })
}

fn create(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for size in [1, 10, 512].map(|count| pages(&facts, count)) {
        let memory = device.create(size)?;
        let took = before - free_bytes(&mut device)?;
        ensure(took == size.get(), || format!("creating {size} bytes took {took}"))?;
        device.release(memory).map_err(|(_, error)| Trouble::from(error))?;
        ends_empty(&mut device, before)?;
        text += &format!("create {size} bytes: takes {took}\n");
    }
    Ok(Evidence { text, operations: 6, ..Evidence::default() })
}
