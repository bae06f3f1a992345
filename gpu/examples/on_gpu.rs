//! The tests of the CUDA device as a single program, which can be copied to a GPU machine without Rust and run there.
//!
//! `cargo build --release -p parkade-gpu --example on_gpu` builds `target/release/examples/on_gpu`, which prints a
//! table. It uses less than 3 GiB of device memory, apart from requests that no device can serve, and releases
//! everything. The exit code is 0 if every check passes, 1 if one fails, and 77 if there is no device.
#![expect(clippy::print_stdout, reason = "a user runs this example")]

#[path = "../tests/checks/mod.rs"]
mod checks;

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use parkade::device::DeviceBackend;
use parkade_gpu::{CudaDevice, Unavailable};

/// The exit code of a test program that could not run.
const SKIPPED: u8 = 77;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // This stays open throughout, so that the context exists all the time, including the memory that the driver takes
    // for itself.
    let mut device = match CudaDevice::open(checks::ORDINAL) {
        Ok(device) => device,
        Err(reason) => return Ok(skip(reason)),
    };
    let (major, minor) = device.driver_version()?;
    let memory = device.memory_info()?;
    println!("device       {} (index {})", device.name()?, device.index());
    println!("driver       CUDA {major}.{minor}");
    println!("total        {} B (cuDeviceTotalMem), {} B (cuMemGetInfo)", device.total_memory(), memory.total);
    println!("free before  {} B", memory.free);
    let mut failures = 0;
    for (name, check) in checks::ALL {
        let start = Instant::now();
        let (verdict, text) = match check() {
            Ok(text) => ("ok", text),
            Err(error) => ("FAILED", error.to_string()),
        };
        failures += usize::from(verdict == "FAILED");
        println!("{verdict:<7} {:>8.1} ms  {name:<54} {text}", start.elapsed().as_secs_f64() * 1e3);
    }
    drop(device); // The last check has reset the device.
    println!("free after   {} B", CudaDevice::open(checks::ORDINAL)?.memory_info()?.free);
    println!("{} checks, {failures} failed", checks::ALL.len());
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn skip(reason: Unavailable) -> ExitCode {
    println!("skipped: {reason}");
    ExitCode::from(SKIPPED)
}
