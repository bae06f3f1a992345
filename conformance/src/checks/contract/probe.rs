//! Helpers of the contract's rows: opening a device, counting in its pages, reading free memory and timing calls.

use std::time::Instant;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress};

use crate::backend::{AnyBackend, AnyDevice, DeviceFacts, Needs, TestDevice};
use crate::suite::Trouble;

/// Opens a device with this capacity, or with all of its memory.
pub(super) fn open(backend: &AnyBackend, capacity: Option<Bytes>) -> Result<AnyDevice, Trouble> {
    Ok(backend.open(&Needs { capacity, ..Needs::default() })?)
}

/// Returns `Ok` if the condition holds, or a failure with the text of `says` if it does not.
pub(super) fn ensure(holds: bool, says: impl FnOnce() -> String) -> Result<(), Trouble> {
    if holds { Ok(()) } else { Err(Trouble::fail(says())) }
}

/// The size of `count` pages of the device.
pub(super) fn pages(facts: &DeviceFacts, count: u64) -> Bytes {
    Bytes(facts.page.get() * count)
}

pub(super) fn free_bytes<D: DeviceBackend>(device: &mut D) -> Result<u64, Trouble> {
    Ok(device.memory_info()?.free.get())
}

/// Checks that nothing is held, and that the same amount of memory is free as before.
pub(super) fn ends_empty(device: &mut AnyDevice, free_before: u64) -> Result<(), Trouble> {
    let (held, free) = (device.holdings(), free_bytes(device)?);
    ensure(held.is_empty(), || format!("the device still holds {held:?}"))?;
    ensure(free == free_before, || format!("{free_before} bytes were free before the check, {free} after it"))
}

/// Allocates ranges of this size until the device is full.
pub(super) fn fill_up<D: DeviceBackend>(device: &mut D, size: Bytes) -> Result<Vec<DeviceAddress>, Trouble> {
    let mut ranges = Vec::new();
    loop {
        match device.malloc(size) {
            Ok(address) => ranges.push(address),
            Err(BackendError::OutOfMemory { .. }) => return Ok(ranges),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A clock for device calls: simulated time on a simulated device, real time on a real one.
pub(super) struct Watch {
    start: Instant,
}

impl Watch {
    pub(super) fn new() -> Watch {
        Watch { start: Instant::now() }
    }

    pub(super) fn now_ns(&self, device: &mut AnyDevice) -> u64 {
        match device.insight() {
            Some(device) => device.now_ns(),
            None => u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Returns the result of a call and its duration in nanoseconds.
    pub(super) fn time<T>(
        &self,
        device: &mut AnyDevice,
        call: impl FnOnce(&mut AnyDevice) -> Result<T, BackendError>,
    ) -> Result<(T, u64), Trouble> {
        let start_ns = self.now_ns(device);
        let made = call(device)?;
        Ok((made, self.now_ns(device) - start_ns))
    }
}
