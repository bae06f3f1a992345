//! Snapshots: what they say about a tensor, and that they can be written and read.

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, PoolClass};
use parkade_recording::{
    Action, Block, BlockState, DeviceRecording, Entry as RecordedEntry, Recording, Segment, StackId, Style, read, write,
};

use super::support::{Mode, ensure, same, twice};
use crate::backend::{AnyBackend, Needs};
use crate::scripted_allocator::Stage;
use crate::suite::{Effort, Entry, Evidence, Trouble, Verdict};

/// A tensor of 311 times 411 elements.
const TENSOR: Bytes = Bytes(311 * 411 * 4);

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let says = "a snapshot has the tensor's block at its address, and the trace ends with what empty_cache did";
    entries.extend(twice("test_memory_snapshot", says, memory_snapshot));
    let says = "the pickle of the C++ side reads back: the tensor's block, and its request as the newest entry";
    entries.extend(twice("test_cpp_memory_snapshot_pickle", says, pickled));
    let says = "a snapshot lists the same segments with and without its mark in the trace";
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
    same("the entry of its request", told.map(|entry| (entry.address, entry.size)), Some((live[0].address.get(), TENSOR.get())))?;
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
        ensure(back.devices == recording.devices, || format!("{style:?}: the recording reads back differently"))?;
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
    same("entries after listing segments without a mark", stage.trace().len(), before)?;
    let with = stage.core().snapshot();
    same("entries after a snapshot", stage.trace().len(), before + 1)?;
    same("the segments", with, without)?;
    let text = stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 4, ..Evidence::default() })
}

/// A heap and its history as a recording of device 0.
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
