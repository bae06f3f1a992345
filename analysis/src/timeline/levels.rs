//! Levels of memory over a run: at every moment, and aggregated into buckets for drawing.

use super::log::HeapLog;

/// Bytes at every moment. Each list has one more number than there are entries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Levels {
    /// Bytes of live blocks.
    pub allocated: Vec<u64>,
    /// Those, and bytes of freed blocks that other streams still use.
    pub active: Vec<u64>,
    /// Reserved bytes.
    pub reserved: Vec<u64>,
}

/// A level during a range of moments, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bucket {
    /// Its minimum.
    pub min: u64,
    /// Its maximum.
    pub max: u64,
    /// Its value at the last of these moments.
    pub last: u64,
}

/// An aggregated level: bucket `i` of `k` covers the moments from `i * n / k` up to, but not including, `(i + 1) * n / k`, of `n` in all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Curve {
    /// The buckets in order.
    pub buckets: Vec<Bucket>,
    /// How many moments there are.
    pub moments: usize,
}

impl HeapLog {
    /// The levels at every moment of a run of so many entries.
    pub(super) fn levels(&self, entries: usize) -> Levels {
        let blocks = || self.blocks.iter();
        Levels {
            allocated: sum_of(blocks().map(|block| (block.born, block.freed, block.size)), entries),
            active: sum_of(blocks().map(|block| (block.born, block.gone, block.size)), entries),
            reserved: sum_of(self.segments.iter().map(|segment| (segment.born, segment.gone, segment.size)), entries),
        }
    }
}

/// For each moment the sum of the sizes of what exists then. A life includes its first moment and excludes the one at its end.
fn sum_of(lives: impl Iterator<Item = (u32, u32, u64)>, entries: usize) -> Vec<u64> {
    let mut changes = vec![0_u64; entries + 1];
    for (born, gone, size) in lives {
        if let Some(change) = changes.get_mut(born as usize) {
            *change = change.wrapping_add(size);
        }
        if let Some(change) = changes.get_mut(gone as usize) {
            *change = change.wrapping_sub(size);
        }
    }
    let mut level = 0_u64;
    for change in &mut changes {
        level = level.wrapping_add(*change);
        *change = level;
    }
    changes
}

impl Curve {
    /// Aggregates a level, given at every moment, into at most so many buckets.
    #[must_use]
    pub fn of(level: &[u64], most_buckets: usize) -> Curve {
        let moments = level.len();
        let count = most_buckets.min(moments);
        let bucket = |i: usize| {
            let part = &level[i * moments / count..(i + 1) * moments / count];
            let (mut min, mut max) = (u64::MAX, 0);
            for &bytes in part {
                (min, max) = (min.min(bytes), max.max(bytes));
            }
            Bucket { min, max, last: part.last().copied().unwrap_or_default() }
        };
        Curve { buckets: (0..count).map(bucket).collect(), moments }
    }

    /// The highest value at any moment, in bytes.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.max).max().unwrap_or(0)
    }
}

impl Levels {
    /// The first moment at which a level is at its highest.
    #[must_use]
    pub fn peak_moment(level: &[u64]) -> usize {
        let peak = level.iter().max();
        level.iter().position(|bytes| Some(bytes) == peak).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_extreme_is_lost() {
        let level: Vec<u64> = (0..1000).map(|i| if i == 777 { 5000 } else { i }).collect();
        for count in [1, 7, 64, 1000, 4096] {
            let curve = Curve::of(&level, count);
            assert_eq!(curve.buckets.len(), count.min(1000));
            assert_eq!((curve.peak(), curve.moments), (5000, 1000));
            assert_eq!(curve.buckets.iter().map(|bucket| bucket.min).min(), Some(0));
            assert_eq!(curve.buckets.last().map(|bucket| bucket.last), Some(999));
        }
        assert_eq!(Curve::of(&level, 10).buckets[7], Bucket { min: 700, max: 5000, last: 799 });
        assert_eq!((Levels::peak_moment(&level), Curve::of(&[], 5).peak()), (777, 0));
    }
}
