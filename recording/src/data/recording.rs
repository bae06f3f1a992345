//! A whole snapshot, and what it says beside segments and trace: settings, annotations, unknown keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::pools::PoolTable;
use super::segments::Segment;
use super::stacks::StackTable;
use super::trace::Entry;

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
