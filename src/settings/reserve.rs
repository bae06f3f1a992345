//! The value of `expandable_segments_reserve`: a fraction of the device's memory, or an absolute size.

use super::numbers;
use crate::units::Bytes;

/// How many addresses an expandable segment reserves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ReserveSize {
    /// A fraction of the device's memory.
    Fraction(f64),
    /// A number of GiB.
    Gibibytes(f64),
}

impl ReserveSize {
    /// Reads `0.5` or `40G`; `None` for anything that is not a positive finite number.
    pub(super) fn parse(text: &str) -> Option<ReserveSize> {
        let (number, make): (&str, fn(f64) -> ReserveSize) = match text.strip_suffix('G') {
            Some(number) => (number, ReserveSize::Gibibytes),
            None => (text, ReserveSize::Fraction),
        };
        numbers::double(number).ok().filter(|value| value.is_finite() && *value > 0.0).map(make)
    }

    /// The size on a device of `total` bytes.
    #[must_use]
    pub fn bytes(self, total: Bytes) -> Bytes {
        // Beyond 64 bits the conversion saturates, as PyTorch's does.
        Bytes(match self {
            ReserveSize::Fraction(part) => part * total.0 as f64,
            ReserveSize::Gibibytes(count) => count * (1_u64 << 30) as f64,
        } as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes that PyTorch reserved on a device of 1 GiB, before rounding to pages.
    #[test]
    fn sizes_are_parts_or_gibibytes() {
        let bytes = |text| ReserveSize::parse(text).map(|size| size.bytes(Bytes::mib(1024)).0);
        assert_eq!(bytes("0.5"), Some(1 << 29));
        assert_eq!(bytes("2G"), Some(2 << 30));
        assert_eq!([bytes("x"), bytes("-1"), bytes("0"), bytes("inf"), bytes("")], [None; 5]);
    }
}
