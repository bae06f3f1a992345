//! A size as a message prints it: rounded to two decimals of its unit.

use std::fmt;

/// The units of sizes, as powers of two. Messages that use `MB` also count in powers of 1024.
const UNITS: [(&str, u32); 9] =
    [("bytes", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("KB", 10), ("MB", 20), ("GB", 30), ("B", 0)];

/// A number of bytes, known only as precisely as the message prints it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Size {
    /// The nearest whole number of bytes.
    pub bytes: u64,
    /// The maximum difference between the true number and `bytes`.
    pub within: u64,
}

impl Size {
    /// A size of `whole` units and `hundredths` of a unit, where a unit is 2^`shift` bytes. `None` if it does not fit in 64
    /// bits.
    pub(super) fn new(whole: u64, hundredths: u64, shift: u32) -> Option<Size> {
        let hundredths = u128::from(whole) * 100 + u128::from(hundredths);
        // Each factor is below 2^71 and 2^30.
        let bytes = ((hundredths << shift) + 50) / 100;
        // A message prints 2^64 - 1 rounded, as 2^34 GiB.
        let bytes = if bytes == 1 << 64 { u64::MAX } else { u64::try_from(bytes).ok()? };
        // PyTorch converts to a double, which has 53 bits, before it rounds.
        let within = if shift == 0 { 0 } else { (1_u64 << shift).div_ceil(200) + 1 + (bytes >> 53) };
        Some(Size { bytes, within })
    }

    /// The smallest possible number of bytes.
    #[must_use]
    pub const fn least(self) -> u64 {
        self.bytes.saturating_sub(self.within)
    }

    /// The largest possible number of bytes.
    #[must_use]
    pub const fn most(self) -> u64 {
        self.bytes.saturating_add(self.within)
    }

    /// The sum; the uncertainties add up.
    pub fn plus(self, other: Size) -> Size {
        Size { bytes: self.bytes.saturating_add(other.bytes), within: self.within.saturating_add(other.within) }
    }

    /// The difference, at least 0; the uncertainties add up.
    pub fn minus(self, other: Size) -> Size {
        Size { bytes: self.bytes.saturating_sub(other.bytes), within: self.within.saturating_add(other.within) }
    }
}

impl fmt::Display for Size {
    /// Uses the message's unit: a smaller unit would show digits that the message does not contain.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_in_gibibytes = self.within >= (1 << 30) / 200;
        if is_in_gibibytes && self.bytes <= 1 << 30 {
            return write!(f, "{:.2} GiB", self.bytes as f64 / f64::from(1 << 30));
        }
        f.write_str(&parkade::texts::format_bytes(self.bytes))
    }
}

/// A size in a text, and its position.
pub(super) struct Found {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) size: Size,
}

/// The sizes in a text, such as `1024 bytes` or `4.88 GiB`. Ignores a number at the very beginning, because its first digits
/// may be missing, and a number that does not fit in 64 bits.
pub(super) fn sizes(text: &str) -> Vec<Found> {
    let (bytes, mut found, mut at) = (text.as_bytes(), Vec::new(), 1);
    while let Some(start) = (at..bytes.len()).find(|&at| bytes[at].is_ascii_digit() && !is_of_number(bytes[at - 1])) {
        let (end, size) = size_at(text, start);
        found.extend(size.map(|size| Found { start, end, size }));
        at = end + 1;
    }
    found
}

/// Whether this byte belongs to a number, so that a number before it continues.
fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == b'.'
}

/// The size whose number begins at this position, and the position after it.
fn size_at(text: &str, start: usize) -> (usize, Option<Size>) {
    let digits_from = |from: usize| text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let whole_end = start + digits_from(start);
    let fraction = if text[whole_end..].starts_with('.') { digits_from(whole_end + 1) } else { 0 };
    let end = if fraction > 0 { whole_end + 1 + fraction } else { whole_end };
    let read = || {
        let whole = text[start..whole_end].parse().ok()?;
        let hundredths = match fraction {
            0 => 0,
            1 => 10 * text[whole_end + 1..end].parse::<u64>().ok()?,
            2 => text[whole_end + 1..end].parse().ok()?,
            _ => return None,
        };
        let rest = text[end..].strip_prefix(' ').unwrap_or(&text[end..]);
        let (unit, shift) = UNITS.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        let after = &rest[unit.len()..];
        // One vendor's text has no space before `is free`.
        let is_word = after.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric()) && !after.starts_with("is ");
        (!is_word).then_some(())?;
        Some((text.len() - after.len(), Size::new(whole, hundredths, shift)?))
    };
    read().map_or((end, None), |(end, size)| (end, Some(size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_found_with_the_words_between_them() {
        let text = "of 39.59 GiB; 512 bytes, 1.20 GiBis free, 7.93 GB and 4608 B: 3 apples, 1.234 GiB, 1 GiBs, 7 Boxes, 2.5 MiB";
        let found: Vec<&str> = sizes(text).iter().map(|found| &text[found.start..found.end]).collect();
        assert_eq!(found, ["39.59 GiB", "512 bytes", "1.20 GiB", "7.93 GB", "4608 B", "2.5 MiB"]);
        assert_eq!(
            sizes("9.59 GiB, .59 GiB, 99999999999999999999999 GiB").len(),
            0,
            "digits may be missing, or there are too many"
        );
    }
}
