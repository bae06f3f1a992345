//! How sizes are rounded.

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
