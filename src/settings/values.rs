//! What a settings string sets, with PyTorch's defaults.

use alloc::string::String;

use super::reserve::ReserveSize;
use super::roundup::ROUNDUP_SLOTS;
use crate::units::MIB;

/// Everything that a settings string can set, with PyTorch's names where they exist.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Blocks of at least this size are "oversize" (spec 2.5); `u64::MAX` is unlimited.
    pub max_split_bytes: u64,
    /// By how many bytes an oversize block may exceed the request (spec 2.5).
    pub max_non_split_rounding_bytes: u64,
    /// The segment size for requests between 1 MiB and 10 MiB (spec 1.6).
    pub large_segment_bytes: u64,
    /// The fraction of the limit above which unused blocks are released (spec 2.7); 0 is never.
    pub garbage_collection_threshold: f64,
    /// Divisions between powers of two, per interval of sizes (spec 1.3); 0 and 1 mean none.
    pub roundup_power2_divisions: [u64; ROUNDUP_SLOTS],
    /// Whether new segments are expandable (spec section 4).
    pub expandable_segments: bool,
    /// Whether PyTorch releases its lock while the driver allocates (spec 2.8).
    pub release_lock_on_cudamalloc: bool,
    /// Whether a graph capture may reuse blocks whose streams have caught up (spec 3.8).
    pub graph_capture_record_stream_reuse: bool,
    /// The memory fraction that an allocator starts with (spec 2.15). Changing the setting later does not
    /// change the limit.
    pub per_process_memory_fraction: f64,
    /// Whether a request that cannot fit is rejected before the device is asked (2.15).
    pub throw_on_cudamalloc_oom: bool,
    /// How many addresses an expandable segment reserves, if not nine eighths of the device's memory (2.15).
    pub expandable_segments_reserve: Option<ReserveSize>,
    /// Host memory: whether events are processed by threads in the background.
    pub pinned_use_background_threads: bool,
    /// Host memory: whether it is registered rather than allocated by CUDA.
    pub pinned_use_cuda_host_register: bool,
    /// Host memory: how many threads register it.
    pub pinned_num_register_threads: u64,
    /// Host memory: the size of the segment reserved at the start, in MiB; 0 is none.
    pub pinned_reserve_segment_mb: u64,
    /// Host memory: whether pointers from elsewhere may be freed (2.15).
    pub pinned_free_catch_all: bool,
    /// Host memory: the size from which requests are not rounded up, in MiB; 0 is never (2.15).
    pub pinned_max_round_threshold_mb: u64,
    /// Host memory: the most to cache, in MiB; 0 is unlimited (2.15).
    pub pinned_max_cached_size_mb: u64,
    /// The allocator in use, fixed at load time.
    pub backend: Backend,
    /// The last string applied, even if it failed.
    pub text: String,
}

/// PyTorch's allocators for CUDA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backend {
    /// PyTorch's own, the one modelled here.
    #[default]
    Native,
    /// CUDA's stream-ordered allocator.
    CudaMallocAsync,
}

impl Backend {
    /// PyTorch's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Native => "native",
            Backend::CudaMallocAsync => "cudaMallocAsync",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Backend> {
        [Backend::Native, Backend::CudaMallocAsync].into_iter().find(|backend| backend.name() == name)
    }
}

impl Default for Settings {
    /// PyTorch's settings when nothing is set.
    fn default() -> Settings {
        Settings {
            max_split_bytes: u64::MAX,
            max_non_split_rounding_bytes: 20 * MIB,
            large_segment_bytes: 20 * MIB,
            garbage_collection_threshold: 0.0,
            roundup_power2_divisions: [0; ROUNDUP_SLOTS],
            expandable_segments: false,
            release_lock_on_cudamalloc: false,
            graph_capture_record_stream_reuse: false,
            per_process_memory_fraction: 1.0,
            throw_on_cudamalloc_oom: false,
            expandable_segments_reserve: None,
            pinned_use_background_threads: false,
            pinned_use_cuda_host_register: false,
            pinned_num_register_threads: 1,
            pinned_reserve_segment_mb: 0,
            pinned_free_catch_all: false,
            pinned_max_round_threshold_mb: 0,
            pinned_max_cached_size_mb: 0,
            backend: Backend::Native,
            text: String::new(),
        }
    }
}
