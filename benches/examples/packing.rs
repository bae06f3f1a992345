//! Packs MiniMalloc's CSV files and recordings, and prints a table with one row for each, like those in `docs/packing.md`.
//!
//! `cargo run --release -p parkade-benches --example packing -- [--budget STEPS] [--seed NUMBER] FILE...`
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use parkade_replay::{ReplaySettings, Requests, VerifyOptions};
use parkade_research::packing::{Buffer, Effort, Instance, Recorded, check, is_csv, pack, read_csv};

fn main() -> Result<(), Box<dyn Error>> {
    let mut effort = Effort::default();
    let mut arguments = std::env::args().skip(1);
    println!("| file | buffers | load, bytes | packing, bytes | packing / load | proven optimal | steps | seconds |");
    println!("|---|---|---|---|---|---|---|---|");
    while let Some(argument) = arguments.next() {
        let mut number =
            || arguments.next().ok_or("--budget and --seed need a number")?.parse::<u64>().map_err(Box::<dyn Error>::from);
        match argument.as_str() {
            "--budget" => effort.steps = number()?,
            "--seed" => effort.seed = number()?,
            file => print_row(Path::new(file), &effort)?,
        }
    }
    Ok(())
}

fn print_row(file: &Path, effort: &Effort) -> Result<(), Box<dyn Error>> {
    let instance = Instance::new(buffers(file)?)?;
    let start = Instant::now();
    let found = pack(&instance, effort);
    let seconds = start.elapsed().as_secs_f64();
    check(&instance, &found.packing).map_err(|fault| format!("{}: {fault:?}", file.display()))?;
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let (load, height) = (instance.load(), found.packing.height);
    let is_best = if height <= found.bound { "yes" } else { "" };
    let ratio = height as f64 / load as f64;
    let steps = found.steps as f64;
    println!(
        "| {name} | {} | {load} | {height} | {ratio:.4} | {is_best} | {steps:.1e} | {seconds:.1} |",
        instance.buffers().len()
    );
    Ok(())
}

/// The buffers from a CSV file, or from the first device in a recording that has a trace.
fn buffers(file: &Path) -> Result<Vec<Buffer>, Box<dyn Error>> {
    let bytes = std::fs::read(file)?;
    if is_csv(&bytes) {
        return Ok(read_csv(std::str::from_utf8(&bytes)?)?.buffers);
    }
    let recording = parkade_recording::read(&bytes)?;
    let settings = ReplaySettings::of_recording(recording.settings.as_ref())?;
    let own = VerifyOptions { settings, limit_bytes: None, stats_file: None };
    let device = recording.devices.iter().find(|device| !device.trace.is_empty()).ok_or("the recording has no trace")?;
    Ok(Recorded::of(&Requests::of_recording(device, &own, &mut |_| ())?).buffers)
}
