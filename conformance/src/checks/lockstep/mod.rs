//! Checks that the same sequence leads to the same decisions on a real device and on a simulated one.
//!
//! Addresses break ties between free blocks of equal size, so the simulated device puts its segments and reservations
//! where the driver put them, one after another. Everything must then be equal: every trace entry with its address,
//! every device call with its answer, the operations that run out of memory, the segments before everything is freed,
//! and the statistics. The only exception is the number of free bytes in an out-of-memory entry, which depends on the
//! device.
//!
//! Events do not depend on speed here, because all work finishes before an event is queried. A run of the same sequence
//! without waiting checks, by the contents of memory, that pending blocks are not reused too early.
//!
//! Memory runs out in two ways: at a limit, which the allocator enforces, and on the device, where a ballast leaves 2
//! GiB, so that the driver refuses. In the second case the simulated device must refuse the same calls as the driver.
//! The driver may take or return its own pages between the ballast's measurement and the run, so the simulated device's
//! capacity may be off by up to `MOST_DRIFT_PAGES`. However, a single capacity must explain every answer in the entire
//! run, and the evidence names it.
//!
//! On the simulated backend there is nothing to compare, and the list is empty. A device whose facts differ from the
//! simulated device's rightly leads to different decisions, so it is not compared.

mod sequence;

use parkade::device::DeviceBackend;
use parkade::settings::Settings;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, MIB};
use parkade_sim::address::Scripted;
use parkade_sim::{EventTiming, PAGE_BYTES, SimDevice, SimOptions};

use crate::backend::{AnyBackend, AnyDevice, Needs, TestDevice};
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

use sequence::{Plan, Report, run};

/// The number of operations per sequence.
const OPERATIONS: u32 = 10_000;
/// The maximum that a sequence takes from the device.
const MEMORY: Bytes = Bytes(2048 * MIB);
/// The number of pages that the driver may have taken or returned since the ballast was measured.
const MOST_DRIFT_PAGES: u64 = 1;
/// Seeds used in addition to the effort's own.
const SEEDS: [u64; 2] = [20_261, 20_262];

/// The PyTorch settings under which decisions are compared.
const SETTINGS: [(&str, &str); 8] = [
    ("default", ""),
    ("max-split", "max_split_size_mb:64"),
    ("garbage-collection", "garbage_collection_threshold:0.6"),
    ("roundup", "roundup_power2_divisions:4"),
    ("expandable", "expandable_segments:True"),
    ("expandable+max-split", "expandable_segments:True,max_split_size_mb:64"),
    ("expandable+garbage-collection", "expandable_segments:True,garbage_collection_threshold:0.6"),
    ("expandable+roundup", "expandable_segments:True,roundup_power2_divisions:4"),
];

/// The limit on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shortage {
    /// The allocator's own limit.
    Limit,
    /// The device's capacity.
    Device,
    /// The device's capacity, with a limit above it, because garbage collection would never start without a limit.
    DeviceBelowLimit,
}

impl Shortage {
    /// Returns the device's capacity if that is the limit.
    fn capacity(self) -> Option<Bytes> {
        (self != Shortage::Limit).then_some(MEMORY)
    }

    fn limit(self) -> Option<Bytes> {
        match self {
            Shortage::Limit => Some(MEMORY),
            Shortage::Device => None,
            // A threshold of 0.6 is then reached when three quarters of the device are in use.
            Shortage::DeviceBelowLimit => Some(Bytes(MEMORY.get() / 4 * 5)),
        }
    }
}

/// Returns the entries of this group; none on the simulated backend.
pub fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = Vec::new();
    if backend.is_simulated() {
        return entries;
    }
    for (name, settings) in SETTINGS {
        let is_collecting = name.ends_with("garbage-collection");
        let on_device = if is_collecting { Shortage::DeviceBelowLimit } else { Shortage::Device };
        for (kind, shortage) in [("limit", Shortage::Limit), ("device", on_device)] {
            let says = match shortage {
                Shortage::Limit => {
                    "at a limit, both devices lead to the same calls, decisions, statistics and out-of-memory \
                                    points"
                }
                _ => {
                    "when the device is full, the simulated one refuses the calls that the driver refused, and everything \
                      else is equal"
                }
            };
            let entry = Entry::new(Group::Lockstep, format!("{kind}/{name}"), says, move |backend, effort| {
                compared(backend, settings, shortage, effort)
            });
            entries.push(entry.requires(Requirement::ReferenceFacts));
        }
    }
    for (name, settings) in [SETTINGS[0], SETTINGS[4]] {
        let says = "without waiting for the device, memory keeps its contents, and all of it is returned";
        let entry = Entry::new(Group::Lockstep, format!("unsettled/{name}"), says, move |backend, effort| {
            unsettled(backend, settings, effort)
        });
        entries.push(if settings.is_empty() { entry } else { entry.requires(Requirement::ExpandableSegments) });
    }
    entries
}

fn seeds(effort: &Effort) -> [u64; 2] {
    SEEDS.map(|seed| seed.wrapping_add(effort.seed))
}

fn plan(device: &AnyDevice, seed: u64, settings: &str, limit: Option<Bytes>, settles: bool) -> Result<Plan, Trouble> {
    let settings = Settings::from_environment(settings).map_err(|error| Trouble::fail(error.to_string()))?;
    let [default, second, third, _] = device.streams();
    Ok(Plan { seed, operations: OPERATIONS, settings, limit, streams: [default, second, third], settles })
}

/// Runs each seed on the backend's device and on a simulated one, and compares.
fn compared(backend: &AnyBackend, settings: &str, shortage: Shortage, effort: &Effort) -> Verdict {
    let (capacity, limit) = (shortage.capacity(), shortage.limit());
    let mut measured = Vec::new();
    for seed in seeds(effort) {
        let device = backend.open(&Needs { capacity, ..Needs::default() })?;
        let plan = plan(&device, seed, settings, limit, true)?;
        let total = device.total_memory();
        let real = run(device, &plan)?;
        if real.stats.num_ooms == 0 || real.read_bytes == 0 {
            return Err(Trouble::fail(format!("seed {seed}: memory never ran short, or nothing was read back")));
        }
        let drift = explain(&real, &plan, total, capacity).map_err(|reason| Trouble::fail(format!("seed {seed}: {reason}")))?;
        let refused = real.answers.iter().filter(|answer| answer.result.is_err()).count();
        measured.push(format!(
            "seed {seed}: {} entries, {} calls with {refused} refused, {} out of memory, {} MiB read back{}",
            real.trace.len(),
            real.answers.len(),
            real.stats.num_ooms,
            real.read_bytes >> 20,
            if drift == 0 { String::new() } else { format!(", capacity off by {drift} pages") },
        ));
    }
    let operations = u64::from(OPERATIONS) * 2 * measured.len() as u64;
    Ok(Evidence { text: String::new(), measured: measured.join("; "), operations })
}

/// Finds a simulated device that behaves the same, with the requested capacity or the closest one. Returns how many
/// pages that capacity is off, or how the device with the requested capacity differs.
fn explain(real: &Report, plan: &Plan, total: Bytes, capacity: Option<Bytes>) -> Result<i64, String> {
    let difference = match simulated(real, plan, total, capacity).and_then(|sim| compare(real, &sim)) {
        Ok(()) => return Ok(0),
        Err(difference) => difference,
    };
    let Some(capacity) = capacity else { return Err(difference) };
    for pages in 1..=MOST_DRIFT_PAGES.cast_signed() {
        for drift in [-pages, pages] {
            let capacity = capacity.get().saturating_add_signed(drift * PAGE_BYTES.cast_signed());
            if simulated(real, plan, total, Some(Bytes(capacity))).and_then(|sim| compare(real, &sim)).is_ok() {
                return Ok(drift);
            }
        }
    }
    Err(difference)
}

/// Runs the sequence on a simulated device that puts its segments and reservations where the real one did.
fn simulated(real: &Report, plan: &Plan, total: Bytes, capacity: Option<Bytes>) -> Result<Report, String> {
    let options = SimOptions::new(capacity.unwrap_or(total))
        .total(total)
        .event_timing(EventTiming::Eager)
        .address_model(Scripted::new(real.segment_addresses.iter().copied()))
        .reservation_model(Scripted::for_reservations(real.reservation_addresses.iter().copied()));
    run(AnyDevice::new(SimDevice::new(options)), plan).map_err(|trouble| match trouble {
        Trouble::Skip(reason) | Trouble::Fail { reason, .. } => format!("simulated: {reason}"),
    })
}

/// Compares two runs. The error describes where they differ.
fn compare(real: &Report, sim: &Report) -> Result<(), String> {
    let decisions = |report: &Report| report.trace.iter().map(decision).collect::<Vec<_>>();
    first_difference("trace entry", &decisions(real), &decisions(sim))?;
    first_difference("call", &real.answers, &sim.answers)?;
    first_difference("out-of-memory point", &real.oom_points, &sim.oom_points)?;
    first_difference("segment", &real.segments, &sim.segments)?;
    first_difference("statistic", &real.stats.entries(), &sim.stats.entries())?;
    if real.stats == sim.stats { Ok(()) } else { Err("the statistics differ, but not in the listed values".to_owned()) }
}

fn first_difference<T: PartialEq + std::fmt::Debug>(what: &str, real: &[T], sim: &[T]) -> Result<(), String> {
    match real.iter().zip(sim).position(|(real, sim)| real != sim) {
        Some(place) => Err(format!("{what} {place} is {:?} on the device, {:?} simulated", real[place], sim[place])),
        None if real.len() == sim.len() => Ok(()),
        None => Err(format!("{what} count: {} on the device, {} simulated", real.len(), sim.len())),
    }
}

/// Returns the entry without device-specific data; an out-of-memory entry has the device's free bytes in place of an
/// address.
fn decision(entry: &TraceEntry) -> TraceEntry {
    let address = if entry.action == TraceAction::Oom { 0 } else { entry.address };
    TraceEntry { address, ..*entry }
}

/// Runs without waiting for the device between operations: blocks used by other streams stay pending for as long as
/// they are in use.
fn unsettled(backend: &AnyBackend, settings: &str, effort: &Effort) -> Verdict {
    let mut measured = Vec::new();
    for seed in seeds(effort) {
        let device = backend.open(&Needs::default())?;
        let plan = plan(&device, seed, settings, Some(MEMORY), false)?;
        let report = run(device, &plan)?;
        if report.read_bytes == 0 {
            return Err(Trouble::fail("nothing was read back"));
        }
        let unready = report.answers.iter().filter(|answer| answer.result == Ok(false)).count();
        measured.push(format!("seed {seed}: {unready} queries of events not ready, {} MiB read back", report.read_bytes >> 20));
    }
    Ok(Evidence { text: String::new(), measured: measured.join("; "), operations: u64::from(OPERATIONS) * 2 })
}
