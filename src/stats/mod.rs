//! The allocator's statistics, in PyTorch's families and with PyTorch's names (spec section 6).
//!
//! Every family exists three times: for all memory, for the small pool and for the large pool. [`Stats::entries`] lists all
//! 122 keys of `torch.cuda.memory_stats()`, sorted as PyTorch sorts them.
//!
//! Every request and every free changes several families and their peaks at the same time. The families are known at
//! compile time, and a single comparison decides whether any peak must be raised.

mod family;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::units::{PoolClass, PoolId};
use family::{Beyond, Counters};
pub use family::{Family, Stat, StatSet};

/// All statistics in `torch.cuda.memory_stats()`.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Indexed by [`Family`]; the entries for active blocks are not used.
    families: [Counters; 9],
    /// The excess of the families of active blocks over those of allocated blocks: in blocks and in bytes.
    active: [Beyond; 2],
    /// Whether increases must be recorded for one of these two.
    is_apart: bool,
    /// Allocations of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// Attempts to take memory from the device after the cache had been released.
    pub num_alloc_retries: i64,
    /// Requests that failed for lack of memory.
    pub num_ooms: i64,
    /// Waits for the events of all streams.
    pub num_sync_all_streams: i64,
    /// Segments taken from the device, and mappings.
    pub num_device_alloc: i64,
    /// Segments released to the device, and unmappings.
    pub num_device_free: i64,
    /// Requests rejected before the device was asked; 0 in releases that never reject.
    pub num_oom_rejections: i64,
    /// Requests that PyTorch would have refused, and that a rescue served or for which it met an error of the device
    /// ([`Relief::Rescue`](crate::policy::Relief::Rescue)). PyTorch has no such statistic.
    pub num_rescues: i64,
    /// The bytes in use that were copied because their handle was broken. PyTorch has no such statistic.
    pub copied_bytes: i64,
    /// Bytes taken from the device by each private pool, including pools that no longer exist, in releases that count
    /// them.
    pub reserved_by_pool: BTreeMap<PoolId, StatSet>,
    /// The setting `max_split_size` when the allocator was created; -1 is unlimited. Later settings do not change this
    /// value (spec 6.2).
    pub max_split_size: i64,
}

impl Stats {
    /// The statistics of a family.
    #[must_use]
    pub fn family(&self, family: Family) -> StatSet {
        let set = |family: Family| self.families[family as usize].set();
        match family {
            Family::Active => self.active[0].set(&set(Family::Allocation)),
            Family::ActiveBytes => self.active[1].set(&set(Family::AllocatedBytes)),
            _ => set(family),
        }
    }

    /// The excess of the active blocks over the allocated ones, if the family counts one of these.
    fn beyond(&mut self, family: Family) -> Option<(&mut Beyond, &mut Counters)> {
        let (beyond, allocated) = match family {
            Family::Active | Family::Allocation => (0, Family::Allocation),
            Family::ActiveBytes | Family::AllocatedBytes => (1, Family::AllocatedBytes),
            _ => return None,
        };
        Some((&mut self.active[beyond], &mut self.families[allocated as usize]))
    }

    /// Adds `amount` to the family, for all memory and for `class`.
    #[inline]
    pub(crate) fn increase(&mut self, family: Family, class: PoolClass, amount: i64) {
        if let Some((beyond, allocated)) = self.beyond(family) {
            beyond.change(allocated, |active, allocated| match family {
                Family::Active | Family::ActiveBytes => active.each_of(class, |stat| stat.increase(amount)),
                _ => allocated.increase(class, amount),
            });
            return self.note_apart();
        }
        self.families[family as usize].increase(class, amount);
    }

    /// Subtracts `amount` from the family, for all memory and for `class`.
    #[inline]
    pub(crate) fn decrease(&mut self, family: Family, class: PoolClass, amount: i64) {
        if let Some((beyond, allocated)) = self.beyond(family) {
            beyond.change(allocated, |active, allocated| match family {
                Family::Active | Family::ActiveBytes => active.each_of(class, |stat| stat.decrease(amount)),
                _ => allocated.subtract(class, amount),
            });
            return self.note_apart();
        }
        self.families[family as usize].subtract(class, amount);
    }

    /// Adds a positive amount or subtracts the absolute value of a negative one.
    pub(crate) fn change(&mut self, family: Family, class: PoolClass, amount: i64) {
        if amount > 0 {
            self.increase(family, class, amount);
        } else {
            self.decrease(family, class, amount.wrapping_neg());
        }
    }

    /// Counts the bytes that a private pool took from the device; negative if the pool released them.
    pub(crate) fn change_reserved_by(&mut self, pool: PoolId, class: PoolClass, amount: i64) {
        let set = self.reserved_by_pool.entry(pool).or_default();
        set.each_of(class, |stat| if amount < 0 { stat.decrease(amount.wrapping_neg()) } else { stat.increase(amount) });
    }

    /// Sets every peak to its current value (`reset_peak_memory_stats`).
    pub fn reset_peaks(&mut self) {
        for family in [Family::Allocation, Family::AllocatedBytes] {
            if let Some((beyond, allocated)) = self.beyond(family) {
                beyond.change(allocated, |active, allocated| {
                    active.all_mut().into_iter().for_each(Stat::reset_peak);
                    allocated.reset_peaks();
                });
            }
        }
        self.note_apart();
        self.families.iter_mut().for_each(Counters::reset_peaks);
        self.for_each_stat(Stat::reset_peak);
    }

    /// Sets every sum and the `num_` counters to zero (`reset_accumulated_memory_stats`).
    pub fn reset_accumulated(&mut self) {
        self.families.iter_mut().for_each(Counters::reset_sums);
        self.active.iter_mut().for_each(Beyond::reset_sums);
        self.for_each_stat(Stat::reset_accumulated);
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
        self.num_oom_rejections = 0;
        self.num_rescues = 0;
        self.copied_bytes = 0;
    }

    /// Calls `act` for each statistic that is stored directly.
    fn for_each_stat(&mut self, act: impl Fn(&mut Stat)) {
        self.reserved_by_pool.values_mut().flat_map(StatSet::all_mut).for_each(&act);
        act(&mut self.oversize_allocations);
        act(&mut self.oversize_segments);
    }

    /// The scalar counters with PyTorch's names, in PyTorch's order.
    #[must_use]
    pub const fn scalars(&self) -> [(&'static str, i64); 6] {
        [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("max_split_size", self.max_split_size),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
        ]
    }

    /// The two statistics that have no pools, with PyTorch's names.
    #[must_use]
    pub const fn oversize(&self) -> [(&'static str, &Stat); 2] {
        [("oversize_allocations", &self.oversize_allocations), ("oversize_segments", &self.oversize_segments)]
    }
}

impl Stats {
    /// Counts a block of `size` bytes that is handed out for a request.
    #[inline(always)]
    pub(crate) fn count_handed_out(&mut self, class: PoolClass, size: i64, requested: i64) {
        let mut add = |family, amount| self.families[family as usize].add(class, amount);
        let sign = add(Family::Allocation, 1) | add(Family::AllocatedBytes, size) | add(Family::RequestedBytes, requested);
        if sign < 0 {
            self.raise_peaks_of_blocks(class);
        }
        if self.is_apart {
            self.note_increase(class);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_increase(&mut self, class: PoolClass) {
        self.active[0].note_increase(class, &self.families[Family::Allocation as usize]);
        self.active[1].note_increase(class, &self.families[Family::AllocatedBytes as usize]);
    }

    /// Must be called after the excess of active blocks over allocated blocks has changed.
    fn note_apart(&mut self) {
        self.is_apart = self.active.iter().any(Beyond::is_apart);
    }

    /// Counts a block of `size` bytes that is freed and becomes free immediately.
    #[inline(always)]
    pub(crate) fn count_freed(&mut self, class: PoolClass, size: i64, requested: i64) {
        let mut subtract = |family, amount| self.families[family as usize].subtract(class, amount);
        subtract(Family::Allocation, 1);
        subtract(Family::AllocatedBytes, size);
        subtract(Family::RequestedBytes, requested);
    }

    /// Counts a block of `size` bytes that is freed but waits for events.
    pub(crate) fn count_waiting(&mut self, class: PoolClass, size: i64) {
        for (beyond, family, amount) in [(0, Family::Allocation, 1), (1, Family::AllocatedBytes, size)] {
            self.families[family as usize].subtract(class, amount);
            self.active[beyond].wait(class, amount);
        }
        self.note_apart();
    }

    /// Counts that a waiting block is now free.
    pub(crate) fn count_waited(&mut self, class: PoolClass, size: i64, requested: i64) {
        self.active[0].stop_waiting(class, 1, &self.families[Family::Allocation as usize]);
        self.active[1].stop_waiting(class, size, &self.families[Family::AllocatedBytes as usize]);
        self.families[Family::RequestedBytes as usize].subtract(class, requested);
        self.note_apart();
    }

    /// Changes the number and the bytes of free blocks that are only a part of their segment. Adds a positive amount,
    /// subtracts the absolute value of a negative one, and changes nothing for zero (spec 3.4, step 6).
    #[inline(always)]
    pub(crate) fn change_splits(&mut self, class: PoolClass, blocks: i64, bytes: i64) {
        let count_headroom = self.families[Family::InactiveSplit as usize].change(class, blocks);
        let byte_headroom = self.families[Family::InactiveSplitBytes as usize].change(class, bytes);
        if count_headroom | byte_headroom < 0 {
            self.raise_peaks_of_splits(class, blocks, bytes);
        }
    }

    /// Counts a free block of `bytes` bytes that is split off an entire segment.
    #[inline(always)]
    pub(crate) fn count_split_off(&mut self, class: PoolClass, bytes: i64) {
        let count_headroom = self.families[Family::InactiveSplit as usize].add(class, 1);
        let byte_headroom = self.families[Family::InactiveSplitBytes as usize].add(class, bytes);
        if count_headroom | byte_headroom < 0 {
            self.raise_peaks_of_splits(class, 1, 1);
        }
    }

    /// Counts that a free block that is only a part of its segment has lost `bytes` bytes.
    #[inline(always)]
    pub(crate) fn count_split_again(&mut self, class: PoolClass, bytes: i64) {
        self.families[Family::InactiveSplitBytes as usize].subtract(class, bytes);
    }

    /// Counts that such a block, of `bytes` bytes, is no longer free.
    #[inline(always)]
    pub(crate) fn count_split_taken(&mut self, class: PoolClass, bytes: i64) {
        self.families[Family::InactiveSplit as usize].subtract(class, 1);
        self.families[Family::InactiveSplitBytes as usize].subtract(class, bytes);
    }

    /// Counts the part of a free block that is about to be handed out as a free block. The peaks are raised only
    /// later.
    pub(crate) fn count_split_in_passing(&mut self, class: PoolClass, bytes: i64) {
        let _ = self.families[Family::InactiveSplit as usize].change(class, 1);
        let _ = self.families[Family::InactiveSplitBytes as usize].change(class, bytes);
    }

    /// Raises the peaks after growth by these amounts, where necessary.
    #[cold]
    #[inline(never)]
    pub(crate) fn raise_peaks_of_splits(&mut self, class: PoolClass, blocks: i64, bytes: i64) {
        for (family, amount) in [(Family::InactiveSplit, blocks), (Family::InactiveSplitBytes, bytes)] {
            if amount > 0 {
                self.families[family as usize].raise_peaks(class);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn raise_peaks_of_blocks(&mut self, class: PoolClass) {
        for family in [Family::Allocation, Family::AllocatedBytes, Family::RequestedBytes] {
            self.families[family as usize].raise_peaks(class);
        }
    }
}

impl Stats {
    /// All 122 keys of `torch.cuda.memory_stats()` with their values, sorted by key.
    #[must_use]
    pub fn entries(&self) -> Vec<(String, i64)> {
        const NAMES: [&str; 4] = ["current", "peak", "allocated", "freed"];
        let mut entries = Vec::with_capacity(122);
        for family in Family::ALL {
            for (level, stat) in self.family(family).levels() {
                for (name, value) in NAMES.iter().zip(stat.values()) {
                    entries.push((format!("{}.{level}.{name}", family.name()), value));
                }
            }
        }
        for (family, stat) in self.oversize() {
            for (name, value) in NAMES.iter().zip(stat.values()) {
                entries.push((format!("{family}.{name}"), value));
            }
        }
        for (name, value) in self.scalars() {
            entries.push((String::from(name), value));
        }
        entries.sort();
        entries
    }

    /// Reads entries in the form in which [`Stats::entries`] and `torch.cuda.memory_stats()` list them, and the key
    /// num_oom_rejections, which PyTorch 2.12 added. Missing keys are zero; for a repeated key, the last value counts.
    ///
    /// # Errors
    /// [`UnknownStatistic`] for a key that PyTorch 2.11 does not have.
    pub fn from_entries<'a>(entries: impl IntoIterator<Item = (&'a str, i64)>) -> Result<Stats, UnknownStatistic> {
        let mut stats = Stats::default();
        let mut families = [StatSet::default(); 9];
        for (key, value) in entries {
            let Some(place) = stats.place_mut(&mut families, key) else {
                return Err(UnknownStatistic { key: String::from(key) });
            };
            *place = value;
        }
        let beyond = |active: Family, allocated: Family| Beyond::of(&families[active as usize], &families[allocated as usize]);
        stats.active = [beyond(Family::Active, Family::Allocation), beyond(Family::ActiveBytes, Family::AllocatedBytes)];
        stats.note_apart();
        stats.families = families.map(|set| Counters::of(&set));
        Ok(stats)
    }

    /// A mutable reference to the number for a key of [`Stats::entries`]; the numbers of families are in `families`.
    fn place_mut<'a>(&'a mut self, families: &'a mut [StatSet; 9], key: &str) -> Option<&'a mut i64> {
        let mut words = key.split('.');
        let place = match (words.next()?, words.next(), words.next()) {
            ("num_alloc_retries", None, None) => &mut self.num_alloc_retries,
            ("num_ooms", None, None) => &mut self.num_ooms,
            ("num_oom_rejections", None, None) => &mut self.num_oom_rejections,
            ("max_split_size", None, None) => &mut self.max_split_size,
            ("num_sync_all_streams", None, None) => &mut self.num_sync_all_streams,
            ("num_device_alloc", None, None) => &mut self.num_device_alloc,
            ("num_device_free", None, None) => &mut self.num_device_free,
            ("oversize_allocations", Some(value), None) => self.oversize_allocations.value_mut(value)?,
            ("oversize_segments", Some(value), None) => self.oversize_segments.value_mut(value)?,
            (family, Some(level), Some(value)) => {
                let family = Family::ALL.into_iter().find(|known| known.name() == family)?;
                families[family as usize].level_mut(level)?.value_mut(value)?
            }
            _ => return None,
        };
        words.next().is_none().then_some(place)
    }
}

/// Statistics are equal if every one that PyTorch has is equal.
impl PartialEq for Stats {
    fn eq(&self, other: &Stats) -> bool {
        Family::ALL.iter().all(|&family| self.family(family) == other.family(family))
            && self.oversize() == other.oversize()
            && self.scalars() == other.scalars()
            && self.num_oom_rejections == other.num_oom_rejections
            && self.reserved_by_pool == other.reserved_by_pool
    }
}

impl Eq for Stats {}

/// No statistic has this key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownStatistic {
    /// The key.
    pub key: String,
}

impl fmt::Display for UnknownStatistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the allocator has no statistic called {:?}", self.key)
    }
}

impl core::error::Error for UnknownStatistic {}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::{Family, Stat, StatSet, Stats};
    use crate::units::PoolClass;

    /// The two families of allocated blocks and the two families of active blocks.
    const FAMILIES: [Family; 4] = [Family::Allocation, Family::AllocatedBytes, Family::Active, Family::ActiveBytes];

    fn change(sets: &mut [StatSet], class: PoolClass, amounts: [i64; 2], change: fn(&mut Stat, i64)) {
        for (set, amount) in sets.iter_mut().zip(amounts) {
            set.each_of(class, |stat| change(stat, amount));
        }
    }

    /// Returns statistics as read from a file with these values in the four families.
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
            // The sizes of the allocated blocks and of the waiting blocks.
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
                            stats.count_waited(class, size, size);
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
