//! Runs of small programs, drawn at random and recorded from the core, with what the core itself states after every operation.
//! Tests compare the answers about a recording with it.

use std::sync::Arc;

use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::Family;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, MIB, PoolId, StreamId};
use parkade::{Allocation, Allocator, PoolFilter};
use parkade_recording::{Action, DeviceRecording, Entry, Frame, PoolTable, Recording, StackId};
use parkade_replay::export::recorded_segment;
use parkade_replay::{ReplaySettings, VerifyOptions};
use parkade_sim::{SimDevice, SimOptions};
use proptest::collection::vec;
use proptest::prelude::*;

/// One operation of a program: its kind, and two numbers that choose a size, a stream or a block.
pub(crate) type Step = (u8, usize, usize);

/// Programs of up to `most` operations.
pub(crate) fn programs(most: usize) -> impl Strategy<Value = Vec<Step>> {
    vec((0..12_u8, 0..64_usize, 0..64_usize), 0..most)
}

/// The sizes of requests: in both collections, at their borders, and as large as segments.
const SIZES: [u64; 10] = [1, 512, 700_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 20 * MIB, 31 * MIB];
const STREAMS: [StreamId; 2] = [StreamId(0), StreamId(7)];

/// The state after an operation.
pub(crate) struct State {
    /// The number of entries before it.
    pub(crate) entries: usize,
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) heap: Vec<SegmentInfo>,
}

/// A recorded run, and its states: before the first operation and after each one.
pub(crate) struct DrawnRun {
    pub(crate) recording: Recording,
    pub(crate) own: VerifyOptions,
    pub(crate) states: Vec<State>,
}

struct Program {
    core: Allocator<SimDevice, PyTorch, Vec<TraceEntry>>,
    live: Vec<Allocation>,
    states: Vec<State>,
}

impl Program {
    fn step(&mut self, (kind, one, other): Step) {
        let (size, stream) = (Bytes(SIZES[one % SIZES.len()]), STREAMS[usize::from(other.is_multiple_of(4))]);
        match kind {
            0..5 => self.live.extend(self.core.allocate(size, stream).ok()),
            5..9 if !self.live.is_empty() => {
                let block = self.live.swap_remove(one % self.live.len());
                let is_used = other.is_multiple_of(3);
                if is_used {
                    let user = STREAMS[other % 2];
                    self.core.device_mut().spin(user, 1_000_000);
                    self.core.record_stream(&block, user);
                }
                self.core.free(block).expect("it is in use");
                if is_used {
                    // If nothing came between, the trace could not be told from that of a block that is free at once.
                    self.core.snapshot();
                }
            }
            9 => self.core.release_cached().expect("nothing is captured"),
            10 => {
                let pool = PoolId(0, 1);
                self.core.begin_pool(pool, PoolFilter::All).expect("no pool is active");
                self.live.extend(self.core.allocate(size, stream).ok());
                self.core.end_pool(pool).expect("it is active");
            }
            11 => self.core.device_mut().complete_all(),
            _ => {}
        }
        self.note();
    }

    /// Adds the state, unless blocks only became free or memory was only released: a trace does not show whether this belongs
    /// to the next request.
    fn note(&mut self) {
        let noted = self.states.last().map_or(0, |last| last.entries);
        let releases = [TraceAction::FreeCompleted, TraceAction::SegmentFree, TraceAction::SegmentUnmap];
        if self.states.is_empty() || !self.core.observer()[noted..].iter().all(|entry| releases.contains(&entry.action)) {
            self.add_state();
        }
    }

    fn add_state(&mut self) {
        let entries = self.core.observer().len();
        if self.states.last().is_none_or(|last| last.entries < entries) {
            let current = |family| self.core.stats().family(family).all.current.cast_unsigned();
            let (allocated_bytes, reserved_bytes) = (current(Family::AllocatedBytes), current(Family::ReservedBytes));
            self.states.push(State { entries, allocated_bytes, reserved_bytes, heap: self.core.segments() });
        }
    }
}

impl DrawnRun {
    /// Runs a program in this much memory and records it as PyTorch 2.13 does, whose entries name their pools. Each operation has a stack of its own kind and size, and entry
    /// `n` has the time `10 * n`.
    pub(crate) fn of(steps: &[Step], settings: &str, limit_bytes: Option<u64>) -> DrawnRun {
        let policy = PyTorch::of(&Profile::PYTORCH_2_13, Settings::from_environment(settings).expect("settings"));
        let mut core = Allocator::new(SimDevice::new(SimOptions::h200()), policy, Vec::new());
        core.set_limit(limit_bytes.map(Bytes));
        core.create_pool(PoolId(0, 1)).expect("a pool");
        let mut program = Program { core, live: Vec::new(), states: Vec::new() };
        program.note();
        let mut recording = Recording::default();
        let mut stacks = Vec::new();
        for &step in steps {
            program.step(step);
            let line = (usize::from(step.0) * SIZES.len() + step.1 % SIZES.len()) as u32;
            let frame = Frame { filename: "/home/one/train.py".into(), line, name: "forward".into() };
            let frame = recording.stacks.intern_frame(frame);
            stacks.resize(program.core.observer().len(), recording.stacks.intern_stack(&[frame]));
        }
        program.add_state();
        let mut pools = PoolTable::default();
        let entry = |(at, (entry, &stack)): (usize, (&TraceEntry, &StackId))| {
            let action = Action::from_name(entry.action.name().as_bytes()).expect("the same names");
            let mut written = Entry::new(action, entry.address, entry.size, entry.stream.get());
            written.stack = stack;
            written.pool = pools.intern((entry.pool.0, entry.pool.1));
            written.set_time(Some(10 * at as u64));
            written
        };
        let trace = program.core.observer().iter().zip(&stacks).enumerate().map(entry).collect();
        let segments = program.core.segments();
        let segments = segments.iter().map(|segment| recorded_segment(segment, &|_| StackId::NONE)).collect();
        recording.devices = vec![DeviceRecording { segments, trace, pools: Arc::new(pools), ..DeviceRecording::default() }];
        let settings = ReplaySettings::given_as(&Profile::PYTORCH_2_13, settings).expect("settings");
        DrawnRun { recording, own: VerifyOptions { settings, limit_bytes, stats_file: None }, states: program.states }
    }

    pub(crate) fn device(&self) -> &DeviceRecording {
        &self.recording.devices[0]
    }

    pub(crate) fn trace(&self) -> &[Entry] {
        &self.device().trace
    }

    /// Returns the reserved bytes at every moment, from the entries alone.
    pub(crate) fn reserved(&self) -> Vec<u64> {
        let mut levels = vec![0];
        for entry in self.trace() {
            let level = levels[levels.len() - 1];
            levels.push(match entry.action {
                Action::SegmentAlloc | Action::SegmentMap => level + entry.size,
                Action::SegmentFree | Action::SegmentUnmap => level - entry.size,
                _ => level,
            });
        }
        levels
    }

    /// Returns the allocated bytes at every moment: an operation changes them where it frees, or at its last entry.
    pub(crate) fn allocated(&self) -> Vec<u64> {
        let mut levels = vec![0];
        for pair in self.states.windows(2) {
            let entries = &self.trace()[pair[0].entries..pair[1].entries];
            let free = entries.iter().position(|entry| entry.action == Action::FreeRequested);
            let changes = free.unwrap_or(entries.len() - 1);
            levels.extend((0..entries.len()).map(|at| pair[usize::from(at >= changes)].allocated_bytes));
        }
        levels
    }

    /// Returns the bytes of the blocks of a heap in this state.
    pub(crate) fn bytes_in(heap: &[SegmentInfo], state: BlockActivity) -> u64 {
        let blocks = heap.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == state).map(|block| block.size.get()).sum()
    }
}
