//! Collecting the trace of a predicted run, with times and stacks from the recording.
//!
//! PyTorch captures one stack for each call of the allocator, and every entry that the call leads to has it
//! (spec 7.4). An entry that the recording has too, at the same request, gets its time and stack from there.

use std::ops::Range;
use std::sync::Arc;

use parkade::stats::Family;
use parkade::trace::TraceEntry;
use parkade_recording::{Action, DeviceRecording, Entry, PoolTable, StackId};

use super::final_heap::Provenance;
use super::options::{ExportOptions, ExportedDevice};
use crate::entries::Decision;
use crate::predict::{Operation, PredictOptions, PredictedRun, Requests, Timing, device_like, learned_addresses};

/// A predicted device.
pub(crate) struct Collected {
    pub(crate) device: DeviceRecording,
    pub(crate) found: ExportedDevice,
}

/// Predicts one device. `names_pools`: entries are to name their pools.
pub(crate) fn replay(recording: &DeviceRecording, requests: &Requests, options: &ExportOptions, names_pools: bool) -> Collected {
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
        early_blocks: requests.lost_beginning.map(|lost| lost.blocks),
    };
    let pools = Arc::new(collector.pools.unwrap_or_default());
    Collected { device: DeviceRecording { device: recording.device, segments, trace: collector.trace, pools }, found }
}

/// The memory that the recorded process could have, in bytes, if an out-of-memory entry shows it: what it
/// had reserved then plus what was free.
fn recorded_memory(recording: &DeviceRecording) -> Option<u64> {
    let mut reserved = 0_i128;
    // What was reserved before the first entry is the difference to the end.
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
    /// The recording's snapshot entries before this entry are in the trace.
    next_snapshot: usize,
    /// The recording's first entry from which no time has been taken.
    next_recorded: usize,
}

/// How many of the recording's entries are searched for the one that corresponds to a predicted entry.
const LONGEST_LOOK: usize = 64;

impl Collector<'_> {
    /// Adds the snapshot entries from before the entry `at`. The size of such an entry is that of all active blocks.
    fn snapshots_before(&mut self, at: usize, active_bytes: i64) {
        let passed = self.recording.trace.get(self.next_snapshot..at).unwrap_or(&[]);
        for recorded in passed.iter().filter(|entry| entry.action == Action::Snapshot) {
            let mut entry = *recorded;
            entry.size = u64::try_from(active_bytes).unwrap_or(0);
            self.trace.push(entry);
        }
        self.next_snapshot = self.next_snapshot.max(at);
    }

    /// Adds the entries of an operation that the recording has at the entries `at`, of which
    /// the last may belong to the next one.
    fn add(&mut self, at: Range<usize>, operation: Operation, done: impl Iterator<Item = TraceEntry>, reserved_bytes: i64) {
        // A request is at its last entry, everything else at its first.
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

    /// A predicted entry, with its time and stack from the recording.
    fn entry(&mut self, happened: &TraceEntry, at: usize, end: usize, operation: Operation) -> Entry {
        let Decision { action, address, size, stream } = Decision::from(happened);
        let mut entry = Entry::new(action, address, size, stream);
        let trace = &self.recording.trace;
        if self.provenance.is_early(operation) {
            // Requested before the first entry: the stack is known only if a block at the end has it.
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
