//! Prints how long reading a recording takes and how much memory: `read_time FILE [REPEATS]`.
#![allow(clippy::print_stdout, reason = "it is a program for people")]

use std::error::Error;
use std::time::Instant;

use parkade_recording::{compression, read};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: read_time FILE [REPEATS]")?;
    let repeats: u32 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    for _ in 0..repeats {
        let packed = std::fs::read(&path)?;
        let start = Instant::now();
        let unpacked = compression::decompress(&packed)?;
        let unpacked_at = start.elapsed();
        let recording = read(&unpacked)?;
        let done = start.elapsed();
        let entries: usize = recording.devices.iter().map(|device| device.trace.len()).sum();
        println!(
            "{} bytes -> {} in {:.3} s; {} entries, {} stacks in {:.4} s; {}",
            packed.len(),
            unpacked.len(),
            unpacked_at.as_secs_f64(),
            entries,
            recording.stacks.len(),
            (done - unpacked_at).as_secs_f64(),
            peak()?
        );
    }
    Ok(())
}

/// The peak of resident memory, as Linux counts it.
fn peak() -> Result<String, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM unknown").to_owned())
}
