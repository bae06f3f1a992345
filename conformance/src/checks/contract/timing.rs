//! When events complete, which calls wait while a kernel runs on another stream (facts: Waiting for the device), and what each
//! call costs (facts: Time of one call).
//!
//! Events are markers in a stream's queue that complete when all work queued before them is done.
//!
//! To decide whether a call waits, the test checks whether the kernel is done after the call; the kernel's event shows
//! this on every backend. The call's duration is also compared with the kernel's, with a wide margin.
//!
//! The costs form a table to compare with the measured one. Times are measured, never asserted.

use std::fmt::Write;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};

use super::probe::{Watch, ends_empty, ensure, free_bytes, open, pages};
use crate::backend::{AnyBackend, AnyDevice, AnyEvent, AnyPhysical, TestDevice, Waits};
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// Duration in nanoseconds of a kernel that must be observed while it runs.
const SPIN_NS: u64 = 50_000_000;

/// The entries of these rows.
pub(super) fn event_entries() -> Vec<Entry> {
    let says = "an event is complete after a wait for it, and after its stream has been synchronized";
    let mut entries = vec![Entry::new(Group::Contract, "events/end", says, end)];
    entries.extend(entries_of_pending_work().into_iter().map(|entry| entry.requires(Requirement::PendingWork)));
    entries
}

/// The entries that observe work while it runs.
fn entries_of_pending_work() -> Vec<Entry> {
    vec![
        Entry::new(Group::Contract, "events/never-recorded", "an event that was never recorded is complete", never_recorded),
        Entry::new(
            Group::Contract,
            "events/stay-complete",
            "a complete event stays complete no matter what its stream does",
            stays,
        ),
        Entry::new(
            Group::Contract,
            "events/recorded-again",
            "an event that is recorded again completes when its newest record does",
            again,
        ),
        Entry::new(
            Group::Contract,
            "events/stream-order",
            "an event completes after everything queued before it in its stream",
            order,
        ),
        Entry::new(
            Group::Contract,
            "events/streams-are-apart",
            "work on one stream does not delay another stream's events",
            apart,
        ),
        Entry::new(
            Group::Contract,
            "events/stream-wait",
            "work queued after a stream's wait for an event starts after the event",
            stream_wait,
        ),
        Entry::new(
            Group::Contract,
            "events/not-early",
            "an event is not complete, and a wait does not end, before the work in front of it has taken its time",
            not_early,
        ),
        Entry::new(Group::Contract, "events/wait", "a wait for an event lasts until the work before it is done", wait),
        Entry::new(Group::Contract, "events/synchronize-stream", "synchronizing a stream completes its events", synchronize),
    ]
}

/// Work that must still run when an event is queried.
struct Running {
    watch: Watch,
    start_ns: u64,
    work_ns: u64,
}

impl Running {
    /// Keeps a stream busy for this long.
    fn on(device: &mut AnyDevice, stream: StreamId, work_ns: u64) -> Result<Running, Trouble> {
        let watch = Watch::new();
        let start_ns = watch.now_ns(device);
        device.spin(stream, work_ns)?;
        Ok(Running { watch, start_ns, work_ns })
    }

    /// Checks that an event behind this work is not complete. If the work had ended by then, because calls to submit work were
    /// slow, the event is not to blame, so the message names the calls.
    fn holds(&self, device: &mut AnyDevice, event: &AnyEvent, when: &str) -> Result<(), Trouble> {
        let is_complete = device.is_complete(event)?;
        let since_ns = self.watch.now_ns(device) - self.start_ns;
        ensure(!is_complete || since_ns < self.work_ns, || {
            format!(
                "{when}: the work of {} ms had ended before its event was queried, because submitting it and the calls after it took \
                 {} ms; spin, fill, copy and record_event must return long before the work is done (a device on which they cannot \
                 is synchronous: DeviceFacts::is_asynchronous)",
                self.work_ns / 1_000_000,
                since_ns / 1_000_000
            )
        })?;
        ensure(!is_complete, || format!("{when}: the device reports complete = true, expected false"))
    }
}

/// A new event, recorded at the end of a stream.
fn recorded(device: &mut AnyDevice, stream: StreamId) -> Result<AnyEvent, Trouble> {
    let mut event = device.create_event()?;
    device.record_event(&mut event, stream)?;
    Ok(event)
}

fn is(device: &mut AnyDevice, event: &AnyEvent, complete: bool, when: &str) -> Result<(), Trouble> {
    let found = device.is_complete(event)?;
    ensure(found == complete, || format!("{when}: the device reports complete = {found}, expected {complete}"))
}

/// Destroys the events and checks that nothing is left.
fn done(mut device: AnyDevice, events: impl IntoIterator<Item = AnyEvent>, text: &str) -> Verdict {
    device.settle();
    events.into_iter().for_each(|event| device.destroy_event(event));
    let held = device.holdings();
    ensure(held.is_empty(), || format!("the device still holds {held:?}"))?;
    Ok(Evidence { text: text.to_owned(), operations: 1, ..Evidence::default() })
}

fn end(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let [_, first, second, _] = device.streams();
    device.spin(first, 1_000_000)?;
    let waited = recorded(&mut device, first)?;
    device.wait(&waited)?;
    is(&mut device, &waited, true, "after the wait")?;
    device.spin(second, 1_000_000)?;
    let synchronized = recorded(&mut device, second)?;
    device.synchronize_stream(second)?;
    is(&mut device, &synchronized, true, "after the stream was synchronized")?;
    done(device, [waited, synchronized], "both events are complete")
}

fn never_recorded(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let stream = device.streams()[1];
    let event = device.create_event()?;
    is(&mut device, &event, true, "never recorded")?;
    device.wait(&event)?;
    let work = Running::on(&mut device, stream, SPIN_NS)?;
    is(&mut device, &event, true, "never recorded, with work running")?;
    // A wait for it returns immediately.
    device.stream_wait(device.streams()[2], &event)?;
    device.synchronize_stream(device.streams()[2])?;
    let running = recorded(&mut device, stream)?;
    work.holds(&mut device, &running, "the running work")?;
    done(device, [event, running], "the event is complete, and a wait for it returns immediately")
}

fn stays(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let stream = device.streams()[1];
    device.spin(stream, 1_000)?;
    let event = recorded(&mut device, stream)?;
    device.wait(&event)?;
    is(&mut device, &event, true, "after the wait")?;
    let work = Running::on(&mut device, stream, SPIN_NS)?;
    let later = recorded(&mut device, stream)?;
    is(&mut device, &event, true, "with later work running")?;
    work.holds(&mut device, &later, "the later work")?;
    device.settle();
    is(&mut device, &event, true, "at the end")?;
    done(device, [event, later], "the event is complete before, during and after the later work")
}

fn again(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let [_, first, second, _] = device.streams();
    let mut event = recorded(&mut device, first)?;
    device.wait(&event)?;
    is(&mut device, &event, true, "the first record")?;
    let work = Running::on(&mut device, second, SPIN_NS)?;
    device.record_event(&mut event, second)?;
    work.holds(&mut device, &event, "the second record, on another stream")?;
    device.wait(&event)?;
    is(&mut device, &event, true, "after the wait for the second")?;
    done(device, [event], "the event is complete; recorded again, it is not complete; after a wait, it is complete")
}

fn order(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let stream = device.streams()[1];
    let before = Running::on(&mut device, stream, SPIN_NS / 2)?;
    let first = recorded(&mut device, stream)?;
    device.spin(stream, SPIN_NS)?;
    let second = recorded(&mut device, stream)?;
    let third = recorded(&mut device, stream)?;
    before.holds(&mut device, &first, "the first event at the beginning")?;
    device.wait(&first)?;
    // The second work began when the first ended, at the latest just now.
    let behind = Running { work_ns: before.work_ns + SPIN_NS, ..before };
    behind.holds(&mut device, &second, "the second event when the first is complete")?;
    behind.holds(&mut device, &third, "the third event when the first is complete")?;
    device.wait(&third)?;
    is(&mut device, &second, true, "the second event when the third is complete")?;
    is(&mut device, &first, true, "the first event when the third is complete")?;
    done(device, [first, second, third], "the three events complete in order")
}

fn apart(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let [default, first, second, third] = device.streams();
    let work = Running::on(&mut device, first, 2 * SPIN_NS)?;
    let slow = recorded(&mut device, first)?;
    let mut events = Vec::new();
    for stream in [default, second, third] {
        device.spin(stream, 1_000)?;
        let event = recorded(&mut device, stream)?;
        device.wait(&event)?;
        events.push(event);
    }
    work.holds(&mut device, &slow, "the slow stream after the three others")?;
    events.push(slow);
    done(device, events, "three streams, including the default one, finish while a fourth stream is busy")
}

/// The contents also show the order: the second stream copies what the first one writes late.
fn stream_wait(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let free_before = free_bytes(&mut device)?;
    let [_, producer, consumer, _] = device.streams();
    let size = Bytes(4 * MIB);
    let (made, copied) = (device.malloc(size)?, device.malloc(size)?);
    device.fill(made, size, 1, producer)?;
    let work = Running::on(&mut device, producer, SPIN_NS)?;
    device.fill(made, size, 2, producer)?;
    let ready = recorded(&mut device, producer)?;
    device.stream_wait(consumer, &ready)?;
    device.copy(made, copied, size, consumer)?;
    let consumed = recorded(&mut device, consumer)?;
    work.holds(&mut device, &consumed, "the consumer's event while the producer runs")?;
    device.wait(&consumed)?;
    is(&mut device, &ready, true, "the producer's event when the consumer is done")?;
    let mut bytes = vec![0; 4 << 20];
    device.read(copied, &mut bytes)?;
    let whole = bytes == 2_u32.to_le_bytes().repeat(bytes.len() / 4);
    ensure(whole, || "the consumer read the contents from before the producer's write".to_owned())?;
    device.destroy_event(ready);
    device.destroy_event(consumed);
    let races = device.insight().map_or(0, |device| device.races().len());
    ensure(races == 0, || format!("{races} races"))?;
    device.free(made)?;
    device.free(copied)?;
    ends_empty(&mut device, free_before)?;
    Ok(Evidence::text("the consumer waits and reads what was written"))
}

/// How much less than the stated time work may take, in nanoseconds: a device's clock may be coarse.
const TOLERANCE_NS: u64 = 3_000_000;

fn not_early(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let stream = device.streams()[1];
    let work_ns = SPIN_NS / 2;
    let mut events = Vec::new();
    for ends_by in ["query", "wait", "synchronize_stream"] {
        let work = Running::on(&mut device, stream, work_ns)?;
        let event = recorded(&mut device, stream)?;
        match ends_by {
            // A simulated device's clock only moves when the host lets time pass.
            "query" => {
                while !device.is_complete(&event)? {
                    device.pause(100_000);
                }
            }
            "wait" => device.wait(&event)?,
            _ => device.synchronize_stream(stream)?,
        }
        let took_ns = work.watch.now_ns(&mut device) - work.start_ns;
        ensure(took_ns + TOLERANCE_NS >= work_ns, || {
            format!("{ends_by}: an event behind work of {work_ns} ns was complete after {took_ns} ns")
        })?;
        events.push(event);
    }
    done(device, events, "three events behind 25 ms of work complete after 25 ms")
}

fn wait(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let stream = device.streams()[1];
    let watch = Watch::new();
    device.spin(stream, SPIN_NS)?;
    let event = recorded(&mut device, stream)?;
    let ((), took_ns) = watch.time(&mut device, |device| device.wait(&event))?;
    ensure(took_ns > SPIN_NS / 2, || format!("the wait for work of {SPIN_NS} ns took {took_ns} ns"))?;
    is(&mut device, &event, true, "after the wait")?;
    let ((), next_ns) = watch.time(&mut device, |device| device.wait(&event))?;
    ensure(next_ns < SPIN_NS / 2, || format!("the second wait took {next_ns} ns"))?;
    let measured =
        format!("the first wait took {} us for {} us of work, the second {} us", took_ns / 1000, SPIN_NS / 1000, next_ns / 1000);
    let evidence = done(device, [event], "the first wait takes as long as the work, and the second returns immediately")?;
    Ok(Evidence { measured, ..evidence })
}

fn synchronize(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let [_, first, second, _] = device.streams();
    device.spin(first, SPIN_NS)?;
    let short = recorded(&mut device, first)?;
    let work = Running::on(&mut device, second, 4 * SPIN_NS)?;
    let long = recorded(&mut device, second)?;
    device.synchronize_stream(first)?;
    is(&mut device, &short, true, "the stream that was waited for")?;
    work.holds(&mut device, &long, "the other stream")?;
    done(device, [short, long], "the stream's events are complete, but another stream's are not")
}

/// Duration of the kernel, in nanoseconds.
const KERNEL_NS: u64 = 100_000_000;
/// Pages of the handles and ranges used while the kernel runs.
const HANDLE: u64 = 10;
const RANGE: u64 = 100;

/// The entries of these rows.
pub(super) fn waiting_entries(backend: &AnyBackend) -> Vec<Entry> {
    let rows = rows(backend.facts().waits).into_iter();
    rows.map(|(name, waits, call)| {
        let says = if waits { "waits for the whole device" } else { "does not wait for a kernel on another stream" };
        let check = move |backend: &AnyBackend, _: &Effort| check(backend, name, waits, call);
        let entry = Entry::new(Group::Contract, format!("waiting/{name}"), says, check).requires(Requirement::PendingWork);
        if matches!(name, "malloc" | "free") { entry } else { entry.requires(Requirement::VirtualMemory) }
    })
    .collect()
}

type Call = fn(&mut Stage) -> Result<(), BackendError>;

/// The calls, each with whether it waits.
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

/// A range and, if the device has virtual memory, a reservation with one handle mapped in its first half and a second
/// handle that is not mapped.
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

/// Makes a call while a kernel runs on another stream, and checks whether the call waits.
fn check(backend: &AnyBackend, name: &str, waits: bool, call: Call) -> Verdict {
    let mut stage = Stage::new(backend)?;
    let stream = stage.device.streams()[1];
    let mut behind = stage.device.create_event()?;
    let watch = Watch::new();
    stage.device.spin(stream, KERNEL_NS)?;
    stage.device.record_event(&mut behind, stream)?;
    let start_ns = watch.now_ns(&mut stage.device);
    ensure(!stage.device.is_complete(&behind)?, || "the kernel had finished before the call".to_owned())?;
    call(&mut stage)?;
    let took_ns = watch.now_ns(&mut stage.device) - start_ns;
    let is_done = stage.device.is_complete(&behind)?;
    ensure(is_done == waits, || format!("{name} took {took_ns} ns; the kernel ({KERNEL_NS} ns) is done: {is_done}"))?;
    let fits = if waits { took_ns > KERNEL_NS / 2 } else { took_ns < KERNEL_NS / 2 };
    ensure(fits, || format!("{name} took {took_ns} ns while a kernel of {KERNEL_NS} ns ran"))?;
    stage.device.destroy_event(behind);
    stage.finish()?;
    let text = format!("{name} while a kernel runs: {}", if waits { "waits for it" } else { "does not wait" });
    Ok(Evidence { text, measured: format!("{} us", took_ns / 1000), operations: 1 })
}

/// Sizes of the first table's handles and the second table's ranges, in MiB.
const HANDLES_MIB: [u64; 4] = [2, 20, 128, 1024];
const RANGES_MIB: [u64; 4] = [2, 20, 256, 1024];
/// The number of times that each call is made; the table shows the median.
const ROUNDS: usize = 21;

/// The entry of these rows.
pub(super) fn cost_entries() -> Vec<Entry> {
    vec![Entry::new(Group::Contract, "costs", "every driver call in the cost tables succeeds, and its time is measured", costs)]
}

fn costs(backend: &AnyBackend, _: &Effort) -> Verdict {
    let page = backend.facts().page;
    let handles: &[u64] = if backend.facts().has_virtual_memory { &HANDLES_MIB } else { &[] };
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let watch = Watch::new();
    let mut table =
        String::from("medians in us; for handles: create, map, set access, unmap, release; for ranges: malloc, free\n");
    for &mib in handles {
        let medians = handle_ns(&mut device, &watch, whole_pages(mib, page))?.map(micros);
        // Writing to a string does not fail.
        let _ = writeln!(table, "handle {mib:>4} MiB: {}", medians.join(", "));
    }
    for mib in RANGES_MIB {
        let medians = range_ns(&mut device, &watch, Bytes(mib * MIB))?.map(micros);
        let _ = writeln!(table, "range  {mib:>4} MiB: {}", medians.join(", "));
    }
    ends_empty(&mut device, before)?;
    let calls = ROUNDS as u64 * (5 * handles.len() as u64 + 2 * RANGES_MIB.len() as u64);
    let text = format!("handles of {handles:?} MiB, ranges of {RANGES_MIB:?} MiB: {calls} calls, all succeeded");
    Ok(Evidence { text, measured: table, operations: calls })
}

/// Returns `mib` MiB, rounded up to whole pages.
fn whole_pages(mib: u64, page: Bytes) -> Bytes {
    Bytes(mib * MIB).checked_round_up(page).unwrap_or(page)
}

fn micros(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns % 1000 / 100)
}

fn median<const CALLS: usize>(mut rounds: Vec<[u64; CALLS]>) -> [u64; CALLS] {
    let middle = rounds.len() / 2;
    std::array::from_fn(|call| {
        rounds.sort_unstable_by_key(|round| round[call]);
        rounds.get(middle).map_or(0, |round| round[call])
    })
}

/// Create, map, set access, unmap, release.
fn handle_ns(device: &mut AnyDevice, watch: &Watch, size: Bytes) -> Result<[u64; 5], Trouble> {
    let base = device.reserve(size)?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (memory, create) = watch.time(device, |device| device.create(size))?;
        let ((), map) = watch.time(device, |device| device.map(base, size, &memory))?;
        let ((), access) = watch.time(device, |device| device.set_access(base, size))?;
        let ((), unmap) = watch.time(device, |device| device.unmap(base, size))?;
        let ((), release) = watch.time(device, |device| device.release(memory).map_err(|(_, error)| error))?;
        rounds.push([create, map, access, unmap, release]);
    }
    device.unreserve(base, size)?;
    Ok(median(rounds))
}

/// Malloc, free.
fn range_ns(device: &mut AnyDevice, watch: &Watch, size: Bytes) -> Result<[u64; 2], Trouble> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (address, malloc) = watch.time(device, |device| device.malloc(size))?;
        let ((), free) = watch.time(device, |device| device.free(address))?;
        rounds.push([malloc, free]);
    }
    Ok(median(rounds))
}
