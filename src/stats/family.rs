//! A statistic with its history, the families of statistics, with PyTorch's names (spec 6.1, 6.2), and a family's counters.
//!
//! Every allocation and every free changes several counters, so they are stored in a form in which counting is cheap, and
//! not as the values that callers read. A counter stores the difference between the peak and the current
//! value: one subtraction updates it, and the peak only has to be raised in the rare case of a negative difference.
//! The sum of decreases is the sum of increases minus the current value, and the values for all memory are the sums
//! over the pools. [`StatSet`] contains the values computed from these.
//!
//! Sums wrap around beyond 63 bits, as PyTorch's do. A value and its peak are less than 2^63 apart, because that many bytes
//! are never in use at once.
//!
//! For the families of active blocks, the module only stores their excess over the families of allocated blocks
//! ([`Beyond`]). A block is active while it is allocated, and also while it waits for events after that. Few blocks
//! wait, so the two kinds of families nearly always change together, without a change in the excess. The peak of
//! active blocks either equals that of allocated blocks or is a higher value that was reached while blocks waited.
//! While some blocks wait, every increase is therefore recorded.

use crate::units::PoolClass;

/// A counter with its history (spec 6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// The current value. It is signed, as in PyTorch, because changing settings during a run can make some values
    /// negative.
    pub current: i64,
    /// The largest value since the last reset of the peaks.
    pub peak: i64,
    /// The sum of all increases since the last reset of the accumulated values.
    pub allocated: i64,
    /// The sum of all decreases since the last reset of the accumulated values.
    pub freed: i64,
}

impl Stat {
    /// Adds `amount` and raises the peak. Wraps around beyond 63 bits, as PyTorch's counter does.
    #[inline]
    pub fn increase(&mut self, amount: i64) {
        self.current = self.current.wrapping_add(amount);
        self.allocated = self.allocated.wrapping_add(amount);
        self.peak = self.peak.max(self.current);
    }

    /// Subtracts `amount`.
    #[inline]
    pub fn decrease(&mut self, amount: i64) {
        self.current = self.current.wrapping_sub(amount);
        self.freed = self.freed.wrapping_add(amount);
    }

    /// The four values in PyTorch's order: current, peak, allocated, freed.
    #[must_use]
    pub const fn values(&self) -> [i64; 4] {
        [self.current, self.peak, self.allocated, self.freed]
    }

    /// Sets the peak to the current value.
    pub fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    /// Sets the two sums to zero.
    pub fn reset_accumulated(&mut self) {
        self.allocated = 0;
        self.freed = 0;
    }

    /// The value with PyTorch's name `name`.
    pub(super) fn value_mut(&mut self, name: &str) -> Option<&mut i64> {
        match name {
            "current" => Some(&mut self.current),
            "peak" => Some(&mut self.peak),
            "allocated" => Some(&mut self.allocated),
            "freed" => Some(&mut self.freed),
            _ => None,
        }
    }
}

/// One family: the statistics for all memory, the small pool and the large pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatSet {
    /// Both pools together.
    pub all: Stat,
    /// The small pool.
    pub small: Stat,
    /// The large pool.
    pub large: Stat,
}

impl StatSet {
    /// The three statistics with PyTorch's names, in PyTorch's order.
    #[must_use]
    pub const fn levels(&self) -> [(&'static str, &Stat); 3] {
        [("all", &self.all), ("small_pool", &self.small), ("large_pool", &self.large)]
    }

    /// Changes the statistic for all memory and the statistic for a pool.
    pub(super) fn each_of(&mut self, class: PoolClass, change: impl Fn(&mut Stat)) {
        change(&mut self.all);
        change(match class {
            PoolClass::Small => &mut self.small,
            PoolClass::Large => &mut self.large,
        });
    }

    /// The three statistics, mutable.
    pub(super) fn all_mut(&mut self) -> [&mut Stat; 3] {
        [&mut self.all, &mut self.small, &mut self.large]
    }

    /// The statistic with PyTorch's name `name`.
    pub(super) fn level_mut(&mut self, name: &str) -> Option<&mut Stat> {
        match name {
            "all" => Some(&mut self.all),
            "small_pool" => Some(&mut self.small),
            "large_pool" => Some(&mut self.large),
            _ => None,
        }
    }
}

/// The nine families that are kept per pool, in PyTorch's order (spec 6.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Family {
    /// Allocations handed out.
    Allocation,
    /// Segments taken from the device with cudaMalloc.
    Segment,
    /// Active blocks: allocated or pending.
    Active,
    /// Free blocks that are only a part of their segment and therefore cannot be released.
    InactiveSplit,
    /// Bytes of allocated blocks.
    AllocatedBytes,
    /// Bytes taken from the device.
    ReservedBytes,
    /// Bytes of active blocks.
    ActiveBytes,
    /// Bytes of these free blocks.
    InactiveSplitBytes,
    /// The requested bytes of active blocks.
    RequestedBytes,
}

impl Family {
    /// All families, in PyTorch's order.
    pub const ALL: [Family; 9] = [
        Family::Allocation,
        Family::Segment,
        Family::Active,
        Family::InactiveSplit,
        Family::AllocatedBytes,
        Family::ReservedBytes,
        Family::ActiveBytes,
        Family::InactiveSplitBytes,
        Family::RequestedBytes,
    ];

    /// PyTorch's name for the family.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Family::Allocation => "allocation",
            Family::Segment => "segment",
            Family::Active => "active",
            Family::InactiveSplit => "inactive_split",
            Family::AllocatedBytes => "allocated_bytes",
            Family::ReservedBytes => "reserved_bytes",
            Family::ActiveBytes => "active_bytes",
            Family::InactiveSplitBytes => "inactive_split_bytes",
            Family::RequestedBytes => "requested_bytes",
        }
    }
}

/// One pool's values of a family.
// The order matters. If `headroom` and `allocated` were adjacent, they would be read and written together. A request
// right after a free, which writes only `headroom`, would then stall until that write reached the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
struct Counter {
    /// The peak minus the current value.
    headroom: i64,
    /// The largest value since the last reset of the peaks, unless `headroom` is negative.
    peak: i64,
    /// The sum of increases since the last reset.
    allocated: i64,
    /// The current value at the last reset of the sums.
    base: i64,
}

impl Counter {
    fn of(stat: Stat) -> Counter {
        let Stat { current, peak, allocated, freed } = stat;
        let base = current.wrapping_sub(allocated).wrapping_add(freed);
        Counter { headroom: peak.wrapping_sub(current), allocated, peak, base }
    }

    #[inline]
    fn current(&self) -> i64 {
        self.peak.wrapping_sub(self.headroom)
    }

    #[inline]
    fn stat(&self) -> Stat {
        let current = self.current();
        let freed = self.base.wrapping_add(self.allocated).wrapping_sub(current);
        Stat { current, peak: self.peak, allocated: self.allocated, freed }
    }

    /// Raises the peak to a value that exceeds it.
    fn raise_peak(&mut self) {
        if self.headroom < 0 {
            self.reset_peak();
        }
    }

    fn reset_peak(&mut self) {
        *self = Counter { headroom: 0, peak: self.current(), ..*self };
    }

    fn reset_sums(&mut self) {
        *self = Counter { allocated: 0, base: self.current(), ..*self };
    }
}

/// A family's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counters {
    /// The values of the small pool and the large pool.
    classes: [Counter; 2],
    /// The peak for all memory minus the current value.
    headroom: i64,
    /// The values for all memory minus the sums over the pools. Zero unless the statistics were read from a file. Its
    /// peak is not used.
    skew: Stat,
}

impl Counters {
    /// Builds the counters from these values.
    pub(super) fn of(set: &StatSet) -> Counters {
        let StatSet { all, small, large } = set;
        let skew = |of: fn(&Stat) -> i64| of(all).wrapping_sub(of(small)).wrapping_sub(of(large));
        Counters {
            classes: [Counter::of(*small), Counter::of(*large)],
            headroom: all.peak.wrapping_sub(all.current),
            skew: Stat {
                current: skew(|stat| stat.current),
                peak: 0,
                allocated: skew(|stat| stat.allocated),
                freed: skew(|stat| stat.freed),
            },
        }
    }

    /// The values that callers read.
    pub(super) fn set(&self) -> StatSet {
        let [small, large] = [self.classes[0].stat(), self.classes[1].stat()];
        let sum = |of: fn(&Stat) -> i64| of(&small).wrapping_add(of(&large)).wrapping_add(of(&self.skew));
        let current = sum(|stat| stat.current);
        let all = Stat {
            current,
            peak: current.wrapping_add(self.headroom),
            allocated: sum(|stat| stat.allocated),
            freed: sum(|stat| stat.freed),
        };
        StatSet { all, small, large }
    }

    /// Adds `amount`. If the result is negative, a peak may have to be raised, so [`Counters::raise_peaks`] must be
    /// called before the next change.
    #[inline(always)]
    pub(super) fn add(&mut self, class: PoolClass, amount: i64) -> i64 {
        let own = &mut self.classes[class as usize];
        own.allocated = own.allocated.wrapping_add(amount);
        own.headroom = own.headroom.wrapping_sub(amount);
        self.headroom = self.headroom.wrapping_sub(amount);
        own.headroom | self.headroom
    }

    /// Adds `amount` and raises the peaks.
    #[inline]
    pub(super) fn increase(&mut self, class: PoolClass, amount: i64) {
        if self.add(class, amount) < 0 {
            self.raise_peaks(class);
        }
    }

    /// Subtracts `amount`.
    #[inline(always)]
    pub(super) fn subtract(&mut self, class: PoolClass, amount: i64) {
        let own = &mut self.classes[class as usize];
        own.headroom = own.headroom.wrapping_add(amount);
        self.headroom = self.headroom.wrapping_add(amount);
    }

    /// Adds a positive amount, or subtracts the absolute value of a negative one. For a positive amount, the result
    /// has the same meaning as that of [`Counters::add`].
    #[inline(always)]
    pub(super) fn change(&mut self, class: PoolClass, amount: i64) -> i64 {
        let own = &mut self.classes[class as usize];
        own.allocated = own.allocated.wrapping_add(amount.max(0));
        own.headroom = own.headroom.wrapping_sub(amount);
        self.headroom = self.headroom.wrapping_sub(amount);
        own.headroom | self.headroom
    }

    /// Raises the peaks to the values that exceed them.
    #[cold]
    #[inline(never)]
    pub(super) fn raise_peaks(&mut self, class: PoolClass) {
        self.classes[class as usize].raise_peak();
        self.headroom = self.headroom.max(0);
    }

    pub(super) fn reset_peaks(&mut self) {
        self.classes.iter_mut().for_each(Counter::reset_peak);
        self.headroom = 0;
    }

    pub(super) fn reset_sums(&mut self) {
        self.classes.iter_mut().for_each(Counter::reset_sums);
        (self.skew.allocated, self.skew.freed) = (0, 0);
    }
}

/// The excess of a family of active blocks over that of allocated blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beyond {
    /// The differences. The peaks are not differences but the family's own, as far as they were recorded.
    levels: StatSet,
    /// Whether increases must be recorded, because some value differs.
    is_apart: bool,
    /// Whether a value or a peak is below that of allocated blocks. This never happens in a run, but a file may
    /// contain it.
    is_odd: bool,
}

impl Beyond {
    /// Builds the excess of a family with these values over that of allocated blocks.
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

    /// Whether every increase of the allocated values must be recorded.
    #[inline]
    pub(super) fn is_apart(&self) -> bool {
        self.is_apart
    }

    /// Records an increase of the allocated values.
    pub(super) fn note_increase(&mut self, class: PoolClass, allocated: &Counters) {
        let StatSet { all, small, large } = allocated.set();
        let raise = |own: &mut Stat, allocated: Stat| own.peak = own.peak.max(own.current.wrapping_add(allocated.current));
        raise(&mut self.levels.all, all);
        match class {
            PoolClass::Small => raise(&mut self.levels.small, small),
            PoolClass::Large => raise(&mut self.levels.large, large),
        }
    }

    /// Records that `amount` is no longer allocated but waiting.
    pub(super) fn wait(&mut self, class: PoolClass, amount: i64) {
        self.levels.each_of(class, |stat| {
            stat.current = stat.current.wrapping_add(amount);
            stat.freed = stat.freed.wrapping_sub(amount);
        });
        self.is_apart = true;
    }

    /// Records that `amount` is no longer waiting.
    pub(super) fn stop_waiting(&mut self, class: PoolClass, amount: i64, allocated: &Counters) {
        self.levels.each_of(class, |stat| stat.decrease(amount));
        let StatSet { all, small, large } = &self.levels;
        let differences = all.current | small.current | large.current;
        if differences < 0 && !self.is_odd {
            // More has stopped waiting than was waiting, so recompute all values.
            self.change(&mut allocated.clone(), |_, _| {});
        }
        self.is_apart = self.is_odd || differences != 0;
    }

    /// Changes the family's values, or only the allocated ones.
    pub(super) fn change(&mut self, allocated: &mut Counters, change: impl FnOnce(&mut StatSet, &mut Counters)) {
        let mut own = self.set(&allocated.set());
        change(&mut own, allocated);
        *self = Beyond::of(&own, &allocated.set());
    }

    pub(super) fn reset_sums(&mut self) {
        self.levels.all_mut().into_iter().for_each(Stat::reset_accumulated);
    }
}

/// Merges each level of two sets.
fn merge(one: &StatSet, other: &StatSet, merge: impl Fn(Stat, Stat) -> Stat) -> StatSet {
    StatSet { all: merge(one.all, other.all), small: merge(one.small, other.small), large: merge(one.large, other.large) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The reference for what the counters must report, with each value stored separately.
    fn change(set: &mut StatSet, class: PoolClass, amount: i64, grows: bool) {
        for stat in [&mut set.all, if class == PoolClass::Small { &mut set.small } else { &mut set.large }] {
            if grows { stat.increase(amount) } else { stat.decrease(amount) }
        }
    }

    fn stat() -> impl Strategy<Value = Stat> {
        let value = || prop_oneof![-9..9_i64, -(1 << 61)..1_i64 << 61];
        let sum = || prop_oneof![0..9_i64, any::<i64>()];
        (value(), value(), sum(), sum()).prop_map(|(current, peak, allocated, freed)| Stat { current, peak, allocated, freed })
    }

    proptest! {
        /// For any initial values, even those that no run reaches, and with sums beyond 63 bits, the counters report
        /// each value as if it were stored separately.
        #[test]
        fn counters_say_what_plain_values_say(
            (all, small, large) in (stat(), stat(), stat()),
            steps in prop::collection::vec((0..7_u8, any::<bool>(), prop_oneof![0..9_i64, 0..1_i64 << 55]), 0..40),
        ) {
            let mut plain = StatSet { all, small, large };
            let mut counters = Counters::of(&plain);
            prop_assert_eq!(counters.set(), plain);
            for (what, is_small, amount) in steps {
                let class = if is_small { PoolClass::Small } else { PoolClass::Large };
                match what {
                    0 => {
                        counters.reset_peaks();
                        [&mut plain.all, &mut plain.small, &mut plain.large].into_iter().for_each(Stat::reset_peak);
                    }
                    1 => {
                        counters.reset_sums();
                        [&mut plain.all, &mut plain.small, &mut plain.large].into_iter().for_each(Stat::reset_accumulated);
                    }
                    2 | 3 => {
                        counters.subtract(class, amount);
                        change(&mut plain, class, amount, false);
                    }
                    4 => {
                        if counters.add(class, amount) < 0 {
                            counters.raise_peaks(class);
                        }
                        change(&mut plain, class, amount, true);
                    }
                    5 => {
                        if counters.change(class, amount) < 0 && amount > 0 {
                            counters.raise_peaks(class);
                        }
                        change(&mut plain, class, amount, amount > 0);
                    }
                    _ => {
                        counters.change(class, -amount);
                        change(&mut plain, class, amount, false);
                    }
                }
                prop_assert_eq!(counters.set(), plain);
            }
        }
    }
}
