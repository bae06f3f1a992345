//! The values that a settings string can set, with PyTorch's defaults.

use alloc::string::String;

use super::tokens;
use crate::units::{Bytes, MIB};

/// The number of intervals of `roundup_power2_divisions`: 1 MiB, 2 MiB, ..., 32 GiB or more.
pub const ROUNDUP_SLOTS: usize = 16;

/// Everything that a settings string can set, with PyTorch's names where they exist.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Blocks of at least this size are "oversize" (spec 2.5); `u64::MAX` is unlimited.
    pub max_split_bytes: u64,
    /// The number of bytes by which an oversize block may exceed the request (spec 2.5).
    pub max_non_split_rounding_bytes: u64,
    /// The segment size for requests between 1 MiB and 10 MiB (spec 1.6).
    pub large_segment_bytes: u64,
    /// The fraction of the limit above which unused blocks are released (spec 2.7); 0 means never.
    pub garbage_collection_threshold: f64,
    /// Divisions between powers of two, per interval of sizes (spec 1.3); 0 and 1 mean none.
    pub roundup_power2_divisions: [u64; ROUNDUP_SLOTS],
    /// Whether new segments are expandable (spec section 4).
    pub expandable_segments: bool,
    /// Whether PyTorch releases its lock while the driver allocates (spec 2.8).
    pub release_lock_on_cudamalloc: bool,
    /// Whether blocks may be reused during a graph capture if the graph orders all their uses (spec 3.8).
    pub graph_capture_record_stream_reuse: bool,
    /// The initial memory fraction of an allocator (spec 2.15). Changing the setting later does not change the limit.
    pub per_process_memory_fraction: f64,
    /// Whether a request that cannot fit is rejected before the device is asked (2.15).
    pub throw_on_cudamalloc_oom: bool,
    /// The size of the address range that an expandable segment reserves, if not nine eighths of the device's memory
    /// (2.15).
    pub expandable_segments_reserve: Option<ReserveSize>,
    /// Host memory: whether background threads process events.
    pub pinned_use_background_threads: bool,
    /// Host memory: whether CUDA registers the memory rather than allocating it.
    pub pinned_use_cuda_host_register: bool,
    /// Host memory: the number of threads that register the memory.
    pub pinned_num_register_threads: u64,
    /// Host memory: the size of the segment reserved at the start, in MiB; 0 means none.
    pub pinned_reserve_segment_mb: u64,
    /// Host memory: whether pointers that the allocator did not hand out may be freed (2.15).
    pub pinned_free_catch_all: bool,
    /// Host memory: the size in MiB from which requests are no longer rounded up; 0 means that all are rounded up
    /// (2.15).
    pub pinned_max_round_threshold_mb: u64,
    /// Host memory: the maximum size of the cache, in MiB; 0 means unlimited (2.15).
    pub pinned_max_cached_size_mb: u64,
    /// The allocator in use, fixed at load time.
    pub backend: Backend,
    /// The last string applied, even if it failed.
    pub text: String,
}

/// PyTorch's allocators for CUDA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backend {
    /// PyTorch's own allocator, which this crate models.
    #[default]
    Native,
    /// CUDA's stream-ordered allocator.
    CudaMallocAsync,
}

impl Backend {
    /// PyTorch's name for the backend.
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
    /// PyTorch's defaults.
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

/// The size of the address range that an expandable segment reserves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ReserveSize {
    /// A fraction of the device's memory.
    Fraction(f64),
    /// A number of GiB.
    Gibibytes(f64),
}

impl ReserveSize {
    /// Reads `0.5` or `40G`; `None` for anything that is not a positive finite number.
    pub(super) fn parse(text: &str) -> Option<ReserveSize> {
        let (number, make): (&str, fn(f64) -> ReserveSize) = match text.strip_suffix('G') {
            Some(number) => (number, ReserveSize::Gibibytes),
            None => (text, ReserveSize::Fraction),
        };
        tokens::double(number).ok().filter(|value| value.is_finite() && *value > 0.0).map(make)
    }

    /// The size on a device of `total` bytes.
    #[must_use]
    pub fn bytes(self, total: Bytes) -> Bytes {
        // Beyond 64 bits, the conversion saturates, as in PyTorch.
        Bytes(match self {
            ReserveSize::Fraction(part) => part * total.0 as f64,
            ReserveSize::Gibibytes(count) => count * (1_u64 << 30) as f64,
        } as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the sizes that PyTorch reserved on a device with 1 GiB, before rounding to pages.
    #[test]
    fn sizes_are_parts_or_gibibytes() {
        let bytes = |text| ReserveSize::parse(text).map(|size| size.bytes(Bytes::mib(1024)).0);
        assert_eq!(bytes("0.5"), Some(1 << 29));
        assert_eq!(bytes("2G"), Some(2 << 30));
        assert_eq!([bytes("x"), bytes("-1"), bytes("0"), bytes("inf"), bytes("")], [None; 5]);
    }
}
