//! Measures how long it takes to decompress and read a snapshot, and the peak of resident memory.
//!
//! `cargo run --release -p parkade-benches --example read_time -- FILE [REPEATS]`
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use std::error::Error;
use std::time::Instant;

use parkade_recording::{compression, read};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: read_time FILE [REPEATS]")?;
    let repeats: u32 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    for _ in 0..repeats {
        let compressed = std::fs::read(&path)?;
        let start = Instant::now();
        let decompressed = compression::decompress(&compressed)?;
        let decompressed_at = start.elapsed();
        let recording = read(&decompressed)?;
        let done = start.elapsed();
        let entries: usize = recording.devices.iter().map(|device| device.trace.len()).sum();
        println!(
            "{} bytes -> {} in {:.3} s; {} entries, {} stacks in {:.4} s; {}",
            compressed.len(),
            decompressed.len(),
            decompressed_at.as_secs_f64(),
            entries,
            recording.stacks.len(),
            (done - decompressed_at).as_secs_f64(),
            peak()?
        );
    }
    Ok(())
}

/// The line in `/proc/self/status` with the peak of resident memory (Linux only).
fn peak() -> Result<String, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM unknown").to_owned())
}
