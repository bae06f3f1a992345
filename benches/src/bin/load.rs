//! How long loading an unpacked recording takes, for `benches/load.py`, which times CPython's `pickle.load` beside it.
//!
//! `load FILE`: for every line on standard input the file, read into memory before, is loaded once; the answer is a line with the seconds
//! of processor time that it took, and the number of trace entries. Processor time, since other programs may be running too.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::io::{self, BufRead, Write};

use parkade_recording::read;

/// As in the binary `parkade`.
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

/// The processor time of this thread so far, in nanoseconds, as Linux tells it.
fn processor_ns() -> Result<u64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split_whitespace().next().ok_or("an empty schedstat")?.parse()?)
}
