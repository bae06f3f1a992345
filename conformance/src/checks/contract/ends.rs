//! What a device refuses because it is not the caller's (any more); and after a refusal nothing has changed.

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::backend::{Backend, TestDevice};
use crate::checks::contract::probe::{ends_empty, ensure, free_bytes, open, pages};
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// A handle that no driver gives out.
const FOREIGN: StreamId = StreamId(0xdead_beef);

/// The entries of these rows.
pub(super) fn entries<B: Backend + 'static>(backend: &B) -> Vec<Entry<B>> {
    let mut entries = vec![
        Entry::new(Group::Contract, "ends/double-free", "a range that was given back is not the caller's any more", double_free),
        Entry::new(Group::Contract, "ends/unknown-address", "only the start of a range can be given back", unknown_address),
        Entry::new(Group::Contract, "ends/too-much", "a request for more than there is changes nothing", too_much),
        Entry::new(Group::Contract, "ends/no-bytes", "a range of no bytes is refused", no_bytes),
        Entry::new(Group::Contract, "ends/foreign-memory", "memory outside of what is held cannot be touched", foreign_memory),
    ];
    // A stream of the simulated device begins with its first use, so there is none that it does not know.
    if !backend.is_simulated() {
        let says = "a stream that is not the device's is refused";
        entries.push(Entry::new(Group::Contract, "ends/foreign-stream", says, foreign_stream));
    }
    entries
}

/// What a device shows of itself that a refusal must not change.
fn state<D: TestDevice>(device: &mut D) -> Result<impl PartialEq + std::fmt::Debug + use<D>, Trouble> {
    Ok((device.live_ranges(), device.holdings(), device.memory_info()?.free))
}

/// Makes a call that must be refused with this code and change nothing.
fn refused<D: TestDevice>(
    device: &mut D,
    what: &str,
    expected: u32,
    call: impl FnOnce(&mut D) -> u32,
) -> Result<String, Trouble> {
    let before = state(device)?;
    let found = call(device);
    ensure(found == expected, || format!("{what}: code {found}, not {expected}"))?;
    let after = state(device)?;
    ensure(before == after, || format!("{what}: {before:?} became {after:?}"))?;
    Ok(format!("{what}: code {found}\n"))
}

fn double_free<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let codes = facts.codes;
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for bytes in [1_000, pages(&facts, 10).get()] {
        let (kept, gone) = (device.malloc(Bytes(bytes))?, device.malloc(Bytes(bytes))?);
        device.free(gone)?;
        let what = format!("free of {bytes} bytes, the second time");
        text += &refused(&mut device, &what, codes.invalid_value, |device| codes.of(&device.free(gone)))?;
        device.free(kept)?;
    }
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 8, ..Evidence::default() })
}

fn unknown_address<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let codes = facts.codes;
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let mut text = String::new();
    for bytes in [2_000, pages(&facts, 10).get()] {
        let kept = device.malloc(Bytes(bytes))?;
        let inside = |offset| kept.offset(Bytes(offset));
        let places = [
            ("1 byte into it", inside(1)),
            ("512 bytes into it", inside(512)),
            ("at zero", DeviceAddress(0)),
            ("at the end of all addresses", DeviceAddress(u64::MAX)),
        ];
        for (place, address) in places {
            let what = format!("free beside {bytes} bytes, {place}");
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

fn too_much<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let codes = facts.codes;
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    // Some devices give out all that they call total.
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

fn no_bytes<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let codes = backend.facts().codes;
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let text = refused(&mut device, "malloc of no bytes", codes.invalid_value, |device| codes.of(&device.malloc(Bytes::ZERO)))?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 1, ..Evidence::default() })
}

/// What a program must not touch is refused in the call; with which code is the backend's business. Nothing is mapped in
/// addresses that were only reserved, nor, where none can be, in a range that was given back.
fn foreign_memory<B: Backend>(backend: &B, _: &Effort) -> Verdict {
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
        ("fill where nothing is mapped", device.fill(base, size, 1, stream).is_err()),
        ("copy from where nothing is mapped", device.copy(base, range, size, stream).is_err()),
        ("copy to where nothing is mapped", device.copy(range, base, size, stream).is_err()),
        ("read where nothing is mapped", device.read(base, &mut [0; 4]).is_err()),
        ("fill at zero", device.fill(DeviceAddress(0), size, 1, stream).is_err()),
    ];
    let mut text = String::new();
    for (what, is_refused) in refusals {
        ensure(is_refused, || format!("{what} was done"))?;
        text += &format!("{what}: refused\n");
    }
    // The device is still usable: an illegal access of a kernel would have ended the context.
    device.fill(range, size, 7, stream)?;
    let mut word = [0; 4];
    device.read(range, &mut word)?;
    ensure(u32::from_le_bytes(word) == 7, || format!("after the refusals a fill reads back as {word:?}"))?;
    device.free(range)?;
    if facts.has_virtual_memory {
        device.unreserve(base, size)?;
    }
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 9, ..Evidence::default() })
}

fn foreign_stream<B: Backend>(backend: &B, _: &Effort) -> Verdict {
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
        text += &format!("{what}: code {found}\n");
    }
    device.destroy_event(event);
    device.free(range)?;
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, operations: 9, ..Evidence::default() })
}
