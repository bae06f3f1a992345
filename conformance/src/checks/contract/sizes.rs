//! Facts, Sizes and addresses: what a request takes from the device, and where it lies.

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, MIB};

use crate::backend::Backend;
use crate::checks::contract::probe::{PAGE, code, ends_empty, ensure, free_bytes, open};
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// Bytes asked for, and the distance between two of them in a page (raw lines `malloc_cost` and `small_spacing`).
const SPACINGS: [(u64, u64); 12] = [
    (1, 512),
    (512, 512),
    (700, 1_024),
    (3_000, 3_072),
    (4_096, 4_096),
    (5_000, 5_120),
    (65_536, 65_536),
    (70_000, 70_144),
    (300_000, 300_032),
    (524_288, 524_288),
    (700_000, 700_416),
    (1_048_576, 1_048_576),
];
/// Bytes asked for, and bytes by which free memory falls (raw line `malloc_cost`).
const WHOLE_PAGES: [(u64, u64); 9] = [
    (MIB + 1, 2 * MIB),
    (2 * MIB, 2 * MIB),
    (2 * MIB + 1, 4 * MIB),
    (3 * MIB, 4 * MIB),
    (20 * MIB, 20 * MIB),
    (20 * MIB + 1, 22 * MIB),
    (21 * MIB, 22 * MIB),
    (1024 * MIB, 1024 * MIB),
    (1024 * MIB + 1, 1026 * MIB),
];

/// The entries of these rows.
pub(super) fn entries<B: Backend + 'static>() -> Vec<Entry<B>> {
    vec![
        Entry::new(Group::Contract, "sizes/granularity", "memory is reserved, created and mapped in units of 2 MiB", granularity),
        Entry::new(Group::Contract, "sizes/small-ones-share-a-page", "ranges of at most 1 MiB share a page of 2 MiB", small),
        Entry::new(
            Group::Contract,
            "sizes/small-ones-fill-a-page",
            "what does not fit into a shared page begins a new one",
            third,
        ),
        Entry::new(Group::Contract, "sizes/large-ones-take-pages", "larger ranges take whole pages of their own", large),
        Entry::new(
            Group::Contract,
            "sizes/alignment",
            "ranges begin at multiples of 512, those of whole pages at 2 MiB",
            alignment,
        ),
        Entry::new(Group::Contract, "sizes/create-takes-memory", "cuMemCreate takes the memory at once", create),
    ]
}

/// The smallest handle that can be created and reserved for is one page, half of one is refused.
fn granularity<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for (pages_in_halves, expected) in [(1, 1), (2, 0), (3, 1), (4, 0)] {
        let size = Bytes(pages_in_halves * MIB);
        let created = device.create(size);
        let found = code(&created);
        ensure(found == expected, || format!("creating {size} bytes: code {found}, not {expected}"))?;
        if let Ok(memory) = created {
            device.release(memory).map_err(|(_, error)| Trouble::from(error))?;
        }
        text += &format!("create {size}: code {found}\n");
    }
    let base = device.reserve(PAGE)?;
    ensure(base.get().is_multiple_of(PAGE.get()), || format!("a page was reserved at {base}"))?;
    device.unreserve(base, PAGE)?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 8, ..Evidence::default() })
}

fn small<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for (bytes, spacing) in SPACINGS {
        let first = device.malloc(Bytes(bytes))?;
        let first_took = before - free_bytes(&mut device)?;
        let second = device.malloc(Bytes(bytes))?;
        let both_took = before - free_bytes(&mut device)?;
        ensure(first_took == PAGE.get(), || format!("{bytes} bytes took {first_took}, not a page"))?;
        ensure(both_took == PAGE.get(), || format!("twice {bytes} bytes took {both_took}, not a page"))?;
        let apart = first.get().abs_diff(second.get());
        ensure(apart == spacing, || format!("two ranges of {bytes} bytes are {apart} bytes apart, not {spacing}"))?;
        device.free(first)?;
        // The page goes with its last tenant.
        let kept = before - free_bytes(&mut device)?;
        ensure(kept == PAGE.get(), || format!("the second range of {bytes} bytes keeps {kept} bytes, not a page"))?;
        device.free(second)?;
        ends_empty(&mut device, before)?;
        text += &format!("{bytes}: a page for two, {spacing} apart\n");
    }
    Ok(Evidence { text, operations: 4 * SPACINGS.len() as u64, ..Evidence::default() })
}

fn third<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    let mut ranges = Vec::new();
    for (number, expected) in [1, 1, 2].into_iter().enumerate() {
        ranges.push(device.malloc(Bytes(700_000))?);
        let took = before - free_bytes(&mut device)?;
        ensure(took == expected * PAGE.get(), || format!("{} ranges of 700,000 bytes took {took}", number + 1))?;
        text += &format!("{} of 700000: {took}\n", number + 1);
    }
    ranges.into_iter().try_for_each(|address| device.free(address))?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 6, ..Evidence::default() })
}

fn large<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for (bytes, expected) in WHOLE_PAGES {
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
    Ok(Evidence { text, operations: 4 * WHOLE_PAGES.len() as u64, ..Evidence::default() })
}

/// Larger alignments were seen and are no promise: they are measured, not asserted.
fn alignment<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let (mut text, mut measured) = (String::new(), Vec::new());
    let sizes = SPACINGS.iter().map(|&(bytes, _)| (bytes, 512)).chain(WHOLE_PAGES.iter().map(|&(bytes, _)| (bytes, PAGE.get())));
    let mut ranges = Vec::new();
    for (bytes, expected) in sizes {
        let address = device.malloc(Bytes(bytes))?;
        ensure(address.get().is_multiple_of(expected), || format!("{bytes} bytes at {address}, no multiple of {expected}"))?;
        text += &format!("{bytes}: at a multiple of {expected}\n");
        measured.push(format!("{bytes} at {}", 1_u64 << address.get().trailing_zeros().min(63)));
        ranges.push(address);
    }
    let operations = 2 * ranges.len() as u64;
    ranges.into_iter().try_for_each(|address| device.free(address))?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations, measured: format!("alignments in bytes: {}", measured.join(", ")) })
}

fn create<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for mib in [2, 20, 1024] {
        let memory = device.create(Bytes(mib * MIB))?;
        let took = before - free_bytes(&mut device)?;
        ensure(took == mib * MIB, || format!("creating {mib} MiB took {took} bytes"))?;
        device.release(memory).map_err(|(_, error)| Trouble::from(error))?;
        ends_empty(&mut device, before)?;
        text += &format!("create {} bytes: takes {took}\n", mib * MIB);
    }
    Ok(Evidence { text, operations: 6, ..Evidence::default() })
}
