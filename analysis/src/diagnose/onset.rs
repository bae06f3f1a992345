//! When it began: since when the stranded bytes have stayed above a part of what they are now.

/// The lows of a timeline: of every value only those below which it never fell again. So the last moment below any level is found
/// without keeping the whole timeline.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lows {
    /// Moments and values; both rise.
    lows: Vec<(usize, u64)>,
    /// Where each of those values was left: the first moment after it.
    left: Vec<Option<usize>>,
}

impl Lows {
    /// Adds the value of the next moment.
    pub fn push(&mut self, moment: usize, value: u64) {
        if let Some(left @ None) = self.left.last_mut() {
            *left = Some(moment);
        }
        while self.lows.last().is_some_and(|&(_, low)| low >= value) {
            self.lows.pop();
            self.left.pop();
        }
        self.lows.push((moment, value));
        self.left.push(None);
    }

    /// The first moment since which every value has been at least `level`; `None` if the last value is below it, or if it was
    /// never below: then nothing began.
    #[must_use]
    pub fn since(&self, level: u64) -> Option<usize> {
        let below = self.lows.partition_point(|&(_, low)| low < level);
        self.left.get(below.checked_sub(1)?).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_crossing_counts() {
        let mut lows = Lows::default();
        for (moment, value) in [(0, 0), (3, 70), (4, 20), (6, 50), (9, 100)] {
            lows.push(moment, value);
        }
        assert_eq!(
            [1, 20, 21, 50, 51, 100, 101].map(|level| lows.since(level)),
            [Some(3), Some(3), Some(6), Some(6), Some(9), Some(9), None]
        );
        assert_eq!(Lows::default().since(1), None);
    }

    proptest! {
        #[test]
        fn it_is_what_the_whole_timeline_says(values in proptest::collection::vec(0..20_u64, 0..40), level in 0..22_u64) {
            let mut lows = Lows::default();
            for (moment, &value) in values.iter().enumerate() {
                lows.push(moment, value);
            }
            let since = values.iter().rposition(|&value| value < level).map(|last| last + 1).filter(|&at| at < values.len());
            prop_assert_eq!(lows.since(level), since);
        }
    }
}
