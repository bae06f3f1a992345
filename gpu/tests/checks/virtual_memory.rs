//! Checks of virtual memory: mapped memory keeps the written contents, no matter where it is mapped; the driver's
//! refusals reach the caller; and everything is released, even by a device that is dropped while in use.

use std::error::Error;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_gpu::{CudaDevice, CudaPhysical, Holdings};

use super::{ORDINAL, Outcome, ensure, free_bytes};

const PAGE: Bytes = Bytes(2 * MIB);
const LARGE: Bytes = Bytes(20 * MIB);
/// Driver codes (facts: Virtual memory calls).
const INVALID_VALUE: u32 = 1;
const NOT_SUPPORTED: u32 = 801;
/// Each piece of this size is filled with a different word.
const PIECE: Bytes = Bytes(64 << 10);
/// The duration of a kernel, which is long enough that it still runs when the device is dropped.
const BUSY_NS: u64 = 100_000_000;

/// A call that the driver refuses.
type Call<'a> = &'a dyn Fn(&mut CudaDevice) -> Result<(), BackendError>;

/// Maps a large piece of memory between two small ones in one reservation, writes across the borders, and reads
/// everything back at once.
pub(super) fn holds_what_is_written() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    ensure(device.granularity_bytes()? == PAGE, || String::from("the granularity is not 2 MiB"))?;
    warm_up(&mut device)?;
    let before = free_bytes(&mut device)?;
    let base = device.reserve(Bytes(64 * MIB))?;
    let (memory, whole) = (mapped(&mut device, base, &[PAGE, LARGE, PAGE])?, PAGE + LARGE + PAGE);
    let taken = before - free_bytes(&mut device)?;
    ensure(taken == whole.get(), || format!("{whole} bytes of handles took {taken} bytes"))?;

    let calls = device.driver_calls();
    for (offset, size) in [(Bytes::ZERO, Bytes(4)), (whole - Bytes(4), Bytes(4)), (whole, Bytes(4))] {
        let refused = device.fill(base.offset(offset), size, 1, StreamId::DEFAULT).is_err();
        ensure(refused, || format!("memory at +{offset} was written before access was granted"))?;
    }
    ensure(device.driver_calls() == calls, || String::from("a driver call was made for memory without access"))?;

    device.set_access(base, whole)?;
    write_pieces(&mut device, base, whole, 7)?;
    let wrong = wrong_piece(&mut device, base, whole, 7)?;
    ensure(wrong.is_none(), || format!("piece {wrong:?} is not what was written"))?;
    // One fill and one read over all three handles.
    device.fill(base, whole, 0x1234_5678, StreamId::DEFAULT)?;
    let mut bytes = vec![0; usize::try_from(whole.get())?];
    device.read(base, &mut bytes)?;
    ensure(bytes.chunks_exact(4).all(|word| word == 0x1234_5678_u32.to_le_bytes()), || {
        String::from("one fill across all pieces differs")
    })?;

    let held = Holdings { reservations: 1, reserved_bytes: Bytes(64 * MIB), handles: 3, mappings: 3, ..Holdings::default() };
    ensure(device.holdings() == held, || format!("{:?}", device.holdings()))?;
    device.unmap(base, whole)?;
    ensure(device.read(base, &mut [0; 4]).is_err(), || String::from("unmapped memory was read"))?;
    release_all(&mut device, memory)?;
    device.unreserve(base, Bytes(64 * MIB))?;
    ends_empty(&mut device, before)?;
    Ok(format!("{whole} bytes in three handles, {} pieces", whole.get() / PIECE.get()))
}

/// Maps memory again at a different address, and copies it on the device.
pub(super) fn survives_remapping() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    warm_up(&mut device)?;
    let before = free_bytes(&mut device)?;
    let (first, second) = (device.reserve(LARGE)?, device.reserve(Bytes(64 * MIB))?);
    let memory = mapped(&mut device, first, &[LARGE])?;
    device.set_access(first, LARGE)?;
    write_pieces(&mut device, first, LARGE, 11)?;
    device.synchronize()?;
    device.unmap(first, LARGE)?;
    let elsewhere = second.offset(Bytes(40 * MIB));
    device.map(elsewhere, LARGE, &memory[0])?;
    device.set_access(elsewhere, LARGE)?;
    let wrong = wrong_piece(&mut device, elsewhere, LARGE, 11)?;
    ensure(wrong.is_none(), || format!("piece {wrong:?} changed when its address changed"))?;

    let copy = device.malloc(LARGE)?;
    device.copy(elsewhere, copy, LARGE, StreamId::DEFAULT)?;
    let wrong = wrong_piece(&mut device, copy, LARGE, 11)?;
    ensure(wrong.is_none(), || format!("piece {wrong:?} changed when it was copied"))?;
    ensure(device.copy(first, copy, PAGE, StreamId::DEFAULT).is_err(), || String::from("unmapped memory was copied"))?;

    device.free(copy)?;
    device.unmap(elsewhere, LARGE)?;
    release_all(&mut device, memory)?;
    device.unreserve(first, LARGE)?;
    device.unreserve(second, Bytes(64 * MIB))?;
    ends_empty(&mut device, before)?;
    Ok(format!("{LARGE} bytes copied from {first} to {elsewhere}, bit for bit"))
}

pub(super) fn aliases_share() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    let base = device.reserve(PAGE + PAGE)?;
    let alias = base.offset(PAGE);
    let memory = mapped(&mut device, base, &[PAGE])?;
    device.map(alias, PAGE, &memory[0])?;
    device.set_access(base, PAGE + PAGE)?;
    release_all(&mut device, memory)?; // the memory lives on in its mappings
    write_pieces(&mut device, base, PAGE, 13)?;
    device.synchronize()?;
    let wrong = wrong_piece(&mut device, alias, PAGE, 13)?;
    ensure(wrong.is_none(), || format!("piece {wrong:?} is different at the second address"))?;
    device.unmap(base, PAGE)?;
    let wrong = wrong_piece(&mut device, alias, PAGE, 13)?;
    ensure(wrong.is_none(), || format!("piece {wrong:?} was lost with the first address"))?;
    device.unmap(alias, PAGE)?;
    device.unreserve(base, PAGE + PAGE)?;
    Ok(String::from("one page at two addresses, its handle released"))
}

/// Checks that each refusal is the driver's own and changes nothing (facts: Virtual memory calls).
pub(super) fn refusals_are_the_drivers() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    let size = Bytes(64 * MIB);
    let base = device.reserve(size)?;
    let at = |mib: u64| base.offset(Bytes(mib * MIB));
    let mut memory = mapped(&mut device, base, &[LARGE])?;
    let spare = device.create(LARGE)?;
    let cases: [(&str, u32, Call<'_>); 14] = [
        ("map over a mapping", INVALID_VALUE, &|device| device.map(base, LARGE, &spare)),
        ("map into a mapping", INVALID_VALUE, &|device| device.map(at(2), LARGE, &spare)),
        ("map part of a handle", NOT_SUPPORTED, &|device| device.map(at(40), PAGE, &spare)),
        ("map more than a handle", NOT_SUPPORTED, &|device| device.map(at(40), Bytes(22 * MIB), &spare)),
        ("map 512 bytes off", INVALID_VALUE, &|device| device.map(at(40).offset(Bytes(512)), LARGE, &spare)),
        ("map 1 MiB off", INVALID_VALUE, &|device| device.map(at(41), LARGE, &spare)),
        ("map outside the reservation", INVALID_VALUE, &|device| device.map(at(60), LARGE, &spare)),
        ("map where nothing is reserved", INVALID_VALUE, &|device| device.map(DeviceAddress(PAGE.get()), LARGE, &spare)),
        ("access to unmapped addresses", INVALID_VALUE, &|device| device.set_access(at(40), PAGE)),
        ("access to a mapping and a gap", INVALID_VALUE, &|device| device.set_access(base, Bytes(22 * MIB))),
        ("unmap part of a mapping", INVALID_VALUE, &|device| device.unmap(base, PAGE)),
        ("create 1 MiB", INVALID_VALUE, &|device| device.create(Bytes(MIB)).map(drop)),
        ("free addresses with a mapping", INVALID_VALUE, &|device| device.unreserve(base, size)),
        ("free part of the addresses", INVALID_VALUE, &|device| device.unreserve(at(32), Bytes(32 * MIB))),
    ];
    let refusals = cases.len();
    for (name, expected, call) in cases {
        let (calls, held) = (device.driver_calls(), device.holdings());
        let code = match call(&mut device) {
            Err(BackendError::Driver { code, .. }) => code,
            other => return Err(format!("{name}: {other:?}").into()),
        };
        ensure(code == expected, || format!("{name}: code {code}, not {expected}"))?;
        ensure(device.driver_calls() > calls, || format!("{name}: no driver call was made"))?;
        ensure(device.holdings() == held, || format!("{name}: {held:?} became {:?}", device.holdings()))?;
    }
    device.unmap(base, size)?; // a mapping and a gap
    device.unmap(base, size)?; // nothing
    memory.push(spare);
    release_all(&mut device, memory)?;
    device.unreserve(base, size)?;
    let gone = device.unreserve(base, size).is_err() && device.unmap(base, size).is_err();
    ensure(gone, || String::from("freed addresses were accepted"))?;
    let before = free_bytes(&mut device)?;
    // First requests the driver's total, which exceeds the free memory because the context takes some, and then more
    // than the total.
    let total = Bytes(device.total_memory().get() / PAGE.get() * PAGE.get());
    for requested in [total, total + Bytes(1024 * MIB)] {
        let refused = device.create(requested).err();
        ensure(refused == Some(BackendError::OutOfMemory { requested }), || {
            format!(
                "a request for {requested} bytes returned \
                                                                                     {refused:?}"
            )
        })?;
    }
    // The driver first refuses a size that is not a multiple of the page size.
    let refused = device.create(total + Bytes(1025 * MIB)).err();
    let expected = Some(BackendError::Driver { call: "cuMemCreate", code: INVALID_VALUE });
    ensure(refused == expected, || format!("1 MiB more than whole pages: {refused:?}"))?;
    let after = free_bytes(&mut device)?;
    ensure(after == before, || format!("{before} bytes were free before the refusals, {after} after"))?;
    ensure(device.holdings() == Holdings::default(), || format!("left: {:?}", device.holdings()))?;
    Ok(format!("{refusals} refusals, with the codes listed in the facts"))
}

/// Drops the device with mappings, a range, a stream, a running kernel and a queued fill, and checks that it releases
/// all of them.
pub(super) fn dropped_in_mid_use() -> Outcome {
    let mut witness = CudaDevice::open(ORDINAL)?;
    warm_up(&mut witness)?;
    let before = free_bytes(&mut witness)?;
    let mut device = CudaDevice::open(ORDINAL)?;
    let base = device.reserve(Bytes(128 * MIB))?;
    let memory = mapped(&mut device, base, &[LARGE, PAGE, LARGE])?;
    let whole = LARGE + PAGE + LARGE;
    device.set_access(base, whole)?;
    device.reserve(Bytes(1024 * MIB))?; // with nothing in it
    device.malloc(LARGE)?;
    let stream = device.create_stream()?;
    device.spin(stream, BUSY_NS)?;
    device.fill(base, whole, 3, stream)?;
    ensure(device.unmap(base, PAGE).is_err(), || String::from("part of a mapping was unmapped"))?; // an error on the way
    let during = free_bytes(&mut witness)?;
    ensure(during + whole.get() + LARGE.get() <= before, || format!("free memory changed from {before} to {during} bytes"))?;
    drop(device);
    let mapped_no_more = free_bytes(&mut witness)?;
    let kept = before - mapped_no_more;
    ensure(kept == whole.get(), || format!("{kept} bytes are held by handles of {whole} bytes"))?;
    drop(memory); // handles that outlived their device release themselves
    let after = free_bytes(&mut witness)?;
    ensure(after == before, || format!("{before} bytes were free before, {after} after"))?;
    usable(&mut witness)?;
    Ok(format!("{} bytes were returned while a kernel was running", (whole + LARGE).get()))
}

/// Creates memory of these sizes and maps it at consecutive addresses.
fn mapped(device: &mut CudaDevice, base: DeviceAddress, sizes: &[Bytes]) -> Result<Vec<CudaPhysical>, Box<dyn Error>> {
    let (mut memory, mut at) = (Vec::new(), base);
    for &size in sizes {
        let piece = device.create(size)?;
        device.map(at, size, &piece)?;
        memory.push(piece);
        at = at.offset(size);
    }
    Ok(memory)
}

fn release_all(device: &mut CudaDevice, memory: Vec<CudaPhysical>) -> Result<(), Box<dyn Error>> {
    memory.into_iter().try_for_each(|piece| device.release(piece).map_err(|(_, error)| error.into()))
}

/// Queues a fill of each piece with a different word.
fn write_pieces(device: &mut CudaDevice, base: DeviceAddress, size: Bytes, salt: u32) -> Result<(), Box<dyn Error>> {
    for (word, offset) in (0_u32..).zip((0..size.get()).step_by(PIECE.get() as usize)) {
        device.fill(base.offset(Bytes(offset)), PIECE, word.wrapping_mul(0x9e37_79b1) ^ salt, StreamId::DEFAULT)?;
    }
    Ok(())
}

/// Returns the first piece whose contents differ from what was written there.
fn wrong_piece(device: &mut CudaDevice, base: DeviceAddress, size: Bytes, salt: u32) -> Result<Option<usize>, Box<dyn Error>> {
    let mut bytes = vec![0; usize::try_from(size.get())?];
    device.read(base, &mut bytes)?;
    let is_wrong = |(word, piece): (u32, &[u8])| {
        let expected = (word.wrapping_mul(0x9e37_79b1) ^ salt).to_le_bytes();
        piece.chunks_exact(4).any(|found| found != expected)
    };
    Ok((0_u32..).zip(bytes.chunks_exact(PIECE.get() as usize)).position(is_wrong))
}

/// Makes each call once, so that the driver has already taken the memory that it needs on first use.
fn warm_up(device: &mut CudaDevice) -> Result<(), Box<dyn Error>> {
    let stream = device.create_stream()?;
    device.spin(stream, 1_000)?;
    device.synchronize_stream(stream)?;
    device.destroy_stream(stream)?;
    usable(device)
}

/// Reserves, maps, writes, reads, copies and releases everything.
fn usable(device: &mut CudaDevice) -> Result<(), Box<dyn Error>> {
    let (base, range) = (device.reserve(LARGE)?, device.malloc(LARGE)?);
    let memory = mapped(device, base, &[LARGE])?;
    device.set_access(base, LARGE)?;
    write_pieces(device, base, LARGE, 17)?;
    device.copy(base, range, LARGE, StreamId::DEFAULT)?;
    let wrong = wrong_piece(device, range, LARGE, 17)?;
    ensure(wrong.is_none(), || format!("piece {wrong:?} is not what was written"))?;
    device.unmap(base, LARGE)?;
    release_all(device, memory)?;
    device.unreserve(base, LARGE)?;
    Ok(device.free(range)?)
}

/// Checks that the device holds nothing and that the free memory is the same as before.
fn ends_empty(device: &mut CudaDevice, before: u64) -> Result<(), Box<dyn Error>> {
    ensure(device.holdings() == Holdings::default(), || format!("left: {:?}", device.holdings()))?;
    let after = free_bytes(device)?;
    ensure(after == before, || format!("{before} bytes were free before, {after} after"))
}
