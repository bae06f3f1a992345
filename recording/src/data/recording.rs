//! A whole recording, and its parts other than segments and trace: settings, annotations, unknown keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::dated::FileFields;
use super::pools::PoolTable;
use super::segments::Segment;
use super::stacks::StackTable;
use super::trace::Entry;

/// A memory snapshot that was read: everything that the file says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recording {
    /// The devices that have a segment, or a trace entry of a known action, in the order of their numbers.
    pub devices: Vec<DeviceRecording>,
    /// The allocator's settings; `None` in files from before PyTorch 2.3, and in bare lists of segments.
    pub settings: Option<RecordedSettings>,
    /// Beginnings and ends of user scopes, oldest first.
    pub annotations: Vec<Annotation>,
    /// The Python stacks that segments, blocks and entries refer to.
    pub stacks: StackTable,
    /// Which keys it has of those that came and went with PyTorch's releases.
    pub fields: FileFields,
    /// What the file contains that this reader does not know.
    pub tolerated: Tolerated,
}

/// What a recording says of one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceRecording {
    /// The device's number, 0 to 127.
    pub device: u32,
    /// The segments at the end of the recording, in the order of their addresses. They do not overlap.
    pub segments: Vec<Segment>,
    /// What happened, oldest first. PyTorch keeps it in a ring buffer, so the beginning may be missing.
    pub trace: Vec<Entry>,
    /// The memory pools that trace entries refer to; only files of PyTorch 2.12 and later have any. The devices of a file share them.
    pub pools: Arc<PoolTable>,
}

/// The allocator settings that a snapshot states (spec 7.5). `None` where it does not.
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
    /// Divisions of the power-of-two rounding for requests from 1, 2, 4 ... 32768 MiB upwards; 0 means no rounding.
    pub roundup_power2_divisions: Option<[u64; 16]>,
    /// Whether the allocator's lock is released during `cudaMalloc`.
    pub release_lock_on_cudamalloc: Option<bool>,
    /// Whether a graph capture may reuse blocks that other streams were recorded on during it.
    pub graph_capture_record_stream_reuse: Option<bool>,
    /// Whether the file has settings that PyTorch 2.11 does not (`max_round_threshold`, `max_cached_size`).
    pub has_newer_keys: bool,
}

/// The beginning or end of a user scope (spec 7.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// The scope's name.
    pub name: Arc<str>,
    /// `START` or `END`.
    pub stage: Arc<str>,
    /// The device, if the file says.
    pub device: Option<i64>,
    /// When, in microseconds since 1970, if the file says.
    pub time_us: Option<i64>,
}

/// What a file contains that this reader does not know: counted by name and otherwise ignored.
///
/// Names are cut at 80 bytes. Each map has at most 256 of them; the others are counted under `...`.
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
    /// Actions of trace entries; those entries are dropped.
    pub unknown_actions: BTreeMap<String, u64>,
}
