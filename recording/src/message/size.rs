//! A size as a message has it: known to two decimals of its unit.

use std::fmt;

/// Bytes, rounded as the message rounds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// The nearest whole number of bytes.
    pub bytes: u64,
    /// How far the true number may be from it.
    pub within: u64,
}

impl Size {
    /// `whole.fraction` units of two to `shift`; `fraction` are hundredths. `None` if that is more than 64 bits hold.
    pub(super) fn new(whole: u64, hundredths: u64, shift: u32) -> Option<Size> {
        let hundredths = u128::from(whole) * 100 + u128::from(hundredths);
        // Each factor is below 2^71 and 2^30.
        let bytes = ((hundredths << shift) + 50) / 100;
        // A message prints 2^64 - 1 as 2^34 GiB: it is rounded like everything else.
        let bytes = if bytes == 1 << 64 { u64::MAX } else { u64::try_from(bytes).ok()? };
        // What a message prints went through a number of 53 bits before it was rounded.
        let within = if shift == 0 { 0 } else { (1_u64 << shift).div_ceil(200) + 1 + (bytes >> 53) };
        Some(Size { bytes, within })
    }

    /// The sum, which is as uncertain as both together.
    pub fn plus(self, other: Size) -> Size {
        Size { bytes: self.bytes.saturating_add(other.bytes), within: self.within.saturating_add(other.within) }
    }

    /// What is left of it without `other`.
    pub fn minus(self, other: Size) -> Size {
        Size { bytes: self.bytes.saturating_sub(other.bytes), within: self.within.saturating_add(other.within) }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&parkade::texts::format_bytes(self.bytes))
    }
}
