//! The allocator core on the first CUDA device, as a library of C functions that time it. `beside_pytorch.py` loads the
//! library into the process in which it times PyTorch's allocator and cudaMallocAsync.
//!
//! `cargo build --profile wheel -p parkade-gpu --example timed_core` builds `target/wheel/examples/libtimed_core.so`.
//! Each function opens the device and returns all memory. If a step fails, it prints a line on standard error and
//! returns -1.
#![allow(clippy::print_stderr, reason = "the caller receives only a number")]

use std::error::Error;
use std::time::Instant;

use parkade::device::DeviceBackend;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, Allocator};
use parkade_gpu::CudaDevice;
use parkade_sim::{SimDevice, SimOptions};

const ORDINAL: u32 = 0;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Returns the nanoseconds per pair of an allocation and a free of `bytes`, over `pairs` pairs. An allocation before
/// the measurement takes the memory from the driver.
// SAFETY: no other function of the process has this name.
#[unsafe(no_mangle)]
pub extern "C" fn parkade_time_pairs(bytes: u64, pairs: u64, expandable: bool) -> f64 {
    told(on_cuda(expandable).and_then(|core| time_pairs(core, bytes, pairs)))
}

/// Returns the nanoseconds for handing out `count` blocks of `bytes`, each of which the allocator requests from the
/// driver.
// SAFETY: no other function of the process has this name.
#[unsafe(no_mangle)]
pub extern "C" fn parkade_time_growth(bytes: u64, count: u64, expandable: bool) -> f64 {
    told(on_cuda(expandable).and_then(|core| time_growth(core, bytes, count)))
}

/// Makes the same measurement on the simulated device: the time spent outside the driver, plus some time for the
/// simulation.
// SAFETY: no other function of the process has this name.
#[unsafe(no_mangle)]
pub extern "C" fn parkade_time_simulated_growth(bytes: u64, count: u64, expandable: bool) -> f64 {
    let options = SimOptions::new(Bytes(bytes.saturating_mul(count).saturating_mul(2)));
    told(time_growth(core(SimDevice::new(options), expandable), bytes, count))
}

fn told(time_ns: Outcome<f64>) -> f64 {
    time_ns.unwrap_or_else(|error| {
        eprintln!("parkade: {error}");
        -1.0
    })
}

fn on_cuda(expandable: bool) -> Outcome<Allocator<CudaDevice, PyTorch>> {
    Ok(core(CudaDevice::open(ORDINAL)?, expandable))
}

fn core<D: DeviceBackend>(device: D, expandable_segments: bool) -> Allocator<D, PyTorch> {
    Allocator::new(device, PyTorch::new(Settings { expandable_segments, ..Settings::default() }), ())
}

fn time_pairs<D: DeviceBackend>(mut core: Allocator<D, PyTorch>, bytes: u64, pairs: u64) -> Outcome<f64> {
    let mut pair = || -> Outcome<()> {
        let block = core.raw_allocate(Bytes(bytes), StreamId::DEFAULT)?;
        Ok(core.free(block)?)
    };
    pair()?;
    let start = Instant::now();
    for _ in 0..pairs {
        pair()?;
    }
    let time_ns = start.elapsed().as_nanos() as f64 / pairs.max(1) as f64;
    core.release_cached()?;
    Ok(time_ns)
}

fn time_growth<D: DeviceBackend>(mut core: Allocator<D, PyTorch>, bytes: u64, count: u64) -> Outcome<f64> {
    let start = Instant::now();
    let blocks: Vec<Allocation> =
        (0..count).map(|_| core.raw_allocate(Bytes(bytes), StreamId::DEFAULT)).collect::<Result<_, _>>()?;
    let time_ns = start.elapsed().as_nanos() as f64;
    for block in blocks {
        core.free(block)?;
    }
    core.release_cached()?;
    Ok(time_ns)
}
