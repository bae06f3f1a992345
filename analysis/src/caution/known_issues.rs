//! The table of known issues, each with its source: the settings it concerns, what the program must use for it to matter, and
//! the affected releases.
//!
//! To add an issue, add a row. A row states what a replay cannot show, or why a setting that looks good in one run is not
//! safe in general. Anything that a replay does show, such as how much memory a program needs under a setting, does not
//! belong in the table.

use parkade::profile::Profile;
use parkade::settings::{Backend, Settings};

use super::in_use::Feature;

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

/// A known issue, as the table states it. [`Caution`](super::Caution) explains the texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownIssue {
    pub(super) id: &'static str,
    /// The keys as users write them.
    pub(super) setting: &'static str,
    /// What the settings must contain: all of these conditions.
    when: &'static [Condition],
    /// What the program must use: all of these features. If empty, the issue applies to any program.
    pub(super) uses: &'static [Feature],
    versions: Versions,
    pub(super) severity: Severity,
    pub(super) what: &'static str,
    pub(super) instead: &'static str,
    pub(super) source: &'static str,
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
    /// Whether the issue concerns these settings in the profile's release.
    pub(super) fn applies_to(&self, settings: &Settings, profile: &Profile) -> bool {
        let exists = match self.versions {
            Versions::All => true,
            Versions::Only(names) => names.contains(&profile.name),
        };
        exists && self.when.iter().all(|condition| condition.holds(settings))
    }
}

/// Every known issue: first the harmful ones, then the settings that have no effect.
pub(super) const KNOWN_ISSUES: &[KnownIssue] = &[
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
        what: "Free blocks of an expandable segment that have coalesced beyond max_split_size_mb do not serve smaller \
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
        instead: "Try both on the device; a replay does not model it.",
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
        what: "A PyTorch built without the driver's mapping calls (Windows, some builds) warns once and ignores the setting.",
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
        what: "Without max_split_size_mb no block is oversize, so a limit on how much larger an oversize block may be has no effect.",
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
        what: "This setting has an effect only while a CUDA graph is captured.",
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
        what: "Without a memory limit no request is rejected early.",
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
        what: "Without expandable_segments no addresses are reserved.",
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
