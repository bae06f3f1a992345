//! Sizes as people write them: `16GiB`, `7.2GiB`, `512 MiB`, or exact bytes.

use parkade::texts::format_bytes;

/// Units and their bytes.
const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Reads a size; a fraction of a byte is cut off.
///
/// # Errors
/// A line that names the text and what is accepted.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim();
    let refused = || format!("{text:?} is not a size: write bytes (17179869184) or a number with a unit (16GiB, 7.2GiB, 512MiB)");
    let factor = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|&(_, factor)| factor).ok_or_else(refused)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(refused());
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| refused())? };
    let bytes = u128::from(whole) * u128::from(factor) + fraction_of(fraction, factor).ok_or_else(refused)?;
    u64::try_from(bytes).map_err(|_| format!("{text:?} is more than 64 bits can hold"))
}

/// `factor` times the decimal fraction `0.digits`, cut off. Digits beyond the eighteenth change no byte of any unit.
fn fraction_of(digits: &str, factor: u64) -> Option<u128> {
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = digits.get(..18).unwrap_or(digits);
    if digits.is_empty() {
        return Some(0);
    }
    let scale = 10_u128.pow(u32::try_from(digits.len()).ok()?);
    Some(u128::from(factor) * digits.parse::<u128>().ok()? / scale)
}

/// A signed size for people.
pub(crate) fn show(bytes: i64) -> String {
    u64::try_from(bytes).map_or_else(|_| format!("{bytes} bytes"), show_bytes)
}

/// A size for people, as PyTorch prints it except for a single byte.
pub(crate) fn show_bytes(bytes: u64) -> String {
    if bytes == 1 { "1 byte".to_owned() } else { format_bytes(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        assert_eq!(parse("16GiB"), Ok(16 << 30));
        assert_eq!(parse("7.2GiB"), Ok(7_730_941_132));
        assert_eq!(parse("1.15 gib"), Ok(1_234_803_097));
        assert_eq!(parse("12345"), Ok(12_345));
        assert_eq!(parse("2GB"), Ok(2_000_000_000));
        assert_eq!(parse(".5KiB"), Ok(512));
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn one_byte_is_singular() {
        assert_eq!([0, 1, 2].map(show_bytes), ["0 bytes", "1 byte", "2 bytes"]);
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "GiB", "-1", "1e9", "1..2", "1.2.3GiB", "16 apples", "99999999999GiB", "0x10", "."] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
