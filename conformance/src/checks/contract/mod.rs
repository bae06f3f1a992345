//! What a device does, call by call: each row of the measured facts about the driver as an entry.
//!
//! A row asserts the same on every backend: result codes, sizes, and whether a call waits. Its text holds nothing else, so that
//! it can be compared between backends; what differs legitimately, such as addresses and times, goes into what was measured.
//!
//! One sub-row of the facts has no entry: mapping a part of a handle from an offset (801). The core's device trait maps memory
//! whole, so it cannot be asked for.

mod costs;
mod ends;
mod events;
mod holes;
mod info;
#[cfg(feature = "cuda")]
pub(super) mod neighbours;
mod sizes;
mod virtual_memory;
mod waiting;

use std::time::Instant;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB};

use crate::backend::{Backend, Needs, TestDevice};
use crate::suite::{Entry, Trouble};

/// The page of a device, in which it gives memory (facts: Sizes and addresses).
const PAGE: Bytes = Bytes(2 * MIB);
/// Driver codes (facts: Virtual memory calls).
const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const NOT_SUPPORTED: u32 = 801;

/// The entries of this group.
pub fn entries<B: Backend + 'static>(backend: &B) -> Vec<Entry<B>> {
    [
        sizes::entries(),
        holes::entries(),
        virtual_memory::entries(),
        waiting::entries(),
        events::entries(),
        info::entries(),
        ends::entries(backend),
        costs::entries(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A device with so much memory, or as much as there is.
fn open<B: Backend>(backend: &B, capacity: Option<Bytes>) -> Result<B::Device, Trouble> {
    Ok(backend.open(&Needs { capacity, ..Needs::default() })?)
}

/// `Ok` if a row holds, else what `says` says.
fn ensure(holds: bool, says: impl FnOnce() -> String) -> Result<(), Trouble> {
    if holds { Ok(()) } else { Err(Trouble::fail(says())) }
}

/// The driver's code of an outcome.
fn code<T>(outcome: &Result<T, BackendError>) -> u32 {
    match outcome {
        Ok(_) => 0,
        Err(BackendError::OutOfMemory { .. }) => OUT_OF_MEMORY,
        Err(BackendError::Driver { code, .. }) => *code,
    }
}

fn free_bytes<D: DeviceBackend>(device: &mut D) -> Result<u64, Trouble> {
    Ok(device.memory_info()?.free.get())
}

/// Nothing is held, and as much is free as was before.
fn ends_empty<D: TestDevice>(device: &mut D, free_before: u64) -> Result<(), Trouble> {
    let (held, free) = (device.holdings(), free_bytes(device)?);
    ensure(held.is_empty(), || format!("the device keeps {held:?}"))?;
    ensure(free == free_before, || format!("{free_before} bytes were free before, {free} after"))
}

/// Takes ranges of this size until there is no room for one more.
fn fill_up<D: DeviceBackend>(device: &mut D, size: Bytes) -> Result<Vec<DeviceAddress>, Trouble> {
    let mut ranges = Vec::new();
    loop {
        match device.malloc(size) {
            Ok(address) => ranges.push(address),
            Err(BackendError::OutOfMemory { .. }) => return Ok(ranges),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Time as a device's calls take it: simulated on a simulated device, real on a real one.
struct Watch {
    start: Instant,
}

impl Watch {
    fn new() -> Watch {
        Watch { start: Instant::now() }
    }

    fn now_ns<D: TestDevice>(&self, device: &mut D) -> u64 {
        match device.insight() {
            Some(device) => device.now_ns(),
            None => u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// What a call gives, and how long it took in nanoseconds.
    fn time<D: TestDevice, T>(
        &self,
        device: &mut D,
        call: impl FnOnce(&mut D) -> Result<T, BackendError>,
    ) -> Result<(T, u64), Trouble> {
        let start_ns = self.now_ns(device);
        let made = call(device)?;
        Ok((made, self.now_ns(device) - start_ns))
    }
}
