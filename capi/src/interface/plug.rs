//! The functions that PyTorch's `CUDAPluggableAllocator` takes, for programs that cannot compile the bridge.
//!
//! They share one allocator per device, created at its first use. The environment variable `PARKADE_POLICY` names its
//! policy and `PARKADE_RELEASE` the release whose rules it follows. Its settings are read from the first of
//! `PARKADE_SETTINGS`, `PYTORCH_CUDA_ALLOC_CONF` and `PYTORCH_ALLOC_CONF` that is set (spec 9.1).
//! `PARKADE_WORK_IS_SERIAL=1` makes the same promise as the flag with that name. `PARKADE_RESCUE=1` sets the flag
//! `PARKADE_RESCUE`, and `PARKADE_RESCUE=free` sets `PARKADE_RESCUE_FREE`.

use std::collections::BTreeMap;
use std::env;
use std::ffi::c_void;
use std::io::{self, Write};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use parkade::units::{DeviceAddress, StreamId};
use parkade_gpu::{StreamsAreValid, WorkIsSerial};
use parkade_policies::Reach;

use super::answer;
use crate::device::Device;
use crate::failure::Failure;
use crate::serve::{Wanted, choose_policy, fork_generation, forked, parkade_allocator, with_core};
use crate::types::parkade_status::{PARKADE_INVALID_ARGUMENT, PARKADE_UNKNOWN_ADDRESS};
use crate::types::{PARKADE_RAW, parkade_pool, parkade_request};

/// The allocator of each device. It lives as long as the process.
static PLUGGED: Mutex<BTreeMap<u32, &'static parkade_allocator>> = Mutex::new(BTreeMap::new());

/// The [`fork_generation`] of the process that first used the allocators, plus 1; 0 before that.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Returns the allocators, unless they belong to a parent process: one of the parent's threads may have held the lock,
/// which would never be released in this process.
fn plugged() -> Result<MutexGuard<'static, BTreeMap<u32, &'static parkade_allocator>>, Failure> {
    let here = fork_generation() + 1;
    match OWNER.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed) {
        Err(owner) if owner != here => Err(forked()),
        _ => Ok(PLUGGED.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}

fn of(device: i32) -> Result<&'static parkade_allocator, Failure> {
    let index = u32::try_from(device).map_err(|_| {
        Failure::new(
            PARKADE_INVALID_ARGUMENT,
            format!(
                "{device} is not the index of a \
                                                                                          device"
            ),
        )
    })?;
    let mut plugged = plugged()?;
    if let Some(&allocator) = plugged.get(&index) {
        return Ok(allocator);
    }
    let policy = env::var("PARKADE_POLICY").ok();
    let is_pytorch = policy.as_deref().is_none_or(|name| name == "pytorch");
    let of_settings = ["PARKADE_SETTINGS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
    let settings = of_settings.iter().find_map(|name| env::var(name).ok()).filter(|_| is_pytorch);
    let release = env::var("PARKADE_RELEASE").ok();
    let is_serial = env::var_os("PARKADE_WORK_IS_SERIAL").is_some_and(|value| value == "1");
    let chosen = choose_policy(&Wanted {
        policy: policy.as_deref(),
        settings: settings.as_deref(),
        release: release.as_deref(),
        is_serial,
        rescue: reach(env::var("PARKADE_RESCUE").ok().as_deref())?,
        most_rescues: 0,
    })?;
    // SAFETY: PyTorch's streams belong to the primary context and live as long as the process.
    let mut device = Device::cuda(index, unsafe { StreamsAreValid::promise() })?;
    device.keep_context();
    if is_serial {
        // SAFETY: whoever sets the variable makes the promise.
        device.trust_work(unsafe { WorkIsSerial::promise() });
    }
    let allocator: &'static parkade_allocator = Box::leak(Box::new(parkade_allocator::new(device, chosen)?));
    plugged.insert(index, allocator);
    Ok(allocator)
}

/// Returns the reach of a rescue, according to the variable `PARKADE_RESCUE`.
fn reach(text: Option<&str>) -> Result<Option<Reach>, Failure> {
    match text.unwrap_or_default() {
        "" | "0" => Ok(None),
        "1" => Ok(Some(Reach::Breaks)),
        "free" => Ok(Some(Reach::Free)),
        other => {
            let text = format!("PARKADE_RESCUE must be 1, free or 0, not {other:?}");
            Err(Failure::new(PARKADE_INVALID_ARGUMENT, text))
        }
    }
}

/// Reports on stderr, once for each kind of call, why the call failed: PyTorch accepts no error from these functions.
fn tell(failed: &'static OnceLock<()>, call: &str) {
    failed.get_or_init(|| {
        let text = super::LAST.try_with(|last| last.borrow().text.to_string_lossy().into_owned()).unwrap_or_default();
        // This does not use `eprintln`, which panics if stderr cannot be written; a panic here
        // aborts the program.
        let _ = writeln!(io::stderr(), "parkade: {call}: {text}");
    });
}

/// `alloc_fn`: returns memory for a tensor. Returns null if there is none, and reports why on stderr the first time.
#[unsafe(no_mangle)]
pub extern "C" fn parkade_plug_alloc(bytes: isize, device: i32, stream: *mut c_void) -> *mut c_void {
    static FAILED: OnceLock<()> = OnceLock::new();
    let mut address = None;
    let status = answer(|| {
        let bytes = u64::try_from(bytes).map_err(|_| Failure::new(PARKADE_INVALID_ARGUMENT, "a negative size"))?;
        let request = parkade_request { bytes, stream: stream.addr() as u64, flags: PARKADE_RAW, pool: parkade_pool::default() };
        address = of(device)?.allocate(&request)?;
        Ok(())
    });
    if status as i32 != 0 {
        tell(&FAILED, "no memory for a tensor");
    }
    address.map_or(ptr::null_mut(), |address| ptr::with_exposed_provenance_mut(address.get() as usize))
}

/// `free_fn`.
#[unsafe(no_mangle)]
pub extern "C" fn parkade_plug_free(address: *mut c_void, _bytes: isize, device: i32, _stream: *mut c_void) {
    static FAILED: OnceLock<()> = OnceLock::new();
    if address.is_null() {
        return;
    }
    let status = answer(|| {
        match of(device) {
            // A forked child has its parent's tensors, but not their memory.
            Err(failure) if failure.is_forked() => Ok(()),
            allocator => allocator?.free(DeviceAddress(address.addr() as u64)),
        }
    });
    if status as i32 != 0 {
        tell(&FAILED, "a tensor could not be freed");
    }
}

/// The function for `set_record_stream_fn`.
#[unsafe(no_mangle)]
pub extern "C" fn parkade_plug_record_stream(address: *mut c_void, stream: *mut c_void) {
    static FAILED: OnceLock<()> = OnceLock::new();
    let status = answer(|| {
        let all: Vec<&parkade_allocator> = match plugged() {
            Err(failure) if failure.is_forked() => return Ok(()),
            plugged => plugged?.values().copied().collect(),
        };
        let (at, stream) = (DeviceAddress(address.addr() as u64), StreamId(stream.addr() as u64));
        for allocator in all {
            if with_core!(allocator, core => core.record_stream(at, stream))?.is_ok() {
                return Ok(());
            }
        }
        Err(Failure::new(PARKADE_UNKNOWN_ADDRESS, format!("no allocated block begins at {at}")))
    });
    if status as i32 != 0 {
        tell(&FAILED, "a tensor's use on another stream could not be recorded");
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_child_of_fork_waits_for_no_lock_of_its_parent() {
        let held = plugged().expect("this process has not forked");
        // SAFETY: the child only makes the calls under test, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let address = ptr::without_provenance_mut(512);
            parkade_plug_free(address, 512, 0, ptr::null_mut());
            parkade_plug_record_stream(address, ptr::null_mut());
            let code = i32::from(!parkade_plug_alloc(512, 0, ptr::null_mut()).is_null());
            // SAFETY: `_exit` has no preconditions; it only ends this child process.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: the child belongs to this process, and `status` is writable.
        let mut has_ended = || unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child;
        let ended = (0..500).any(|_| {
            has_ended() || {
                sleep(Duration::from_millis(10));
                false
            }
        });
        if !ended {
            // SAFETY: the child belongs to this process.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        drop(held);
        assert!(ended && status == 0, "the child ended: {ended}, with the status {status}");
    }
}
