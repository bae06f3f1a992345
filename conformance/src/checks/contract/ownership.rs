//! Rows about ownership. The free memory that the device reports (cudaMemGetInfo) never exceeds its total memory, and
//! shrinks by what others hold. A device refuses operations on memory that does not (or no longer) belong to the
//! caller, and a refusal changes nothing.

use std::collections::BTreeMap;

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};

use super::probe::{ends_empty, ensure, free_bytes, open, pages};
use crate::backend::{AnyBackend, AnyDevice, Holdings, TestDevice};
use crate::program::search::Draws;
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// The entries of these rows.
pub(super) fn info_entries() -> Vec<Entry> {
    vec![
        Entry::new(Group::Contract, "info/never-more-than-there-is", "free plus held memory never exceeds the total", within),
        Entry::new(Group::Contract, "info/others-show", "memory that others hold does not count as free", others),
        Entry::new(
            Group::Contract,
            "info/frees-return-everything",
            "freed memory can be allocated again, however often",
            returned,
        ),
        Entry::new(Group::Contract, "ranges/apart", "ranges that are held at the same time do not overlap", apart),
    ]
}

/// The number of equal ranges that fill the device in [`returned`], and of pages beyond them, so that a driver that takes
/// or returns a page does not matter.
const FILLING: u64 = 16;
const SPARE_PAGES: u64 = 4;

/// Does not rely on the free memory that the device reports: it may count what was lost.
fn returned(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let (page, range) = (facts.page, Bytes((64 * MIB).next_multiple_of(facts.page.get())));
    let mut device = open(backend, Some(Bytes(FILLING * range.get() + SPARE_PAGES * page.get())))?;
    for round in 0..2 {
        let mut held = Vec::new();
        for _ in 0..FILLING {
            let address = device.malloc(range).map_err(|error| {
                Trouble::fail(format!(
                    "range {} of {range} bytes was refused ({error}) after {} frees, although the device has room for {FILLING}: \
                     free does not return all memory",
                    held.len() + 1,
                    round * (FILLING + 16 * SPARE_PAGES)
                ))
            })?;
            held.push(address);
        }
        held.into_iter().try_for_each(|address| device.free(address))?;
        for _ in 0..16 * SPARE_PAGES {
            let address = device.malloc(page)?;
            device.free(address)?;
        }
    }
    let text = format!("{FILLING} ranges fill the device before and after the frees\n");
    Ok(Evidence { text, operations: 4 * FILLING + 64 * SPARE_PAGES, ..Evidence::default() })
}

/// The number of ranges that [`apart`] allocates.
const RANGES: u64 = 400;

/// The sizes of requests differ by one page from those of freed ranges, so that a gap is often a page too small.
fn apart(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let facts = backend.facts();
    let mut device = open(backend, None)?;
    let mut draws = Draws::new(effort.seed);
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    for _ in 0..RANGES {
        if held.len() > 24 || (!held.is_empty() && draws.below(5) < 2) {
            let place = draws.below(held.len() as u64) as usize;
            let start = held.keys().nth(place).copied().unwrap_or_default();
            held.remove(&start);
            device.free(DeviceAddress(start))?;
        }
        let size = pages(&facts, 1 + draws.below(6)).get() - draws.below(2) * (facts.page.get() / 2);
        let start = device.malloc(Bytes(size))?.get();
        let before = held.range(..=start).next_back().filter(|&(&other, &bytes)| other + bytes > start);
        let overlapped = before.or_else(|| held.range(start..start + size).next());
        ensure(overlapped.is_none(), || {
            let (other, bytes) = overlapped.unwrap_or((&0, &0));
            format!(
                "malloc of {size} bytes returned {start:#x}, which overlaps the {bytes} bytes at {other:#x} that are still held"
            )
        })?;
        held.insert(start, size);
    }
    held.into_keys().try_for_each(|start| device.free(DeviceAddress(start)))?;
    Ok(Evidence { text: format!("{RANGES} ranges were allocated\n"), operations: RANGES, ..Evidence::default() })
}

/// Sizes of the allocations, in pages.
const SIZES: [u64; 4] = [1, 10, 128, 512];

fn within(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let total = device.memory_info()?.total;
    let (mut ranges, mut memory, mut held) = (Vec::new(), Vec::new(), 0);
    let look = |device: &mut AnyDevice, held: u64, what: &str| {
        let info = device.memory_info()?;
        ensure(info.total == total, || format!("{what}: the total changed to {}", info.total))?;
        let sum = info.free.get() + held;
        ensure(sum <= total.get() && info.free.get() <= before, || {
            format!("{what}: the device reports {info:?}, but {held} bytes are held")
        })?;
        ensure(before - info.free.get() == held, || {
            format!("{what}: {before} bytes were free at first, and with {held} bytes held the device reports {info:?}")
        })
    };
    look(&mut device, held, "nothing")?;
    for size in SIZES.map(|count| pages(&facts, count)) {
        ranges.push((device.malloc(size)?, size));
        held += size.get();
        look(&mut device, held, &format!("malloc of {size} bytes"))?;
        if facts.has_virtual_memory {
            memory.push((device.create(size)?, size));
            held += size.get();
            look(&mut device, held, &format!("create of {size} bytes"))?;
        }
    }
    let text = format!("{held} bytes are held, and free memory is down by the same amount\n");
    for (address, size) in ranges {
        device.free(address)?;
        held -= size.get();
        look(&mut device, held, &format!("free of {size} bytes"))?;
    }
    for (piece, size) in memory {
        device.release(piece).map_err(|(_, error)| Trouble::from(error))?;
        held -= size.get();
        look(&mut device, held, &format!("release of {size} bytes"))?;
    }
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, measured: format!("the device has {total} bytes, of which {before} are free"), operations: 16 })
}

fn others(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let mut device = open(backend, None)?;
    let before = device.memory_info()?;
    let mut text = String::new();
    for size in [1, 150, 0, 512, 0].map(|count| pages(&facts, count)) {
        device.others_hold(size)?;
        let now = device.memory_info()?;
        let missing = before.free.get().saturating_sub(now.free.get());
        ensure(missing == size.get() && now.total == before.total, || {
            format!("with {size} bytes held by other processes, the memory info changed from {before:?} to {now:?}")
        })?;
        text += &format!("other processes hold {size} bytes: free memory is down by {missing} bytes\n");
    }
    // The others hold nothing at this point.
    ends_empty(&mut device, before.free.get())?;
    Ok(Evidence { text, operations: 5, ..Evidence::default() })
}

/// A stream handle that no driver hands out.
const FOREIGN: StreamId = StreamId(0xdead_beef);

/// The entries of these rows.
pub(super) fn end_entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = vec![
        Entry::new(Group::Contract, "ends/double-free", "a freed range cannot be freed again", double_free),
        Entry::new(Group::Contract, "ends/unknown-address", "a range can be freed only by its start address", unknown_address),
        Entry::new(Group::Contract, "ends/too-much", "a request larger than the device's memory changes nothing", too_much),
        Entry::new(Group::Contract, "ends/no-bytes", "a zero-byte range is refused", no_bytes),
        Entry::new(
            Group::Contract,
            "ends/foreign-memory",
            "memory that the caller does not hold cannot be accessed",
            foreign_memory,
        ),
    ];
    // The simulated device creates a stream on its first use, so it has no unknown streams.
    if !backend.is_simulated() {
        let says = "an unknown stream is refused";
        entries.push(Entry::new(Group::Contract, "ends/foreign-stream", says, foreign_stream));
    }
    entries
}

/// The visible state of a device: live ranges, holdings, free memory.
type State = (Vec<(DeviceAddress, Bytes)>, Holdings, Bytes);

/// The state of a device, which a refusal must not change.
fn state(device: &mut AnyDevice) -> Result<State, Trouble> {
    Ok((device.live_ranges(), device.holdings(), device.memory_info()?.free))
}

/// Makes a call that must be refused with the expected code and must change nothing.
fn refused(
    device: &mut AnyDevice,
    what: &str,
    expected: u32,
    call: impl FnOnce(&mut AnyDevice) -> u32,
) -> Result<String, Trouble> {
    let before = state(device)?;
    let found = call(device);
    ensure(found == expected, || format!("{what}: returned code {found}, not {expected}"))?;
    let after = state(device)?;
    ensure(before == after, || format!("{what}: the state changed from {before:?} to {after:?}"))?;
    Ok(format!("{what}: returned code {found}\n"))
}

fn double_free(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let codes = facts.codes;
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for bytes in [1_000, pages(&facts, 10).get()] {
        let (kept, gone) = (device.malloc(Bytes(bytes))?, device.malloc(Bytes(bytes))?);
        device.free(gone)?;
        let what = format!("the second free of {bytes} bytes");
        text += &refused(&mut device, &what, codes.invalid_value, |device| codes.of(&device.free(gone)))?;
        device.free(kept)?;
    }
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 8, ..Evidence::default() })
}

fn unknown_address(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let codes = facts.codes;
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for bytes in [2_000, pages(&facts, 10).get()] {
        let kept = device.malloc(Bytes(bytes))?;
        let inside = |offset| kept.offset(Bytes(offset));
        let places = [
            ("1 byte after its start", inside(1)),
            ("512 bytes after its start", inside(512)),
            ("at address zero", DeviceAddress(0)),
            ("at the highest address", DeviceAddress(u64::MAX)),
        ];
        for (place, address) in places {
            let what = format!("free of a {bytes}-byte range, {place}");
            text += &refused(&mut device, &what, codes.invalid_value, |device| codes.of(&device.free(address)))?;
        }
        device.free(kept)?;
    }
    if facts.has_virtual_memory {
        let base = device.reserve(facts.page)?;
        text += &refused(&mut device, "free of a reservation", codes.invalid_value, |device| codes.of(&device.free(base)))?;
        device.unreserve(base, facts.page)?;
    }
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 15, ..Evidence::default() })
}

fn too_much(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let codes = facts.codes;
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    // Some devices can hand out everything that they report as total memory.
    let kept = device.malloc(facts.page)?;
    let all = device.total_memory().get() / facts.page.get();
    let mut text = String::new();
    for (what, count) in [("the whole device", all), ("twice the device", 2 * all)] {
        let size = pages(&facts, count);
        let (malloc, create) = (format!("malloc of {what}"), format!("create of {what}"));
        text += &refused(&mut device, &malloc, codes.out_of_memory, |device| codes.of(&device.malloc(size)))?;
        if facts.has_virtual_memory {
            text += &refused(&mut device, &create, codes.out_of_memory, |device| codes.of(&device.create(size)))?;
        }
    }
    device.free(kept)?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 4, ..Evidence::default() })
}

fn no_bytes(backend: &AnyBackend, _: &Effort) -> Verdict {
    let codes = backend.facts().codes;
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let text =
        refused(&mut device, "a malloc of zero bytes", codes.invalid_value, |device| codes.of(&device.malloc(Bytes::ZERO)))?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 1, ..Evidence::default() })
}

/// The call itself refuses access to memory that does not belong to the caller; the backend chooses the code. At the
/// tested addresses nothing is mapped: they are only reserved or, on a device without virtual memory, part of a freed
/// range.
fn foreign_memory(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let size = facts.page;
    let range = device.malloc(size)?;
    let base = if facts.has_virtual_memory {
        device.reserve(size)?
    } else {
        let gone = device.malloc(size)?;
        device.free(gone)?;
        gone
    };
    let stream = StreamId::DEFAULT;
    let refusals = [
        ("a fill where nothing is mapped", device.fill(base, size, 1, stream).is_err()),
        ("a copy from where nothing is mapped", device.copy(base, range, size, stream).is_err()),
        ("a copy to where nothing is mapped", device.copy(range, base, size, stream).is_err()),
        ("a read where nothing is mapped", device.read(base, &mut [0; 4]).is_err()),
        ("a fill at address zero", device.fill(DeviceAddress(0), size, 1, stream).is_err()),
    ];
    let mut text = String::new();
    for (what, is_refused) in refusals {
        ensure(is_refused, || format!("{what} succeeded"))?;
        text += &format!("{what}: refused\n");
    }
    // The device is still usable: an illegal access by a kernel would have destroyed the context.
    device.fill(range, size, 7, stream)?;
    let mut word = [0; 4];
    device.read(range, &mut word)?;
    ensure(u32::from_le_bytes(word) == 7, || format!("a fill after the refusals reads back as {word:?}"))?;
    device.free(range)?;
    if facts.has_virtual_memory {
        device.unreserve(base, size)?;
    }
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 9, ..Evidence::default() })
}

fn foreign_stream(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let (codes, size) = (facts.codes, facts.page);
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let range = device.malloc(size)?;
    let mut event = device.create_event()?;
    let mut text = String::new();
    let streams = [
        ("spin", codes.of(&device.spin(FOREIGN, 1))),
        ("fill", codes.of(&device.fill(range, size, 1, FOREIGN))),
        ("record", codes.of(&device.record_event(&mut event, FOREIGN))),
        ("wait for an event", codes.of(&device.stream_wait(FOREIGN, &event))),
        ("synchronize", codes.of(&device.synchronize_stream(FOREIGN))),
    ];
    for (what, found) in streams {
        let expected = codes.invalid_handle;
        ensure(found == expected, || format!("{what} on a foreign stream: code {found}, not {expected}"))?;
        text += &format!("{what}: returned code {found}\n");
    }
    device.destroy_event(event);
    device.free(range)?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 9, ..Evidence::default() })
}
