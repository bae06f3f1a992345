//! The types in the header: codes, and plain data for both sides.

use std::ffi::{c_char, c_void};

/// The version of this interface. A program compares it with the version that it was compiled for: if the first number
/// of `parkade_interface_version` differs, so does the interface.
pub const PARKADE_INTERFACE_VERSION: u32 = 2;

/// The outcome of a call. `parkade_error_text` returns the text of a failure.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum parkade_status {
    /// The call succeeded.
    PARKADE_OK = 0,
    /// There is no memory, even after the retry ladder.
    PARKADE_OUT_OF_MEMORY = 1,
    /// An argument is a null pointer, an unknown name, out of range, or has unknown flags.
    PARKADE_INVALID_ARGUMENT = 2,
    /// No block that was handed out begins at the address.
    PARKADE_UNKNOWN_ADDRESS = 3,
    /// The device failed for a reason other than lack of memory, or an internal assert of PyTorch failed; the text of an assert
    /// is PyTorch's.
    PARKADE_DEVICE_ERROR = 4,
    /// The settings string was refused; the text is PyTorch's.
    PARKADE_INVALID_SETTINGS = 5,
    /// There is no driver, or no device with this index.
    PARKADE_NO_DEVICE = 6,
    /// The state of a private pool does not allow the call; the text is PyTorch's.
    PARKADE_POOL_ERROR = 7,
    /// A private pool cannot be saved or restored; the text is PyTorch's.
    PARKADE_CHECKPOINT_ERROR = 8,
    /// The process is a forked child, and the allocator belongs to its parent.
    PARKADE_FORKED = 9,
    /// The call was made from within a call on the same allocator and would wait for itself.
    PARKADE_REENTERED = 10,
    /// The allocator or its device does not support the call.
    PARKADE_UNSUPPORTED = 11,
    /// There is a defect in parkade; the allocator may stop serving requests.
    PARKADE_INTERNAL_ERROR = 12,
}

/// A private pool's id, as in PyTorch: a graph's is (k, 0), a user's (0, k). (0, 0) is the default pool.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct parkade_pool {
    /// The id's first number.
    pub first: u64,
    /// The id's second number.
    pub second: u64,
}

/// After a call that needed the driver, a thread without a CUDA context keeps the context of device 0, as it does with
/// CUDA's runtime. The runtime is slow in threads without a context. This flag is for an allocator that is never
/// destroyed.
pub const PARKADE_KEEPS_CONTEXT: u32 = 1;

/// The promise required by a policy that breaks handles, such as `compaction`. While the allocator serves a call
/// that asks for memory or routes requests to a private pool, no other thread submits work that uses the allocator's
/// memory, no other device uses the memory, and the memory is not registered elsewhere (for example for RDMA). Without
/// the promise, these policies are refused on a GPU, because data written during such a call could be lost.
pub const PARKADE_WORK_IS_SERIAL: u32 = 2;

/// Rescues requests that PyTorch's allocator would fail, under the policy `pytorch`, whose segments are then
/// expandable: free memory moves to where it is needed, and handles that are partly in use are broken. On a GPU, this
/// requires `PARKADE_WORK_IS_SERIAL`.
pub const PARKADE_RESCUE: u32 = 4;

/// Like `PARKADE_RESCUE`, but only free memory moves. This requires no promise.
pub const PARKADE_RESCUE_FREE: u32 = 8;

/// Options for creating an allocator. Fill the struct with zeros first; fields that are zero have defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct parkade_options {
    /// `sizeof(parkade_options)`.
    pub size: usize,
    /// The device's index.
    pub device: u32,
    /// `PARKADE_KEEPS_CONTEXT`, `PARKADE_WORK_IS_SERIAL`, `PARKADE_RESCUE` or `PARKADE_RESCUE_FREE`, a combination of them, or
    /// 0; other flags are refused.
    pub flags: u32,
    /// If not 0: use the simulated device with this many bytes instead of the GPU.
    pub simulated_bytes: u64,
    /// A name that `parkade_policy_name` returns; `pytorch` if null.
    pub policy: *const c_char,
    /// A string in the form of `PYTORCH_CUDA_ALLOC_CONF`; no settings if null. Only for the policy `pytorch`.
    pub settings: *const c_char,
    /// The release of PyTorch whose rules the policy `pytorch` follows, such as `2.11`; 2.11 if null.
    pub release: *const c_char,
    /// The maximum number of rescued requests; 0 for no limit.
    pub most_rescues: u64,
}

/// A request of 2^60 bytes or more is tried like any other, as in PyTorch's `raw_alloc`.
pub const PARKADE_RAW: u32 = 1;
/// The caller's current stream is being captured into a graph. The rules of PyTorch 2.13 and later use this flag.
pub const PARKADE_CAPTURING: u32 = 2;
/// `pool` is the request's pool if requests are routed to that pool with `PARKADE_ROUTE_CHOSEN`.
pub const PARKADE_CHOOSES_POOL: u32 = 4;

/// A request for memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct parkade_request {
    /// The requested bytes. A request of 0 bytes gets a null pointer.
    pub bytes: u64,
    /// The stream's handle; 0 is the default stream.
    pub stream: u64,
    /// `PARKADE_RAW`, `PARKADE_CAPTURING`, `PARKADE_CHOOSES_POOL`, a combination of them, or 0; other flags are
    /// refused.
    pub flags: u32,
    /// The chosen pool.
    pub pool: parkade_pool,
}

/// The requests that a private pool serves while they are routed to it.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum parkade_route {
    /// All requests.
    PARKADE_ROUTE_ALL = 0,
    /// The requests of one stream.
    PARKADE_ROUTE_STREAM = 1,
    /// The requests that choose the pool.
    PARKADE_ROUTE_CHOSEN = 2,
}

/// The actions of the allocator. The names are PyTorch's.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum parkade_action {
    /// A block was handed out; the size is the requested size.
    PARKADE_ALLOC = 0,
    /// A block was freed by the program; the size is the requested size.
    PARKADE_FREE_REQUESTED = 1,
    /// A freed block became free; the size is the requested size.
    PARKADE_FREE_COMPLETED = 2,
    /// A segment was taken from the device.
    PARKADE_SEGMENT_ALLOC = 3,
    /// A segment was released to the device.
    PARKADE_SEGMENT_FREE = 4,
    /// Pages of an expandable segment were mapped.
    PARKADE_SEGMENT_MAP = 5,
    /// Pages of an expandable segment were unmapped.
    PARKADE_SEGMENT_UNMAP = 6,
    /// A snapshot was taken; the size is the sum of the active bytes of its segments.
    PARKADE_SNAPSHOT = 7,
    /// A request failed for lack of memory; the address contains the device's free bytes.
    PARKADE_OOM = 8,
}

/// One action of the allocator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct parkade_entry {
    /// The kind of action.
    pub action: parkade_action,
    /// The first byte; for `PARKADE_OOM` the device's free bytes.
    pub address: u64,
    /// A size in bytes; its meaning depends on the action.
    pub size: u64,
    /// The block's or the segment's stream.
    pub stream: u64,
    /// The pool of the block or segment.
    pub pool: parkade_pool,
}

/// A function that is called for every entry, in order, while the allocator serves a call. It must not call the same
/// allocator.
pub type parkade_observer = Option<unsafe extern "C" fn(user: *mut c_void, entry: *const parkade_entry)>;

/// A function that is called when no free block serves a request, before the device is asked. It may call
/// `parkade_free` for the same allocator, but no other function on that allocator; the blocks are freed after it
/// returns. It returns whether it freed anything.
pub type parkade_free_memory = Option<unsafe extern "C" fn(user: *mut c_void) -> bool>;

/// A function that takes memory for a pool's segments. A null pointer means that there is none.
pub type parkade_take = Option<unsafe extern "C" fn(user: *mut c_void, bytes: u64) -> *mut c_void>;

/// A function that takes back memory that `parkade_take` returned.
pub type parkade_give_back = Option<unsafe extern "C" fn(user: *mut c_void, address: *mut c_void)>;

/// A counter with its history.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct parkade_stat {
    /// The current value.
    pub current: i64,
    /// The largest value since the peaks were last reset.
    pub peak: i64,
    /// The sum of all increases since the accumulated values were last reset.
    pub allocated: i64,
    /// The sum of all decreases since that reset.
    pub freed: i64,
}

/// One statistic for all memory, the small pool and the large pool.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct parkade_stat_set {
    /// Both pools.
    pub all: parkade_stat,
    /// The small pool.
    pub small: parkade_stat,
    /// The large pool.
    pub large: parkade_stat,
}

/// All statistics in `torch.cuda.memory_stats()` except the counts for each private pool.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct parkade_stats {
    /// Live allocations.
    pub allocation: parkade_stat_set,
    /// Segments taken from the device.
    pub segment: parkade_stat_set,
    /// Active blocks: allocated or pending.
    pub active: parkade_stat_set,
    /// Free blocks that are only part of their segment.
    pub inactive_split: parkade_stat_set,
    /// Bytes of allocated blocks.
    pub allocated_bytes: parkade_stat_set,
    /// Bytes taken from the device.
    pub reserved_bytes: parkade_stat_set,
    /// Bytes of active blocks.
    pub active_bytes: parkade_stat_set,
    /// Bytes of free blocks that are only part of their segment.
    pub inactive_split_bytes: parkade_stat_set,
    /// The requested bytes of active blocks.
    pub requested_bytes: parkade_stat_set,
    /// Allocations of at least `max_split_size`.
    pub oversize_allocations: parkade_stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: parkade_stat,
    /// Attempts to take memory after the cache was released.
    pub num_alloc_retries: i64,
    /// Requests that failed for lack of memory.
    pub num_ooms: i64,
    /// Waits for all events.
    pub num_sync_all_streams: i64,
    /// Segments taken from the device, and mappings.
    pub num_device_alloc: i64,
    /// Segments released to the device, and unmappings.
    pub num_device_free: i64,
    /// Requests rejected before the device was asked.
    pub num_oom_rejections: i64,
    /// The setting `max_split_size` when the allocator was created; -1 is unlimited.
    pub max_split_size: i64,
    /// Requests that were rescued (`PARKADE_RESCUE`). PyTorch has no such statistic.
    pub num_rescues: i64,
    /// Bytes in use that were copied because their handle was broken. PyTorch has no such statistic.
    pub copied_bytes: i64,
}

/// A rescued request (`PARKADE_RESCUE`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct parkade_rescue {
    /// The request's rounded size.
    pub size: u64,
    /// The duration of the rescue.
    pub duration_ns: u64,
    /// The number of handles of free memory that were moved or replaced.
    pub moved_handles: u64,
    /// The number of handles that were broken while partly in use.
    pub broken_handles: u64,
    /// The bytes in use in the broken handles, which were copied.
    pub copied_bytes: u64,
}

/// A function that is called for each rescued request, during the request and on its thread. It must not call the
/// allocator.
pub type parkade_rescue_observer = Option<unsafe extern "C" fn(user: *mut c_void, rescue: *const parkade_rescue)>;

/// A block and its segment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct parkade_block_info {
    /// The block's size in bytes.
    pub size: u64,
    /// The bytes that were requested.
    pub requested: u64,
    /// The first byte of its segment.
    pub segment: u64,
    /// The segment's size in bytes.
    pub segment_size: u64,
    /// Whether the segment is expandable.
    pub is_expandable: bool,
}

/// A segment in a snapshot. Its blocks are the `block_count` blocks that start at `first_block`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct parkade_segment {
    /// The segment's first byte.
    pub address: u64,
    /// The sum of its blocks' sizes.
    pub total: u64,
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes of allocated and pending blocks.
    pub active: u64,
    /// The requested bytes of active blocks.
    pub requested: u64,
    /// The segment's stream.
    pub stream: u64,
    /// The segment's pool.
    pub pool: parkade_pool,
    /// The rank of the segment's age, in PyTorch releases that order by age; older segments have lower ranks.
    pub rank: u32,
    /// Whether the segment belongs to its pool's large collection.
    pub is_large: bool,
    /// Whether the segment is a mapped run of an expandable segment.
    pub is_expandable: bool,
    /// The index of the segment's first block among the snapshot's blocks.
    pub first_block: usize,
    /// The number of its blocks.
    pub block_count: usize,
}

/// A block in a snapshot.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct parkade_snapshot_block {
    /// The block's first byte.
    pub address: u64,
    /// The block's size in bytes.
    pub size: u64,
    /// The bytes that were last requested.
    pub requested: u64,
    /// Whether the block is handed out.
    pub is_allocated: bool,
    /// Whether the block is handed out, or is freed but waiting for other streams.
    pub is_active: bool,
}

/// The outcome of restoring a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct parkade_restored {
    /// The pool's blocks that the restore took back.
    pub freed: *const u64,
    /// The number of these blocks.
    pub freed_count: usize,
    /// The blocks that are now handed out.
    pub allocated: *const u64,
    /// The number of these blocks.
    pub allocated_count: usize,
}

/// An expandable segment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct parkade_expandable {
    /// The segment's stream.
    pub stream: u64,
    /// The size of each of its pages in bytes.
    pub page: u64,
    /// Its mapped bytes.
    pub mapped: u64,
}

/// Memory of an expandable segment that several processes share.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct parkade_shared_handle {
    /// Its size in bytes.
    pub bytes: u64,
    /// Its file descriptor. `parkade_share` writes a descriptor of the sharing process, which stays open for as long as
    /// the handle is mapped. `parkade_shared_open` takes a descriptor of the calling process.
    pub file: i32,
}

/// The numbers of an out-of-memory error.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct parkade_shortage {
    /// The size in bytes of the segment that the allocator requested from the device.
    pub segment_bytes: u64,
    /// The device's total memory in bytes.
    pub device_total: u64,
    /// The bytes that no process holds.
    pub device_free: u64,
    /// The limit; 0 if there is none.
    pub limit_bytes: u64,
}

/// The settings of PyTorch that affect decisions.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct parkade_settings {
    /// `max_split_size_mb` in bytes; 2^64 - 1 is unlimited.
    pub max_split_bytes: u64,
    /// `max_non_split_rounding_mb` in bytes.
    pub max_non_split_rounding_bytes: u64,
    /// `large_segment_size_mb` in bytes.
    pub large_segment_bytes: u64,
    /// `garbage_collection_threshold`; 0 means never.
    pub garbage_collection_threshold: f64,
    /// `roundup_power2_divisions`: the divisions from 1, 2, 4, ... MiB upwards; 0 and 1 mean none.
    pub roundup_power2_divisions: [u64; 16],
    /// `expandable_segments`.
    pub expandable_segments: bool,
    /// `graph_capture_record_stream_reuse`.
    pub graph_capture_record_stream_reuse: bool,
    /// `throw_on_cudamalloc_oom`.
    pub throw_on_cudamalloc_oom: bool,
}
