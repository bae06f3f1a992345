//! Facts, Waiting for the device: which calls wait while a kernel runs on another stream.
//!
//! What counts is whether the kernel is done after the call; its event says so on every backend. The time that the call took is
//! compared with the kernel's, with a wide margin.

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB};

use crate::backend::{Backend, TestDevice};
use crate::checks::contract::probe::{Watch, ends_empty, ensure, free_bytes, open};
use crate::suite::{Entry, Evidence, Group, Trouble, Verdict};

/// How long the kernel runs, in nanoseconds.
const SPIN_NS: u64 = 100_000_000;
/// What is taken and mapped while it runs.
const HANDLE: Bytes = Bytes(20 * MIB);
const RANGE: Bytes = Bytes(200 * MIB);

/// The entries of these rows.
pub(super) fn entries<B: Backend + 'static>() -> Vec<Entry<B>> {
    let rows = rows::<B::Device>().into_iter();
    rows.map(|(name, waits, call)| {
        let says = if waits { "waits for the whole device" } else { "does not wait for a kernel on another stream" };
        Entry::new(Group::Contract, format!("waiting/{name}"), says, move |backend, _| check(backend, name, waits, call))
    })
    .collect()
}

type Call<D> = fn(&mut Stage<D>) -> Result<(), BackendError>;

/// The calls, and whether they wait.
fn rows<D: TestDevice>() -> [(&'static str, bool, Call<D>); 7] {
    [
        ("malloc", false, |stage| stage.device.malloc(RANGE).map(|range| stage.ranges.push(range))),
        ("free", true, |stage| stage.ranges.pop().map_or(Ok(()), |range| stage.device.free(range))),
        ("create", false, |stage| stage.device.create(HANDLE).map(|memory| stage.handles.push(memory))),
        ("map", false, |stage| stage.device.map(stage.base.offset(HANDLE), HANDLE, &stage.handles[1])),
        ("set-access", false, |stage| stage.device.set_access(stage.base, HANDLE)),
        ("unmap", false, |stage| stage.device.unmap(stage.base, HANDLE)),
        ("release", false, |stage| {
            let Some(memory) = stage.handles.pop() else { return Ok(()) };
            stage.device.release(memory).map_err(|(_, error)| error)
        }),
    ]
}

/// A range, a reservation with a handle mapped in its first half, and a handle that is not mapped.
struct Stage<D: DeviceBackend> {
    device: D,
    free_before: u64,
    ranges: Vec<DeviceAddress>,
    base: DeviceAddress,
    handles: Vec<D::Physical>,
}

impl<D: TestDevice> Stage<D> {
    fn new<B: Backend<Device = D>>(backend: &B) -> Result<Stage<D>, Trouble> {
        let mut device = open(backend, None)?;
        let free_before = free_bytes(&mut device)?;
        let ranges = vec![device.malloc(RANGE)?];
        let base = device.reserve(HANDLE + HANDLE)?;
        let handles = vec![device.create(HANDLE)?, device.create(HANDLE)?];
        device.map(base, HANDLE, &handles[0])?;
        Ok(Stage { device, free_before, ranges, base, handles })
    }

    fn finish(mut self) -> Result<(), Trouble> {
        self.device.settle();
        self.device.unmap(self.base, HANDLE + HANDLE)?;
        for memory in self.handles {
            self.device.release(memory).map_err(|(_, error)| Trouble::from(error))?;
        }
        self.device.unreserve(self.base, HANDLE + HANDLE)?;
        self.ranges.into_iter().try_for_each(|range| self.device.free(range))?;
        ends_empty(&mut self.device, self.free_before)
    }
}

/// Makes a call while a kernel runs on another stream.
fn check<B: Backend>(backend: &B, name: &str, waits: bool, call: Call<B::Device>) -> Verdict {
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
    ensure(is_done == waits, || format!("{name} took {took_ns} ns; is the kernel of {SPIN_NS} ns done? {is_done}"))?;
    let fits = if waits { took_ns > SPIN_NS / 2 } else { took_ns < SPIN_NS / 2 };
    ensure(fits, || format!("{name} took {took_ns} ns beside a kernel of {SPIN_NS} ns"))?;
    stage.device.destroy_event(behind);
    stage.finish()?;
    let text = format!("{name} beside a running kernel: {}", if waits { "waits for it" } else { "does not wait" });
    Ok(Evidence { text, measured: format!("{} us", took_ns / 1000), operations: 1 })
}
