//! The dialect of the settings string: the keys that a PyTorch release knows, and the source lines that its messages
//! mention.
//!
//! A dialect maps each key to an [`Action`]. To add a release, add a table and an action for each new key.

/// The settings string as a PyTorch release understands it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dialect {
    /// The release's keys, in the order in which PyTorch added them.
    keys: &'static [Keys],
    pub(super) asserts: AssertLines,
    pub(super) parser: Parser,
}

/// The parser that reads the string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Parser {
    /// Two parsers: one for the keys that all accelerators share, and one for CUDA's keys.
    TwoPasses,
    /// One parser for all keys.
    SinglePass(SinglePass),
}

/// The differences between the releases with one parser, in wording and allowed values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SinglePass {
    /// How the message spells "divisions".
    pub(super) divisions: &'static str,
    /// Whether a list of roundup divisions may contain zeros.
    pub(super) allows_zero: bool,
    /// The source file and line of the backend check.
    pub(super) backend: (&'static str, u32),
}

/// The setting that a key changes. Each of the two parsers acts on its own keys and skips the other's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Common(CommonAction),
    Device(DeviceAction),
}

/// Keys that all accelerators share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CommonAction {
    LargeSegment,
    MaxSplit,
    MaxNonSplitRounding,
    GarbageCollectionThreshold,
    RoundupPower2Divisions,
    ExpandableSegments,
    PinnedUseBackgroundThreads,
    PinnedMaxRoundThreshold,
    PinnedMaxCachedSize,
}

/// CUDA's own keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DeviceAction {
    Backend,
    ReleaseLockOnMalloc,
    PinnedUseHostRegister,
    PinnedNumRegisterThreads,
    PinnedReserveSegment,
    GraphCaptureRecordStreamReuse,
    PerProcessMemoryFraction,
    PinnedFreeCatchAll,
    ThrowOnMallocOom,
    ExpandableReserve,
    ExpandableReserveByClass,
}

/// The source lines in the messages of internal asserts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AssertLines {
    /// The source folder when PyTorch was built.
    pub(super) root: &'static str,
    /// A token is missing in a checked access.
    pub(super) checked_index: u32,
    /// A token is missing in a direct access.
    pub(super) direct_index: u32,
    /// A skipped list does not end.
    pub(super) skipped_list: u32,
    /// The list of roundup divisions does not end.
    pub(super) roundup_list: u32,
    /// The string names a different backend from the one in use.
    pub(super) backend: u32,
}

/// Each key with its action.
type Keys = &'static [(&'static str, Action)];

/// Keys of 2.1.
const KEYS_OF_2_1: Keys = &[
    ("max_split_size_mb", Action::Common(CommonAction::MaxSplit)),
    ("garbage_collection_threshold", Action::Common(CommonAction::GarbageCollectionThreshold)),
    ("roundup_power2_divisions", Action::Common(CommonAction::RoundupPower2Divisions)),
    ("expandable_segments", Action::Common(CommonAction::ExpandableSegments)),
    ("backend", Action::Device(DeviceAction::Backend)),
];

/// Keys that 2.2 added.
const KEYS_OF_2_2: Keys = &[
    ("release_lock_on_cudamalloc", Action::Device(DeviceAction::ReleaseLockOnMalloc)),
    ("release_lock_on_hipmalloc", Action::Device(DeviceAction::ReleaseLockOnMalloc)),
    ("pinned_use_cuda_host_register", Action::Device(DeviceAction::PinnedUseHostRegister)),
    ("pinned_use_hip_host_register", Action::Device(DeviceAction::PinnedUseHostRegister)),
    ("pinned_num_register_threads", Action::Device(DeviceAction::PinnedNumRegisterThreads)),
];

/// Keys that 2.6 added.
const KEYS_OF_2_6: Keys = &[
    ("max_non_split_rounding_mb", Action::Common(CommonAction::MaxNonSplitRounding)),
    ("pinned_use_background_threads", Action::Common(CommonAction::PinnedUseBackgroundThreads)),
];

/// Keys that 2.9 added.
const KEYS_OF_2_9: Keys = &[("graph_capture_record_stream_reuse", Action::Device(DeviceAction::GraphCaptureRecordStreamReuse))];

/// Keys that 2.10 added.
const KEYS_OF_2_10: Keys = &[
    ("pinned_reserve_segment_size_mb", Action::Device(DeviceAction::PinnedReserveSegment)),
    ("per_process_memory_fraction", Action::Device(DeviceAction::PerProcessMemoryFraction)),
];

/// Keys that 2.11 added.
const KEYS_OF_2_11: Keys = &[("large_segment_size_mb", Action::Common(CommonAction::LargeSegment))];

/// Keys that 2.12 added.
const KEYS_OF_2_12: Keys = &[
    ("pinned_free_catch_all", Action::Device(DeviceAction::PinnedFreeCatchAll)),
    ("throw_on_cudamalloc_oom", Action::Device(DeviceAction::ThrowOnMallocOom)),
];

/// Keys that 2.13 added.
const KEYS_OF_2_13: Keys = &[
    ("pinned_max_round_threshold_mb", Action::Common(CommonAction::PinnedMaxRoundThreshold)),
    ("pinned_max_cached_size_mb", Action::Common(CommonAction::PinnedMaxCachedSize)),
];

/// Keys that 2.15 added.
const KEYS_OF_2_15: Keys = &[
    ("expandable_segments_reserve", Action::Device(DeviceAction::ExpandableReserve)),
    ("expandable_segments_reserve_by_class", Action::Device(DeviceAction::ExpandableReserveByClass)),
];

impl Dialect {
    /// PyTorch 2.1.
    pub const PYTORCH_2_1: Dialect = Dialect {
        keys: &[KEYS_OF_2_1],
        parser: Parser::SinglePass(SinglePass {
            divisions: "divisons",
            allows_zero: false,
            backend: ("../c10/cuda/CUDACachingAllocator.cpp", 1058),
        }),
        ..Dialect::PYTORCH_2_10
    };

    /// PyTorch 2.2.
    pub const PYTORCH_2_2: Dialect = Dialect {
        keys: &[KEYS_OF_2_1, KEYS_OF_2_2],
        parser: Parser::SinglePass(SinglePass {
            divisions: "divisons",
            allows_zero: false,
            backend: ("../c10/cuda/CUDAAllocatorConfig.cpp", 225),
        }),
        ..Dialect::PYTORCH_2_10
    };

    /// PyTorch 2.3.
    pub const PYTORCH_2_3: Dialect = Dialect {
        keys: &[KEYS_OF_2_1, KEYS_OF_2_2],
        parser: Parser::SinglePass(SinglePass {
            divisions: "divisons",
            allows_zero: false,
            backend: ("../c10/cuda/CUDAAllocatorConfig.cpp", 226),
        }),
        ..Dialect::PYTORCH_2_10
    };

    /// PyTorch 2.4.
    pub const PYTORCH_2_4: Dialect = Dialect {
        keys: &[KEYS_OF_2_1, KEYS_OF_2_2],
        parser: Parser::SinglePass(SinglePass {
            divisions: "divisons",
            allows_zero: true,
            backend: ("../c10/cuda/CUDAAllocatorConfig.cpp", 227),
        }),
        ..Dialect::PYTORCH_2_10
    };

    /// PyTorch 2.5.
    pub const PYTORCH_2_5: Dialect = Dialect::PYTORCH_2_4;

    /// PyTorch 2.6.
    pub const PYTORCH_2_6: Dialect = Dialect {
        keys: &[KEYS_OF_2_1, KEYS_OF_2_2, KEYS_OF_2_6],
        parser: Parser::SinglePass(SinglePass {
            divisions: "divisons",
            allows_zero: true,
            backend: ("/pytorch/c10/cuda/CUDAAllocatorConfig.cpp", 250),
        }),
        ..Dialect::PYTORCH_2_10
    };

    /// PyTorch 2.7.
    pub const PYTORCH_2_7: Dialect = Dialect::PYTORCH_2_6;

    /// PyTorch 2.8.
    pub const PYTORCH_2_8: Dialect = Dialect {
        keys: &[KEYS_OF_2_1, KEYS_OF_2_2, KEYS_OF_2_6],
        parser: Parser::SinglePass(SinglePass {
            divisions: "divisions",
            allows_zero: true,
            backend: ("/pytorch/c10/cuda/CUDAAllocatorConfig.cpp", 287),
        }),
        ..Dialect::PYTORCH_2_10
    };

    /// PyTorch 2.9.
    pub const PYTORCH_2_9: Dialect = Dialect {
        keys: &[KEYS_OF_2_1, KEYS_OF_2_2, KEYS_OF_2_6, KEYS_OF_2_9],
        parser: Parser::SinglePass(SinglePass {
            divisions: "divisions",
            allows_zero: true,
            backend: ("/pytorch/c10/cuda/CUDAAllocatorConfig.cpp", 288),
        }),
        ..Dialect::PYTORCH_2_10
    };

    /// PyTorch 2.10.
    pub const PYTORCH_2_10: Dialect = Dialect {
        keys: &[KEYS_OF_2_1, KEYS_OF_2_2, KEYS_OF_2_6, KEYS_OF_2_9, KEYS_OF_2_10],
        asserts: AssertLines {
            checked_index: 126,
            direct_index: 57,
            skipped_list: 117,
            roundup_list: 162,
            ..Dialect::PYTORCH_2_11.asserts
        },
        parser: Parser::TwoPasses,
    };

    /// PyTorch 2.11 (spec 8.4).
    pub const PYTORCH_2_11: Dialect = Dialect {
        keys: &[KEYS_OF_2_1, KEYS_OF_2_2, KEYS_OF_2_6, KEYS_OF_2_9, KEYS_OF_2_10, KEYS_OF_2_11],
        asserts: AssertLines {
            root: "/pytorch",
            checked_index: 124,
            direct_index: 55,
            skipped_list: 115,
            roundup_list: 185,
            backend: 44,
        },
        parser: Parser::TwoPasses,
    };

    /// PyTorch 2.12.
    pub const PYTORCH_2_12: Dialect = Dialect {
        keys: &[KEYS_OF_2_1, KEYS_OF_2_2, KEYS_OF_2_6, KEYS_OF_2_9, KEYS_OF_2_10, KEYS_OF_2_11, KEYS_OF_2_12],
        asserts: Dialect::PYTORCH_2_11.asserts,
        parser: Parser::TwoPasses,
    };

    /// PyTorch 2.13.
    pub const PYTORCH_2_13: Dialect = Dialect {
        keys: &[KEYS_OF_2_1, KEYS_OF_2_2, KEYS_OF_2_6, KEYS_OF_2_9, KEYS_OF_2_10, KEYS_OF_2_11, KEYS_OF_2_12, KEYS_OF_2_13],
        asserts: AssertLines { root: "/__w/pytorch/pytorch", roundup_list: 211, ..Dialect::PYTORCH_2_11.asserts },
        parser: Parser::TwoPasses,
    };

    /// PyTorch 2.14.
    pub const PYTORCH_2_14: Dialect = Dialect::PYTORCH_2_13;

    /// PyTorch 2.15 (spec 11.0).
    pub const PYTORCH_2_15: Dialect = Dialect {
        keys: &[
            KEYS_OF_2_1,
            KEYS_OF_2_2,
            KEYS_OF_2_6,
            KEYS_OF_2_9,
            KEYS_OF_2_10,
            KEYS_OF_2_11,
            KEYS_OF_2_12,
            KEYS_OF_2_13,
            KEYS_OF_2_15,
        ],
        asserts: AssertLines {
            root: "/__w/pytorch/pytorch",
            checked_index: 123,
            direct_index: 54,
            skipped_list: 114,
            roundup_list: 213,
            backend: 64,
        },
        parser: Parser::TwoPasses,
    };

    /// The setting that `key` changes; `None` for an unknown key.
    pub(super) fn action(&self, key: &str) -> Option<Action> {
        self.keys.iter().copied().flatten().find(|(name, _)| *name == key).map(|(_, action)| *action)
    }

    /// The known keys, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.keys.iter().copied().flatten().map(|(name, _)| *name)
    }
}
