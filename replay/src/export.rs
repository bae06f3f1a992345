//! Exports a predicted run as a recording: what PyTorch would have recorded if the program had run under other settings.
//!
//! The result is a [`Recording`] like any other. Once written with [`write`](parkade_recording::write()), it opens in
//! PyTorch's viewers, and it can be verified. Addresses, segments, blocks and out-of-memory entries come from the prediction;
//! stacks and times of requests, and annotations, come from the recording.
//!
//! PyTorch captures one stack for each call to the allocator, and every entry of that call has this stack (spec 7.4). If the
//! recording has the same entry at the same request, the exported entry takes its time and stack from there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::stats::{Family, Stats};
use parkade::trace::TraceEntry;
use parkade::units::PoolClass;
use parkade_recording::{
    Action, Block, BlockState, DeviceRecording, Entry, FileFields, Minor, Part, PoolTable, RecordedSettings, Recording, Segment,
    StackId,
};
use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

use crate::entries::Decision;
use crate::error::VerifyError;
use crate::inputs::VerifyOptions;
use crate::predict::{
    AfterFailure, Operation, PredictOptions, PredictedRun, Requests, SelfCheck, Timing, device_like, learned_addresses,
};

/// Options for a prediction and its export.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The recorded run's own settings and limit.
    pub own: VerifyOptions,
    /// The rules of the PyTorch release to predict for.
    pub profile: &'static Profile,
    /// The settings to predict for.
    pub settings: Settings,
    /// The memory limit to predict for, in bytes.
    pub limit_bytes: Option<u64>,
    /// The device's memory, in bytes; if `None`, more than any device has.
    pub capacity_bytes: Option<u64>,
    /// The program's behaviour after a request has failed.
    pub after_failure: AfterFailure,
    /// The only device to export; all devices if `None`.
    pub device: Option<u32>,
}

/// The reason why a recording cannot be exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// No device has a trace.
    #[error("the file has no trace entries to replay: record it with torch.cuda.memory._record_memory_history()")]
    NoTrace,
    /// The recording does not contain the device.
    #[error("the file contains nothing about device {device}; it has {}", list(known))]
    NoSuchDevice {
        /// The device that the options name.
        device: u32,
        /// The devices that the recording contains.
        known: Vec<u32>,
    },
    /// A device cannot be replayed.
    #[error("device {device}: {error}")]
    Device {
        /// The device's number.
        device: u32,
        /// The reason.
        error: VerifyError,
    },
}

fn list(devices: &[u32]) -> String {
    let numbers: Vec<String> = devices.iter().map(u32::to_string).collect();
    if numbers.is_empty() { "no device".to_owned() } else { format!("device {}", numbers.join(", ")) }
}

/// The result for one device.
#[derive(Clone, Debug)]
pub struct ExportedDevice {
    /// The device's number.
    pub device: u32,
    /// The number of entries in the exported trace.
    pub entries: usize,
    /// The stats at the end of the predicted run.
    pub stats: Stats,
    /// The index of the first out-of-memory entry in the exported trace.
    pub first_failure: Option<usize>,
    /// The number of operations that the simulated device refused but a real one would not refuse.
    pub device_errors: u64,
    /// The number of recorded decisions on which the core differs under the recording's own settings.
    pub mismatches: u64,
    /// Whether a replay under the recording's own settings needs as much as the recorded run needed; `None` if that cannot
    /// be checked.
    pub self_check: Option<SelfCheck>,
    /// If the recording's oldest entries are missing, the number of blocks that were in use at its first entry. The export
    /// requests them first.
    pub early_blocks: Option<usize>,
}

/// An exported recording.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The contents of a snapshot of the predicted run.
    pub recording: Recording,
    /// The devices that were predicted.
    pub devices: Vec<ExportedDevice>,
    /// Devices that have segments but no trace; they are exported as recorded.
    pub kept_devices: Vec<u32>,
}

/// Predicts the devices of a recording and returns what a snapshot at the end of the predicted run would contain.
///
/// It calls `progress` periodically with the number of the recording's entries read so far.
///
/// # Errors
/// Returns [`ExportError`] if there is no trace, if there is no device of that number, or if a trace contradicts itself.
pub fn export(recording: &Recording, options: &ExportOptions, progress: &mut dyn FnMut(usize)) -> Result<Exported, ExportError> {
    let devices = chosen(recording, options.device)?;
    if devices.iter().all(|device| device.trace.is_empty()) {
        return Err(ExportError::NoTrace);
    }
    let fields = FileFields::of_release(series(options.profile));
    let mut exported = Exported {
        recording: Recording {
            settings: Some(recorded_settings(&options.settings, fields)),
            fields,
            annotations: recording.annotations.clone(),
            stacks: recording.stacks.clone(),
            ..Recording::default()
        },
        devices: Vec::new(),
        kept_devices: Vec::new(),
    };
    let mut done = 0;
    for device in devices {
        if device.trace.is_empty() {
            exported.kept_devices.push(device.device);
            exported.recording.devices.push(device.clone());
            continue;
        }
        let failed = |error| ExportError::Device { device: device.device, error };
        let requests = Requests::of_recording(device, &options.own, &mut |entries| progress(done + entries)).map_err(failed)?;
        let collected = collect(device, &requests, options, fields.has(Part::Entry, "pool_id"));
        exported.devices.push(collected.found);
        exported.recording.devices.push(collected.device);
        done += device.trace.len();
        progress(done);
    }
    Ok(exported)
}

/// Returns the series of a release that has these rules, such as 2.11.
fn series(profile: &Profile) -> Minor {
    let mut numbers = profile.name.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn chosen(recording: &Recording, only: Option<u32>) -> Result<Vec<&DeviceRecording>, ExportError> {
    let Some(only) = only else { return Ok(recording.devices.iter().collect()) };
    match recording.devices.iter().find(|device| device.device == only) {
        Some(device) => Ok(vec![device]),
        None => {
            let known = recording.devices.iter().map(|device| device.device).collect();
            Err(ExportError::NoSuchDevice { device: only, known })
        }
    }
}

/// Returns the settings fields in a snapshot of a run under these settings.
#[must_use]
pub fn recorded_settings(settings: &Settings, fields: FileFields) -> RecordedSettings {
    let has = |key| fields.has(Part::Settings, key);
    RecordedSettings {
        text: Some(settings.text.clone()),
        // Signed in the file: -1 means no limit.
        max_split_size: Some(settings.max_split_bytes.cast_signed()),
        garbage_collection_threshold: Some(settings.garbage_collection_threshold),
        expandable_segments: Some(settings.expandable_segments),
        roundup_power2_divisions: Some(settings.roundup_power2_divisions),
        release_lock_on_cudamalloc: Some(settings.release_lock_on_cudamalloc),
        graph_capture_record_stream_reuse: has("graph_capture_record_stream_reuse")
            .then_some(settings.graph_capture_record_stream_reuse),
        has_newer_keys: has("max_cached_size"),
    }
}

/// A predicted device.
struct Collected {
    device: DeviceRecording,
    found: ExportedDevice,
}

/// Predicts one device. If `names_pools`, the entries name their pools.
fn collect(recording: &DeviceRecording, requests: &Requests, options: &ExportOptions, names_pools: bool) -> Collected {
    let device = device_like(recording.device, &learned_addresses(recording, requests), options.capacity_bytes);
    let predict = PredictOptions {
        profile: options.profile,
        settings: options.settings.clone(),
        limit_bytes: options.limit_bytes,
        after_failure: options.after_failure,
        timing: Timing::Recorded,
    };
    let mut run = PredictedRun::new(requests, device, &predict, Vec::new());
    let mut collector = Collector {
        recording,
        trace: Vec::with_capacity(recording.trace.len()),
        provenance: Provenance::new(recording, requests),
        recorded_memory: recorded_memory(recording).filter(|_| options.capacity_bytes.is_none()),
        pools: names_pools.then(PoolTable::default),
        first_failure: None,
        next_snapshot: 0,
        next_recorded: 0,
    };
    while let Some(&(at, operation)) = requests.operations.get(run.done()) {
        let active = run.stats().family(Family::ActiveBytes).all.current;
        collector.snapshots_before(at, active);
        if !run.step() {
            break;
        }
        let reserved = run.stats().family(Family::ReservedBytes).all.current;
        let next = requests.operations.get(run.done()).map_or(recording.trace.len(), |&(next, _)| next);
        collector.add(at..next, operation, run.observer_mut().drain(..), reserved);
    }
    let prediction = run.prediction();
    if run.done() == requests.operations.len() {
        collector.snapshots_before(recording.trace.len(), prediction.stats.family(Family::ActiveBytes).all.current);
    }
    let segments = collector.provenance.segments(&run.segments());
    let found = ExportedDevice {
        device: recording.device,
        entries: collector.trace.len(),
        stats: prediction.stats,
        first_failure: collector.first_failure,
        device_errors: prediction.device_errors,
        mismatches: requests.mismatches,
        self_check: SelfCheck::of(recording, &options.own, requests),
        early_blocks: requests.lost_beginning.map(|lost| lost.blocks),
    };
    let pools = Arc::new(collector.pools.unwrap_or_default());
    let device = DeviceRecording { device: recording.device, segments, trace: collector.trace, pools, left_out: None };
    Collected { device, found }
}

/// Returns the memory that the recorded process could use, in bytes, if an out-of-memory entry shows it: the bytes reserved
/// then plus the bytes free then.
fn recorded_memory(recording: &DeviceRecording) -> Option<u64> {
    let mut reserved = 0_i128;
    // The bytes reserved before the first entry follow from the bytes reserved at the end.
    let at_end: i128 = recording.segments.iter().map(|segment| i128::from(segment.total_bytes)).sum();
    let mut found = None;
    for entry in &recording.trace {
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => reserved += i128::from(entry.size),
            Action::SegmentFree | Action::SegmentUnmap => reserved -= i128::from(entry.size),
            Action::Oom if found.is_none() => found = Some(reserved + i128::from(entry.address)),
            _ => {}
        }
    }
    found.and_then(|memory| u64::try_from(memory + at_end - reserved).ok())
}

struct Collector<'a> {
    recording: &'a DeviceRecording,
    trace: Vec<Entry>,
    provenance: Provenance,
    recorded_memory: Option<u64>,
    pools: Option<PoolTable>,
    first_failure: Option<usize>,
    /// The trace already has the recording's snapshot entries before this entry.
    next_snapshot: usize,
    /// The recording's first entry whose time has not been used.
    next_recorded: usize,
}

/// The number of the recording's entries to search for the one that matches a predicted entry.
const LONGEST_LOOK: usize = 64;

impl Collector<'_> {
    /// Adds the snapshot entries before the entry `at`. The size of a snapshot entry is the sum of all active blocks.
    fn snapshots_before(&mut self, at: usize, active_bytes: i64) {
        let passed = self.recording.trace.get(self.next_snapshot..at).unwrap_or(&[]);
        for recorded in passed.iter().filter(|entry| entry.action == Action::Snapshot) {
            let mut entry = *recorded;
            entry.size = u64::try_from(active_bytes).unwrap_or(0);
            self.trace.push(entry);
        }
        self.next_snapshot = self.next_snapshot.max(at);
    }

    /// Adds the entries of an operation. In the recording, the operation is at the entries `at`, the last of which may belong
    /// to the next operation.
    fn add(&mut self, at: Range<usize>, operation: Operation, done: impl Iterator<Item = TraceEntry>, reserved_bytes: i64) {
        // A request's entry is its last one; any other operation's entry is its first one.
        let is_request = matches!(operation, Operation::Allocate { .. });
        let end = if is_request { at.start + 1 } else { at.end };
        if !is_request {
            self.next_recorded = self.next_recorded.max(at.start);
        }
        for happened in done {
            let mut entry = self.entry(&happened, at.start, end, operation);
            if let Some(pools) = &mut self.pools {
                entry.pool = pools.intern((happened.pool.0, happened.pool.1));
            }
            if entry.action == Action::Oom {
                self.first_failure.get_or_insert(self.trace.len());
                let reserved = u64::try_from(reserved_bytes).unwrap_or(0);
                // The recorded device had less memory than the simulated one.
                entry.address = self.recorded_memory.map_or(entry.address, |memory| memory.saturating_sub(reserved));
            }
            self.provenance.see(&entry);
            self.trace.push(entry);
        }
        if is_request {
            self.next_recorded = self.next_recorded.max(end);
        }
    }

    /// Returns a predicted entry, with its time and stack from the recording.
    fn entry(&mut self, happened: &TraceEntry, at: usize, end: usize, operation: Operation) -> Entry {
        let Decision { action, address, size, stream } = Decision::from(happened);
        let mut entry = Entry::new(action, address, size, stream);
        let trace = &self.recording.trace;
        if self.provenance.is_early(operation) {
            // The program requested this before the first entry, so the stack is known only if a block at the end has
            // it.
            entry.set_time(trace.first().and_then(Entry::time));
            entry.stack = self.provenance.early_stack(operation);
            return entry;
        }
        let ahead = trace.get(self.next_recorded..end).unwrap_or(&[]);
        let is_same = |recorded: &Entry| (recorded.action, recorded.size, recorded.stream) == (action, size, stream);
        if let Some(further) = ahead.iter().take(LONGEST_LOOK).position(is_same) {
            let recorded = &ahead[further];
            self.next_recorded += further + 1;
            entry.set_time(recorded.time());
            entry.stack = recorded.stack;
            return entry;
        }
        entry.set_time(trace.get(self.next_recorded.min(at)).and_then(Entry::time));
        entry.stack = trace.get(at).map_or(StackId::NONE, |recorded| recorded.stack);
        entry
    }
}

/// The stacks for the heap at the end of a predicted run: the stacks of the requests for its blocks.
struct Provenance {
    /// The stack of each block that is in use, by address.
    blocks: FxHashMap<u64, StackId>,
    /// The stack that each segment was allocated with, and the number of blocks it has served since, by address.
    segments: BTreeMap<u64, (StackId, u64)>,
    /// The number of requests from before the first entry; these requests have the lowest indices.
    early: usize,
    /// The stacks of requests from before the first entry, if their blocks are in use at the recording's end.
    early_stacks: FxHashMap<usize, StackId>,
    /// The requests whose memory was freed before the first entry.
    early_freed: FxHashSet<usize>,
}

impl Provenance {
    fn new(recording: &DeviceRecording, requests: &Requests) -> Provenance {
        let early = requests.lost_beginning.map_or(0, |lost| lost.blocks);
        let early_stacks = early_stacks(recording, requests, early);
        let early_freed = early_freed(requests, early);
        Provenance { blocks: FxHashMap::default(), segments: BTreeMap::new(), early, early_stacks, early_freed }
    }

    /// Returns whether an operation is from before the recording's first entry: a request for memory that was in use then, or
    /// a free of memory that had been freed by then but was not yet free for reuse.
    fn is_early(&self, operation: Operation) -> bool {
        match operation {
            Operation::Allocate { id, .. } => id < self.early,
            Operation::Free { id, .. } => self.early_freed.contains(&id),
            _ => false,
        }
    }

    /// Returns the stack of a request from before the first entry, if a block at the recording's end has it.
    fn early_stack(&self, operation: Operation) -> StackId {
        match operation {
            Operation::Allocate { id, .. } => self.early_stacks.get(&id).copied().unwrap_or(StackId::NONE),
            _ => StackId::NONE,
        }
    }

    /// Processes an entry of the exported trace.
    fn see(&mut self, entry: &Entry) {
        match entry.action {
            Action::Alloc => {
                self.blocks.insert(entry.address, entry.stack);
                if let Some((_, (_, handed_out))) = self.segments.range_mut(..=entry.address).next_back() {
                    *handed_out += 1;
                }
            }
            Action::FreeCompleted => {
                self.blocks.remove(&entry.address);
            }
            Action::SegmentAlloc => {
                self.segments.insert(entry.address, (entry.stack, 0));
            }
            Action::SegmentFree => {
                self.segments.remove(&entry.address);
            }
            _ => {}
        }
    }

    /// Returns the heap in the form of a recording.
    fn segments(&self, heap: &[SegmentInfo]) -> Vec<Segment> {
        heap.iter().map(|segment| self.segment(segment)).collect()
    }

    fn segment(&self, segment: &SegmentInfo) -> Segment {
        let stack_at = |address| self.blocks.get(&address).copied().unwrap_or(StackId::NONE);
        Segment { stack: self.segment_stack(segment), ..recorded_segment(segment, &stack_at) }
    }

    /// Returns the stack of a segment. PyTorch drops it when it splits the segment (spec 7.3). A segment that served a single
    /// request in its entirety was never split; for other segments, the trace does not show the stack.
    fn segment_stack(&self, segment: &SegmentInfo) -> StackId {
        match (segment.blocks.as_slice(), self.segments.get(&segment.address.get())) {
            ([block], Some(&(stack, 1))) if block.state != BlockActivity::Inactive => stack,
            _ => StackId::NONE,
        }
    }
}

/// Returns a core's segment in the form of a recording, without its own stack. `stack_at` returns the stack of the block in use
/// at an address.
#[must_use]
pub fn recorded_segment(segment: &SegmentInfo, stack_at: &dyn Fn(u64) -> StackId) -> Segment {
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
        blocks: segment.blocks.iter().map(|block| recorded_block(block, stack_at)).collect(),
    }
}

fn recorded_block(block: &BlockInfo, stack_at: &dyn Fn(u64) -> StackId) -> Block {
    let address = block.address.get();
    let state = match block.state {
        BlockActivity::Allocated => BlockState::ActiveAllocated,
        BlockActivity::PendingFree => BlockState::ActivePendingFree,
        BlockActivity::Inactive => BlockState::Inactive,
    };
    let stack = if state == BlockState::Inactive { StackId::NONE } else { stack_at(address) };
    Block { address, size: block.size.get(), requested: Some(block.requested.get()), state, stack }
}

/// Returns the requests from before the first entry whose memory was freed before it. The memory is freed right after being
/// requested.
fn early_freed(requests: &Requests, early: usize) -> FxHashSet<usize> {
    let pairs = requests.operations.windows(2).map(|pair| (pair[0].1, pair[1].1));
    pairs
        .filter_map(|pair| match pair {
            (Operation::Allocate { id, .. }, Operation::Free { id: freed, .. }) if id == freed && id < early => Some(id),
            _ => None,
        })
        .collect()
}

/// Returns the stacks of requests from before the first entry whose blocks are in use at the end. Both lists are in address
/// order. `early` is the number of those requests.
#[must_use]
pub fn early_stacks(recording: &DeviceRecording, requests: &Requests, early: usize) -> FxHashMap<usize, StackId> {
    let freed: FxHashSet<usize> = requests
        .operations
        .iter()
        .filter_map(|(_, operation)| match operation {
            Operation::Free { id, .. } if *id < early => Some(*id),
            _ => None,
        })
        .collect();
    let kept = requests.operations.iter().filter_map(|&(_, operation)| match operation {
        Operation::Allocate { id, bytes, .. } if id < early && !freed.contains(&id) => Some((id, bytes)),
        _ => None,
    });
    let kept: Vec<(usize, u64)> = kept.collect();
    let in_trace: FxHashSet<u64> =
        recording.trace.iter().filter(|entry| entry.action == Action::Alloc).map(|entry| entry.address).collect();
    let blocks = recording.segments.iter().flat_map(|segment| &segment.blocks);
    let old: Vec<&Block> =
        blocks.filter(|block| block.state == BlockState::ActiveAllocated && !in_trace.contains(&block.address)).collect();
    // If the lists do not match, no stack is known.
    let agrees = |((_, bytes), block): (&(usize, u64), &&Block)| block.requested.is_none_or(|requested| requested == *bytes);
    if kept.len() != old.len() || !kept.iter().zip(&old).all(agrees) {
        return FxHashMap::default();
    }
    kept.iter().zip(&old).map(|(&(id, _), block)| (id, block.stack)).collect()
}
