//! The rules of each release. A release is its neighbour with what differs.

use super::{Deferral, LimitRounding, PoolAsserts, Profile, TieBreak};
use crate::settings::Dialect;
use crate::texts::OomWords;

/// Where the allocator's source lay when releases up to 2.12 were built.
const SOURCE: &str = "/pytorch/c10/cuda/CUDACachingAllocator.cpp";
/// Where it lay for later ones.
const NEWER_SOURCE: &str = "/__w/pytorch/pytorch/c10/cuda/CUDACachingAllocator.cpp";

impl Profile {
    /// PyTorch 2.10.
    pub const PYTORCH_2_10: Profile = Profile {
        name: "2.10",
        dialect: Dialect::PYTORCH_2_10,
        oom_words: &OomWords::PYTORCH_2_10,
        pool_asserts: PoolAsserts { file: SOURCE, unknown: 2739, abandoned: 2731, not_in_use: 2631 },
        ..Profile::PYTORCH_2_11
    };

    /// PyTorch 2.11.
    pub const PYTORCH_2_11: Profile = Profile {
        name: "2.11",
        dialect: Dialect::PYTORCH_2_11,
        tie_break: TieBreak::Address,
        limit_rounding: LimitRounding::Down,
        deferral: Deferral::WhileRouting,
        asks_after_refusal: false,
        oom_words: &OomWords::PYTORCH_2_11,
        advises_on_addresses: false,
        gives_short_ranges_back: false,
        tries_handle_types: true,
        counts_private_pools: false,
        counts_rejections: false,
        forgets_no_split: false,
        pool_asserts: PoolAsserts { file: SOURCE, unknown: 2807, abandoned: 2799, not_in_use: 2698 },
    };

    /// PyTorch 2.12.
    pub const PYTORCH_2_12: Profile = Profile {
        name: "2.12",
        dialect: Dialect::PYTORCH_2_12,
        tie_break: TieBreak::BlockAge,
        counts_rejections: true,
        pool_asserts: PoolAsserts { file: SOURCE, unknown: 3057, abandoned: 3049, not_in_use: 2948 },
        ..Profile::PYTORCH_2_11
    };

    /// PyTorch 2.13.
    pub const PYTORCH_2_13: Profile = Profile {
        name: "2.13",
        dialect: Dialect::PYTORCH_2_13,
        pool_asserts: PoolAsserts { file: NEWER_SOURCE, unknown: 3340, abandoned: 3332, not_in_use: 3231 },
        ..Profile::PYTORCH_2_14
    };

    /// PyTorch 2.14.
    pub const PYTORCH_2_14: Profile = Profile {
        name: "2.14",
        dialect: Dialect::PYTORCH_2_14,
        advises_on_addresses: false,
        pool_asserts: PoolAsserts { file: NEWER_SOURCE, unknown: 3337, abandoned: 3329, not_in_use: 3229 },
        ..Profile::PYTORCH_2_15
    };

    /// PyTorch 2.15.
    pub const PYTORCH_2_15: Profile = Profile {
        name: "2.15",
        dialect: Dialect::PYTORCH_2_15,
        tie_break: TieBreak::SegmentAge,
        limit_rounding: LimitRounding::Nearest,
        deferral: Deferral::WhileCapturing,
        asks_after_refusal: true,
        oom_words: &OomWords::PYTORCH_2_11,
        advises_on_addresses: true,
        gives_short_ranges_back: true,
        tries_handle_types: false,
        counts_private_pools: true,
        counts_rejections: true,
        forgets_no_split: true,
        pool_asserts: PoolAsserts { file: NEWER_SOURCE, unknown: 3481, abandoned: 3473, not_in_use: 3373 },
    };
}
