//! Times the loading of an uncompressed recording for `benches/load.py`, which compares it with CPython's `pickle.load`.
//!
//! `load FILE` reads the file into memory. For every line on standard input, it loads the recording once and answers with a
//! line: the processor time in seconds, and the number of trace entries. Processor time excludes other programs.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::io::{self, BufRead, Write};

use parkade_recording::read;

/// The allocator used by the `parkade` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: load FILE")?;
    let bytes = std::fs::read(path)?;
    for line in io::stdin().lock().lines() {
        line?;
        let start = processor_ns()?;
        let recording = read(black_box(&bytes))?;
        let seconds = (processor_ns()? - start) as f64 / 1e9;
        let entries: usize = recording.devices.iter().map(|device| device.trace.len()).sum();
        writeln!(io::stdout(), "{seconds} {entries}")?;
    }
    Ok(())
}

/// The processor time of this thread so far, in nanoseconds, from Linux.
fn processor_ns() -> Result<u64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split_whitespace().next().ok_or("an empty schedstat")?.parse()?)
}
