//! The families of active blocks, kept as what they have beyond those of allocated ones.
//!
//! A block is active while it is allocated, and then while it waits for events. Few blocks wait, so the two kinds of
//! families nearly always change together, and then nothing changes here.
//!
//! A peak of active blocks is that of allocated ones, or a higher value that was reached while blocks waited: so
//! while some wait, every increase is noted.

use super::counters::Counters;
use super::{Stat, StatSet};
use crate::units::PoolClass;

/// What a family of active blocks has beyond that of allocated ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beyond {
    /// The differences; except the peaks, which are the family's own, as far as they were noted.
    levels: StatSet,
    /// Whether increases must be noted: some value differs.
    is_apart: bool,
    /// Whether a value or a peak is below that of allocated blocks. No run leads there, but a file may say so.
    is_odd: bool,
}

impl Beyond {
    /// The family with these values, beside that of allocated blocks.
    pub(super) fn of(active: &StatSet, allocated: &StatSet) -> Beyond {
        let levels = merge(active, allocated, |active, allocated| Stat {
            current: active.current.wrapping_sub(allocated.current),
            peak: active.peak,
            allocated: active.allocated.wrapping_sub(allocated.allocated),
            freed: active.freed.wrapping_sub(allocated.freed),
        });
        let is_odd = |((_, own), (_, allocated)): ((_, &Stat), (_, &Stat))| own.current < 0 || own.peak < allocated.peak;
        let is_odd = levels.levels().into_iter().zip(allocated.levels()).any(is_odd);
        Beyond { levels, is_apart: is_odd || levels.levels().iter().any(|(_, own)| own.current != 0), is_odd }
    }

    /// The family's values.
    pub(super) fn set(&self, allocated: &StatSet) -> StatSet {
        merge(&self.levels, allocated, |own, allocated| Stat {
            current: own.current.wrapping_add(allocated.current),
            peak: if self.is_odd { own.peak } else { own.peak.max(allocated.peak) },
            allocated: own.allocated.wrapping_add(allocated.allocated),
            freed: own.freed.wrapping_add(allocated.freed),
        })
    }

    /// Whether every increase of the allocated values must be noted.
    #[inline]
    pub(super) fn is_apart(&self) -> bool {
        self.is_apart
    }

    /// Notes an increase of the allocated values.
    pub(super) fn note_increase(&mut self, class: PoolClass, allocated: &Counters) {
        let StatSet { all, small, large } = allocated.set();
        let raise = |own: &mut Stat, allocated: Stat| own.peak = own.peak.max(own.current.wrapping_add(allocated.current));
        raise(&mut self.levels.all, all);
        match class {
            PoolClass::Small => raise(&mut self.levels.small, small),
            PoolClass::Large => raise(&mut self.levels.large, large),
        }
    }

    /// Notes that `amount` is no longer allocated, but waits.
    pub(super) fn wait(&mut self, class: PoolClass, amount: i64) {
        self.levels.each_of(class, |stat| {
            stat.current = stat.current.wrapping_add(amount);
            stat.freed = stat.freed.wrapping_sub(amount);
        });
        self.is_apart = true;
    }

    /// Notes that `amount` waits no longer.
    pub(super) fn settle(&mut self, class: PoolClass, amount: i64, allocated: &Counters) {
        self.levels.each_of(class, |stat| stat.decrease(amount));
        let StatSet { all, small, large } = &self.levels;
        let differences = all.current | small.current | large.current;
        if differences < 0 && !self.is_odd {
            // More settles than has waited: look at all values again.
            self.change(&mut allocated.clone(), |_, _| {});
        }
        self.is_apart = self.is_odd || differences != 0;
    }

    /// Changes the family's values, or the allocated ones alone.
    pub(super) fn change(&mut self, allocated: &mut Counters, change: impl FnOnce(&mut StatSet, &mut Counters)) {
        let mut own = self.set(&allocated.set());
        change(&mut own, allocated);
        *self = Beyond::of(&own, &allocated.set());
    }

    pub(super) fn reset_sums(&mut self) {
        self.levels.all_mut().into_iter().for_each(Stat::reset_accumulated);
    }
}

/// Each level of two sets merged.
fn merge(one: &StatSet, other: &StatSet, merge: impl Fn(Stat, Stat) -> Stat) -> StatSet {
    StatSet { all: merge(one.all, other.all), small: merge(one.small, other.small), large: merge(one.large, other.large) }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use crate::stats::{Family, Stat, StatSet, Stats};
    use crate::units::PoolClass;

    /// The two families of allocated blocks and the two of active ones, each value kept as it is.
    const FAMILIES: [Family; 4] = [Family::Allocation, Family::AllocatedBytes, Family::Active, Family::ActiveBytes];

    fn change(sets: &mut [StatSet], class: PoolClass, amounts: [i64; 2], change: fn(&mut Stat, i64)) {
        for (set, amount) in sets.iter_mut().zip(amounts) {
            set.each_of(class, |stat| change(stat, amount));
        }
    }

    /// Statistics from a file, with these values in the four families.
    fn from_file(values: &[i64]) -> Stats {
        let keys: Vec<_> = Stats::default().entries().into_iter().map(|(key, _)| key).collect();
        let is_of = |key: &&String| FAMILIES.iter().any(|family| key.split('.').next() == Some(family.name()));
        let keys = keys.iter().filter(is_of).map(String::as_str);
        Stats::from_entries(keys.zip(values.iter().copied())).expect("its own keys")
    }

    proptest! {
        #[test]
        fn active_blocks_as_if_kept_themselves(
            values in prop_oneof![Just(Vec::new()), prop::collection::vec(-9..9_i64, 48)],
            steps in prop::collection::vec((0..9_u8, any::<bool>(), 1..9_i64), 0..40),
        ) {
            let mut stats = from_file(&values);
            let mut plain = FAMILIES.map(|family| stats.family(family));
            prop_assert_eq!(&Stats::from_entries(stats.entries().iter().map(|(key, value)| (key.as_str(), *value))), &Ok(stats.clone()));
            // Sizes of blocks that are allocated and that wait.
            let (mut allocated, mut waiting) = (Vec::new(), Vec::new());
            for (what, is_small, size) in steps {
                let class = if is_small { PoolClass::Small } else { PoolClass::Large };
                match what {
                    0 => {
                        stats.reset_peaks();
                        plain.iter_mut().flat_map(StatSet::all_mut).for_each(Stat::reset_peak);
                    }
                    1 => {
                        stats.reset_accumulated();
                        plain.iter_mut().flat_map(StatSet::all_mut).for_each(Stat::reset_accumulated);
                    }
                    2 => {
                        let place = size as usize % 4;
                        stats.increase(FAMILIES[place], class, size);
                        change(&mut plain[place..=place], class, [size; 2], Stat::increase);
                    }
                    3 => {
                        let place = size as usize % 4;
                        stats.decrease(FAMILIES[place], class, size);
                        change(&mut plain[place..=place], class, [size; 2], Stat::decrease);
                    }
                    4 => {
                        if let Some((class, size)) = allocated.pop() {
                            stats.count_freed(class, size, size);
                            change(&mut plain[..2], class, [1, size], Stat::decrease);
                            change(&mut plain[2..], class, [1, size], Stat::decrease);
                        }
                    }
                    5 => {
                        if let Some((class, size)) = allocated.pop() {
                            stats.count_waiting(class, size);
                            change(&mut plain[..2], class, [1, size], Stat::decrease);
                            waiting.push((class, size));
                        }
                    }
                    6 => {
                        if let Some((class, size)) = waiting.pop() {
                            stats.count_settled(class, size, size);
                            change(&mut plain[2..], class, [1, size], Stat::decrease);
                        }
                    }
                    _ => {
                        stats.count_handed_out(class, size, size);
                        change(&mut plain[..2], class, [1, size], Stat::increase);
                        change(&mut plain[2..], class, [1, size], Stat::increase);
                        allocated.push((class, size));
                    }
                }
                prop_assert_eq!(FAMILIES.map(|family| stats.family(family)), plain);
            }
        }
    }
}
