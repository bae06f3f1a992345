//! Numbers as PyTorch's C++ messages print them: sizes with a unit, and doubles with six digits.

#[cfg(test)]
#[path = "../../tests/unit/bytes.rs"]
mod tests;

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
