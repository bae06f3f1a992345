//! What differs between releases of PyTorch, as data.
//!
//! The flow asks a [`Profile`] at the few places where releases differ. It never asks which release it is.

use crate::settings::Dialect;

/// The rules of one release of PyTorch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// The release, as users write it: `2.11`.
    pub name: &'static str,
    /// The settings string that it understands.
    pub dialect: Dialect,
    /// Which of several free blocks of one size is used.
    pub tie_break: TieBreak,
    /// How a memory fraction becomes a limit in bytes.
    pub limit_rounding: LimitRounding,
    /// When waiting for events is put off.
    pub deferral: Deferral,
    /// Whether it asks the device for its free memory after each refusal.
    pub asks_after_refusal: bool,
    /// Whether the out-of-memory message gives hints on address space where segments are expandable.
    pub advises_on_addresses: bool,
    /// Whether a reserved range that is too short for the request is given back and counts as out of memory.
    pub gives_short_ranges_back: bool,
    /// Whether it finds the supported kinds of memory handles by creating one of each, rather than by asking
    /// the device.
    pub tries_handle_types: bool,
    /// Whether statistics count what each private pool has reserved, and requests rejected before the device
    /// is asked.
    pub counts_private_pools: bool,
    /// Whether "never split" ends with its pool; otherwise it stays with the pool's id.
    pub forgets_no_split: bool,
    /// Where its sources assert that calls about pools are in order.
    pub(crate) pool_asserts: PoolAsserts,
}

/// Which of several free blocks of one size is used (spec 2.3, 11.0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TieBreak {
    /// The one with the lowest address.
    Address,
    /// The one whose segment is the oldest, then the one with the lowest address.
    SegmentAge,
}

/// How a memory fraction becomes a limit in bytes (spec 2.15, 11.0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitRounding {
    /// Rounded down.
    Down,
    /// Rounded to the nearest.
    Nearest,
}

/// When waiting is put off (spec 3.8): no events are polled, blocks used by other streams wait for their
/// events to be recorded, and the default pool releases nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deferral {
    /// While requests are routed to any private pool.
    WhileRouting,
    /// While the caller's current stream is being captured.
    WhileCapturing,
}

impl LimitRounding {
    /// The limit in bytes for a fraction from 0 to 1 of `total` bytes.
    #[must_use]
    pub fn limit(self, fraction: f64, total: u64) -> u64 {
        let exact = fraction * total as f64;
        let down = exact as u64;
        match self {
            LimitRounding::Nearest if exact - down as f64 >= 0.5 => down + 1,
            _ => down,
        }
    }
}

/// Lines of PyTorch's sources that messages about pools mention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PoolAsserts {
    pub(crate) file: &'static str,
    pub(crate) unknown: u32,
    pub(crate) abandoned: u32,
    pub(crate) not_in_use: u32,
    pub(crate) overreleased: u32,
}

impl Profile {
    /// PyTorch 2.11.
    pub const PYTORCH_2_11: Profile = Profile {
        name: "2.11",
        dialect: Dialect::PYTORCH_2_11,
        tie_break: TieBreak::Address,
        limit_rounding: LimitRounding::Down,
        deferral: Deferral::WhileRouting,
        asks_after_refusal: false,
        advises_on_addresses: false,
        gives_short_ranges_back: false,
        tries_handle_types: true,
        counts_private_pools: false,
        forgets_no_split: false,
        pool_asserts: PoolAsserts {
            file: "/pytorch/c10/cuda/CUDACachingAllocator.cpp",
            unknown: 2807,
            abandoned: 2799,
            not_in_use: 2698,
            overreleased: 3473,
        },
    };

    /// PyTorch 2.15.
    pub const PYTORCH_2_15: Profile = Profile {
        name: "2.15",
        dialect: Dialect::PYTORCH_2_15,
        tie_break: TieBreak::SegmentAge,
        limit_rounding: LimitRounding::Nearest,
        deferral: Deferral::WhileCapturing,
        asks_after_refusal: true,
        advises_on_addresses: true,
        gives_short_ranges_back: true,
        tries_handle_types: false,
        counts_private_pools: true,
        forgets_no_split: true,
        pool_asserts: PoolAsserts {
            file: "/__w/pytorch/pytorch/c10/cuda/CUDACachingAllocator.cpp",
            unknown: 3481,
            abandoned: 3473,
            not_in_use: 3373,
            overreleased: 4249,
        },
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the real releases answer for 0.4 of 1 GiB, read back as fractions (spec 11.0).
    #[test]
    fn a_limit_is_rounded_as_the_release_rounds_it() {
        assert_eq!(LimitRounding::Down.limit(0.4, 1 << 30), 429_496_729);
        assert_eq!(LimitRounding::Nearest.limit(0.4, 1 << 30), 429_496_730);
        assert_eq!(LimitRounding::Nearest.limit(0.25, 1 << 30), 1 << 28);
    }
}
