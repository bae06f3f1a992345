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
    /// Runs a program in this much memory and records it as PyTorch 2.13 does, whose entries name their pools. Each
    /// operation has a stack of its own kind and size, and entry `n` has the time `10 * n`.
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

mod tests {
    use std::cmp::Reverse;
    use std::collections::BTreeMap;

    use parkade_recording::Segment;
    use parkade_replay::export::{ExportOptions, export};
    use parkade_replay::{AfterFailure, Decision, LostBeginning, Requests, SelfCheck};

    use super::*;
    use crate::timeline::{Holder, HolderKey, Timeline, holders};

    fn decisions(trace: &[Entry]) -> Vec<Decision> {
        trace.iter().map(Decision::from).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]
        /// Under its own settings and in its own memory, a program without private pools does what it did, if no free waits:
        /// when the allocator noticed that a wait was over is known only as an entry.
        #[test]
        fn a_run_predicted_under_its_own_settings_is_the_recorded_one(steps in programs(24), is_limited in any::<bool>()) {
            let steps: Vec<Step> =
                steps.into_iter().filter(|step| step.0 != 10).map(|(kind, one, other)| (kind, one, 3 * other + 1)).collect();
            let run = DrawnRun::of(&steps, "", is_limited.then_some(80 * MIB));
            prop_assume!(!run.trace().is_empty());
            let (own, limit_bytes) = (run.own.clone(), run.own.limit_bytes);
            let (profile, settings) = (own.settings.profile, own.settings.settings.clone());
            let after_failure = AfterFailure::GoOn;
            let options =
                ExportOptions { own, profile, settings, limit_bytes, capacity_bytes: None, after_failure, device: None };
            let exported = export(&run.recording, &options, &mut |_| ()).expect("it replays");
            let device = &exported.recording.devices[0];
            let requests = Requests::of_recording(run.device(), &run.own, &mut |_| ()).expect("it replays");
            prop_assert_eq!(decisions(&device.trace), decisions(run.trace()), "{:?}", requests.operations);
            let segments = |segments: &[Segment]| -> Vec<Segment> {
                let bare = |segment: &Segment| {
                    let mut segment = Segment { stack: StackId::NONE, ..segment.clone() };
                    segment.blocks.iter_mut().for_each(|block| block.stack = StackId::NONE);
                    segment
                };
                segments.iter().map(bare).collect()
            };
            prop_assert_eq!(segments(&device.segments), segments(&run.device().segments));
            let first_failure = run.trace().iter().position(|entry| entry.action == Action::Oom);
            prop_assert_eq!((exported.devices[0].first_failure, exported.devices[0].device_errors), (first_failure, 0));
            prop_assert!(SelfCheck::of(run.device(), &run.own, &requests).is_none_or(|check| check.holds()));
        }

        /// A recording that begins late shows the heap at its beginning.
        #[test]
        fn the_state_before_a_late_beginning_is_the_one_that_was(steps in programs(20), is_expandable in any::<bool>()) {
            let run = DrawnRun::of(&steps, if is_expandable { "expandable_segments:True" } else { "" }, Some(80 * MIB));
            let has_pools = steps.iter().any(|step| step.0 == 10);
            for state in run.states.iter().filter(|state| state.entries < run.trace().len()) {
                let mut device = run.device().clone();
                device.trace.drain(..state.entries);
                let requests = Requests::of_recording(&device, &run.own, &mut |_| ()).expect("it replays");
                let in_use = state.heap.iter().flat_map(|segment| &segment.blocks);
                let in_use = in_use.filter(|block| block.state != BlockActivity::Inactive).count();
                let expected = (!state.heap.is_empty()).then_some(LostBeginning {
                    segments: state.heap.len(),
                    blocks: in_use,
                    reserved_bytes: state.reserved_bytes,
                    assumed_sizes: 0,
                    inferred_sizes: 0,
                });
                let found = requests.lost_beginning.map(|lost| LostBeginning { assumed_sizes: 0, inferred_sizes: 0, ..lost });
                prop_assert_eq!(found, expected, "from entry {}", state.entries);
                // The address at which a reserved range begins is not known if its first pages are gone.
                prop_assert!(has_pools || is_expandable || requests.mismatches == 0, "from entry {}", state.entries);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        /// Compares with the core's live blocks and the last request at the address of each.
        #[test]
        fn holders_are_the_requests_of_the_live_blocks(steps in programs(24), has_stacks in any::<bool>()) {
            let mut run = DrawnRun::of(&steps, "", Some(80 * MIB));
            prop_assume!(!run.trace().is_empty());
            if !has_stacks {
                run.recording.devices[0].trace.iter_mut().for_each(|entry| entry.stack = StackId::NONE);
            }
            let requests = Requests::of_recording(run.device(), &run.own, &mut |_| ()).expect("it replays");
            let log = Timeline::of_device(run.device(), &run.own, &requests).expect("it replays").log;
            for state in &run.states {
                let mut expected: BTreeMap<HolderKey, (u64, u64)> = BTreeMap::new();
                let blocks = state.heap.iter().flat_map(|segment| &segment.blocks);
                for block in blocks.filter(|block| block.state == BlockActivity::Allocated) {
                    let is_its = |entry: &&Entry| entry.action == Action::Alloc && entry.address == block.address.get();
                    let request = run.trace()[..state.entries].iter().rev().find(is_its).expect("it was requested");
                    let key = if has_stacks { HolderKey::Stack(request.stack) } else { HolderKey::Size(block.size.get()) };
                    let (bytes, blocks) = expected.entry(key).or_default();
                    (*bytes, *blocks) = (*bytes + block.size.get(), *blocks + 1);
                }
                let mut expected: Vec<Holder> =
                    expected.into_iter().map(|(key, (bytes, blocks))| Holder { key, bytes, blocks }).collect();
                expected.sort_by_key(|holder| Reverse(holder.bytes));
                prop_assert_eq!(holders(&log, state.entries as u32), expected, "after {} entries", state.entries);
            }
        }
    }
}
