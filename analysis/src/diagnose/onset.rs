//! When it began: since when the stranded bytes have stayed above half of what they are now.

/// When the stranded bytes last rose past half of what they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Onset {
    /// The entry since which reserved minus allocated bytes have been at least `level_bytes`. `None`: since before the first entry.
    pub entry: Option<usize>,
    /// Half of what is stranded at the moment that is looked at.
    pub level_bytes: u64,
    /// The entry's time, in microseconds since 1970, if the file states it.
    pub time_us: Option<u64>,
}

/// The lows of a timeline: only those values below which it never fell again. They are enough to find the last moment below any level.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Lows {
    /// Moments and values, both increasing.
    lows: Vec<(usize, u64)>,
    /// For each of them the next moment.
    left: Vec<Option<usize>>,
}

impl Lows {
    /// Adds the value of the next moment.
    pub(super) fn push(&mut self, moment: usize, value: u64) {
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

    /// The first moment since which every value has been at least `level`. `None` if the last value is below it, or if none ever was.
    pub(super) fn since(&self, level: u64) -> Option<usize> {
        let below = self.lows.partition_point(|&(_, low)| low < level);
        self.left.get(below.checked_sub(1)?).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_rise_past_the_level_counts() {
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
        fn the_lows_answer_as_the_whole_timeline_would(values in proptest::collection::vec(0..20_u64, 0..40), level in 0..22_u64) {
            let mut lows = Lows::default();
            for (moment, &value) in values.iter().enumerate() {
                lows.push(moment, value);
            }
            let since = values.iter().rposition(|&value| value < level).map(|last| last + 1).filter(|&at| at < values.len());
            prop_assert_eq!(lows.since(level), since);
        }
    }
}
