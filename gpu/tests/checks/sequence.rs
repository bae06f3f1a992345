//! A mixed sequence of allocator operations, the same for the same seed: requests of all sizes on three streams, use on other
//! streams, frees in random order, out of memory at a limit, and giving the cache back.
//!
//! Every block is filled with its own number when it is handed out, so that two blocks that overlap spoil each other; a sample is
//! read back when it is freed. The heap is swept every 100 operations. In the end everything goes back to the device.

use std::error::Error;

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::snapshot::SegmentInfo;
use parkade::stats::Stats;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, MIB, StreamId};
use parkade::{AllocError, Allocation, Allocator};

use super::ensure;
use super::subject::Subject;

/// Operations of a sequence.
pub(super) const OPERATIONS: u32 = 10_000;
/// The most that a sequence takes from the device.
pub(super) const LIMIT: Bytes = Bytes(2048 * MIB);
/// The heap is checked after so many operations.
const CHECK_EVERY: u32 = 100;
/// One block in so many is read back.
const READ_ONE_IN: u64 = 8;
/// After out of memory so many blocks are freed, oldest first, as a program that recovers does.
const FREED_AFTER_OOM: usize = 12;

/// How to run a sequence.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// The default stream and two others.
    pub(super) streams: [StreamId; 3],
    pub(super) settings: Settings,
    /// Whether all work is done before the allocator looks at events. Otherwise it depends on the GPU which blocks are pending.
    pub(super) settled: bool,
    /// The whole memory of the device that it ran on, which says how many addresses are reserved; `None` before that.
    pub(super) total: Option<Bytes>,
}

/// What a sequence did.
pub(super) struct Report {
    pub(super) trace: Vec<TraceEntry>,
    /// Before everything was given back.
    pub(super) segments: Vec<SegmentInfo>,
    /// At the end.
    pub(super) stats: Stats,
    pub(super) read_bytes: u64,
}

/// A block handed out.
struct Held {
    allocation: Allocation,
    requested: Bytes,
    word: u32,
}

/// Runs the sequence on `device`; the second part of the answer is what `last` sees of the device, empty again, at the end.
pub(super) fn run<D: Subject, T>(device: D, plan: &Plan, last: impl FnOnce(&D) -> T) -> Result<(Report, T), Box<dyn Error>> {
    let allocator = Allocator::new(device, PyTorch::new(plan.settings.clone()), Vec::new());
    let mut run = Run { allocator, held: Vec::new(), draws: Draws(plan.seed), plan, words: 0, read_bytes: 0 };
    run.allocator.set_limit(Some(LIMIT));
    for operation in 1..=OPERATIONS {
        run.step()?;
        if operation.is_multiple_of(CHECK_EVERY) {
            run.allocator.check().map_err(|violation| format!("after operation {operation}: {violation}"))?;
        }
    }
    let segments = run.allocator.segments();
    while !run.held.is_empty() {
        run.free(0)?;
    }
    run.allocator.release_cached()?;
    run.allocator.check()?;
    let reserved = run.allocator.heap().reserved();
    ensure(reserved == Bytes::ZERO, || format!("{reserved} bytes are still reserved at the end"))?;
    let stats = run.allocator.stats().clone();
    let seen = last(run.allocator.device());
    let trace = std::mem::take(run.allocator.observer_mut());
    Ok((Report { trace, segments, stats, read_bytes: run.read_bytes }, seen))
}

struct Run<'a, D: Subject> {
    allocator: Allocator<D, PyTorch, Vec<TraceEntry>>,
    held: Vec<Held>,
    draws: Draws,
    plan: &'a Plan,
    /// Numbers given to blocks so far.
    words: u32,
    read_bytes: u64,
}

impl<D: Subject> Run<'_, D> {
    fn step(&mut self) -> Result<(), Box<dyn Error>> {
        match self.draws.below(200) {
            0 => Ok(self.allocator.release_cached()?),
            1..=112 => self.allocate(),
            113..=128 => self.share(),
            _ => {
                let place = self.draws.below(self.held.len().max(1) as u64) as usize;
                self.free(place)
            }
        }
    }

    fn allocate(&mut self) -> Result<(), Box<dyn Error>> {
        let (requested, stream) = (self.size(), self.stream());
        match self.allocator.allocate(requested, stream) {
            Ok(allocation) => {
                self.words += 1;
                let held = Held { allocation, requested, word: self.words };
                self.allocator.device_mut().write(held.allocation.address(), requested, held.word, stream)?;
                self.held.push(held);
                Ok(())
            }
            Err(AllocError::OutOfMemory(_)) => (0..FREED_AFTER_OOM).try_for_each(|_| self.free(0)),
            Err(error) => Err(error.into()),
        }
    }

    /// Another stream uses a block: it writes what is there anyway, so that it spoils only a block that was reused too early.
    fn share(&mut self) -> Result<(), Box<dyn Error>> {
        let (place, stream) = (self.draws.below(self.held.len().max(1) as u64) as usize, self.stream());
        let Some(held) = self.held.get(place) else { return Ok(()) };
        self.allocator.device_mut().write(held.allocation.address(), held.requested, held.word, stream)?;
        self.allocator.record_stream(&held.allocation, stream);
        Ok(())
    }

    fn free(&mut self, place: usize) -> Result<(), Box<dyn Error>> {
        if place >= self.held.len() {
            return Ok(());
        }
        let held = self.held.remove(place);
        if self.draws.below(READ_ONE_IN) == 0 {
            self.read_bytes += self.allocator.device_mut().verify(held.allocation.address(), held.requested, held.word)?;
        }
        self.allocator.free(held.allocation)?;
        if self.plan.settled { self.allocator.device_mut().settle() } else { Ok(()) }
    }

    /// Small, middling, large and very large requests, each kind evenly.
    fn size(&mut self) -> Bytes {
        let (from, to) = match self.draws.below(100) {
            0..40 => (1, MIB),
            40..75 => (MIB, 10 * MIB),
            75..95 => (10 * MIB, 64 * MIB),
            _ => (64 * MIB, 400 * MIB),
        };
        Bytes(from + self.draws.below(to - from))
    }

    fn stream(&mut self) -> StreamId {
        let [default, second, third] = self.plan.streams;
        match self.draws.below(100) {
            0..70 => default,
            70..85 => second,
            _ => third,
        }
    }
}

/// A sequence of pseudo-random numbers (SplitMix64, Steele, Lea and Flood, 2014).
struct Draws(u64);

impl Draws {
    /// A number below `bound`, which is small enough that the remainder's bias does not matter.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
