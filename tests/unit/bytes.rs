//! Sizes as PyTorch prints them.

use super::*;

#[test]
fn sizes_change_their_unit_after_1024_of_it() {
    // Exactly 1/8, 3/8, ...: the C library rounds ties to the even digit.
    for (size, text) in [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (1152, "1.12 KiB"),
        (1408, "1.38 KiB"),
        (1664, "1.62 KiB"),
        (1 << 20, "1024.00 KiB"),
        ((1 << 20) + 1, "1.00 MiB"),
        (1 << 30, "1024.00 MiB"),
        ((1 << 30) + 1, "1.00 GiB"),
        (u64::MAX, "17179869184.00 GiB"),
    ] {
        assert_eq!(format_bytes(size), text);
    }
}

#[test]
fn doubles_are_printed_as_by_streams() {
    for (value, text) in [
        (0.0, "0"),
        (-0.0, "-0"),
        (1e10, "1e+10"),
        (-0.5, "-0.5"),
        (1.000001, "1"),
        (1.00001, "1.00001"),
        (999999.5, "1e+06"),
        (100000.5, "100000"),
        (100001.5, "100002"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (0.000099999999, "0.0001"),
        (1e300, "1e+300"),
        (-1e-300, "-1e-300"),
        (5e-324, "4.94066e-324"),
        (f64::MAX, "1.79769e+308"),
        (f64::NAN, "nan"),
        (-f64::NAN, "-nan"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        assert_eq!(format_double(value), text);
    }
}

#[test]
fn seventeen_digits_are_exact() {
    for (value, text) in [(0.5, "0.5"), (0.1, "0.10000000000000001"), (1.0, "1"), (0.9899999983608723, "0.98999999836087227")] {
        assert_eq!(format_significant(value, 17), text);
    }
}
