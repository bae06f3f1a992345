//! The library calls behind common memory tools, with the figures before and after each call: emptying the cache,
//! resetting the peaks, limiting the memory, and copying to the host.
//!
//! `cargo run -p parkade-gpu --example memory_tools` runs on the simulated device; with `-- --cuda`, it runs on the
//! first GPU, where it takes less than 1 GiB and releases everything. The exit code is 0 if every check passes, 1 if
//! not, and 77 if there is no GPU.
#![expect(clippy::print_stdout, reason = "a user runs this example")]

use std::error::Error;
use std::process::ExitCode;

use parkade::device::DeviceBackend;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::stats::Family;
use parkade::texts::format_bytes;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{AllocError, Allocation, Allocator};
use parkade_gpu::{CudaDevice, HostCopyError};
use parkade_sim::{SimDevice, SimOptions};

/// The exit code of a test program that could not run.
const SKIPPED: u8 = 77;
const BLOCK: Bytes = Bytes::mib(64);
/// Larger than the limit that the example sets on a GPU with less than 250 GB.
const LARGE: Bytes = Bytes::mib(512);
const FRACTION: f64 = 0.002;
const WORD: u32 = 0x600d_f00d;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The operations that the tools need in addition to the core's trait: writing and reading memory.
trait Contents: DeviceBackend {
    /// Writes `word` over a block.
    fn write(&mut self, address: DeviceAddress, size: Bytes, word: u32) -> Outcome<()>;

    /// Copies a block to the host.
    fn copy_to_host(&mut self, address: DeviceAddress, size: Bytes) -> Outcome<Vec<u8>>;
}

impl Contents for CudaDevice {
    fn write(&mut self, address: DeviceAddress, size: Bytes, word: u32) -> Outcome<()> {
        Ok(self.fill(address, size, word, StreamId::DEFAULT)?)
    }

    fn copy_to_host(&mut self, address: DeviceAddress, size: Bytes) -> Outcome<Vec<u8>> {
        self.read_to_vec(address, size).map_err(|error: HostCopyError| error.into())
    }
}

impl Contents for SimDevice {
    fn write(&mut self, address: DeviceAddress, size: Bytes, word: u32) -> Outcome<()> {
        Ok(self.fill(address, size, word, StreamId::DEFAULT)?)
    }

    fn copy_to_host(&mut self, address: DeviceAddress, size: Bytes) -> Outcome<Vec<u8>> {
        let (mut copied, bytes) = (Vec::new(), usize::try_from(size.get())?);
        copied.try_reserve_exact(bytes)?;
        copied.resize(bytes, 0);
        self.read(address, &mut copied)?;
        Ok(copied)
    }
}

type Tools<D> = Allocator<D, PyTorch>;

/// The figures that the tools change, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Figures {
    allocated: i64,
    reserved: i64,
    peak_allocated: i64,
    peak_reserved: i64,
    /// Returns the device's free memory.
    device_free: u64,
}

fn figures<D: DeviceBackend>(tools: &mut Tools<D>) -> Outcome<Figures> {
    let device_free = tools.device_mut().memory_info()?.free.get();
    let [allocated, reserved] = [Family::AllocatedBytes, Family::ReservedBytes].map(|family| tools.stats().family(family).all);
    Ok(Figures {
        allocated: allocated.current,
        reserved: reserved.current,
        peak_allocated: allocated.peak,
        peak_reserved: reserved.peak,
        device_free,
    })
}

/// Runs a step, prints the figures before and after it, and returns them.
fn step<D: DeviceBackend>(
    tools: &mut Tools<D>,
    name: &str,
    act: impl FnOnce(&mut Tools<D>) -> Outcome<String>,
) -> Outcome<[Figures; 2]> {
    let before = figures(tools)?;
    let said = act(tools)?;
    let after = figures(tools)?;
    println!("{name}: {said}");
    let rows = [
        ("allocated", before.allocated, after.allocated),
        ("reserved", before.reserved, after.reserved),
        ("peak allocated", before.peak_allocated, after.peak_allocated),
        ("peak reserved", before.peak_reserved, after.peak_reserved),
        ("free on device", i64::try_from(before.device_free)?, i64::try_from(after.device_free)?),
    ];
    for (row, before, after) in rows {
        let show = |bytes: i64| u64::try_from(bytes).map_or_else(|_| bytes.to_string(), format_bytes);
        println!("  {row:<16} {:>12} -> {:>12}", show(before), show(after));
    }
    Ok([before, after])
}

fn ensure(holds: bool, says: &str) -> Outcome<()> {
    if holds { Ok(()) } else { Err(says.into()) }
}

fn run<D: Contents>(device: D) -> Outcome<()> {
    let mut tools = Allocator::new(device, PyTorch::new(Settings::default()), ());
    let live = work(&mut tools)?;
    copy(&mut tools, &live)?;
    clear(&mut tools)?;
    reset(&mut tools)?;
    fraction(&mut tools)?;
    let [_, end] = step(&mut tools, "the end", |tools| {
        tools.free(live)?;
        tools.release_cached()?;
        Ok(String::from("everything was released"))
    })?;
    ensure(end.reserved == 0, "some memory was not released")
}

/// Allocates three blocks and frees two of them, which stay in the cache.
fn work<D: Contents>(tools: &mut Tools<D>) -> Outcome<Allocation> {
    let mut live = None;
    let [_, after] = step(tools, "some work", |tools| {
        let [first, second, third] = [(); 3].map(|()| tools.allocate(BLOCK, StreamId::DEFAULT));
        tools.free(first?)?;
        tools.free(third?)?;
        live = Some(second?);
        Ok(format!("three blocks of {}, one of them still live", format_bytes(BLOCK.get())))
    })?;
    let block = BLOCK.get() as i64;
    ensure((after.allocated, after.reserved) == (block, 3 * block), "the cache does not contain the freed blocks")?;
    live.ok_or_else(|| "there is no live block".into())
}

/// A copy to the host is either the entire block or an error. It is never only part of the block and never an abort.
fn copy<D: Contents>(tools: &mut Tools<D>, live: &Allocation) -> Outcome<()> {
    let [before, after] = step(tools, "copy to the host", |tools| {
        tools.device_mut().write(live.address(), BLOCK, WORD)?;
        let copied = tools.device_mut().copy_to_host(live.address(), BLOCK)?;
        ensure(copied.len() as u64 == BLOCK.get(), "some bytes are missing")?;
        ensure(copied.chunks_exact(4).all(|word| word == WORD.to_le_bytes()), "the bytes are not those that were written")?;
        let beyond = tools.device_mut().copy_to_host(live.address(), Bytes(1 << 50));
        let refusal = beyond.err().ok_or("2^50 bytes were copied, although this should fail")?;
        Ok(format!("{} were copied; 2^50 bytes are refused: {refusal}", format_bytes(copied.len() as u64)))
    })?;
    ensure((before.allocated, before.reserved) == (after.allocated, after.reserved), "copying changed the heap")
}

/// torch.cuda.empty_cache(): segments without live blocks are returned to the device.
fn clear<D: Contents>(tools: &mut Tools<D>) -> Outcome<()> {
    let [before, after] = step(tools, "clear (release_cached)", |tools| {
        tools.release_cached()?;
        Ok(String::from("cached segments are returned to the device"))
    })?;
    ensure(after.allocated == before.allocated, "the live block was released")?;
    ensure(after.reserved == after.allocated, "the cache is not empty")?;
    let came_back = u64::try_from(before.reserved - after.reserved)?;
    ensure(after.device_free == before.device_free + came_back, "the memory was not returned to the device")
}

/// torch.cuda.reset_peak_memory_stats(): the peaks are set to the current values; no memory moves.
fn reset<D: Contents>(tools: &mut Tools<D>) -> Outcome<()> {
    let [before, after] = step(tools, "reset (reset_peak_stats)", |tools| {
        tools.reset_peak_stats();
        Ok(String::from("the peaks equal the current values"))
    })?;
    ensure(before.peak_allocated > after.peak_allocated, "the peak did not fall")?;
    ensure(
        (after.peak_allocated, after.peak_reserved) == (after.allocated, after.reserved),
        "a peak differs from the current \
                                                                                              value",
    )
}

/// torch.cuda.set_per_process_memory_fraction(): the allocator refuses requests beyond the limit without asking the
/// driver.
fn fraction<D: Contents>(tools: &mut Tools<D>) -> Outcome<()> {
    let [before, after] = step(tools, "fraction (set_memory_fraction)", |tools| {
        ensure(tools.set_memory_fraction(1.5).is_err(), "a fraction above 1 was accepted")?;
        tools.set_memory_fraction(FRACTION)?;
        match tools.allocate(LARGE, StreamId::DEFAULT) {
            Err(AllocError::OutOfMemory(_)) => {}
            other => return Err(format!("under a limit, the request returned {other:?}").into()),
        }
        tools.set_memory_fraction(1.0)?;
        let large = tools.allocate(LARGE, StreamId::DEFAULT)?;
        tools.free(large)?;
        Ok(format!(
            "a request for {} runs out of memory with a limit of {FRACTION} of the device and succeeds without it",
            format_bytes(LARGE.get())
        ))
    })?;
    ensure(after.reserved == before.reserved + LARGE.get() as i64, "the large block was not served")
}

fn main() -> Outcome<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(SimDevice::new(SimOptions::h200()))?,
        ["--cuda"] => match CudaDevice::open(0) {
            Ok(device) => run(device)?,
            Err(reason) => {
                println!("skipped: {reason}");
                return Ok(ExitCode::from(SKIPPED));
            }
        },
        _ => return Err("usage: memory_tools [--cuda]".into()),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_works_on_the_simulated_device() {
        run(SimDevice::new(SimOptions::h200())).expect("all steps");
    }

    /// Tests that the example's own checks fail when they should.
    #[test]
    fn a_tool_that_does_not_work_is_noticed() {
        let mut tools = Allocator::new(SimDevice::new(SimOptions::h200()), PyTorch::new(Settings::default()), ());
        let _live = work(&mut tools).expect("some work");
        tools.release_cached().expect("an empty cache");
        tools.reset_peak_stats();
        let error = reset(&mut tools).expect_err("the peak does not fall again");
        assert_eq!(error.to_string(), "the peak did not fall");
    }
}
