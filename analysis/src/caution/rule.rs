//! The form of a known case: which settings it is about, what the program must use for it to matter, and in which versions.

use parkade::profile::Profile;
use parkade::settings::{Backend, Settings};

use super::{Caution, Evidence, Feature, InUse, Severity};

/// A known case, as the table of them states it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) id: &'static str,
    /// The keys as users write them.
    pub(super) setting: &'static str,
    /// The settings that it is about: all of these hold.
    pub(super) when: &'static [Condition],
    /// What the program must use: all of it. Nothing: it holds for any program.
    pub(super) uses: &'static [Feature],
    pub(super) versions: Versions,
    pub(super) severity: Severity,
    pub(super) what: &'static str,
    pub(super) instead: &'static str,
    pub(super) source: &'static str,
}

/// In which versions of PyTorch a case exists.
#[derive(Clone, Copy, Debug)]
pub(super) enum Versions {
    /// In all that are known here.
    All,
    /// In those of these names.
    Only(&'static [&'static str]),
}

/// Something that settings may say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Condition {
    /// Segments grow in place.
    Expandable,
    /// They do not.
    NotExpandable,
    /// Blocks from some size on are oversize.
    MaxSplit,
    /// No block is.
    NoMaxSplit,
    /// Blocks of the size of ordinary large segments are oversize.
    MaxSplitAtLargeSegment,
    /// Garbage collection is on.
    GarbageCollection,
    /// The settings set no memory limit.
    NoFraction,
    /// The settings set a memory limit.
    Fraction,
    /// Some sizes are rounded to one division of a power of two.
    OneDivision,
    /// How much larger an oversize block may be is set.
    NonSplitRounding,
    /// A capture reuses blocks of other streams.
    CaptureReuse,
    /// The lock is given up while the driver allocates.
    ReleaseLock,
    /// Requests beyond the limit are rejected at once.
    ThrowBeforehand,
    /// How many addresses expandable segments reserve is set.
    ExpandableReserve,
    /// Something about host memory is set.
    Pinned,
    /// The allocator is CUDA's own.
    AsyncBackend,
    /// Something is set that only PyTorch's own allocator heeds.
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
            // Parsing a string sets it to the size of large segments.
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

impl Rule {
    /// Whether this case is about these settings of this version.
    pub(super) fn applies_to(&self, settings: &Settings, profile: &Profile) -> bool {
        let exists = match self.versions {
            Versions::All => true,
            Versions::Only(names) => names.contains(&profile.name),
        };
        exists && self.when.iter().all(|condition| condition.holds(settings))
    }

    /// The caution for a program, unless what it uses rules the case out. It is as sure as the least sure of what it needs.
    pub(super) fn caution(&self, in_use: &InUse) -> Option<Caution> {
        let least = self.uses.iter().map(|&feature| in_use.evidence(feature)).min().unwrap_or(Evidence::Shown);
        (least != Evidence::NotShown).then_some(Caution {
            id: self.id,
            setting: self.setting,
            in_use: least,
            severity: self.severity,
            what: self.what,
            instead: self.instead,
            source: self.source,
        })
    }
}
