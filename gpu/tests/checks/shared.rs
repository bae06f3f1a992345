//! Memory of one device that is opened again from its file descriptors, as another process would
//! open it.

use std::collections::VecDeque;
use std::error::Error;
use std::os::fd::AsRawFd;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_gpu::{CudaDevice, CudaPhysical, SharedMemory};

use super::{ORDINAL, Outcome, ensure, free_bytes};

const HANDLES: [Bytes; 3] = [Bytes(2 * MIB), Bytes(20 * MIB), Bytes(4 * MIB)];
const ALL: Bytes = Bytes(26 * MIB);

/// Writes at one address and reads at the other. The memory is kept for everyone who has it open, and is released when
/// the last one closes it.
pub(super) fn opened_again() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    device.spin(StreamId::DEFAULT, 0)?;
    device.synchronize()?;
    let before = free_bytes(&mut device)?;
    let base = device.reserve(ALL)?;
    let mut memory = Vec::new();
    let mut place = base;
    for size in HANDLES {
        let handle = device.create(size)?;
        device.map(place, size, &handle)?;
        memory.push(handle);
        place = place.offset(size);
    }
    ensure(device.share(base, ALL).is_err(), || String::from("memory without access was shared"))?;
    device.set_access(base, ALL)?;
    device.fill(base, ALL, 1, StreamId::DEFAULT)?;
    device.synchronize()?;

    ensure(device.share(base, ALL + ALL).is_err(), || String::from("addresses beyond the reservation were shared"))?;
    // A range in the middle returns every handle under it in full.
    let few = device.share(base.offset(Bytes(3 * MIB)), Bytes(MIB))?;
    ensure(few.len() == 1 && few[0].address == base.offset(HANDLES[0]) && few[0].size == HANDLES[1], || format!("{few:?}"))?;
    let opened = open_again(&mut device, base)?;
    ensure(opened.size() == ALL && opened.address() != base, || format!("{} bytes at {}", opened.size(), opened.address()))?;
    ensure(before - free_bytes(&mut device)? == ALL.get(), || String::from("the second mapping took memory"))?;
    let wrong = SharedMemory::open(ORDINAL, &[(std::os::fd::AsFd::as_fd(&std::fs::File::open("/dev/null")?), HANDLES[0])], &[]);
    ensure(wrong.is_err(), || String::from("a file that is not a handle was opened"))?;
    ensure(SharedMemory::open(ORDINAL, &[], &[]).is_err(), || String::from("an empty list of handles was opened"))?;
    let files: Vec<_> = device.share(base, ALL)?.iter().map(|handle| handle.file.as_raw_fd()).collect();
    let again = device.share(base, ALL)?;
    ensure(again.iter().map(|handle| handle.file.as_raw_fd()).eq(files), || String::from("a handle was exported twice"))?;
    let small = SharedMemory::open(ORDINAL, &[(again[1].file, HANDLES[0])], &[]);
    ensure(small.is_err(), || String::from("a handle was opened as a smaller one"))?;
    let mut memory = VecDeque::from(memory);
    let first = memory.pop_front().ok_or("three handles were exported")?;
    match device.break_handle(base, HANDLES[0], first, &[]) {
        Err((first, BackendError::OutOfMemory { .. })) => memory.push_front(first),
        other => {
            return Err(format!("a shared handle may be broken: {:?}", other.map(|_| ()).map_err(|(_, error)| error)).into());
        }
    }

    // The first mapping is removed; the second one still has its contents.
    give_back(&mut device, base, memory.into())?;
    ensure(before - free_bytes(&mut device)? == ALL.get(), || String::from("memory that is open elsewhere was released"))?;
    drop(opened);
    ensure(free_bytes(&mut device)? == before, || String::from("closed memory was not returned"))?;
    Ok(format!("{ALL} bytes in {} handles", HANDLES.len()))
}

/// Opens the memory, and compares the contents at both addresses.
fn open_again(device: &mut CudaDevice, base: DeviceAddress) -> Result<SharedMemory, Box<dyn Error>> {
    let shared = device.share(base, ALL)?;
    let opened = SharedMemory::open(ORDINAL, &shared.iter().map(|handle| (handle.file, handle.size)).collect::<Vec<_>>(), &[])?;
    let word = |device: &mut CudaDevice, at| -> Result<u32, Box<dyn Error>> {
        let mut bytes = [0; 4];
        opened.read(at, &mut bytes)?;
        let mut here = [0; 4];
        device.read(base.offset(at), &mut here)?;
        ensure(bytes == here, || format!("at {at}, the other address has {bytes:?} and this one has {here:?}"))?;
        Ok(u32::from_le_bytes(bytes))
    };
    for at in [Bytes::ZERO, HANDLES[0], ALL - Bytes(4)] {
        ensure(word(device, at)? == 1, || format!("the word at {at} is not what was written"))?;
    }
    device.fill(base.offset(HANDLES[0]), HANDLES[1], 2, StreamId::DEFAULT)?;
    device.synchronize()?;
    let words = [Bytes::ZERO, HANDLES[0], ALL - Bytes(4)].map(|at| word(device, at));
    let words = words.into_iter().collect::<Result<Vec<_>, _>>()?;
    ensure(words == [1, 2, 1], || format!("{words:?}"))?;
    Ok(opened)
}

fn give_back(device: &mut CudaDevice, base: DeviceAddress, memory: Vec<CudaPhysical>) -> Result<(), Box<dyn Error>> {
    device.unmap(base, ALL)?;
    for handle in memory {
        device.release(handle).map_err(|(_, error)| error)?;
    }
    Ok(device.unreserve(base, ALL)?)
}
