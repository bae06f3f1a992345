//! Sizes under PyTorch's rules: from a request to a block, from a block to a segment (spec section 1).

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

#[cfg(test)]
mod tests {
    use super::*;

    fn block_size_of(requested: u64, settings: &Settings) -> Option<u64> {
        block_size(requested, settings, &Profile::PYTORCH_2_11)
    }

    fn settings(divisions: [u64; 16]) -> Settings {
        Settings { roundup_power2_divisions: divisions, ..Settings::default() }
    }

    #[test]
    fn sizes_of_the_specification() {
        let mut slots = [8; 16];
        slots[0] = 4;
        let settings = settings(slots);
        for (requested, size) in [
            (1, 512),
            (513, 1024),
            (1200, 1536),
            (2049, 2560),
            (4097, 5120),
            (8193, 10240),
            (1_048_577, 1_310_720),
            (1_572_865, 1_835_008),
            (2_097_153, 2_359_296),
            (10_485_759, 10_485_760),
            (67_108_865, 75_497_472),
            (100_000_000, 100_663_296),
            (134_217_729, 150_994_944),
            (268_435_457, 301_989_888),
        ] {
            assert_eq!(block_size_of(requested, &settings), Some(size), "request of {requested}");
        }
    }

    #[test]
    fn absurdly_many_divisions_round_to_powers_of_two() {
        for exponent in [55, 62, 63] {
            assert_eq!(block_size_of(2049, &settings([1 << exponent; 16])), Some(4096), "2^{exponent} divisions");
        }
    }

    #[test]
    fn a_size_beyond_64_bits_is_none() {
        assert_eq!(block_size_of(u64::MAX, &Settings::default()), None);
        assert_eq!(block_size_of(u64::MAX - 511, &Settings::default()), Some(u64::MAX - 511));
        assert_eq!(block_size_of(u64::MAX, &settings([2; 16])), None);
        assert_eq!(segment_size(Bytes(u64::MAX - 511), &Settings::default()), None);
    }

    #[test]
    fn segments_of_the_specification() {
        let settings = Settings::default();
        let segment = |block| segment_size(Bytes(block), &settings).map(Bytes::get);
        assert_eq!(segment(MIB), Some(2 * MIB));
        assert_eq!(segment(MIB + 512), Some(20 * MIB));
        assert_eq!(segment(10 * MIB - 512), Some(20 * MIB));
        assert_eq!(segment(10 * MIB), Some(10 * MIB));
        assert_eq!(segment(10 * MIB + 512), Some(12 * MIB));
    }
}
