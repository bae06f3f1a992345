//! Numbers as PyTorch's C++ messages print them: sizes with a unit, and doubles with six digits.

use alloc::format;
use alloc::string::String;

/// A size in bytes as messages show it: `1024 bytes`, `1.50 KiB`, `1024.00 MiB`, `139.80 GiB` (spec 2.14). A
/// unit is used up to and including 1024; there is none above GiB.
#[must_use]
pub fn format_bytes(size: u64) -> String {
    match size {
        0..=0x400 => format!("{size} bytes"),
        0x401..=0x10_0000 => with_two_decimals(size, 10, "KiB"),
        0x10_0001..=0x4000_0000 => with_two_decimals(size, 20, "MiB"),
        _ => with_two_decimals(size, 30, "GiB"),
    }
}

/// `size` in units of 2^`shift`, as C prints the quotient of doubles with two decimals: ties go to the even
/// digit.
fn with_two_decimals(size: u64, shift: u32, unit: &str) -> String {
    // Only the conversion to a double can lose digits; dividing by a power of two is exact, so integers are
    // enough.
    let hundred_sizes = (size as f64) as u128 * 100;
    let hundredths = hundred_sizes >> shift;
    let remainder = hundred_sizes & ((1 << shift) - 1);
    let half = 1_u128 << (shift - 1);
    let rounds_up = remainder > half || (remainder == half && hundredths & 1 == 1);
    let hundredths = hundredths + u128::from(rounds_up);
    format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100)
}

/// A double as a C++ stream prints it by default: at most six significant digits, no trailing zeros, with an
/// exponent below 1e-4 and from 1e6 on.
#[must_use]
pub fn format_double(value: f64) -> String {
    format_significant(value, 6)
}

/// A double with at most `digits` significant digits (at least 1), as C's `%.*g` prints it.
#[must_use]
pub fn format_significant(value: f64, digits: u8) -> String {
    let after_first = i32::from(digits.max(1)) - 1;
    let sign = if value.is_sign_negative() { "-" } else { "" };
    let size = value.abs();
    if size.is_nan() {
        return format!("{sign}nan");
    }
    if size.is_infinite() {
        return format!("{sign}inf");
    }
    let scientific = format!("{size:.*e}", after_first.unsigned_abs() as usize);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..=after_first).contains(&exponent) {
        let sign_of_exponent = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{}e{sign_of_exponent}{:02}", without_trailing_zeros(mantissa), exponent.abs());
    }
    // The scientific form decides how many digits there are; those behind the point are decimals.
    let decimals = usize::try_from(after_first - exponent).unwrap_or(0);
    format!("{sign}{}", without_trailing_zeros(&format!("{size:.decimals$}")))
}

fn without_trailing_zeros(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

#[cfg(test)]
mod tests {
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
        for (value, text) in [(0.5, "0.5"), (0.1, "0.10000000000000001"), (1.0, "1"), (0.9899999983608723, "0.98999999836087227")]
        {
            assert_eq!(format_significant(value, 17), text);
        }
    }
}
