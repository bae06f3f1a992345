//! Sizes under PyTorch's rules: from a request to a block, from a block to a segment (spec section 1).

#[cfg(test)]
#[path = "../../tests/unit/rounding.rs"]
mod tests;

use crate::profile::Profile;
use crate::settings::Settings;
use crate::units::{Bytes, MIB};

/// Every block size is a multiple of this (spec 1.1).
pub(super) const MIN_BLOCK: u64 = 512;
/// The largest block of the small pool; in the large pool a remainder must exceed this to be split off
/// (spec 1.1).
pub(super) const SMALL_SIZE: u64 = MIB;
/// The size of a small-pool segment (spec 1.1).
const SMALL_BUFFER: u64 = 2 * MIB;
/// From this block size on, a segment has the block's size rounded up to [`ROUND_LARGE`] (spec 1.1).
const MIN_LARGE_ALLOC: u64 = 10 * MIB;
/// Segments for blocks from [`MIN_LARGE_ALLOC`] on are a multiple of this (spec 1.1).
const ROUND_LARGE: u64 = 2 * MIB;

/// The block size for a request (spec 1.2); `None` if it exceeds 64 bits.
#[inline]
pub(super) fn block_size(requested: u64, settings: &Settings, profile: &Profile) -> Option<u64> {
    if requested < MIN_BLOCK {
        return Some(MIN_BLOCK);
    }
    match division(requested, &settings.roundup_power2_divisions) {
        0 => whole_units(requested),
        divisions => by_divisions(requested, divisions, profile),
    }
}

/// The block size where the settings divide the way to the next power of two. Few do.
#[cold]
fn by_divisions(requested: u64, divisions: u64, profile: &Profile) -> Option<u64> {
    if divisions == 1 {
        return if profile.rounds_by_one_division { whole_units(requested) } else { Some(requested) };
    }
    // Wraps as PyTorch's does: with 2^55 divisions and more the bound is 0.
    if requested > divisions.wrapping_mul(MIN_BLOCK) { next_division(requested, divisions) } else { whole_units(requested) }
}

/// Rounds up to a multiple of [`MIN_BLOCK`].
#[inline]
fn whole_units(requested: u64) -> Option<u64> {
    // As `checked_next_multiple_of`, in fewer steps: it is a power of two.
    requested.checked_add(requested.wrapping_neg() & (MIN_BLOCK - 1))
}

/// The number of divisions for a request: one of 16 slots, by the power of two below it, from under 2 MiB to
/// 32 GiB and more (spec 1.3).
#[inline]
fn division(requested: u64, divisions: &[u64; 16]) -> u64 {
    let slot = (requested >> 20 | 1).ilog2().min(15);
    divisions[slot as usize]
}

/// Rounds up to the next of `divisions` equal steps between two powers of two (spec 1.4).
fn next_division(requested: u64, divisions: u64) -> Option<u64> {
    if requested.is_power_of_two() {
        return Some(requested);
    }
    let floor = 1_u64 << requested.ilog2();
    match floor / divisions {
        0 => floor.checked_mul(2),
        step => requested.checked_next_multiple_of(step),
    }
}

/// The size of a new segment for a block (spec 1.6); `None` if it exceeds 64 bits.
pub(super) fn segment_size(block: Bytes, settings: &Settings) -> Option<Bytes> {
    if block.0 <= SMALL_SIZE {
        Some(Bytes(SMALL_BUFFER))
    } else if block.0 < MIN_LARGE_ALLOC {
        Some(Bytes(settings.large_segment_bytes))
    } else {
        block.checked_round_up(Bytes(ROUND_LARGE))
    }
}
