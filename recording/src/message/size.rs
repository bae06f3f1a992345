//! A size as a message prints it: with two decimals.

use std::fmt;

/// A number of bytes, known as precisely as the message prints it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Size {
    /// The nearest whole number of bytes.
    pub bytes: u64,
    /// How far the true number may be from that, in bytes.
    pub within: u64,
}

impl Size {
    /// `whole` and `hundredths` of a unit of 2^`shift` bytes. `None` if that does not fit in 64 bits.
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
    /// In the unit of the message: a smaller one would show digits that the message does not have.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_in_gibibytes = self.within >= (1 << 30) / 200;
        if is_in_gibibytes && self.bytes <= 1 << 30 {
            return write!(f, "{:.2} GiB", self.bytes as f64 / f64::from(1 << 30));
        }
        f.write_str(&parkade::texts::format_bytes(self.bytes))
    }
}
