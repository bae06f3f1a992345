//! A bound on the peak of reserved memory, to fail a check in CI.

/// The whole in millionths of a percent. Whole numbers keep a check exact.
const MICRO_PERCENT: u128 = 100_000_000;

/// What the peak of reserved memory must not exceed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// It may grow from the first run to the second by so many millionths of a percent.
    Growth {
        /// Millionths of a percent: 2 % are 2,000,000.
        micro_percent: u64,
    },
    /// It may be so many bytes.
    Peak {
        /// The bytes.
        bytes: u64,
    },
}

/// A bound, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    /// The bound.
    pub bound: Bound,
    /// The most bytes that it allows here.
    pub allowed_bytes: u64,
    /// The peak of reserved memory.
    pub peak_bytes: u64,
}

impl Bound {
    /// Checks the peak of a run; `before_bytes` is that of the run before it. `None` if growth is bounded and nothing was before.
    #[must_use]
    pub fn check(self, before_bytes: Option<u64>, peak_bytes: u64) -> Option<Check> {
        let allowed_bytes = match self {
            Bound::Peak { bytes } => bytes,
            Bound::Growth { micro_percent } => {
                let before_bytes = u128::from(before_bytes?);
                let more = before_bytes.saturating_mul(u128::from(micro_percent)) / MICRO_PERCENT;
                u64::try_from(before_bytes.saturating_add(more)).unwrap_or(u64::MAX)
            }
        };
        Some(Check { bound: self, allowed_bytes, peak_bytes })
    }
}

impl Check {
    /// Whether the peak is above the bound.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.peak_bytes > self.allowed_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_exact() {
        let two = Bound::Growth { micro_percent: 2_000_000 };
        let exceeded = |bound: Bound, before, peak| bound.check(before, peak).map(|check| check.is_exceeded());
        assert_eq!(exceeded(two, Some(100), 102), Some(false));
        assert_eq!(exceeded(two, Some(100), 103), Some(true));
        assert_eq!(exceeded(two, Some(0), 1), Some(true));
        assert_eq!(exceeded(two, Some(1 << 50), (1 << 50) / 100 * 90), Some(false));
        assert_eq!(exceeded(two, Some(u64::MAX), u64::MAX), Some(false));
        assert_eq!(exceeded(two, None, 5), None);
        let size = Bound::Peak { bytes: 14 << 30 };
        assert_eq!(exceeded(size, None, 14 << 30), Some(false));
        assert_eq!(exceeded(size, Some(1), (14 << 30) + 1), Some(true));
    }
}
