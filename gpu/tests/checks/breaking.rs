//! Breaking handles on a full device: the contents are temporarily kept in host memory, which also replaces memory
//! that the device does not provide again.

use std::sync::atomic::{AtomicBool, Ordering};

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_gpu::{CudaDevice, CudaPhysical};

use super::{ORDINAL, Outcome, ensure, free_bytes};

const PAGE: u64 = 2 * MIB;
const HANDLE_PAGES: u64 = 64;
/// The maximum number of rounds in which a handle is broken while another process takes the free
/// memory.
const MOST_ROUNDS: u32 = 60;

/// Keeps every other page of a handle on a device whose remaining memory is all in use, while a greedy neighbour takes
/// any memory that becomes free. Breaks the handle repeatedly until the neighbour is faster; host memory then replaces
/// the device's memory. The contents survive in each case.
pub(crate) fn contents_outlive_a_full_device() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    if !device.breaks_handles() {
        return Ok("the driver cannot map host memory, so handles are not broken here".to_owned());
    }
    // The driver keeps the memory that it takes for itself when the device first becomes full.
    beside_a_greedy_one(|| ())?;
    let before = free_bytes(&mut device)?;
    let size = Bytes(HANDLE_PAGES * PAGE);
    let base = device.reserve(size)?;
    let parts: Vec<(Bytes, Bytes)> = (0..HANDLE_PAGES).step_by(2).map(|place| (Bytes(place * PAGE), Bytes(PAGE))).collect();
    let (mut broken, mut stood_in) = (0, 0);
    for round in 0..MOST_ROUNDS {
        let memory = device.create(size)?;
        device.map(base, size, &memory)?;
        device.set_access(base, size)?;
        for place in 0..HANDLE_PAGES {
            device.fill(base.offset(Bytes(place * PAGE)), Bytes(PAGE), word(round, place), StreamId::DEFAULT)?;
        }
        let outcome = beside_a_greedy_one(|| device.break_handle(base, size, memory, &parts))?;
        for place in (0..HANDLE_PAGES).step_by(2) {
            let ends = [place * PAGE, (place + 1) * PAGE - 4];
            for at in ends {
                let mut found = [0; 4];
                device.read(DeviceAddress(base.get() + at), &mut found)?;
                ensure(found == word(round, place).to_le_bytes(), || format!("round {round}: page {place} lost its contents"))?;
            }
        }
        device.synchronize()?;
        device.unmap(base, size)?;
        let left: Vec<CudaPhysical> = match outcome {
            Ok(pieces) => {
                broken += 1;
                pieces
            }
            Err((memory, BackendError::OutOfMemory { .. })) => {
                // The host memory has one handle per page.
                let handles = device.holdings().handles;
                ensure(handles == HANDLE_PAGES as usize, || format!("round {round}: {handles} handles of host memory are used"))?;
                stood_in += 1;
                vec![memory]
            }
            Err((_, error)) => return Err(error.into()),
        };
        left.into_iter().try_for_each(|memory| device.release(memory).map_err(|(_, error)| error))?;
        // A device that has lost its memory to the neighbour breaks no more handles.
        ensure(device.breaks_handles() == (stood_in == 0), || {
            format!(
                "round {round}: {stood_in} handles of host memory were \
                                                                       used, but handles are still broken"
            )
        })?;
        if stood_in > 0 {
            break;
        }
    }
    ensure(stood_in > 0, || format!("the neighbour never took the memory that became free: {broken} handles were broken"))?;
    device.unreserve(base, size)?;
    ensure(device.holdings() == parkade_gpu::Holdings::default(), || format!("left: {:?}", device.holdings()))?;
    let after = free_bytes(&mut device)?;
    ensure(after == before, || format!("{before} bytes were free before, {after} after"))?;
    Ok(format!("{broken} handles were broken, then host memory was used"))
}

fn word(round: u32, place: u64) -> u32 {
    round << 16 | place as u32
}

/// Makes a call while all other memory is taken and a neighbour takes any memory that becomes free. The neighbour then
/// returns all of it.
fn beside_a_greedy_one<T>(call: impl FnOnce() -> T) -> Result<T, Box<dyn std::error::Error>> {
    let (is_full, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| -> Result<(), String> {
            let mut device = CudaDevice::open(ORDINAL).map_err(|error| error.to_string())?;
            let mut size = 64 << 30;
            while !is_over.load(Ordering::Acquire) {
                if device.malloc(Bytes(size)).is_err() {
                    if size > PAGE {
                        size = (size / 2).max(PAGE);
                    } else {
                        is_full.store(true, Ordering::Release);
                    }
                }
            }
            Ok(())
        });
        while !is_full.load(Ordering::Acquire) && !neighbour.is_finished() {
            std::thread::yield_now();
        }
        let outcome = call();
        is_over.store(true, Ordering::Release);
        neighbour.join().map_err(|_| "the neighbour panicked".to_owned()).and_then(|ended| ended)?;
        Ok(outcome)
    })
}
