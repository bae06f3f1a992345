//! A recording as plain data: what a PyTorch memory snapshot says, checked, with its stacks and pools held once.
//!
//! Source of every field: spec 7.3 (segments), 7.4 (trace), 7.5 (settings, annotations), 7.8 (older and newer files).
//! Addresses and sizes are in bytes, times in microseconds since 1970.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::stacks::{StackId, StackTable};

/// A whole snapshot.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recording {
    /// Every device that has a segment or a trace entry of a known action, by number.
    pub devices: Vec<DeviceRecording>,
    /// The allocator's settings; `None` in files before 2.2 and in lists of segments.
    pub settings: Option<RecordedSettings>,
    /// User scopes, oldest first.
    pub annotations: Vec<Annotation>,
    /// The Python stacks that segments, blocks and entries refer to.
    pub stacks: StackTable,
    /// The memory pools that trace entries refer to (files newer than 2.11 only).
    pub pools: PoolTable,
    /// What the file has beyond what is known here.
    pub tolerated: Tolerated,
}

/// What a snapshot says of one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceRecording {
    /// The device's number, 0 to 127.
    pub device: u32,
    /// Segments at the end of the recording, by address; they do not overlap.
    pub segments: Vec<Segment>,
    /// What happened, oldest first. May have lost its beginning (a ring buffer).
    pub trace: Vec<Entry>,
}

/// Memory that was obtained from the driver: one `cudaMalloc`, or one contiguous mapped run of an expandable segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// First byte.
    pub address: u64,
    /// Length, the sum of its blocks.
    pub total_bytes: u64,
    /// Handle of the stream it belongs to; 0 is the default stream.
    pub stream: u64,
    /// Whether it belongs to the pool of large blocks. A file that does not say is judged by size: a small segment is 2 MiB.
    pub large: bool,
    /// The private pool's id; `(0, 0)` is the default pool, `None` a file that does not say.
    pub pool: Option<(u64, u64)>,
    /// Whether it is a run of an expandable segment.
    pub expandable: bool,
    /// Bytes in allocated blocks, if said.
    pub allocated_bytes: Option<u64>,
    /// Bytes in active blocks, if said.
    pub active_bytes: Option<u64>,
    /// Bytes requested of active blocks, if said.
    pub requested_bytes: Option<u64>,
    /// Where it was created; `NONE` once it was ever split (spec 7.3).
    pub stack: StackId,
    /// Its blocks, by address, without gaps.
    pub blocks: Vec<Block>,
}

/// A block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// First byte.
    pub address: u64,
    /// Length.
    pub size: u64,
    /// Bytes requested, if said. Stale unless the block is active (spec 7.3).
    pub requested: Option<u64>,
    /// What it is used for.
    pub state: BlockState,
    /// Where it was allocated.
    pub stack: StackId,
}

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockState {
    /// In use.
    ActiveAllocated,
    /// Freed, while another stream may still use it. Also spelled `active_awaiting_free`.
    ActivePendingFree,
    /// Cached, free.
    Inactive,
}

impl BlockState {
    /// PyTorch's spelling.
    pub fn name(self) -> &'static str {
        match self {
            BlockState::ActiveAllocated => "active_allocated",
            BlockState::ActivePendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        }
    }
}

/// What a trace entry says happened (spec 7.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// A block was given back by its user.
    FreeRequested,
    /// A block became free.
    FreeCompleted,
    /// A segment came from the driver.
    SegmentAlloc,
    /// A segment went back to the driver.
    SegmentFree,
    /// A run of an expandable segment was mapped.
    SegmentMap,
    /// A run of an expandable segment was unmapped.
    SegmentUnmap,
    /// Out of memory; the entry's address is the device's free bytes.
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

    /// PyTorch's spelling.
    pub fn name(self) -> &'static str {
        match self {
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

    /// The action of PyTorch's spelling.
    pub fn from_name(name: &[u8]) -> Option<Action> {
        Action::ALL.into_iter().find(|action| action.name().as_bytes() == name)
    }
}

/// One line of a device's trace, 48 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Address of the block or segment; for [`Action::Oom`] the free bytes of the device.
    pub address: u64,
    /// Bytes requested of a block, bytes of a segment; for `Oom` the rounded request; for `Snapshot` all active bytes.
    pub size: u64,
    /// Handle of the stream; 0 is the default stream. A negative handle is kept by its bits.
    pub stream: u64,
    /// When; see [`Entry::time`].
    time_us: i64,
    /// Where in the program.
    pub stack: StackId,
    /// In which memory pool; `PoolId::NONE` in 2.11, which does not say.
    pub pool: PoolId,
    /// What happened.
    pub action: Action,
}

impl Entry {
    const NO_TIME: i64 = i64::MIN;

    /// An entry without time, stack and pool.
    pub fn new(action: Action, address: u64, size: u64, stream: u64) -> Entry {
        Entry { address, size, stream, time_us: Entry::NO_TIME, stack: StackId::NONE, pool: PoolId::NONE, action }
    }

    /// Microseconds since 1970, if the file says (2.2 and later).
    pub fn time(&self) -> Option<u64> {
        u64::try_from(self.time_us).ok()
    }

    /// Sets the time. A time beyond `i64::MAX` (the year 294,247) is kept as that.
    pub fn set_time(&mut self, time_us: Option<u64>) {
        self.time_us = time_us.map_or(Entry::NO_TIME, |time| i64::try_from(time).unwrap_or(i64::MAX));
    }
}

const _: () = assert!(size_of::<Entry>() <= 48);

/// A memory pool's place in the [`PoolTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(u32);

impl PoolId {
    /// The file does not say.
    pub const NONE: PoolId = PoolId(u32::MAX);
}

/// The ids of memory pools, each once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolTable {
    ids: Vec<(u64, u64)>,
    places: BTreeMap<(u64, u64), u32>,
}

impl PoolTable {
    /// The place of a pool id, adding it if it is new.
    pub fn intern(&mut self, id: (u64, u64)) -> PoolId {
        let next = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
        let place = *self.places.entry(id).or_insert(next);
        if place == next {
            self.ids.push(id);
        }
        PoolId(place)
    }

    /// Whether no entry names its pool.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The pool id at a place; `None` for [`PoolId::NONE`].
    pub fn get(&self, pool: PoolId) -> Option<(u64, u64)> {
        self.ids.get(pool.0 as usize).copied()
    }
}

/// The allocator settings that a snapshot states (spec 7.5). `None`: not said.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordedSettings {
    /// The last settings string (`PYTORCH_CUDA_ALLOC_CONF`).
    pub text: Option<String>,
    /// Largest block that may be split, in bytes; -1 is unlimited.
    pub max_split_size: Option<i64>,
    /// The fraction of memory above which unused segments are freed; 0 is never.
    pub garbage_collection_threshold: Option<f64>,
    /// Whether expandable segments are on.
    pub expandable_segments: Option<bool>,
    /// Divisions of the power-of-two rounding for requests from 1, 2, 4 ... 32768 MiB on; 0 is no rounding.
    pub roundup_power2_divisions: Option<[u64; 16]>,
    /// Whether the allocator's lock is released during `cudaMalloc`.
    pub release_lock_on_cudamalloc: Option<bool>,
    /// Whether stream records made during graph capture are used.
    pub graph_capture_record_stream_reuse: Option<bool>,
    /// Whether there are settings that 2.11 does not have (`max_round_threshold`, `max_cached_size`).
    pub has_newer_keys: bool,
}

/// The beginning or end of a user scope (spec 7.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// The scope's name.
    pub name: Arc<str>,
    /// `START` or `END`.
    pub stage: Arc<str>,
    /// The device, if said.
    pub device: Option<i64>,
    /// Microseconds since 1970, if said.
    pub time_us: Option<i64>,
}

/// What a file has that this reader does not know: tolerated and counted, by name (cut at 80 bytes; at most 256 names
/// each, the rest under `...`).
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
    /// Actions of trace entries; those entries are not kept.
    pub unknown_actions: BTreeMap<String, u64>,
}
