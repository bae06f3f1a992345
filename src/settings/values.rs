//! The values that a settings string can set, with PyTorch's defaults, and the error for a string that PyTorch refuses.

use alloc::string::String;
use core::fmt;

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

/// The C++ exception that PyTorch raises (spec 8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// `c10::ValueError`, a `ValueError` in Python: an unknown key, or a value that its key does not allow.
    Value,
    /// `c10::Error` from a check, a `RuntimeError` in Python. Raised before 2.10, for any of the reasons for `Value`
    /// or for a missing value.
    Check,
    /// `c10::Error` from an internal assert, a `RuntimeError` in Python: a missing value, an unclosed bracket, or a
    /// different backend.
    Internal,
    /// `std::invalid_argument`, a `ValueError` in Python: a number without a digit.
    InvalidNumber,
    /// `std::out_of_range`, an `IndexError` in Python: a number that its type cannot hold.
    NumberOutOfRange,
}

/// PyTorch refuses a settings string. Settings applied before the error are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsError {
    kind: ErrorKind,
    message: String,
}

impl SettingsError {
    pub(super) fn value(message: impl Into<String>) -> SettingsError {
        SettingsError { kind: ErrorKind::Value, message: message.into() }
    }

    pub(super) fn check(message: impl Into<String>) -> SettingsError {
        SettingsError { kind: ErrorKind::Check, message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> SettingsError {
        SettingsError { kind: ErrorKind::Internal, message: message.into() }
    }

    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> SettingsError {
        SettingsError { kind, message: message.into() }
    }

    /// The exception that PyTorch raises.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// PyTorch's message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether PyTorch raises an exception of the C++ standard library instead of one of its own.
    #[must_use]
    pub const fn is_std_exception(&self) -> bool {
        matches!(self.kind, ErrorKind::InvalidNumber | ErrorKind::NumberOutOfRange)
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl core::error::Error for SettingsError {}
