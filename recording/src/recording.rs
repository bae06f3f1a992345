//! Defines a recording: the contents of a PyTorch memory snapshot as plain, checked data.
//!
//! Sources: spec 7.3 (segments), spec 7.4 (trace), spec 7.5 (settings, annotations), spec 7.8 (older and newer files).
//! Addresses and sizes are in bytes, times in microseconds since 1970.
//!
//! Each Python stack is stored once, regardless of how many blocks and entries have it. A snapshot already shares one list
//! among most identical stacks (spec 7.3). Equal lists that are not shared are recognised by their contents.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::dated_keys::FileFields;

/// The contents of a memory snapshot.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recording {
    /// The devices that have a segment, or a trace entry with a known action, ordered by number.
    pub devices: Vec<DeviceRecording>,
    /// The allocator's settings; `None` in files from before PyTorch 2.3, and in bare lists of segments.
    pub settings: Option<RecordedSettings>,
    /// The beginnings and ends of user scopes, oldest first.
    pub annotations: Vec<Annotation>,
    /// The Python stacks that segments, blocks and entries refer to.
    pub stacks: StackTable,
    /// The memory limit of the process, if the program that wrote the snapshot stored it.
    pub run_limit: Option<RunLimit>,
    /// How parkade simulated the run; `None` if an allocator ran. It is stored alongside the limit.
    pub simulated: Option<Simulated>,
    /// The keys in the file, among those that some PyTorch release added or removed.
    pub fields: FileFields,
    /// The parts of the file that this reader does not know.
    pub tolerated: Tolerated,
}

/// A run that parkade simulated under a policy, without an allocator of PyTorch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Simulated {
    /// The name of the policy.
    pub policy: Arc<str>,
    /// The memory of the simulated device, in bytes; `None` if it had plenty.
    pub capacity_bytes: Option<u64>,
    /// The memory limit, in bytes; `None` if there was none.
    pub limit_bytes: Option<u64>,
}

/// The memory that a recorded process was allowed to reserve on a device. PyTorch's snapshots do not contain it; `parkade
/// run` and the functions in the Python package store it alongside PyTorch's data, under the key `parkade`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimit {
    /// In bytes.
    pub bytes: u64,
    /// The way in which the limit was determined.
    pub source: LimitSource,
}

/// The way in which a process's memory limit was determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitSource {
    /// `set_per_process_memory_fraction`.
    Fraction,
    /// The device's free memory, and the memory that the process had reserved.
    Device,
    /// The user specified it.
    Given,
}

impl LimitSource {
    /// Every source.
    const ALL: [LimitSource; 3] = [LimitSource::Fraction, LimitSource::Device, LimitSource::Given];

    /// Returns the spelling in files.
    pub fn name(self) -> &'static str {
        match self {
            LimitSource::Fraction => "fraction",
            LimitSource::Device => "mem_get_info",
            LimitSource::Given => "given",
        }
    }

    /// Returns the source with this spelling, or `None` if there is none.
    pub(crate) fn from_name(name: &[u8]) -> Option<LimitSource> {
        LimitSource::ALL.into_iter().find(|source| source.name().as_bytes() == name)
    }
}

impl Recording {
    /// Returns how parkade simulated the run, if it did so under a policy that is not PyTorch's. Only PyTorch's policy has
    /// settings, so the file of any other states none.
    pub fn other_policy(&self) -> Option<&Simulated> {
        self.simulated.as_ref().filter(|_| self.settings.is_none())
    }
}

/// The part of a recording about one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceRecording {
    /// The device's number, 0 to 127.
    pub device: u32,
    /// The segments at the end of the recording, in address order. They do not overlap.
    pub segments: Vec<Segment>,
    /// The events, oldest first. PyTorch keeps them in a ring buffer, so the oldest events may be missing.
    pub trace: Vec<Entry>,
    /// The memory pools that trace entries refer to; only files of PyTorch 2.12 and later have any. All devices of a file
    /// share them.
    pub pools: Arc<PoolTable>,
    /// The kinds of entries that the program excluded from the trace. They are not detected when a file is read;
    /// `parkade_replay::find_left_out` detects them.
    pub left_out: Option<LeftOut>,
}

/// Kinds of entries that a trace lacks because the program left them out (`skip_actions` of
/// `torch.cuda.memory._record_memory_history`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The distinct kinds.
    pub actions: Vec<Action>,
    /// The number of entries in the file.
    pub recorded_entries: usize,
    /// The number of entries of these kinds that were inferred from the other entries and added to the trace. `None` if they
    /// cannot be inferred: the other entries then cannot be replayed, so the trace was removed, and only the state at the end
    /// remains.
    pub inferred_entries: Option<usize>,
}

/// The allocator settings that a snapshot states (spec 7.5); `None` for those that it does not state.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordedSettings {
    /// The last settings string that was set (`PYTORCH_CUDA_ALLOC_CONF`).
    pub text: Option<String>,
    /// The largest block that may be split, in bytes; -1 means no limit.
    pub max_split_size: Option<i64>,
    /// The fraction of memory above which unused segments are freed; 0 means never.
    pub garbage_collection_threshold: Option<f64>,
    /// Whether expandable segments are on.
    pub expandable_segments: Option<bool>,
    /// The divisions for power-of-two rounding, for requests from 1, 2, 4 ... 32768 MiB upwards; 0 means no rounding.
    pub roundup_power2_divisions: Option<[u64; 16]>,
    /// Whether the allocator's lock is released during `cudaMalloc`.
    pub release_lock_on_cudamalloc: Option<bool>,
    /// Whether a graph capture may reuse blocks on which other streams were recorded during the capture.
    pub graph_capture_record_stream_reuse: Option<bool>,
    /// Whether the file has settings that PyTorch 2.11 does not have (`max_round_threshold`, `max_cached_size`).
    pub has_newer_keys: bool,
}

/// The beginning or end of a user scope (spec 7.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// The scope's name.
    pub name: Arc<str>,
    /// `START` or `END`.
    pub stage: Arc<str>,
    /// The device, if the file states it.
    pub device: Option<i64>,
    /// The time, in microseconds since 1970, if the file states it.
    pub time_us: Option<i64>,
}

/// The parts of a file that this reader does not know. The reader counts them by name and ignores their contents.
///
/// Names are truncated to 80 bytes. Each map contains at most 256 of them; the others are counted under `...`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tolerated {
    /// Keys of the snapshot itself.
    pub unknown_top_keys: BTreeMap<String, u64>,
    /// Keys of trace entries.
    pub unknown_entry_keys: BTreeMap<String, u64>,
    /// Keys of segments.
    pub unknown_segment_keys: BTreeMap<String, u64>,
    /// Keys of blocks.
    pub unknown_block_keys: BTreeMap<String, u64>,
    /// Actions of trace entries; the entries with these actions are dropped.
    pub unknown_actions: BTreeMap<String, u64>,
    /// The number of snapshots before this one in the same file.
    pub earlier_snapshots: u64,
}

/// The size that PyTorch requests from the driver for a segment in the small pool.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// Memory obtained from the driver: one `cudaMalloc`, or one contiguous mapped run of an expandable segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The address of its first byte.
    pub address: u64,
    /// Its length in bytes, which is the sum of its blocks.
    pub total_bytes: u64,
    /// The handle of its stream; 0 is the default stream.
    pub stream: u64,
    /// Whether it belongs to the large pool. If the file does not state this, its size decides: a small segment is 2 MiB.
    pub large: bool,
    /// The id of its pool. `(0, 0)` is the default pool; `None` means that the file names no pool.
    pub pool: Option<(u64, u64)>,
    /// Whether it is a run of an expandable segment.
    pub expandable: bool,
    /// The bytes in allocated blocks, if the file states them.
    pub allocated_bytes: Option<u64>,
    /// The bytes in active blocks, if the file states them.
    pub active_bytes: Option<u64>,
    /// The bytes requested for active blocks, if the file states them.
    pub requested_bytes: Option<u64>,
    /// The stack of its creation; PyTorch drops this when a segment is split (spec 7.3).
    pub stack: StackId,
    /// Its blocks, in address order and without gaps.
    pub blocks: Vec<Block>,
}

impl Segment {
    /// Creates a segment with these blocks, on the default stream in the default pool. It belongs to the large pool if it is
    /// larger than a small segment, which is 2 MiB (spec 1).
    ///
    /// It begins where the first block begins, or at 0 if there are no blocks. It has no sums.
    pub fn new(blocks: Vec<Block>) -> Segment {
        let total_bytes = blocks.iter().fold(0_u64, |sum, block| sum.saturating_add(block.size));
        Segment {
            address: blocks.first().map_or(0, |block| block.address),
            total_bytes,
            stream: 0,
            large: total_bytes > SMALL_SEGMENT_BYTES,
            pool: Some((0, 0)),
            expandable: false,
            allocated_bytes: None,
            active_bytes: None,
            requested_bytes: None,
            stack: StackId::NONE,
            blocks,
        }
    }
}

/// A block in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The address of its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub size: u64,
    /// The requested bytes, if the file states them. Out of date unless the block is active (spec 7.3).
    pub requested: Option<u64>,
    /// Its state.
    pub state: BlockState,
    /// The stack of its allocation.
    pub stack: StackId,
}

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockState {
    /// In use.
    ActiveAllocated,
    /// Freed, but another stream may still be using it. Also spelled `active_awaiting_free`.
    ActivePendingFree,
    /// Free: cached by the allocator.
    Inactive,
}

impl BlockState {
    /// Returns the state's name in PyTorch.
    pub fn name(self) -> &'static str {
        match self {
            BlockState::ActiveAllocated => "active_allocated",
            BlockState::ActivePendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        }
    }
}

/// The action of a trace entry (spec 7.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    /// A block was handed out to the program.
    Alloc,
    /// The program freed a block.
    FreeRequested,
    /// A block became free for reuse.
    FreeCompleted,
    /// A segment was allocated from the driver.
    SegmentAlloc,
    /// A segment was freed to the driver.
    SegmentFree,
    /// A run of an expandable segment was mapped.
    SegmentMap,
    /// A run of an expandable segment was unmapped.
    SegmentUnmap,
    /// Out of memory. The entry's address is the device's free bytes.
    Oom,
    /// A snapshot was taken.
    Snapshot,
}

impl Action {
    /// Every action.
    pub const ALL: [Action; 9] = [
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Oom,
        Action::Snapshot,
    ];

    /// Returns the action with this name, or `None` if there is none.
    pub fn from_name(name: &[u8]) -> Option<Action> {
        Action::ALL.into_iter().find(|action| action.name().as_bytes() == name)
    }
}

crate::names! {
    Action {
        Action::Alloc => "alloc",
        Action::FreeRequested => "free_requested",
        Action::FreeCompleted => "free_completed",
        Action::SegmentAlloc => "segment_alloc",
        Action::SegmentFree => "segment_free",
        Action::SegmentMap => "segment_map",
        Action::SegmentUnmap => "segment_unmap",
        Action::Oom => "oom",
        Action::Snapshot => "snapshot",
    }
}

/// One entry in a device's trace; 48 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The address of the block or segment; for [`Action::Oom`], the device's free bytes.
    pub address: u64,
    /// For a block, the requested bytes; for a segment, its length; for `Oom`, the rounded request; for `Snapshot`,
    /// all active bytes.
    pub size: u64,
    /// The stream's handle; 0 is the default stream. A negative handle keeps its bits.
    pub stream: u64,
    /// See [`Entry::time`].
    time_us: i64,
    /// The stack of the call that led to the entry.
    pub stack: StackId,
    /// The memory pool; `PoolId::NONE` in files of PyTorch 2.11, which do not state it.
    pub pool: PoolId,
    /// What happened.
    pub action: Action,
}

impl Entry {
    const NO_TIME: i64 = i64::MIN;

    /// Creates an entry without time, stack or pool.
    pub fn new(action: Action, address: u64, size: u64, stream: u64) -> Entry {
        Entry { address, size, stream, time_us: Entry::NO_TIME, stack: StackId::NONE, pool: PoolId::NONE, action }
    }

    /// Microseconds since 1970, if the file states the time (PyTorch 2.2 and later).
    pub fn time(&self) -> Option<u64> {
        u64::try_from(self.time_us).ok()
    }

    /// Sets the time, in microseconds since 1970. Times later than the year 294,247 (`i64::MAX`) are reduced to that value.
    pub fn set_time(&mut self, time_us: Option<u64>) {
        self.time_us = time_us.map_or(Entry::NO_TIME, |time| i64::try_from(time).unwrap_or(i64::MAX));
    }
}

const _: () = assert!(size_of::<Entry>() <= 48);

/// A stack's index in the [`StackTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(u32);

impl StackId {
    /// No stack, because none was recorded or PyTorch dropped it.
    pub const NONE: StackId = StackId(u32::MAX);
}

/// One call in a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The source file; `??` for C++ code without symbols.
    pub filename: Arc<str>,
    /// The line number in the file, from 1; 0 if unknown.
    pub line: u32,
    /// The function.
    pub name: Arc<str>,
}

/// All stacks in a recording.
///
/// Two tables are equal if they contain the same stacks in the same order.
#[derive(Debug, Clone, Default)]
pub struct StackTable {
    frames: Vec<Frame>,
    /// The frame numbers of all stacks, one stack after another.
    calls: Vec<u32>,
    /// The position in `calls` at which each stack ends.
    ends: Vec<usize>,
    frame_numbers: HashMap<Frame, u32>,
    stack_numbers: HashMap<Box<[u32]>, u32>,
    /// For stacks in a backward pass that come with a stack in the forward pass: the stack with their calls, and the stack in
    /// the forward pass.
    forwards: BTreeMap<StackId, (StackId, StackId)>,
    forward_numbers: HashMap<(StackId, StackId), StackId>,
}

impl PartialEq for StackTable {
    fn eq(&self, other: &Self) -> bool {
        (&self.frames, &self.calls, &self.ends, &self.forwards) == (&other.frames, &other.calls, &other.ends, &other.forwards)
    }
}

impl StackTable {
    /// Returns the number of different stacks.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether no stack was recorded.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the calls in a stack, innermost first; none for [`StackId::NONE`].
    pub fn frames(&self, stack: StackId) -> impl ExactSizeIterator<Item = &Frame> {
        self.calls(stack).iter().map(|&call| &self.frames[call as usize])
    }

    /// Returns the frame numbers of a stack; equal numbers mean equal frames.
    pub fn calls(&self, stack: StackId) -> &[u32] {
        let place = stack.0 as usize;
        let start = place.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let calls = self.ends.get(place).and_then(|&end| self.calls.get(start..end)).unwrap_or(&[]);
        match self.forwards.get(&stack).filter(|_| calls.is_empty()) {
            Some(&(same, _)) => self.calls(same),
            None => calls,
        }
    }

    /// Returns the stacks, in the order in which they were added.
    pub fn ids(&self) -> impl Iterator<Item = StackId> {
        (0..self.ends.len() as u32).map(StackId)
    }

    /// Returns all distinct frames; a frame's number is its index.
    pub fn all_frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Returns the frame with a number.
    pub fn frame(&self, number: u32) -> Option<&Frame> {
        self.frames.get(number as usize)
    }

    /// Returns the number of a frame. Adds the frame if it is new.
    pub fn intern_frame(&mut self, frame: Frame) -> u32 {
        let next = self.frames.len() as u32;
        if let Some(&number) = self.frame_numbers.get(&frame) {
            return number;
        }
        self.frames.push(frame.clone());
        self.frame_numbers.insert(frame, next);
        next
    }

    /// Returns the index of a stack. Adds the stack if it is new. An empty stack is [`StackId::NONE`].
    ///
    /// `calls` are numbers from [`StackTable::intern_frame`], innermost first; other numbers are ignored.
    pub fn intern_stack(&mut self, calls: &[u32]) -> StackId {
        if calls.is_empty() {
            return StackId::NONE;
        }
        if let Some(&place) = self.stack_numbers.get(calls) {
            return StackId(place);
        }
        let place = self.ends.len() as u32;
        let known = self.frames.len();
        self.calls.extend(calls.iter().filter(|&&call| (call as usize) < known));
        self.ends.push(self.calls.len());
        self.stack_numbers.insert(calls.into(), place);
        StackId(place)
    }

    /// Returns the index of a stack in a backward pass together with the stack in the forward pass that created its autograd
    /// node, which is also in this table. Adds the pair if it is new. The pair has the calls of `stack`, which are not stored
    /// again.
    pub fn intern_with_forward(&mut self, stack: StackId, forward: StackId) -> StackId {
        if forward == StackId::NONE {
            return stack;
        }
        if let Some(&known) = self.forward_numbers.get(&(stack, forward)) {
            return known;
        }
        let added = StackId(self.ends.len() as u32);
        self.ends.push(self.calls.len());
        self.forwards.insert(added, (stack, forward));
        self.forward_numbers.insert((stack, forward), added);
        added
    }

    /// Returns the stack in the forward pass that created the autograd node of a stack in a backward pass, or
    /// [`StackId::NONE`] if it is not known.
    pub fn forward(&self, stack: StackId) -> StackId {
        self.forwards.get(&stack).map_or(StackId::NONE, |&(_, forward)| forward)
    }
}

/// A memory pool's index in the [`PoolTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(u32);

impl PoolId {
    /// The file does not name the pool.
    pub const NONE: PoolId = PoolId(u32::MAX);
}

/// The ids of memory pools, each stored once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolTable {
    ids: Vec<(u64, u64)>,
    indices: BTreeMap<(u64, u64), u32>,
}

impl PoolTable {
    /// Returns the index of a pool id. Adds the id if it is new.
    pub fn intern(&mut self, id: (u64, u64)) -> PoolId {
        let next = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
        let index = *self.indices.entry(id).or_insert(next);
        if index == next {
            self.ids.push(id);
        }
        PoolId(index)
    }

    /// Returns whether no entry names its pool.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the pool id at an index, or `None` for [`PoolId::NONE`].
    pub fn get(&self, pool: PoolId) -> Option<(u64, u64)> {
        self.ids.get(pool.0 as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_one() {
        let mut table = StackTable::default();
        let frame = |line| Frame { filename: "a.py".into(), line, name: "f".into() };
        let (one, two) = (table.intern_frame(frame(1)), table.intern_frame(frame(2)));
        assert_eq!(table.intern_frame(frame(1)), one);
        let stack = table.intern_stack(&[one, two]);
        assert_eq!(table.intern_stack(&[one, two]), stack);
        let other = table.intern_stack(&[two]);
        assert_ne!(other, stack);
        assert_eq!(table.frames(stack).map(|frame| frame.line).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(table.frames(other).map(|frame| frame.line).collect::<Vec<_>>(), [2]);
        assert_eq!(table.intern_stack(&[]), StackId::NONE);
        assert_eq!(table.frames(StackId::NONE).len(), 0);
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_stack_with_a_forward_pass_is_another_with_the_same_calls() {
        let mut table = StackTable::default();
        let call = table.intern_frame(Frame { filename: "??".into(), line: 0, name: "apply".into() });
        let made = table.intern_frame(Frame { filename: "model.py".into(), line: 7, name: "forward".into() });
        let (plain, forward) = (table.intern_stack(&[call]), table.intern_stack(&[made]));
        let with = table.intern_with_forward(plain, forward);
        assert_eq!((table.calls(with), table.forward(with)), (&[call][..], forward));
        assert_eq!((table.forward(plain), table.intern_with_forward(plain, StackId::NONE)), (StackId::NONE, plain));
        assert_eq!(table.intern_with_forward(plain, forward), with);
        // A thread without Python calls may have no other stack.
        let alone = table.intern_with_forward(StackId::NONE, forward);
        assert_eq!((table.calls(alone).len(), table.forward(alone)), (0, forward));
    }
}
