//! Collects what a setting may break: known issues with PyTorch's allocator settings in programs that use certain features.
//!
//! [`InUse`] holds the features that a recording shows in use, and [`cautions`] lists the known issues that therefore apply
//! to the settings. A replay shows how much memory a program needs under a setting; these issues are what no replay of one
//! process can show: hangs, refused calls, memory of other libraries, and settings that have no effect.
//!
//! `KNOWN_ISSUES` is the table of all issues, each with its source: the settings it concerns, what the program must use for it to
//! matter, and the affected releases. To add an issue, add a row. A row states what a replay cannot show, or why a setting that
//! looks good in one run is not safe in general. Anything that a replay does show, such as how much memory a program needs
//! under a setting, does not belong in the table.

mod in_use;

pub use in_use::{Evidence, Feature, InUse};

use std::cmp::Reverse;

use parkade::profile::Profile;
use parkade::settings::{Backend, Settings};

/// A known issue that applies to the settings and that the program does not rule out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caution {
    /// Identifies the issue in machine-readable output: words joined by hyphens, stable across releases.
    pub id: &'static str,
    /// The keys of the settings that the issue concerns, joined by `, `.
    pub setting: &'static str,
    /// Whether the program uses what the issue needs; never [`Evidence::NotShown`].
    pub in_use: Evidence,
    /// The severity of the issue if the program uses the feature.
    pub severity: Severity,
    /// The consequence, in one sentence.
    pub what: &'static str,
    /// The remedy, in one sentence.
    pub instead: &'static str,
    /// The sources that report or document the issue: issues and pull requests as `owner/name#number`; `spec` and a
    /// number refer to a section of the behavioural specification, which was derived from running PyTorch's own
    /// library.
    pub source: &'static str,
}

impl Caution {
    /// Returns whether these settings need a warning: the program uses what the issue needs, and the issue is harmful.
    #[must_use]
    pub fn needs_warning(&self) -> bool {
        self.in_use == Evidence::Shown && self.severity > Severity::NoEffect
    }
}

/// Returns the known issues that apply to `settings` under `profile` in a program that uses `in_use`. Issues whose features
/// are shown come before those whose features are unknown, then the more severe first, then in the order of the table.
#[must_use]
pub fn cautions(in_use: &InUse, settings: &Settings, profile: &Profile) -> Vec<Caution> {
    let applying = KNOWN_ISSUES.iter().filter(|issue| issue.applies_to(settings, profile));
    let mut found: Vec<Caution> = applying.filter_map(|issue| caution(issue, in_use)).collect();
    found.sort_by_key(|caution| Reverse((caution.in_use, caution.severity)));
    found
}

/// Returns the caution for a program, or `None` if the program is known not to use something that the issue needs. The
/// caution is as certain as the least certain of the needed features.
fn caution(issue: &KnownIssue, in_use: &InUse) -> Option<Caution> {
    let least = issue.uses.iter().map(|&feature| in_use.evidence(feature)).min().unwrap_or(Evidence::Shown);
    (least != Evidence::NotShown).then_some(Caution {
        id: issue.id,
        setting: issue.setting,
        in_use: least,
        severity: issue.severity,
        what: issue.what,
        instead: issue.instead,
        source: issue.source,
    })
}

/// The effect of a setting on a program that uses what the issue needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// The setting has no effect, although a user may expect one.
    NoEffect,
    /// The program may fail, hang or need far more memory, depending on circumstances that are not modelled here.
    MayBreak,
    /// The program fails, hangs or corrupts its memory.
    Breaks,
}

parkade_recording::names! {
    Severity {
        Severity::NoEffect => "no effect",
        Severity::MayBreak => "may break",
        Severity::Breaks => "breaks",
    }
}

/// A known issue, as the table states it. [`Caution`](Caution) explains the fields.
#[derive(Clone, Copy, Debug)]
struct KnownIssue {
    id: &'static str,
    /// The keys as users write them.
    setting: &'static str,
    /// The conditions on the settings, all of which must be met.
    when: &'static [Condition],
    /// The features that the program must use, all of them. If empty, the issue applies to any program.
    uses: &'static [Feature],
    versions: Versions,
    severity: Severity,
    what: &'static str,
    instead: &'static str,
    source: &'static str,
}

/// The affected PyTorch releases.
#[derive(Clone, Copy, Debug)]
enum Versions {
    /// All releases that are modelled here.
    All,
    /// The releases whose profiles have these names.
    Only(&'static [&'static str]),
}

/// A condition on the settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Condition {
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
    /// Requests beyond the limit fail immediately.
    ThrowBeforehand,
    /// `expandable_segments_reserve` is set.
    ExpandableReserve,
    /// A `pinned_*` key is set.
    Pinned,
    /// The allocator is `cudaMallocAsync`.
    AsyncBackend,
    /// The settings have a key that only PyTorch's own allocator honours.
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
            // Parsing a settings string sets this size to the large segment size.
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
    /// Returns whether the issue concerns these settings in the profile's release.
    fn applies_to(&self, settings: &Settings, profile: &Profile) -> bool {
        let exists = match self.versions {
            Versions::All => true,
            Versions::Only(names) => names.contains(&profile.name),
        };
        exists && self.when.iter().all(|condition| condition.holds(settings))
    }
}

/// Every known issue: first the harmful ones, then the settings that have no effect.
const KNOWN_ISSUES: &[KnownIssue] = &[
    KnownIssue {
        id: "expandable-captured-collectives",
        setting: "expandable_segments",
        when: &[Condition::Expandable],
        uses: &[Feature::GraphPools, Feature::CapturedCollectives],
        versions: Versions::All,
        severity: Severity::Breaks,
        what: "NCCL collectives captured in CUDA graphs hang or fail: NCCL registers each buffer as one allocation, and a buffer in an \
               expandable segment spans several.",
        instead: "Set NCCL_GRAPH_REGISTER=0, or leave expandable_segments off.",
        source: "pytorch/pytorch#158029, pytorch/torchtitan#3306",
    },
    KnownIssue {
        id: "expandable-other-processes",
        setting: "expandable_segments",
        when: &[Condition::Expandable],
        uses: &[Feature::OtherProcesses],
        versions: Versions::All,
        severity: Severity::Breaks,
        what: "Extensions that share memory through cudaIpcGetMemHandle (custom all-reduce kernels) fail with an invalid argument.",
        instead: "Turn off the feature that shares the memory (vLLM: --disable-custom-all-reduce), or leave expandable_segments off.",
        source: "vllm-project/vllm#42609, ROCm/aiter#4174, spec 4.9",
    },
    KnownIssue {
        id: "expandable-shared-tensors",
        setting: "expandable_segments",
        when: &[Condition::Expandable],
        uses: &[Feature::OtherProcesses],
        versions: Versions::All,
        severity: Severity::MayBreak,
        what: "A process that receives tensors from expandable segments reserves addresses for 9/8 of the entire device for each handle and can run out of addresses.",
        instead: "Keep few shared tensors open, or leave expandable_segments off in the process that sends them.",
        source: "pytorch/pytorch#186213",
    },
    KnownIssue {
        id: "expandable-registrations",
        setting: "expandable_segments",
        when: &[Condition::Expandable],
        uses: &[Feature::Registrations],
        versions: Versions::All,
        severity: Severity::MayBreak,
        what: "Libraries that register memory by address and length (RDMA, NCCL user buffers) may refuse memory from expandable segments, \
               which consists of many mappings and can change while it is registered.",
        instead: "Allocate registered buffers outside expandable segments, or leave expandable_segments off.",
        source: "pytorch/pytorch#165419, uccl-project/uccl#839",
    },
    KnownIssue {
        id: "expandable-pools-given-back",
        setting: "expandable_segments",
        when: &[Condition::Expandable],
        uses: &[Feature::PrivatePools, Feature::PoolsGivenBack],
        versions: Versions::Only(&["2.11"]),
        severity: Severity::MayBreak,
        what: "If memory that was mapped in one piece is unmapped in several, PyTorch 2.11 forgets a private pool while blocks still use \
               it: later frees corrupt memory or crash.",
        instead: "Keep CUDA graphs and MemPools until the program ends, or leave expandable_segments off.",
        source: "spec 4.10",
    },
    KnownIssue {
        id: "expandable-several-devices",
        setting: "expandable_segments",
        when: &[Condition::Expandable],
        uses: &[Feature::SeveralDevices, Feature::EmptyCache],
        versions: Versions::Only(&["2.11"]),
        severity: Severity::MayBreak,
        what: "empty_cache waits only for the current device, so memory of another device can be unmapped while kernels still \
               use it, which causes an illegal memory access.",
        instead: "Synchronize every device before empty_cache.",
        source: "pytorch/pytorch#196258, fixed by pytorch/pytorch#197159",
    },
    KnownIssue {
        id: "max-split-expandable",
        setting: "max_split_size_mb, expandable_segments",
        when: &[Condition::Expandable, Condition::MaxSplit],
        uses: &[],
        versions: Versions::All,
        severity: Severity::MayBreak,
        what: "Free blocks of an expandable segment that have coalesced to more than max_split_size_mb do not serve smaller \
               requests, so reserved memory grows without bound if small blocks outlive large ones.",
        instead: "Set only one of the two; expandable_segments does not need max_split_size_mb.",
        source: "pytorch/pytorch#123548, pytorch/pytorch#193400",
    },
    KnownIssue {
        id: "max-split-at-large-segment",
        setting: "max_split_size_mb",
        when: &[Condition::MaxSplit, Condition::MaxSplitAtLargeSegment, Condition::NotExpandable],
        uses: &[],
        versions: Versions::All,
        severity: Severity::MayBreak,
        what: "An entirely free segment of large_segment_size_mb counts as oversize and serves no smaller request, so each \
               request of 1 to 10 MiB that finds no partly used segment takes a new one.",
        instead: "Set max_split_size_mb at least 1 above large_segment_size_mb (20 by default).",
        source: "spec 10.18",
    },
    KnownIssue {
        id: "max-split-set-late",
        setting: "max_split_size_mb",
        when: &[Condition::MaxSplit],
        uses: &[Feature::ChangedSettings],
        versions: Versions::Only(&["2.11"]),
        severity: Severity::Breaks,
        what: "If the program sets or lowers max_split_size_mb while blocks exist, PyTorch 2.11 can take the remainder of a \
               split block for an oversize segment and pass it to cudaFree, which corrupts the heap.",
        instead: "Set it in the environment before the program starts.",
        source: "spec 2.9",
    },
    KnownIssue {
        id: "throw-before-release",
        setting: "throw_on_cudamalloc_oom",
        when: &[Condition::ThrowBeforehand],
        uses: &[],
        versions: Versions::All,
        severity: Severity::MayBreak,
        what: "A request that would exceed the memory limit fails immediately, whereas PyTorch normally releases cached memory and retries.",
        instead: "Set it only in programs that handle out-of-memory errors themselves.",
        source: "pytorch/pytorch#179057",
    },
    KnownIssue {
        id: "async-user-pools",
        setting: "backend",
        when: &[Condition::AsyncBackend],
        uses: &[Feature::UserPools],
        versions: Versions::All,
        severity: Severity::Breaks,
        what: "torch.cuda.MemPool does not work with cudaMallocAsync, which does not support user pools.",
        instead: "Use backend:native.",
        source: "pytorch/pytorch#192464",
    },
    KnownIssue {
        id: "async-graph-trees",
        setting: "backend",
        when: &[Condition::AsyncBackend],
        uses: &[Feature::GraphPools],
        versions: Versions::All,
        severity: Severity::MayBreak,
        what: "torch.compile's CUDA graph trees fail with cudaMallocAsync, which cannot check or restore a pool.",
        instead: "Use backend:native, or a compile mode without CUDA graphs.",
        source: "pytorch/pytorch#158641",
    },
    KnownIssue {
        id: "expandable-host-memory-device",
        setting: "expandable_segments",
        when: &[Condition::Expandable],
        uses: &[Feature::HostMemoryDevice],
        versions: Versions::All,
        severity: Severity::MayBreak,
        what: "On devices that share memory with the host (DGX Spark), workloads that fit without expandable segments have run out of \
               memory with them.",
        instead: "Try both on the device; a replay does not model this effect.",
        source: "vllm-project/vllm#45179, NVIDIA/dgx-spark-playbooks#97",
    },
    KnownIssue {
        id: "expandable-pool-allocators",
        setting: "expandable_segments",
        when: &[Condition::Expandable],
        uses: &[Feature::UserPools, Feature::PoolAllocators],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "Pools that have their own allocator (sleep modes) do not use expandable segments; before 2.11, those pools bypassed their allocator instead.",
        instead: "Expect an effect only on the rest of the program's memory.",
        source: "pytorch/pytorch#147851, pytorch/pytorch#185818, spec 5.5",
    },
    KnownIssue {
        id: "expandable-no-mapping",
        setting: "expandable_segments",
        when: &[Condition::Expandable],
        uses: &[Feature::NoMapping],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "PyTorch built without the driver's mapping calls (Windows, some builds) warns once and ignores the setting.",
        instead: "Look for the warning `expandable_segments not supported on this platform`.",
        source: "pytorch/pytorch#122057",
    },
    KnownIssue {
        id: "collection-without-limit",
        setting: "garbage_collection_threshold",
        when: &[Condition::GarbageCollection, Condition::NoFraction],
        uses: &[Feature::NoLimit],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "Without a memory limit below the device's capacity, nothing is ever collected, and there is no warning.",
        instead: "Also set a limit: torch.cuda.set_per_process_memory_fraction, or per_process_memory_fraction below 1.",
        source: "pytorch/pytorch#106660, pytorch/pytorch#76648, spec 2.7",
    },
    KnownIssue {
        id: "collection-expandable",
        setting: "garbage_collection_threshold, expandable_segments",
        when: &[Condition::GarbageCollection, Condition::Expandable],
        uses: &[],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "Garbage collection skips expandable segments.",
        instead: "Set only one of the two.",
        source: "pytorch/pytorch#134338, spec 2.7",
    },
    KnownIssue {
        id: "collection-private-pools",
        setting: "garbage_collection_threshold",
        when: &[Condition::GarbageCollection],
        uses: &[Feature::PrivatePools],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "Garbage collection skips private pools, although their memory counts towards the threshold.",
        instead: "Expect it to release memory only from the default pool.",
        source: "spec 2.7",
    },
    KnownIssue {
        id: "one-division",
        setting: "roundup_power2_divisions",
        when: &[Condition::OneDivision],
        uses: &[],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "A single division does not round up to the next power of two: sizes are rounded to 512 bytes, as if the setting were absent.",
        instead: "Use 2 or more divisions.",
        source: "pytorch/pytorch#161139, spec 1.2",
    },
    KnownIssue {
        id: "rounding-without-max-split",
        setting: "max_non_split_rounding_mb",
        when: &[Condition::NonSplitRounding, Condition::NoMaxSplit],
        uses: &[],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "Without max_split_size_mb, no block is oversize, so a limit on how much larger an oversize block may be has no effect.",
        instead: "Leave it out, or also set max_split_size_mb.",
        source: "spec 2.5",
    },
    KnownIssue {
        id: "fraction-set-late",
        setting: "per_process_memory_fraction",
        when: &[Condition::Fraction],
        uses: &[Feature::ChangedSettings],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "PyTorch reads per_process_memory_fraction when it creates a device's allocator; changing it later has no effect on the limit.",
        instead: "Set it in the environment, or call torch.cuda.set_per_process_memory_fraction.",
        source: "spec 8.4",
    },
    KnownIssue {
        id: "capture-reuse-without-graphs",
        setting: "graph_capture_record_stream_reuse",
        when: &[Condition::CaptureReuse],
        uses: &[Feature::NoGraphPools],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "This setting has an effect only during CUDA graph capture.",
        instead: "Leave it out.",
        source: "pytorch/pytorch#158352, spec 3.8",
    },
    KnownIssue {
        id: "throw-without-fraction",
        setting: "throw_on_cudamalloc_oom",
        when: &[Condition::ThrowBeforehand, Condition::NoFraction],
        uses: &[Feature::NoLimit],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "Without a memory limit, no request is rejected early.",
        instead: "Also set per_process_memory_fraction.",
        source: "pytorch/pytorch#179057",
    },
    KnownIssue {
        id: "reserve-without-expandable",
        setting: "expandable_segments_reserve",
        when: &[Condition::ExpandableReserve, Condition::NotExpandable],
        uses: &[],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "Without expandable_segments, no addresses are reserved.",
        instead: "Leave it out, or set expandable_segments:True.",
        source: "spec 11.0",
    },
    KnownIssue {
        id: "release-lock",
        setting: "release_lock_on_cudamalloc",
        when: &[Condition::ReleaseLock],
        uses: &[],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "This setting lets other threads allocate while one waits for the driver; the program still needs the same amount of memory.",
        instead: "Set it only for speed with several threads.",
        source: "pytorch/pytorch#108367",
    },
    KnownIssue {
        id: "pinned",
        setting: "pinned_*",
        when: &[Condition::Pinned],
        uses: &[],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "The pinned_* keys concern host memory; device memory is unaffected.",
        instead: "Leave them out if device memory is the problem.",
        source: "spec 8.4",
    },
    KnownIssue {
        id: "async-native-keys",
        setting: "backend",
        when: &[Condition::AsyncBackend, Condition::NativeKeys],
        uses: &[],
        versions: Versions::All,
        severity: Severity::NoEffect,
        what: "cudaMallocAsync ignores max_split_size_mb, roundup_power2_divisions, garbage_collection_threshold and expandable_segments.",
        instead: "Set them only with backend:native.",
        source: "spec 8.4",
    },
];

#[cfg(test)]
mod tests {
    //! Tests that every known issue applies to the settings it concerns and to nothing else.

    use super::*;

    const NEW: Profile = Profile::PYTORCH_2_15;
    const OLD: Profile = Profile::PYTORCH_2_11;

    /// Returns a program that uses only these features.
    fn only(features: &[Feature]) -> InUse {
        let nothing = Feature::ALL.into_iter().fold(InUse::unknown(), |in_use, feature| in_use.with(feature, Evidence::NotShown));
        features.iter().fold(nothing, |in_use, &feature| in_use.with(feature, Evidence::Shown))
    }

    fn found(in_use: &InUse, settings: &str, profile: &Profile) -> Vec<Caution> {
        let settings = Settings::from_environment_as(&profile.dialect, settings).expect("settings");
        cautions(in_use, &settings, profile)
    }

    fn ids(in_use: &InUse, settings: &str, profile: &Profile) -> Vec<&'static str> {
        let mut ids: Vec<_> = found(in_use, settings, profile).iter().map(|caution| caution.id).collect();
        ids.sort_unstable();
        ids
    }

    /// The settings, the features that the program uses, the release, and the ids of all issues that apply.
    type Case = (&'static str, &'static [Feature], Profile, &'static [&'static str]);

    const CASES: &[Case] = &[
        ("", &Feature::ALL, OLD, &[]),
        ("roundup_power2_divisions:4,large_segment_size_mb:40", &Feature::ALL, OLD, &[]),
        ("max_split_size_mb:128", &[], OLD, &[]),
        ("max_split_size_mb:21", &[], OLD, &[]),
        ("max_split_size_mb:20", &[], OLD, &["max-split-at-large-segment"]),
        ("large_segment_size_mb:32,max_split_size_mb:32", &[], OLD, &["max-split-at-large-segment"]),
        ("max_split_size_mb:128", &[Feature::ChangedSettings], OLD, &["max-split-set-late"]),
        ("max_split_size_mb:128", &[Feature::ChangedSettings], NEW, &[]),
        ("expandable_segments:True", &[], OLD, &[]),
        ("expandable_segments:True", &[Feature::SeveralStreams, Feature::OtherStreams, Feature::EmptyCache], OLD, &[]),
        ("expandable_segments:True", &[Feature::GraphPools, Feature::PrivatePools], OLD, &[]),
        (
            "expandable_segments:True",
            &[Feature::GraphPools, Feature::CapturedCollectives],
            OLD,
            &["expandable-captured-collectives"],
        ),
        (
            "expandable_segments:True",
            &[Feature::OtherProcesses],
            OLD,
            &["expandable-other-processes", "expandable-shared-tensors"],
        ),
        ("expandable_segments:True", &[Feature::Registrations], NEW, &["expandable-registrations"]),
        ("expandable_segments:True", &[Feature::PrivatePools, Feature::PoolsGivenBack], OLD, &["expandable-pools-given-back"]),
        ("expandable_segments:True", &[Feature::PrivatePools, Feature::PoolsGivenBack], NEW, &[]),
        ("expandable_segments:True", &[Feature::SeveralDevices, Feature::EmptyCache], OLD, &["expandable-several-devices"]),
        ("expandable_segments:True", &[Feature::SeveralDevices], OLD, &[]),
        ("expandable_segments:True", &[Feature::HostMemoryDevice], OLD, &["expandable-host-memory-device"]),
        ("expandable_segments:True", &[Feature::UserPools], OLD, &[]),
        ("expandable_segments:True", &[Feature::UserPools, Feature::PoolAllocators], OLD, &["expandable-pool-allocators"]),
        ("expandable_segments:True", &[Feature::NoMapping], OLD, &["expandable-no-mapping"]),
        ("expandable_segments:True,max_split_size_mb:128", &[], OLD, &["max-split-expandable"]),
        ("expandable_segments:True,max_split_size_mb:20", &[], NEW, &["max-split-expandable"]),
        ("garbage_collection_threshold:0.8", &[], OLD, &[]),
        ("garbage_collection_threshold:0.8", &[Feature::NoLimit], OLD, &["collection-without-limit"]),
        ("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5", &[Feature::NoLimit], OLD, &[]),
        ("garbage_collection_threshold:0.8", &[Feature::PrivatePools], OLD, &["collection-private-pools"]),
        ("garbage_collection_threshold:0.8,expandable_segments:True", &[], OLD, &["collection-expandable"]),
        ("roundup_power2_divisions:1", &[], OLD, &["one-division"]),
        ("roundup_power2_divisions:[64:8,>:1]", &[], OLD, &["one-division"]),
        ("max_non_split_rounding_mb:64", &[], OLD, &["rounding-without-max-split"]),
        ("max_non_split_rounding_mb:64,max_split_size_mb:128", &[], OLD, &[]),
        ("per_process_memory_fraction:0.5", &[], OLD, &[]),
        ("per_process_memory_fraction:0.5", &[Feature::ChangedSettings], OLD, &["fraction-set-late"]),
        ("graph_capture_record_stream_reuse:True", &[Feature::GraphPools], OLD, &[]),
        ("graph_capture_record_stream_reuse:True", &[Feature::NoGraphPools], OLD, &["capture-reuse-without-graphs"]),
        ("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5", &[Feature::NoLimit], NEW, &["throw-before-release"]),
        ("throw_on_cudamalloc_oom:True", &[Feature::NoLimit], NEW, &["throw-before-release", "throw-without-fraction"]),
        ("expandable_segments_reserve:1", &[], NEW, &["reserve-without-expandable"]),
        ("expandable_segments_reserve:1,expandable_segments:True", &[], NEW, &[]),
        ("release_lock_on_cudamalloc:True", &[], OLD, &["release-lock"]),
        ("pinned_use_background_threads:True", &[], OLD, &["pinned"]),
        ("pinned_num_register_threads:4", &[], OLD, &["pinned"]),
        ("backend:cudaMallocAsync", &[], OLD, &[]),
        ("backend:cudaMallocAsync", &[Feature::UserPools], OLD, &["async-user-pools"]),
        ("backend:cudaMallocAsync", &[Feature::GraphPools], OLD, &["async-graph-trees"]),
        ("backend:cudaMallocAsync,max_split_size_mb:128", &[], OLD, &["async-native-keys"]),
    ];

    #[test]
    fn each_issue_applies_to_what_it_is_about_and_to_nothing_else() {
        for (settings, uses, profile, expected) in CASES {
            assert_eq!(ids(&only(uses), settings, profile), *expected, "{settings} {uses:?} {}", profile.name);
        }
    }

    #[test]
    fn no_issue_is_missing_above_and_ids_are_unique() {
        let mut names: Vec<_> = KNOWN_ISSUES.iter().map(|issue| issue.id).collect();
        for name in &names {
            assert!(CASES.iter().any(|(_, _, _, expected)| expected.contains(name)), "{name}");
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KNOWN_ISSUES.len());
    }

    #[test]
    fn every_issue_states_in_one_sentence_what_happens_and_names_its_source_and_setting() {
        for issue in KNOWN_ISSUES {
            let keys = NEW.dialect.keys();
            let known: Vec<_> = keys.collect();
            assert!(issue.setting.split(", ").all(|key| known.contains(&key) || key == "pinned_*"), "{}", issue.id);
            for sentence in [issue.what, issue.instead] {
                assert!(
                    sentence.ends_with('.') && !sentence.contains(". ") && !sentence.contains('\n'),
                    "{}: {sentence}",
                    issue.id
                );
            }
            let is_reference = |part: &str| part.contains('#') || part.starts_with("spec ");
            assert!(issue.source.split(", ").all(is_reference), "{}: {}", issue.id, issue.source);
        }
    }

    #[test]
    fn a_caution_is_as_certain_as_the_least_certain_feature_it_needs() {
        let graphs = InUse::unknown().with(Feature::GraphPools, Evidence::Shown);
        let collectives = |in_use: &InUse| {
            found(in_use, "expandable_segments:True", &OLD)
                .into_iter()
                .find(|caution| caution.id == "expandable-captured-collectives")
        };
        let caution = collectives(&graphs).expect("a caution");
        assert_eq!((caution.in_use, caution.needs_warning()), (Evidence::Unknown, false));
        let caution = collectives(&graphs.clone().with(Feature::CapturedCollectives, Evidence::Shown)).expect("a caution");
        assert_eq!((caution.in_use, caution.needs_warning()), (Evidence::Shown, true));
        assert_eq!(collectives(&graphs.with(Feature::GraphPools, Evidence::NotShown)), None);
    }

    #[test]
    fn what_is_shown_and_severe_comes_first() {
        let settings = "expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.8";
        let all = found(&InUse::unknown().limited(true), settings, &OLD);
        let order: Vec<_> = all.iter().map(|caution| (caution.in_use, caution.severity)).collect();
        assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
        assert_eq!(order[..2], [(Evidence::Shown, Severity::MayBreak), (Evidence::Shown, Severity::NoEffect)]);
        assert_eq!(order[2], (Evidence::Unknown, Severity::Breaks));
    }
}
