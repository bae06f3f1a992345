//! Tests the statistics: how a long sequence changes them, and that a snapshot adds up to the same values. Also tests
//! snapshots: what they contain about a tensor, and that they can be written and read back.

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::{Family, Stat, Stats};
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, PoolClass};
use parkade_recording::{
    Action, Block, BlockState, DeviceRecording, Entry as RecordedEntry, Recording, Segment, StackId, Style, read, write,
};

use super::support::{Mode, ensure, same, twice};
use crate::backend::{AnyBackend, Needs};
use crate::program::search::Draws;
use crate::scripted_allocator::Stage;
use crate::suite::{Effort, Entry, Evidence, Trouble, Verdict};

/// The test's parameter for the length of its sequence.
const N: u64 = 35;
/// The size of an element.
const ELEMENT: u64 = 4;

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let says = "a 1 KiB tensor counts as 1024 active bytes; current values and peaks are correct throughout a long sequence; \
                the sums in a snapshot are correct";
    entries.extend(twice("test_memory_stats", says, memory_stats));
    entries
}

fn memory_stats(backend: &AnyBackend, mode: Mode, effort: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    one_tensor(&mut stage)?;
    let mut watch = Watch::new(stage);
    let operations = long_sequence(&mut watch, effort.seed)?;
    let text = watch.stage.figures();
    watch.stage.finish()?;
    Ok(Evidence { text, operations, ..Evidence::default() })
}

/// The part of the test that is in `test_cuda.py`.
fn one_tensor(stage: &mut Stage) -> Result<(), Trouble> {
    let active = |stage: &Stage| stage.stats().family(Family::ActiveBytes).all;
    stage.alloc("tmp", Bytes(256 * ELEMENT))?.served()?;
    same("active bytes while the tensor is live", (active(stage).current, active(stage).freed), (1024, 0))?;
    stage.free("tmp")?;
    stage.release_cached()?;
    same("active bytes after the tensor is freed", (active(stage).current, active(stage).freed), (0, 1024))?;
    stage.core().reset_peak_stats();
    let peaks = [Family::AllocatedBytes, Family::ReservedBytes].map(|family| stage.stats().family(family).all.peak);
    same("peaks after they are reset", peaks, [0, 0])
}

/// The expected change of the allocated bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    More,
    None,
    Less,
}

/// A stage and its values as last seen.
struct Watch {
    stage: Stage,
    allocated: Stat,
    reserved: Stat,
    tensors: u64,
}

impl Watch {
    fn new(stage: Stage) -> Watch {
        let (allocated, reserved) = figures(stage.stats());
        Watch { stage, allocated, reserved, tensors: 0 }
    }

    /// Allocates a tensor of a shape. Returns its name, or `None` if it has no elements and therefore no memory.
    fn tensor(&mut self, shape: &[u64]) -> Result<Option<String>, Trouble> {
        let bytes = ELEMENT * shape.iter().product::<u64>();
        if bytes == 0 {
            return Ok(None);
        }
        self.tensors += 1;
        let name = format!("{:04}", self.tensors);
        self.stage.alloc(&name, Bytes(bytes))?.served()?;
        Ok(Some(name))
    }

    fn drop_all(&mut self, names: &[Option<String>]) -> Result<(), Trouble> {
        names.iter().flatten().try_for_each(|name| self.stage.free(name))
    }

    /// Checks the values after a step that changed the allocated bytes in this way.
    fn see(&mut self, change: Change) -> Result<(), Trouble> {
        let (allocated, reserved) = figures(self.stage.stats());
        let (now, before) = (allocated.current, self.allocated.current);
        let holds = match change {
            Change::More => now > before,
            Change::None => now == before,
            Change::Less => now < before,
        };
        ensure(holds, || format!("allocated bytes changed from {before} to {now}"))?;
        for (name, stat, last) in [("allocated", allocated, self.allocated), ("reserved", reserved, self.reserved)] {
            ensure(stat.peak >= stat.current, || {
                format!("the peak of {name} bytes, {}, is below the current value, {}", stat.peak, stat.current)
            })?;
            ensure(stat.peak >= last.peak, || {
                format!("the peak of {name} bytes fell from {} to {} without a reset", last.peak, stat.peak)
            })?;
        }
        (self.allocated, self.reserved) = (allocated, reserved);
        adds_up(self.stage.stats(), &self.stage.segments())
    }

    /// Releases the cache, and checks that reserved bytes do not grow and nothing else changes.
    fn empty_cache(&mut self) -> Result<(), Trouble> {
        self.stage.release_cached()?;
        let (allocated, reserved) = figures(self.stage.stats());
        ensure(reserved.current <= self.reserved.current, || "more memory is reserved after the cache was released".to_owned())?;
        same("the peak of reserved bytes", reserved.peak, self.reserved.peak)?;
        same("allocated bytes", allocated.current, self.allocated.current)?;
        (self.allocated, self.reserved) = (allocated, reserved);
        adds_up(self.stage.stats(), &self.stage.segments())
    }

    /// Resets the peaks, and checks that nothing else changes.
    fn reset_peaks(&mut self) -> Result<(), Trouble> {
        self.stage.core().reset_peak_stats();
        let (allocated, reserved) = figures(self.stage.stats());
        same("allocated bytes", (allocated.current, allocated.peak), (self.allocated.current, self.allocated.current))?;
        same("reserved bytes", (reserved.current, reserved.peak), (self.reserved.current, self.reserved.current))?;
        (self.allocated, self.reserved) = (allocated, reserved);
        Ok(())
    }
}

fn figures(stats: &Stats) -> (Stat, Stat) {
    (stats.family(Family::AllocatedBytes).all, stats.family(Family::ReservedBytes).all)
}

/// Allocates and frees tensors of many shapes, as in `test_cuda_multigpu.py`. Returns the number of steps that were
/// checked.
fn long_sequence(watch: &mut Watch, seed: u64) -> Result<u64, Trouble> {
    let nothing = watch.stage.stats().family(Family::AllocatedBytes).all.current;
    watch.see(Change::None)?;
    watch.empty_cache()?;
    watch.reset_peaks()?;
    let mut lasting = Vec::new();
    for shape in [&[1][..], &[10, 20], &[200, 300, 2000]] {
        lasting.push(watch.tensor(shape)?);
        watch.see(Change::More)?;
    }
    let base = watch.allocated.current;
    let mut tensors = Vec::new();
    for i in 1..=N / 2 {
        tensors.push(watch.tensor(&[i, i * 4])?);
        watch.see(Change::More)?;
    }
    for i in 5..N / 2 + 5 {
        tensors.push(watch.tensor(&[i, i * 7, i * 9, i * 11])?);
        watch.see(Change::More)?;
    }
    tensors.push(watch.tensor(&[0, 0, 0])?);
    watch.see(Change::None)?;
    shuffle(&mut tensors, seed);
    watch.reset_peaks()?;
    for gone in tensors.drain(..(N / 2) as usize).collect::<Vec<_>>() {
        let change = if gone.is_some() { Change::Less } else { Change::None };
        watch.drop_all(&[gone])?;
        watch.see(change)?;
    }
    for i in 2..2 * N / 3 + 2 {
        tensors.push(watch.tensor(&[i, i * 3, i * 8])?);
        watch.see(Change::More)?;
    }
    watch.drop_all(&tensors)?;
    watch.see(Change::Less)?;
    watch.reset_peaks()?;
    same("allocated bytes while the lasting tensors are live", watch.allocated.current, base)?;
    watch.drop_all(&lasting)?;
    watch.see(Change::Less)?;
    watch.reset_peaks()?;
    same("allocated bytes at the end", watch.allocated.current, nothing)?;
    watch.empty_cache()?;
    watch.reset_peaks()?;
    Ok(2 * watch.tensors)
}

fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut draws = Draws::new(seed);
    for last in (1..items.len()).rev() {
        items.swap(last, draws.below(last as u64 + 1) as usize);
    }
}

/// Checks that sums over a snapshot's segments and blocks equal the statistics, in total and for
/// each pool.
fn adds_up(stats: &Stats, segments: &[SegmentInfo]) -> Result<(), Trouble> {
    for class in [None, Some(PoolClass::Small), Some(PoolClass::Large)] {
        let chosen: Vec<&SegmentInfo> =
            segments.iter().filter(|segment| class.is_none_or(|class| segment.class == class)).collect();
        let of = |family: Family| {
            let set = stats.family(family);
            match class {
                None => set.all.current,
                Some(PoolClass::Small) => set.small.current,
                Some(PoolClass::Large) => set.large.current,
            }
        };
        for family in Family::ALL {
            same(&format!("{} in {class:?}", family.name()), of(family), sum(family, &chosen))?;
        }
    }
    for segment in segments {
        let active = segment.blocks.iter().filter(|block| block.state != BlockActivity::Inactive);
        let requested = active.map(|block| block.requested.get()).sum::<u64>();
        same("requested bytes in a segment", segment.requested.get(), requested)?;
    }
    Ok(())
}

/// Returns the value of a statistics family in a snapshot. Segments and split blocks are counted only in ordinary
/// memory.
fn sum(family: Family, segments: &[&SegmentInfo]) -> i64 {
    let bytes = |of: fn(&SegmentInfo) -> Bytes| segments.iter().map(|segment| of(segment).get()).sum::<u64>();
    let is_inactive_split =
        |segment: &SegmentInfo, state| state == BlockActivity::Inactive && segment.blocks.len() > 1 && !segment.expandable;
    let blocks = || segments.iter().flat_map(|segment| segment.blocks.iter().map(move |block| (*segment, block)));
    let count = match family {
        Family::Allocation => blocks().filter(|(_, block)| block.state == BlockActivity::Allocated).count() as u64,
        Family::Segment => segments.iter().filter(|segment| !segment.expandable).count() as u64,
        Family::Active => blocks().filter(|(_, block)| block.state != BlockActivity::Inactive).count() as u64,
        Family::InactiveSplit => blocks().filter(|(segment, block)| is_inactive_split(segment, block.state)).count() as u64,
        Family::InactiveSplitBytes => {
            blocks().filter(|(segment, block)| is_inactive_split(segment, block.state)).map(|(_, block)| block.size.get()).sum()
        }
        Family::AllocatedBytes => bytes(|segment| segment.allocated),
        Family::ReservedBytes => bytes(|segment| segment.total),
        Family::ActiveBytes => bytes(|segment| segment.active),
        Family::RequestedBytes => bytes(|segment| segment.requested),
    };
    count as i64
}

/// A tensor with 311 times 411 elements.
const TENSOR: Bytes = Bytes(311 * 411 * 4);

pub(super) fn snapshot_entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let says = "a snapshot has the tensor's block at its address, and the trace ends with the actions of empty_cache";
    entries.extend(twice("test_memory_snapshot", says, memory_snapshot));
    let says = "the pickle that the C++ side writes can be read back: it has the tensor's block, and its request as the \
                newest entry";
    entries.extend(twice("test_cpp_memory_snapshot_pickle", says, pickled));
    let says = "a snapshot lists the same segments with and without a mark in the trace";
    entries.extend(twice("test_snapshot_include_traces", says, include_traces));
    entries
}

fn memory_snapshot(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    stage.alloc("x", TENSOR)?.served()?;
    let blocks: Vec<_> = stage.core().snapshot().into_iter().flat_map(|segment| segment.blocks).collect();
    let live: Vec<_> = blocks.iter().filter(|block| block.state == BlockActivity::Allocated).collect();
    same("live blocks", live.len(), 1)?;
    same("the block's request", live[0].requested, TENSOR)?;
    same("the block's address", live[0].address, stage.address("x")?)?;
    let told = stage.trace().iter().rfind(|entry| entry.action == TraceAction::Alloc);
    same(
        "the trace entry for the request",
        told.map(|entry| (entry.address, entry.size)),
        Some((live[0].address.get(), TENSOR.get())),
    )?;
    let mut text = stage.picture();
    stage.free("x")?;
    stage.release_cached()?;
    let expected = if mode == Mode::Expandable { TraceAction::SegmentUnmap } else { TraceAction::SegmentFree };
    same("the newest entry", stage.trace().last().map(|entry| entry.action), Some(expected))?;
    for entry in stage.trace() {
        text += &format!("{} {}\n", entry.action.name(), entry.size);
    }
    stage.finish()?;
    Ok(Evidence { text, operations: 3, ..Evidence::default() })
}

fn pickled(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    stage.alloc("x", TENSOR)?.served()?;
    let address = stage.address("x")?.get();
    let recording = recorded(&stage.segments(), stage.trace());
    for style in [Style::Cpp, Style::Python] {
        let back = read(&write(&recording, style)).map_err(|error| Trouble::fail(format!("{style:?}: {error}")))?;
        ensure(back.devices == recording.devices, || format!("{style:?}: the recording differs when it is read back"))?;
        let device = back.devices.first().ok_or_else(|| Trouble::fail("the recording has no device"))?;
        let live = device.segments.iter().flat_map(|segment| &segment.blocks);
        let live: Vec<_> = live.filter(|block| block.state == BlockState::ActiveAllocated).collect();
        same(
            "live blocks",
            live.iter().map(|block| (block.address, block.requested)).collect(),
            vec![(address, Some(TENSOR.get()))],
        )?;
        let newest = device.trace.last().map(|entry| (entry.action, entry.size));
        same("the newest entry", newest, Some((Action::Alloc, TENSOR.get())))?;
    }
    stage.finish()?;
    Ok(Evidence::operations(1))
}

fn include_traces(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    for (name, bytes) in [("a", 1000), ("b", 3 << 20), ("c", 40 << 20)] {
        stage.alloc(name, Bytes(bytes))?.served()?;
    }
    stage.free("b")?;
    let before = stage.trace().len();
    let without = stage.core().segments();
    same("trace entries after segments were listed without a mark", stage.trace().len(), before)?;
    let with = stage.core().snapshot();
    same("entries after a snapshot", stage.trace().len(), before + 1)?;
    same("the segments", with, without)?;
    let text = stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 4, ..Evidence::default() })
}

/// Returns a heap and its history as a recording of device 0.
fn recorded(segments: &[SegmentInfo], trace: &[TraceEntry]) -> Recording {
    let mut segments: Vec<Segment> = segments.iter().map(recorded_segment).collect();
    segments.sort_by_key(|segment| segment.address);
    let entry =
        |entry: &TraceEntry| Some(RecordedEntry::new(action(entry.action)?, entry.address, entry.size, entry.stream.get()));
    let trace = trace.iter().filter_map(entry).collect();
    Recording { devices: vec![DeviceRecording { segments, trace, ..DeviceRecording::default() }], ..Recording::default() }
}

fn recorded_segment(segment: &SegmentInfo) -> Segment {
    let blocks = segment.blocks.iter().map(|block| Block {
        address: block.address.get(),
        size: block.size.get(),
        requested: Some(block.requested.get()),
        state: match block.state {
            BlockActivity::Allocated => BlockState::ActiveAllocated,
            BlockActivity::PendingFree => BlockState::ActivePendingFree,
            BlockActivity::Inactive => BlockState::Inactive,
        },
        stack: StackId::NONE,
    });
    Segment {
        address: segment.address.get(),
        total_bytes: segment.total.get(),
        stream: segment.stream.get(),
        large: segment.class == PoolClass::Large,
        pool: Some((segment.pool.0, segment.pool.1)),
        expandable: segment.expandable,
        allocated_bytes: Some(segment.allocated.get()),
        active_bytes: Some(segment.active.get()),
        requested_bytes: Some(segment.requested.get()),
        stack: StackId::NONE,
        blocks: blocks.collect(),
    }
}

fn action(action: TraceAction) -> Option<Action> {
    Action::from_name(action.name().as_bytes())
}
