//! Times the core on a sequence of requests, as `conformance/oracle/pytorch_harness/src/timed.hpp` times the real
//! allocators: `timed SEQUENCE`, for `benches/side_by_side.py`.
//!
//! Settings come from `PYTORCH_CUDA_ALLOC_CONF`. With `PARKADE_BY_POINTER=1` blocks go through the wrapper for several
//! threads, by their addresses; threads always do. First the blocks of a mix are allocated, and `ready BYTES` says by
//! how much that grew the process. Then each line of standard input runs the steps once and is answered by the
//! nanoseconds of a step: processor time, which does not count other programs. Of threads it is the time by the clock
//! until all are done, by the steps of all.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints")]

mod interface;
mod sequence;

use std::error::Error;
use std::io::{Write, stdin, stdout};
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use parkade::Allocator;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, StreamId};
use parkade_benches::NullDevice;
use parkade_shared::Shared;
use rustix::time::{ClockId, clock_gettime};

use crate::interface::Interface;
use crate::sequence::{Replace, Sequence};

type Failure = Box<dyn Error + Send + Sync>;
type Timed = Result<Duration, Failure>;

fn main() -> ExitCode {
    let path = std::env::args().nth(1);
    let done = path.ok_or_else(|| "usage: timed SEQUENCE".into()).and_then(|path| run(&path));
    if let Err(error) = done {
        eprintln!("timed: {error}");
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}

fn run(path: &str) -> Result<(), Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path} cannot be read: {error}"))?;
    let sequence = Sequence::parse(&text)?;
    drop(text);
    let settings = std::env::var("PYTORCH_CUDA_ALLOC_CONF").unwrap_or_default();
    let settings = Settings::from_environment(&settings).map_err(|error| error.to_string())?;
    let core = Allocator::new(NullDevice::default(), PyTorch::new(settings), ());
    match sequence {
        Sequence::Threads { threads, bytes, steps } => {
            let shared = Shared::new(core);
            rounds(&sequence, 0, || on_threads(&shared, threads, bytes, steps))
        }
        _ if std::env::var_os("PARKADE_BY_POINTER").is_some_and(|set| set == "1") => on_one_thread(&sequence, Shared::new(core)),
        _ => on_one_thread(&sequence, core),
    }
}

/// Runs all rounds through one interface.
fn on_one_thread<I: Interface>(sequence: &Sequence, mut core: I) -> Result<(), Failure> {
    let mut blocks: Vec<Option<I::Block>> = Vec::new();
    blocks.resize_with(sequence.slots(), || None);
    let before = resident_bytes();
    for (block, &bytes) in blocks.iter_mut().zip(sequence.fill()) {
        *block = Some(core.allocate(bytes, StreamId::DEFAULT)?);
    }
    let grown = resident_bytes().saturating_sub(before);
    rounds(sequence, grown, || match sequence {
        Sequence::Pairs { bytes, steps } => pairs(&mut core, *bytes, *steps),
        Sequence::Recorded { bytes, steps } => recorded(&mut core, *bytes, *steps),
        Sequence::Mix { steps, .. } => mix(&mut core, &mut blocks, steps),
        Sequence::Replay { steps, .. } => replay(&mut core, &mut blocks, steps),
        Sequence::Threads { .. } => Err("threads have rounds of their own".into()),
    })
}

/// Says that it is ready, then runs the steps once for each line of standard input.
fn rounds(sequence: &Sequence, grown: u64, mut round: impl FnMut() -> Timed) -> Result<(), Failure> {
    println!("ready {grown}");
    for line in stdin().lines() {
        line?;
        println!("{:.3}", round()?.as_nanos() as f64 / sequence.steps() as f64);
        stdout().flush()?;
    }
    Ok(())
}

fn pairs<I: Interface>(core: &mut I, bytes: u64, steps: usize) -> Timed {
    let start = processor_time();
    for _ in 0..steps {
        let block = core.allocate(bytes, StreamId::DEFAULT)?;
        core.free(block)?;
    }
    Ok(processor_time() - start)
}

fn recorded<I: Interface>(core: &mut I, bytes: u64, steps: usize) -> Timed {
    let start = processor_time();
    for _ in 0..steps {
        let block = core.allocate(bytes, StreamId::DEFAULT)?;
        core.record_stream(&block, StreamId(0x7000))?;
        core.free(block)?;
    }
    Ok(processor_time() - start)
}

fn mix<I: Interface>(core: &mut I, blocks: &mut [Option<I::Block>], steps: &[Replace]) -> Timed {
    let start = processor_time();
    for step in steps {
        let block = &mut blocks[step.slot];
        if let Some(old) = block.take() {
            core.free(old)?;
        }
        *block = Some(core.allocate(step.bytes, StreamId::DEFAULT)?);
    }
    Ok(processor_time() - start)
}

fn replay<I: Interface>(core: &mut I, blocks: &mut [Option<I::Block>], steps: &[Replace]) -> Timed {
    let start = processor_time();
    for step in steps {
        let block = &mut blocks[step.slot];
        if step.bytes > 0 {
            *block = Some(core.allocate(step.bytes, StreamId::DEFAULT)?);
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

/// Pairs on several threads, each on a stream of its own, through one wrapper.
fn on_threads(shared: &Shared<NullDevice, PyTorch>, threads: usize, bytes: u64, steps: usize) -> Timed {
    let barrier = Barrier::new(threads + 1);
    let work = |stream: StreamId| -> Result<(), Failure> {
        barrier.wait();
        for _ in 0..steps {
            let block = shared.raw_allocate(Bytes(bytes), stream)?;
            shared.free(block)?;
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
