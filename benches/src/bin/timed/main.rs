//! Times the core on a sequence of requests, as `conformance/oracle/pytorch_harness/src/timed.hpp` times the real
//! allocators: `timed SEQUENCE`, for `benches/side_by_side.py`.
//!
//! Settings come from `PYTORCH_CUDA_ALLOC_CONF`. First the blocks of a mix are allocated, and `ready BYTES` says by
//! how much that grew the process. Then each line of standard input runs the steps once and is answered by the
//! nanoseconds of a step: processor time, which does not count other programs. Of threads it is the time by the clock
//! until all are done, by the steps of all.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints")]

mod sequence;

use std::error::Error;
use std::io::{Write, stdin, stdout};
use std::process::ExitCode;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocation, Allocator};
use parkade_benches::NullDevice;
use rustix::time::{ClockId, clock_gettime};

use crate::sequence::{Replace, Sequence};

type Core = Allocator<NullDevice, PyTorch>;
type Timed = Result<Duration, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let path = std::env::args().nth(1);
    let done = path.ok_or_else(|| "usage: timed SEQUENCE".into()).and_then(|path| run(&path));
    if let Err(error) = done {
        eprintln!("timed: {error}");
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}

fn run(path: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path} cannot be read: {error}"))?;
    let sequence = Sequence::parse(&text)?;
    drop(text);
    let settings = std::env::var("PYTORCH_CUDA_ALLOC_CONF").unwrap_or_default();
    let settings = Settings::from_environment(&settings).map_err(|error| error.to_string())?;
    let mut core = Allocator::new(NullDevice::default(), PyTorch::new(settings), ());
    let mut blocks: Vec<Option<Allocation>> = Vec::new();
    blocks.resize_with(sequence.slots(), || None);
    let before = resident_bytes();
    for (block, &bytes) in blocks.iter_mut().zip(sequence.fill()) {
        *block = Some(allocate(&mut core, bytes)?);
    }
    println!("ready {}", resident_bytes().saturating_sub(before));
    for line in stdin().lines() {
        line?;
        let took = round(&sequence, &mut core, &mut blocks)?;
        println!("{:.3}", took.as_nanos() as f64 / sequence.steps() as f64);
        stdout().flush()?;
    }
    Ok(())
}

/// One run of the steps.
fn round(sequence: &Sequence, core: &mut Core, blocks: &mut [Option<Allocation>]) -> Timed {
    match sequence {
        Sequence::Pairs { bytes, steps } => pairs(core, *bytes, *steps),
        Sequence::Recorded { bytes, steps } => recorded(core, *bytes, *steps),
        Sequence::Threads { threads, bytes, steps } => on_threads(core, *threads, *bytes, *steps),
        Sequence::Mix { steps, .. } => mix(core, blocks, steps),
        Sequence::Replay { steps, .. } => replay(core, blocks, steps),
    }
}

fn allocate(core: &mut Core, bytes: u64) -> Result<Allocation, AllocError> {
    core.raw_allocate(Bytes(bytes), StreamId::DEFAULT)
}

fn pairs(core: &mut Core, bytes: u64, steps: usize) -> Timed {
    let start = processor_time();
    for _ in 0..steps {
        let block = allocate(core, bytes)?;
        core.free(block)?;
    }
    Ok(processor_time() - start)
}

fn recorded(core: &mut Core, bytes: u64, steps: usize) -> Timed {
    let start = processor_time();
    for _ in 0..steps {
        let block = allocate(core, bytes)?;
        core.record_stream(&block, StreamId(0x7000));
        core.free(block)?;
    }
    Ok(processor_time() - start)
}

fn mix(core: &mut Core, blocks: &mut [Option<Allocation>], steps: &[Replace]) -> Timed {
    let start = processor_time();
    for step in steps {
        let block = &mut blocks[step.slot];
        if let Some(old) = block.take() {
            core.free(old)?;
        }
        *block = Some(allocate(core, step.bytes)?);
    }
    Ok(processor_time() - start)
}

fn replay(core: &mut Core, blocks: &mut [Option<Allocation>], steps: &[Replace]) -> Timed {
    let start = processor_time();
    for step in steps {
        let block = &mut blocks[step.slot];
        if step.bytes > 0 {
            *block = Some(allocate(core, step.bytes)?);
        } else if let Some(old) = block.take() {
            core.free(old)?;
        }
    }
    let took = processor_time() - start;
    for block in blocks {
        if let Some(old) = block.take() {
            core.free(old)?;
        }
    }
    Ok(took)
}

/// Pairs on several threads, each on a stream of its own. There is one core behind one lock, which each request and
/// each free takes.
fn on_threads(core: &mut Core, threads: usize, bytes: u64, steps: usize) -> Timed {
    let core = Mutex::new(core);
    let barrier = Barrier::new(threads + 1);
    let work = |stream: StreamId| -> Result<(), Box<dyn Error + Send + Sync>> {
        barrier.wait();
        for _ in 0..steps {
            let block = core.lock().expect("no thread panics").raw_allocate(Bytes(bytes), stream)?;
            core.lock().expect("no thread panics").free(block)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let started: Vec<_> = (1..=threads as u64).map(|thread| scope.spawn(move || work(StreamId(0x1000 * thread)))).collect();
        barrier.wait();
        let start = Instant::now();
        for thread in started {
            thread.join().expect("no thread panics")?;
        }
        Ok(start.elapsed())
    })
}

/// The processor time of this thread so far.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The process's memory; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}
