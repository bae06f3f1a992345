//! The form of a known issue: which settings it is about, what the program must use for it to matter, and in which releases.

use parkade::profile::Profile;
use parkade::settings::{Backend, Settings};

use super::in_use::Feature;

/// What a setting does to a program that uses what the issue needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// The setting has no effect, which its user may not expect.
    NoEffect,
    /// The program may fail, hang or need far more memory, depending on circumstances that are not modelled here.
    MayBreak,
    /// The program fails, hangs or corrupts its memory.
    Breaks,
}

impl Severity {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Severity::NoEffect => "no effect",
            Severity::MayBreak => "may break",
            Severity::Breaks => "breaks",
        }
    }
}

/// A known issue, as the table states it. [`Caution`](super::Caution) explains the texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownIssue {
    pub(super) id: &'static str,
    /// The keys as users write them.
    pub(super) setting: &'static str,
    /// What the settings must say: all of these.
    pub(super) when: &'static [Condition],
    /// What the program must use: all of these. If empty, the issue applies to any program.
    pub(super) uses: &'static [Feature],
    pub(super) versions: Versions,
    pub(super) severity: Severity,
    pub(super) what: &'static str,
    pub(super) instead: &'static str,
    pub(super) source: &'static str,
}

/// The PyTorch releases that have the issue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Versions {
    /// All that are modelled here.
    All,
    /// Those whose profiles have these names.
    Only(&'static [&'static str]),
}

/// A condition on the settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Condition {
    /// Expandable segments are on.
    Expandable,
    /// Expandable segments are off.
    NotExpandable,
    /// Blocks above some size are oversize.
    MaxSplit,
    /// No block is oversize.
    NoMaxSplit,
    /// Blocks of the ordinary large segment size are oversize.
    MaxSplitAtLargeSegment,
    /// Garbage collection is on.
    GarbageCollection,
    /// The settings set no memory limit.
    NoFraction,
    /// The settings set a memory limit.
    Fraction,
    /// Some sizes are rounded with a single division of a power of two.
    OneDivision,
    /// `max_non_split_rounding_mb` is set.
    NonSplitRounding,
    /// A capture reuses blocks of other streams.
    CaptureReuse,
    /// The lock is released while the driver allocates.
    ReleaseLock,
    /// Requests beyond the limit fail at once.
    ThrowBeforehand,
    /// `expandable_segments_reserve` is set.
    ExpandableReserve,
    /// A `pinned_*` key is set.
    Pinned,
    /// The allocator is CUDA's own.
    AsyncBackend,
    /// A key is set that only PyTorch's own allocator honours.
    NativeKeys,
}

impl Condition {
    fn holds(self, settings: &Settings) -> bool {
        let plain = Settings::default();
        match self {
            Condition::Expandable => settings.expandable_segments,
            Condition::NotExpandable => !settings.expandable_segments,
            Condition::MaxSplit => settings.max_split_bytes != u64::MAX,
            Condition::NoMaxSplit => settings.max_split_bytes == u64::MAX,
            Condition::MaxSplitAtLargeSegment => settings.max_split_bytes <= settings.large_segment_bytes,
            Condition::GarbageCollection => settings.garbage_collection_threshold > 0.0,
            Condition::NoFraction => settings.per_process_memory_fraction >= 1.0,
            Condition::Fraction => settings.per_process_memory_fraction < 1.0,
            Condition::OneDivision => settings.roundup_power2_divisions.contains(&1),
            // Parsing a settings string sets it to the large segment size.
            Condition::NonSplitRounding => settings.max_non_split_rounding_bytes != settings.large_segment_bytes,
            Condition::CaptureReuse => settings.graph_capture_record_stream_reuse,
            Condition::ReleaseLock => settings.release_lock_on_cudamalloc,
            Condition::ThrowBeforehand => settings.throw_on_cudamalloc_oom,
            Condition::ExpandableReserve => settings.expandable_segments_reserve.is_some(),
            Condition::Pinned => {
                settings.pinned_use_background_threads
                    || settings.pinned_use_cuda_host_register
                    || settings.pinned_num_register_threads != plain.pinned_num_register_threads
                    || settings.pinned_reserve_segment_mb != 0
                    || settings.pinned_free_catch_all
                    || settings.pinned_max_round_threshold_mb != 0
                    || settings.pinned_max_cached_size_mb != 0
            }
            Condition::AsyncBackend => settings.backend == Backend::CudaMallocAsync,
            Condition::NativeKeys => {
                settings.max_split_bytes != plain.max_split_bytes
                    || settings.garbage_collection_threshold > 0.0
                    || settings.roundup_power2_divisions != plain.roundup_power2_divisions
                    || settings.expandable_segments
            }
        }
    }
}

impl KnownIssue {
    /// Whether the issue is about these settings, in the profile's release.
    pub(super) fn applies_to(&self, settings: &Settings, profile: &Profile) -> bool {
        let exists = match self.versions {
            Versions::All => true,
            Versions::Only(names) => names.contains(&profile.name),
        };
        exists && self.when.iter().all(|condition| condition.holds(settings))
    }
}
