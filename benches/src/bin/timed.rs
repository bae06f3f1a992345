//! Times the core on a sequence of requests, in the same way as `conformance/oracle/pytorch_harness/src/timed.hpp` times the
//! real allocators: `timed SEQUENCE`, for `benches/side_by_side.py`.
//!
//! Settings are read from `PYTORCH_CUDA_ALLOC_CONF`. With `PARKADE_BY_POINTER=1`, blocks are allocated and freed by
//! address, through the wrapper for several threads; sequences on threads always use the wrapper. The program first
//! allocates the blocks of a mix and prints `ready BYTES`, where BYTES is the growth of the process's memory. It then
//! runs the steps once for each line of standard input and answers with the nanoseconds per step: processor time,
//! which excludes other programs. For threads, this is the wall-clock time until all are done, divided by the total
//! number of steps.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its output is for people to read")]

use std::error::Error;
use std::io::{Write, stdin, stdout};
use std::process::ExitCode;
use std::str::{FromStr, SplitWhitespace};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{Allocation, Allocator};
use parkade_benches::NullDevice;
use parkade_shared::Shared;
use rustix::time::{ClockId, clock_gettime};

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
        Sequence::Threads { .. } => Err("threads have their own rounds".into()),
    })
}

/// Prints the `ready` line, and then runs the steps once for each line of standard input.
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

/// Pairs on several threads, each on its own stream, through one wrapper.
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

/// The process's memory; 0 if the system does not report it.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

/// The allocator interface of the loops. The core has two interfaces: by handle on one thread, and by pointer through the
/// wrapper for several threads.
trait Interface {
    /// The identity of a block.
    type Block;

    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Self::Block, Failure>;
    fn record_stream(&mut self, block: &Self::Block, stream: StreamId) -> Result<(), Failure>;
    fn free(&mut self, block: Self::Block) -> Result<(), Failure>;
}

impl Interface for Allocator<NullDevice, PyTorch> {
    type Block = Allocation;

    #[inline]
    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Allocation, Failure> {
        Ok(self.raw_allocate(Bytes(bytes), stream)?)
    }

    #[inline]
    fn record_stream(&mut self, block: &Allocation, stream: StreamId) -> Result<(), Failure> {
        Allocator::record_stream(self, block, stream);
        Ok(())
    }

    #[inline]
    fn free(&mut self, block: Allocation) -> Result<(), Failure> {
        Ok(Allocator::free(self, block)?)
    }
}

impl Interface for Shared<NullDevice, PyTorch> {
    type Block = DeviceAddress;

    #[inline]
    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<DeviceAddress, Failure> {
        Ok(self.raw_allocate(Bytes(bytes), stream)?)
    }

    #[inline]
    fn record_stream(&mut self, block: &DeviceAddress, stream: StreamId) -> Result<(), Failure> {
        Ok(Shared::record_stream(self, *block, stream)?)
    }

    #[inline]
    fn free(&mut self, block: DeviceAddress) -> Result<(), Failure> {
        Ok(Shared::free(self, block)?)
    }
}

/// One step of a mix or a replay.
struct Replace {
    /// The slot of the block, below [`Sequence::slots`].
    slot: usize,
    /// The requested size; in a replay, 0 means a free.
    bytes: u64,
}

/// The sequence to time.
enum Sequence {
    /// A block is allocated and freed.
    Pairs { bytes: u64, steps: usize },
    /// The same, with a second stream recorded in between.
    Recorded { bytes: u64, steps: usize },
    /// Pairs on several threads at once; the number of steps is per thread.
    Threads { threads: usize, bytes: u64, steps: usize },
    /// One of several live blocks is replaced.
    Mix { fill: Vec<u64>, steps: Vec<Replace> },
    /// Allocations and frees.
    Replay { slots: usize, steps: Vec<Replace> },
}

impl Sequence {
    /// Reads a sequence from a file; `timed.hpp` describes the format.
    ///
    /// # Errors
    ///
    /// If the text is not a sequence.
    fn parse(text: &str) -> Result<Sequence, String> {
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let sequence = match kind {
            "pairs" => Sequence::Pairs { bytes: next(&mut words)?, steps: next(&mut words)? },
            "recorded" => Sequence::Recorded { bytes: next(&mut words)?, steps: next(&mut words)? },
            "threads" => Sequence::Threads { threads: next(&mut words)?, bytes: next(&mut words)?, steps: next(&mut words)? },
            "mix" => {
                let (live, steps) = (next(&mut words)?, next(&mut words)?);
                let fill = (0..live).map(|_| next(&mut words)).collect::<Result<_, _>>()?;
                Sequence::Mix { fill, steps: replacements(&mut words, live, steps)? }
            }
            "replay" => {
                let (slots, steps) = (next(&mut words)?, next(&mut words)?);
                Sequence::Replay { slots, steps: replacements(&mut words, slots, steps)? }
            }
            _ => return Err(format!("unknown kind of sequence {kind:?}: benches/sequences.py lists the known ones")),
        };
        if sequence.steps() == 0 { Err("the sequence has no steps".to_owned()) } else { Ok(sequence) }
    }

    /// The sizes of the blocks that are live before the first step.
    fn fill(&self) -> &[u64] {
        if let Sequence::Mix { fill, .. } = self { fill } else { &[] }
    }

    /// The number of slots that the steps use.
    fn slots(&self) -> usize {
        match self {
            Sequence::Mix { fill, .. } => fill.len(),
            Sequence::Replay { slots, .. } => *slots,
            Sequence::Pairs { .. } | Sequence::Recorded { .. } | Sequence::Threads { .. } => 0,
        }
    }

    /// The number of steps in a round, over all threads.
    fn steps(&self) -> usize {
        match self {
            Sequence::Pairs { steps, .. } | Sequence::Recorded { steps, .. } => *steps,
            Sequence::Threads { threads, steps, .. } => threads * steps,
            Sequence::Mix { steps, .. } | Sequence::Replay { steps, .. } => steps.len(),
        }
    }
}

fn next<T: FromStr>(words: &mut SplitWhitespace<'_>) -> Result<T, String> {
    let word = words.next().ok_or("the sequence ends too early")?;
    word.parse().map_err(|_| format!("{word:?} is not a number, but the sequence needs one here"))
}

fn replacements(words: &mut SplitWhitespace<'_>, slots: usize, steps: usize) -> Result<Vec<Replace>, String> {
    let replacement = |_| {
        let step = Replace { slot: next(words)?, bytes: next(words)? };
        if step.slot < slots {
            Ok(step)
        } else {
            Err(format!("a step names slot {}, but there are only {slots} slots", step.slot))
        }
    };
    (0..steps).map(replacement).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_every_kind_are_counted() {
        for (text, steps, slots) in [
            ("pairs 4096 7", 7, 0),
            ("recorded 4096 7", 7, 0),
            ("threads 2 4096 7", 14, 0),
            ("mix 2 3\n512\n1024\n0 4096\n1 8192\n0 512\n", 3, 2),
            ("replay 2 2\n1 512\n1 0\n", 2, 2),
        ] {
            let sequence = Sequence::parse(text).expect(text);
            assert_eq!((sequence.steps(), sequence.slots()), (steps, slots), "{text}");
        }
    }

    #[test]
    fn what_is_no_sequence_is_refused() {
        for (text, said) in [
            ("", "unknown kind"),
            ("pears 4096 7", "unknown kind"),
            ("pairs 4096", "ends too early"),
            ("pairs 4 KiB", "is not a number"),
            ("pairs 4096 0", "no steps"),
            ("mix 18446744073709551615 1 512", "ends too early"),
            ("replay 2 1\n2 512\n", "slot 2"),
        ] {
            let error = Sequence::parse(text).err().expect(text);
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
