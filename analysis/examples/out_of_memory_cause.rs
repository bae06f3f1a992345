//! Explains why a recorded run ran out of memory and which code held the memory.
//!
//! `cargo run --release -p parkade-analysis --example out_of_memory_cause -- [SNAPSHOT]`; without an argument it reads a
//! ResNet-50 sweep that ships with the repository and ran out of memory under a 5 GiB limit.

use std::error::Error;

use parkade_analysis::diagnose::{DiagnoseOptions, Diagnosis, Limit, diagnose_device};
use parkade_recording::{Recording, StackId};
use parkade_replay::{ReplaySettings, VerifyOptions};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/resnet50_sweep.limit5_oom.pickle.xz");

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| SHIPPED.to_owned());
    let recording = parkade_recording::read_file(&file)?;
    let settings = ReplaySettings::of_recording(recording.settings.as_ref())?;
    let own = VerifyOptions { settings, limit_bytes: None, stats_file: None };
    let options = DiagnoseOptions { own, capacity_bytes: None, entry: None, fences: 3 };
    for device in &recording.devices {
        show(&recording, &diagnose_device(device, &options, &mut |_| ())?);
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example")]
fn show(recording: &Recording, diagnosis: &Diagnosis) {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let moment = diagnosis.entry.map_or_else(|| "the end".to_owned(), |entry| format!("entry {entry}"));
    println!("device {}: {} at {moment}", diagnosis.device, diagnosis.verdict.name());
    if let Some(request) = diagnosis.request {
        println!("  request     {}", mib(request.requested_bytes));
    }
    let heap = &diagnosis.heap;
    println!("  reserved    {} in {} segments", mib(heap.reserved_bytes), heap.segments);
    println!("  live        {} in {} blocks", mib(heap.requested_bytes), heap.live_blocks);
    println!("  rounding    {}", mib(heap.rounding_bytes));
    println!("  stranded    {}, largest hole {}", mib(heap.stranded_bytes()), mib(heap.largest_hole_bytes()));
    for strand in heap.strands.iter().filter(|strand| strand.bytes > 0) {
        println!("    {:<14} {} in {} holes", strand.cause.name(), mib(strand.bytes), strand.holes);
    }
    if let Limit::Between { at_least_bytes, below_bytes } = diagnosis.limit {
        println!("  the limit was at least {} and below {}", mib(at_least_bytes), mib(below_bytes));
    }
    for fence in &diagnosis.fences {
        println!("  freeing {} would open {}", mib(fence.bytes), mib(fence.opens_bytes));
    }
    println!("the stacks that hold the most memory:");
    for held in diagnosis.stacks.iter().take(3) {
        println!("  {} in {} blocks, allocated at {}", mib(held.bytes), held.blocks, place(recording, held.stack));
    }
}

/// Returns the innermost Python call of a stack.
fn place(recording: &Recording, stack: StackId) -> String {
    let frame = recording.stacks.frames(stack).find(|frame| frame.filename.ends_with(".py"));
    frame.map_or_else(|| "an unknown place".to_owned(), |frame| format!("{}:{}", frame.filename, frame.line))
}
