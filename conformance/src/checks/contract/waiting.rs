//! Which calls wait while a kernel runs on another stream (facts: Waiting for the device).
//!
//! The criterion is whether the kernel is done after the call, which its event tells on every backend. The call's duration is
//! also compared with the kernel's, with a wide margin.

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress};

use crate::backend::{AnyBackend, AnyDevice, AnyPhysical, TestDevice, Waits};
use crate::checks::contract::probe::{Watch, ends_empty, ensure, free_bytes, open, pages};
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// How long the kernel runs, in nanoseconds.
const SPIN_NS: u64 = 100_000_000;
/// Pages of the handles and ranges used while it runs.
const HANDLE: u64 = 10;
const RANGE: u64 = 100;

/// The entries of these rows.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let rows = rows(backend.facts().waits).into_iter();
    rows.map(|(name, waits, call)| {
        let says = if waits { "waits for the whole device" } else { "does not wait for a kernel on another stream" };
        let check = move |backend: &AnyBackend, _: &Effort| check(backend, name, waits, call);
        let entry = Entry::new(Group::Contract, format!("waiting/{name}"), says, check);
        if matches!(name, "malloc" | "free") { entry } else { entry.requires(Requirement::VirtualMemory) }
    })
    .collect()
}

type Call = fn(&mut Stage) -> Result<(), BackendError>;

/// The calls, and whether they wait.
fn rows(waits: Waits) -> [(&'static str, bool, Call); 7] {
    [
        ("malloc", waits.malloc, |stage| stage.device.malloc(stage.range).map(|range| stage.ranges.push(range))),
        ("free", waits.free, |stage| stage.ranges.pop().map_or(Ok(()), |range| stage.device.free(range))),
        ("create", waits.create, |stage| stage.device.create(stage.handle).map(|memory| stage.handles.push(memory))),
        ("map", waits.map, |stage| stage.device.map(stage.base.offset(stage.handle), stage.handle, &stage.handles[1])),
        ("set-access", waits.set_access, |stage| stage.device.set_access(stage.base, stage.handle)),
        ("unmap", waits.unmap, |stage| stage.device.unmap(stage.base, stage.handle)),
        ("release", waits.release, |stage| {
            let Some(memory) = stage.handles.pop() else { return Ok(()) };
            stage.device.release(memory).map_err(|(_, error)| error)
        }),
    ]
}

/// A range and, if there is virtual memory, a reservation with a handle mapped in its first half and a second, unmapped handle.
struct Stage {
    device: AnyDevice,
    free_before: u64,
    range: Bytes,
    handle: Bytes,
    ranges: Vec<DeviceAddress>,
    base: DeviceAddress,
    handles: Vec<AnyPhysical>,
    is_mapped: bool,
}

impl Stage {
    fn new(backend: &AnyBackend) -> Result<Stage, Trouble> {
        let facts = backend.facts();
        let (range, handle) = (pages(&facts, RANGE), pages(&facts, HANDLE));
        let mut device = open(backend, None)?;
        let free_before = free_bytes(&mut device)?;
        let ranges = vec![device.malloc(range)?];
        let (base, handles) = (DeviceAddress(0), Vec::new());
        let mut stage = Stage { device, free_before, range, handle, ranges, base, handles, is_mapped: facts.has_virtual_memory };
        if stage.is_mapped {
            stage.base = stage.device.reserve(handle + handle)?;
            stage.handles = vec![stage.device.create(handle)?, stage.device.create(handle)?];
            stage.device.map(stage.base, handle, &stage.handles[0])?;
        }
        Ok(stage)
    }

    fn finish(mut self) -> Result<(), Trouble> {
        self.device.settle();
        if self.is_mapped {
            self.device.unmap(self.base, self.handle + self.handle)?;
            for memory in self.handles {
                self.device.release(memory).map_err(|(_, error)| Trouble::from(error))?;
            }
            self.device.unreserve(self.base, self.handle + self.handle)?;
        }
        self.ranges.into_iter().try_for_each(|range| self.device.free(range))?;
        ends_empty(&mut self.device, self.free_before)
    }
}

/// Makes a call while a kernel runs on another stream.
fn check(backend: &AnyBackend, name: &str, waits: bool, call: Call) -> Verdict {
    let mut stage = Stage::new(backend)?;
    let stream = stage.device.streams()[1];
    let mut behind = stage.device.create_event()?;
    let watch = Watch::new();
    stage.device.spin(stream, SPIN_NS)?;
    stage.device.record_event(&mut behind, stream)?;
    let start_ns = watch.now_ns(&mut stage.device);
    ensure(!stage.device.is_complete(&behind)?, || "the kernel was done before the call".to_owned())?;
    call(&mut stage)?;
    let took_ns = watch.now_ns(&mut stage.device) - start_ns;
    let is_done = stage.device.is_complete(&behind)?;
    ensure(is_done == waits, || format!("{name} took {took_ns} ns; the kernel of {SPIN_NS} ns is done: {is_done}"))?;
    let fits = if waits { took_ns > SPIN_NS / 2 } else { took_ns < SPIN_NS / 2 };
    ensure(fits, || format!("{name} took {took_ns} ns while a kernel of {SPIN_NS} ns ran"))?;
    stage.device.destroy_event(behind);
    stage.finish()?;
    let text = format!("{name} during a running kernel: {}", if waits { "waits for it" } else { "does not wait" });
    Ok(Evidence { text, measured: format!("{} us", took_ns / 1000), operations: 1 })
}
