//! What a settings string sets, with PyTorch's defaults.

use alloc::string::String;

use super::reserve::ReserveSize;
use super::roundup::ROUNDUP_SLOTS;
use crate::units::MIB;

/// Everything that a settings string can set, with PyTorch's names where it has some.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Blocks of at least this size are "oversize" (spec 2.5); `u64::MAX` is unlimited.
    pub max_split_bytes: u64,
    /// How much larger than the request an oversize block may be (spec 2.5).
    pub max_non_split_rounding_bytes: u64,
    /// The size of segments for requests of middling size (spec 1.6).
    pub large_segment_bytes: u64,
    /// The part of the limit beyond which unused blocks are given back (spec 2.7); 0 is never.
    pub garbage_collection_threshold: f64,
    /// Divisions between powers of two per interval of sizes (spec 1.3); 0 and 1 are none.
    pub roundup_power2_divisions: [u64; ROUNDUP_SLOTS],
    /// Whether segments grow in place (spec section 4).
    pub expandable_segments: bool,
    /// Whether the lock is given up while the driver allocates (spec 2.8).
    pub release_lock_on_cudamalloc: bool,
    /// Whether a graph capture reuses blocks whose streams have caught up (spec 3.8).
    pub graph_capture_record_stream_reuse: bool,
    /// The memory fraction that a device's allocator starts with (spec 2.15). Later changes have no effect on it.
    pub per_process_memory_fraction: f64,
    /// Whether a request that cannot fit is rejected before the device is asked (2.15).
    pub throw_on_cudamalloc_oom: bool,
    /// How many addresses an expandable segment reserves, if not the usual number (2.15).
    pub expandable_segments_reserve: Option<ReserveSize>,
    /// Host memory: whether events are processed by threads in the background.
    pub pinned_use_background_threads: bool,
    /// Host memory: whether it is registered rather than allocated by CUDA.
    pub pinned_use_cuda_host_register: bool,
    /// Host memory: how many threads register it.
    pub pinned_num_register_threads: u64,
    /// Host memory: size of the segment reserved at the start, in mebibytes; 0 is none.
    pub pinned_reserve_segment_mb: u64,
    /// Host memory: whether pointers of any origin may be given back (2.15).
    pub pinned_free_catch_all: bool,
    /// Host memory: from which size on requests are not rounded up, in mebibytes; 0 is never (2.15).
    pub pinned_max_round_threshold_mb: u64,
    /// Host memory: how much is cached at most, in mebibytes; 0 is any (2.15).
    pub pinned_max_cached_size_mb: u64,
    /// The allocator in use, fixed at load time.
    pub backend: Backend,
    /// The last string given, also one that failed.
    pub text: String,
}

/// The allocators that PyTorch has for CUDA.
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
