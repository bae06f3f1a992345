//! Checks for what other code in the process may do: reset the device, or fork.

use std::io;

use cudarc::driver::sys;
use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, StreamId};
use parkade_gpu::{CudaDevice, CudaEvent};

use super::{ORDINAL, Outcome, ensure};

const PAGE: Bytes = Bytes::mib(2);
/// Driver codes from `cuda.h`.
const NOT_INITIALIZED: u32 = 3;
const CONTEXT_IS_DESTROYED: u32 = 709;

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

/// A device with one object of each kind.
struct Used {
    device: CudaDevice,
    stream: StreamId,
    event: CudaEvent,
}

impl Used {
    fn new() -> Result<Used, BackendError> {
        let mut device = CudaDevice::open(ORDINAL).map_err(|_| BackendError::Driver { call: "open", code: 0 })?;
        let stream = device.create_stream()?;
        let mut event = device.create_event()?;
        device.record_event(&mut event, stream)?;
        device.wait(&event)?;
        Ok(Used { device, stream, event })
    }

    /// Returns the codes with which calls of every kind fail; 0 for a call that does not fail.
    fn codes(&mut self) -> [u32; 8] {
        fn code<T>(answer: Result<T, BackendError>) -> u32 {
            match answer {
                Err(BackendError::Driver { code, .. }) => code,
                _ => 0,
            }
        }
        let Used { device, stream, event } = self;
        [
            code(device.memory_info()),
            code(device.malloc(PAGE)),
            code(device.reserve(PAGE)),
            code(device.create(PAGE)),
            code(device.create_event()),
            code(device.is_complete(event)),
            code(device.record_event(event, *stream)),
            code(device.synchronize_stream(*stream)),
        ]
    }
}

/// Checks that calls fail in a forked child, where the driver itself would report that the event is complete.
pub(super) fn forked() -> Outcome {
    let mut used = Used::new()?;
    // SAFETY: the child only makes driver calls, allocates nothing that it needs, and exits immediately.
    let pid = unsafe { fork() };
    if pid == 0 {
        let failed = used.codes().iter().filter(|&&code| code == NOT_INITIALIZED).count();
        // SAFETY: ends the child without running any of the parent's code.
        unsafe { _exit(i32::try_from(failed).unwrap_or(0)) };
    }
    if pid < 0 {
        return Err(io::Error::last_os_error().into());
    }
    let mut status = 0;
    // SAFETY: writes one int through the pointer; the child belongs to this process.
    let ended = unsafe { waitpid(pid, &raw mut status, 0) };
    ensure(ended == pid && status == 8 << 8, || format!("of 8 calls, {} failed as expected; status {status:#x}", status >> 8))?;
    ensure(used.codes() == [0; 8], || String::from("the parent's device no longer works"))?;
    Ok(String::from("8 calls in a child: driver code 3 each"))
}

pub(super) fn reset() -> Outcome {
    let mut old = Used::new()?;
    let address = old.device.malloc(PAGE)?;
    let range = old.device.reserve(PAGE)?;
    let memory = old.device.create(PAGE)?;
    old.device.map(range, PAGE, &memory)?;
    // SAFETY: takes a device. The test is about users of the device that still exist.
    let code = unsafe { sys::cuDevicePrimaryCtxReset_v2(ORDINAL as i32) } as u32;
    ensure(code == 0, || format!("cuDevicePrimaryCtxReset_v2 failed with driver code {code}"))?;
    let gone = [CONTEXT_IS_DESTROYED; 8];
    let codes = old.codes();
    ensure(codes == gone, || format!("after a reset: {codes:?}"))?;
    // The context is created again with the same handle.
    let mut new = Used::new()?;
    let codes = old.codes();
    ensure(codes == gone, || format!("with a new context: {codes:?}"))?;
    let refused = [old.device.free(address), old.device.unmap(range, PAGE), old.device.unreserve(range, PAGE)];
    ensure(refused.iter().all(Result::is_err), || format!("memory that no longer exists was freed: {refused:?}"))?;
    ensure(old.device.release(memory).is_err(), || String::from("memory that no longer exists was released"))?;
    drop(old);
    let codes = new.codes();
    ensure(codes == [0; 8], || format!("a device opened after the reset: {codes:?}"))?;
    Ok(String::from("every call fails with driver code 709, even after the context has been created again"))
}
