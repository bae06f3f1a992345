//! Checks of the device: memory, refusals, events, streams, threads, and what remains after the device is dropped.

use std::error::Error;
use std::thread;
use std::time::Instant;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_gpu::CudaDevice;

use super::{ORDINAL, Outcome, ensure, free_bytes};

const GIB: u64 = 1024 * MIB;
const PAGE: u64 = 2 * MIB;
/// A handle that no driver has returned.
const MADE_UP: StreamId = StreamId(0xdead_beef_f000);
/// Driver codes from `cuda.h`.
const INVALID_VALUE: u32 = 1;
const INVALID_HANDLE: u32 = 400;
/// Work that keeps a stream busy for about 30 ms: this many fills of this size.
const BUSY_FILLS: u32 = 256;
const BUSY_BYTES: Bytes = Bytes::mib(512);
/// The number of times that a call is repeated to measure its time.
const TIMED_CALLS: u32 = 10_000;

/// Checks that a cudaMalloc of more than 1 MiB takes whole pages (facts: Sizes and addresses).
pub(super) fn malloc_takes_whole_pages() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    for size in [2 * MIB, 2 * MIB + 1, 20 * MIB, 20 * MIB + 1, GIB] {
        let before = free_bytes(&mut device)?;
        let address = device.malloc(Bytes(size))?;
        let taken = before - free_bytes(&mut device)?;
        let pages = size.next_multiple_of(PAGE);
        ensure(taken == pages, || format!("{size} bytes took {taken} of the device's memory, not {pages}"))?;
        ensure(address.get().is_multiple_of(512), || format!("{address} is not at a 512-byte boundary"))?;
        device.free(address)?;
        let after = free_bytes(&mut device)?;
        ensure(after == before, || {
            format!(
                "{size} bytes were allocated and freed: {before} bytes were free before, {after} \
                                            after"
            )
        })?;
    }
    Ok(String::from("2 MiB, 20 MiB, one byte more, and 1 GiB: whole 2 MiB pages"))
}

pub(super) fn out_of_memory() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    let before = free_bytes(&mut device)?;
    let requested = device.total_memory() + Bytes(GIB);
    let answer = device.malloc(requested);
    ensure(answer == Err(BackendError::OutOfMemory { requested }), || {
        format!(
            "a request for {requested} bytes returned \
                                                                               {answer:?}"
        )
    })?;
    let after = free_bytes(&mut device)?;
    ensure(after == before, || format!("{before} bytes were free before the refusal, {after} after"))?;
    usable(&mut device)?;
    Ok(format!("total + 1 GiB = {requested} B refused"))
}

pub(super) fn given_back_once() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    let address = device.malloc(Bytes(20 * MIB))?;
    device.free(address)?;
    let calls = device.driver_calls();
    for unknown in [address, address.offset(Bytes(512)), DeviceAddress(512), DeviceAddress(0)] {
        let answer = device.free(unknown);
        let refused = BackendError::Driver { call: "cuMemFree_v2", code: INVALID_VALUE };
        ensure(answer == Err(refused), || format!("freeing {unknown}, which is not allocated, returned {answer:?}"))?;
        ensure(device.read(unknown, &mut [0; 4]).is_err(), || format!("{unknown}, which is not allocated, was read"))?;
    }
    let asked = device.driver_calls() - calls;
    ensure(asked == 0, || format!("{asked} driver calls were made"))?;
    usable(&mut device)?;
    Ok(String::from("a second free is refused without a driver call"))
}

pub(super) fn events_follow_work() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    let (busy, memory) = (device.create_stream()?, device.malloc(BUSY_BYTES)?);
    let (mut behind, mut beside) = (device.create_event()?, device.create_event()?);
    ensure(device.is_complete(&behind)?, || String::from("an event that was never recorded is not complete"))?;
    device.fill(memory, BUSY_BYTES, 0, busy)?;
    device.synchronize()?;

    let start = Instant::now();
    for word in 0..BUSY_FILLS {
        device.fill(memory, BUSY_BYTES, word, busy)?;
    }
    device.record_event(&mut behind, busy)?;
    device.record_event(&mut beside, StreamId::DEFAULT)?;
    device.wait(&beside)?;
    let idle_us = start.elapsed().as_micros();
    ensure(!device.is_complete(&behind)?, || String::from("an event is complete before the work that was queued before it"))?;
    device.wait(&behind)?;
    let busy_us = start.elapsed().as_micros();
    ensure(device.is_complete(&behind)?, || String::from("an event that was waited for is not complete"))?;

    let record_ns = timed_ns(|| device.record_event(&mut behind, busy))?;
    device.wait(&behind)?;
    let query_ns = timed_ns(|| device.is_complete(&behind))?;
    device.destroy_event(behind);
    device.destroy_event(beside);
    device.free(memory)?;
    device.destroy_stream(busy)?;
    Ok(format!("idle stream after {idle_us} us, busy one after {busy_us} us; record {record_ns} ns, query {query_ns} ns"))
}

pub(super) fn made_up_streams() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    let (mut event, gone, memory) = (device.create_event()?, device.create_stream()?, device.malloc(Bytes(PAGE))?);
    device.destroy_stream(gone)?;
    let calls = device.driver_calls();
    // To the driver, 1 and 2 are the legacy and the per-thread default stream. The device does not own them.
    for stream in [MADE_UP, gone, StreamId(1), StreamId(2)] {
        let answer = device.record_event(&mut event, stream);
        let refused = BackendError::Driver { call: "cuEventRecord", code: INVALID_HANDLE };
        ensure(answer == Err(refused), || format!("an event on stream {stream}: {answer:?}"))?;
        ensure(device.fill(memory, Bytes(PAGE), 0, stream).is_err(), || format!("memory was filled on stream {stream}"))?;
        ensure(device.destroy_stream(stream).is_err(), || format!("stream {stream} was destroyed"))?;
    }
    let asked = device.driver_calls() - calls;
    ensure(asked == 0, || format!("{asked} driver calls were made"))?;
    device.record_event(&mut event, StreamId::DEFAULT)?;
    device.wait(&event)?;
    device.destroy_event(event);
    device.free(memory)?;
    Ok(String::from("four unknown handles refused without a driver call"))
}

pub(super) fn dropped_device() -> Outcome {
    let mut witness = CudaDevice::open(ORDINAL)?; // this keeps the context, so that the context's own memory does not change
    let before = free_bytes(&mut witness)?;
    let mut device = CudaDevice::open(ORDINAL)?;
    device.malloc(Bytes(64 * MIB))?;
    device.malloc(Bytes(2 * MIB))?;
    let during = free_bytes(&mut witness)?;
    ensure(before - during == 66 * MIB, || {
        format!("66 MiB were taken, and free memory changed from {before} to {during} bytes")
    })?;
    drop(device);
    let after = free_bytes(&mut witness)?;
    ensure(after == before, || format!("{before} bytes were free before the device was opened and dropped, {after} after"))?;
    Ok(String::from("66 MiB in two ranges were returned"))
}

pub(super) fn other_thread() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    let address = device.malloc(Bytes(20 * MIB))?;
    let worker = thread::spawn(move || -> Result<CudaDevice, String> {
        usable(&mut device).map_err(|error| error.to_string())?;
        device.free(address).map_err(|error| error.to_string())?;
        Ok(device)
    });
    let mut device = worker.join().map_err(|_| "the thread panicked")??;
    ensure(device.holdings().ranges == 0, || format!("{} ranges are left", device.holdings().ranges))?;
    usable(&mut device)?;
    Ok(String::from("allocated here, freed there"))
}

pub(super) fn outliving_event() -> Outcome {
    let mut first = CudaDevice::open(ORDINAL)?;
    let mut event = first.create_event()?;
    first.record_event(&mut event, StreamId::DEFAULT)?;
    drop(first);
    let mut second = CudaDevice::open(ORDINAL)?;
    second.wait(&event)?;
    ensure(second.is_complete(&event)?, || String::from("the event is not complete"))?;
    second.destroy_event(event);
    Ok(String::from("the event keeps the context alive"))
}

/// Allocates, writes, reads and frees memory.
fn usable(device: &mut CudaDevice) -> Result<(), Box<dyn Error>> {
    const WORD: u32 = 0x5eed_cafe;
    let address = device.malloc(Bytes(20 * MIB))?;
    device.fill(address, Bytes(20 * MIB), WORD, StreamId::DEFAULT)?;
    let mut bytes = [0; 4096];
    device.read(address.offset(Bytes(20 * MIB - 4096)), &mut bytes)?;
    ensure(bytes.chunks_exact(4).all(|word| word == WORD.to_le_bytes()), || String::from("different bytes were read back"))?;
    device.free(address)?;
    Ok(())
}

/// Returns the mean time of a call in nanoseconds.
fn timed_ns<T>(mut call: impl FnMut() -> Result<T, BackendError>) -> Result<u128, BackendError> {
    let start = Instant::now();
    for _ in 0..TIMED_CALLS {
        call()?;
    }
    Ok(start.elapsed().as_nanos() / u128::from(TIMED_CALLS))
}
