//! Checks of the core on the GPU: memory handed out is nobody else's, and the decisions are those made on the simulated device.
//!
//! Where the driver puts a segment decides ties between free blocks of equal size, so the simulated device is told to put its
//! segments and reservations where the driver put them, one after the other. Then all addresses must be equal, each at its place
//! in the trace.

use std::error::Error;

use parkade::device::DeviceBackend;
use parkade::settings::Settings;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, StreamId};
use parkade_gpu::{CudaDevice, Holdings};
use parkade_sim::device::address::Scripted;
use parkade_sim::device::{Adversary, SimDevice, SimOptions};

use super::sequence::{OPERATIONS, Plan, Report, run};
use super::{ORDINAL, Outcome, ensure, free_bytes};

const SEEDS: [u64; 2] = [20_261, 20_262];
/// PyTorch's settings under which decisions are compared.
const SETTINGS: [&str; 4] = ["", "max_split_size_mb:64", "garbage_collection_threshold:0.6", "roundup_power2_divisions:4"];
/// The same with memory that is mapped page by page.
const EXPANDABLE: [&str; 4] = [
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:64",
    "expandable_segments:True,garbage_collection_threshold:0.6",
    "expandable_segments:True,roundup_power2_divisions:4",
];

/// Without waiting for the GPU between operations: blocks used by other streams are pending for as long as they are.
pub(super) fn no_overlap() -> Outcome {
    let mut witness = CudaDevice::open(ORDINAL)?;
    let plans = SEEDS.map(|seed| [SETTINGS[0], EXPANDABLE[0]].map(|text| (seed, text)));
    // A first run makes the driver take what it keeps: kernels that fill memory, room for events and streams.
    let mut before = 0;
    let (mut ooms, mut pending, mut read_bytes) = (0, 0, 0);
    for (seed, text) in plans.as_flattened() {
        let report = on_gpu(*seed, text, false)?.1;
        let after = free_bytes(&mut witness)?;
        let is_first = *seed == SEEDS[0];
        ensure(is_first || after == before, || {
            format!("{before} bytes free before the sequence {seed} {text:?}, {after} after")
        })?;
        before = after;
        ooms += report.stats.num_ooms;
        pending += waited(&report.trace);
        read_bytes += report.read_bytes;
    }
    ensure(read_bytes > 0, || String::from("nothing was read back"))?;
    let runs = plans.as_flattened().len();
    Ok(format!(
        "{runs} x {OPERATIONS} operations, {ooms} out of memory, {pending} waited, {} MiB read back, all memory back",
        read_bytes >> 20
    ))
}

/// With all work done between operations, so that both devices see the same events complete.
pub(super) fn as_simulated() -> Outcome {
    compared(&SETTINGS, TraceAction::SegmentAlloc)
}

/// The same where segments grow page by page: reservations, mappings and unmappings are decisions too.
pub(super) fn expandable_as_simulated() -> Outcome {
    compared(&EXPANDABLE, TraceAction::SegmentMap)
}

/// Compares each seed under each settings string; `growth` is the action by which memory comes from the device.
fn compared(settings: &[&str], growth: TraceAction) -> Outcome {
    let (mut entries, mut grown, mut ooms) = (0, 0, 0);
    for seed in SEEDS {
        for text in settings {
            let (plan, gpu) = on_gpu(seed, text, true)?;
            let sim = simulated(&plan, &gpu)?;
            compare(&gpu, &sim).map_err(|error| format!("seed {seed}, settings {text:?}: {error}"))?;
            entries += gpu.trace.len();
            grown += gpu.trace.iter().filter(|entry| entry.action == growth).count();
            ooms += gpu.stats.num_ooms;
        }
    }
    ensure(grown > 0, || format!("no {growth:?}: the settings have no effect"))?;
    let runs = SEEDS.len() * settings.len();
    Ok(format!(
        "{runs} x {OPERATIONS} operations, {entries} trace entries with {grown} {growth:?} and {ooms} out of memory equal"
    ))
}

/// Runs a sequence on the GPU, and looks that the device has nothing left at the end.
fn on_gpu(seed: u64, text: &str, settled: bool) -> Result<(Plan, Report), Box<dyn Error>> {
    let mut device = CudaDevice::open(ORDINAL)?;
    let streams = [StreamId::DEFAULT, device.create_stream()?, device.create_stream()?];
    let mut settings = Settings::default();
    settings.apply(text)?;
    let plan = Plan { seed, streams, settings, settled, total: None };
    let (report, (left, total)) = run(device, &plan, |device| (device.holdings(), device.total_memory()))?;
    // The allocator still has its events, for the next time.
    let own = Holdings { streams: 2, events: left.events, ..Holdings::default() };
    ensure(left == own, || format!("left on the device: {left:?}"))?;
    Ok((Plan { total: Some(total), ..plan }, report))
}

/// Runs the same sequence on a simulated device that puts its segments and reservations where the GPU's driver did.
fn simulated(plan: &Plan, gpu: &Report) -> Result<Report, Box<dyn Error>> {
    let total = plan.total.ok_or("the sequence did not run on a GPU")?;
    let options = SimOptions::h200()
        .total(total)
        .adversary(Adversary::Eager)
        .address_model(Scripted::new(segment_addresses(&gpu.trace)))
        .reservation_model(Scripted::for_reservations(reservation_addresses(&gpu.trace, total)));
    let models =
        |device: &SimDevice| [device.address_model::<Scripted>().cloned(), device.reservation_model::<Scripted>().cloned()];
    let (report, models) = run(SimDevice::new(options), plan, models)?;
    for (model, name) in models.into_iter().zip(["segments", "reservations"]) {
        let model = model.ok_or("the simulated device lost its address model")?;
        let (left, others) = (model.remaining(), model.fallbacks());
        ensure(left == 0 && others == 0, || format!("{left} {name} of the GPU's were not made, {others} others were"))?;
    }
    Ok(report)
}

/// How many blocks were still waiting for other streams' work when a later request was served.
fn waited(trace: &[TraceEntry]) -> usize {
    let (mut fresh, mut waited) = (Vec::new(), 0);
    for entry in trace {
        match entry.action {
            TraceAction::FreeRequested => fresh.push(entry.address),
            TraceAction::FreeCompleted => fresh.retain(|&address| address != entry.address),
            TraceAction::Alloc => waited += fresh.drain(..).count(),
            _ => {}
        }
    }
    waited
}

fn segment_addresses(trace: &[TraceEntry]) -> Vec<u64> {
    trace.iter().filter(|entry| entry.action == TraceAction::SegmentAlloc).map(|entry| entry.address).collect()
}

/// Where the reservations begin: with the first mapping in each, since segments grow from their lowest address (spec 4.3). A
/// reservation goes with its last mapping (spec 4.7). It has at least an eighth more addresses than the device has memory.
fn reservation_addresses(trace: &[TraceEntry], total: Bytes) -> Vec<u64> {
    let reserved_bytes = total.get() + total.get() / 8;
    let (mut bases, mut live) = (Vec::new(), Vec::<(u64, u64)>::new());
    for entry in trace {
        let holding = live.iter().position(|&(base, _)| entry.address >= base && entry.address - base < reserved_bytes);
        match (entry.action, holding) {
            (TraceAction::SegmentMap, Some(place)) => live[place].1 += entry.size,
            (TraceAction::SegmentMap, None) => {
                bases.push(entry.address);
                live.push((entry.address, entry.size));
            }
            (TraceAction::SegmentUnmap, Some(place)) => {
                live[place].1 -= entry.size;
                live.retain(|&(_, mapped_bytes)| mapped_bytes > 0);
            }
            _ => {}
        }
    }
    bases
}

fn compare(gpu: &Report, sim: &Report) -> Result<(), Box<dyn Error>> {
    for (place, (on_gpu, on_sim)) in gpu.trace.iter().zip(&sim.trace).enumerate() {
        let (on_gpu, on_sim) = (decision(on_gpu), decision(on_sim));
        ensure(on_gpu == on_sim, || format!("entry {place} is {on_gpu:?} on the GPU, {on_sim:?} simulated"))?;
    }
    let (entries, simulated) = (gpu.trace.len(), sim.trace.len());
    ensure(entries == simulated, || format!("{entries} entries on the GPU, {simulated} simulated"))?;
    ensure(gpu.segments == sim.segments, || String::from("the same trace, and other segments"))?;
    ensure(gpu.stats == sim.stats, || format!("statistics on the GPU {:?}, simulated {:?}", gpu.stats, sim.stats))
}

/// An entry without what is the device's own: an out-of-memory entry holds the device's free bytes in place of an address.
fn decision(entry: &TraceEntry) -> TraceEntry {
    let address = if entry.action == TraceAction::Oom { 0 } else { entry.address };
    TraceEntry { address, ..*entry }
}
