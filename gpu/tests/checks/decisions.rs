//! Checks of the core on the GPU: memory handed out is nobody else's, and the decisions are those made on the simulated device.
//!
//! Where the driver puts a segment decides ties between free blocks of equal size, so the simulated device is told to put its
//! segments where the driver put them, one after the other. Then all addresses must be equal, each at its place in the trace.

use std::error::Error;

use parkade::settings::Settings;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::StreamId;
use parkade_gpu::CudaDevice;
use parkade_sim::device::address::Scripted;
use parkade_sim::device::{Adversary, SimDevice, SimOptions};

use super::sequence::{OPERATIONS, Plan, Report, run};
use super::{ORDINAL, Outcome, ensure, free_bytes};

const SEEDS: [u64; 2] = [20_261, 20_262];
/// PyTorch's settings under which decisions are compared.
const SETTINGS: [&str; 4] = ["", "max_split_size_mb:64", "garbage_collection_threshold:0.6", "roundup_power2_divisions:4"];

/// Without waiting for the GPU between operations: blocks used by other streams are pending for as long as they are.
pub(super) fn no_overlap() -> Outcome {
    let mut witness = CudaDevice::open(ORDINAL)?;
    // The first run also makes the driver take what it keeps: kernels that fill memory, room for events and streams.
    let first = on_gpu(SEEDS[0], "", false)?.1;
    let before = free_bytes(&mut witness)?;
    let second = on_gpu(SEEDS[1], "", false)?.1;
    let after = free_bytes(&mut witness)?;
    ensure(after == before, || format!("{before} bytes free before the sequence, {after} after"))?;
    let read_mib = (first.read_bytes + second.read_bytes) >> 20;
    ensure(read_mib > 0, || String::from("nothing was read back"))?;
    let ooms = first.stats.num_ooms + second.stats.num_ooms;
    let waited = waited(&first.trace) + waited(&second.trace);
    Ok(format!("2 x {OPERATIONS} operations, {ooms} out of memory, {waited} waited, {read_mib} MiB read back, all memory back"))
}

/// With all work done between operations, so that both devices see the same events complete.
pub(super) fn as_simulated() -> Outcome {
    let (mut entries, mut segments, mut ooms) = (0, 0, 0);
    for seed in SEEDS {
        for text in SETTINGS {
            let (plan, gpu) = on_gpu(seed, text, true)?;
            let places = segment_addresses(&gpu.trace);
            segments += places.len();
            let sim = simulated(&plan, places)?;
            compare(&gpu, &sim).map_err(|error| format!("seed {seed}, settings {text:?}: {error}"))?;
            entries += gpu.trace.len();
            ooms += gpu.stats.num_ooms;
        }
    }
    let runs = SEEDS.len() * SETTINGS.len();
    Ok(format!(
        "{runs} x {OPERATIONS} operations, {entries} trace entries with {segments} segments and {ooms} out of memory equal"
    ))
}

/// Runs a sequence on the GPU, and looks that the device has nothing left at the end.
fn on_gpu(seed: u64, text: &str, settled: bool) -> Result<(Plan, Report), Box<dyn Error>> {
    let mut device = CudaDevice::open(ORDINAL)?;
    let streams = [StreamId::DEFAULT, device.create_stream()?, device.create_stream()?];
    let mut settings = Settings::default();
    settings.apply(text)?;
    let plan = Plan { seed, streams, settings, settled };
    let (report, left) = run(device, &plan, CudaDevice::live_ranges)?;
    ensure(left == 0, || format!("{left} ranges are left on the device"))?;
    Ok((plan, report))
}

/// Runs the same sequence on a simulated device that puts its segments at these places.
fn simulated(plan: &Plan, places: Vec<u64>) -> Result<Report, Box<dyn Error>> {
    let options = SimOptions::h200().adversary(Adversary::Eager).address_model(Scripted::new(places));
    let (report, model) = run(SimDevice::new(options), plan, |device| device.address_model::<Scripted>().cloned())?;
    let model = model.ok_or("the simulated device lost its address model")?;
    let (left, others) = (model.remaining(), model.fallbacks());
    ensure(left == 0 && others == 0, || format!("{left} segments of the GPU's were not made, {others} others were"))?;
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
