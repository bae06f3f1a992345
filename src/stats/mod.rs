//! The allocator's statistics, in PyTorch's families and with PyTorch's names (spec section 6).
//!
//! Every family exists three times: for all memory, for the small pool and for the large pool.
//! [`Stats::entries`] lists all 122 keys of `torch.cuda.memory_stats()`, sorted as PyTorch sorts them.

mod counters;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::units::{PoolClass, PoolId};
use counters::Counters;

/// A counter with its history (spec 6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// The value now. Signed, as in PyTorch: changing settings during a run can make some negative.
    pub current: i64,
    /// The largest value since the last reset of the peaks.
    pub peak: i64,
    /// The sum of all increases since the last reset of the accumulated values.
    pub allocated: i64,
    /// The sum of all decreases since the last reset of the accumulated values.
    pub freed: i64,
}

impl Stat {
    /// Adds `amount`; the peak follows. Beyond 63 bits it wraps around, as PyTorch's does.
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

    /// The value that PyTorch calls `name`.
    fn value_mut(&mut self, name: &str) -> Option<&mut i64> {
        match name {
            "current" => Some(&mut self.current),
            "peak" => Some(&mut self.peak),
            "allocated" => Some(&mut self.allocated),
            "freed" => Some(&mut self.freed),
            _ => None,
        }
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
}

/// The nine families that are kept per pool, in PyTorch's order (spec 6.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Family {
    /// Allocations handed out.
    Allocation,
    /// Segments taken from the device with malloc.
    Segment,
    /// Active blocks: allocated or pending.
    Active,
    /// Free blocks that are a part of their segment, which cannot be released.
    InactiveSplit,
    /// Bytes of allocated blocks.
    AllocatedBytes,
    /// Bytes taken from the device.
    ReservedBytes,
    /// Bytes of active blocks.
    ActiveBytes,
    /// Bytes of free blocks that cannot be released.
    InactiveSplitBytes,
    /// Bytes requested, of active blocks.
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

    /// PyTorch's name.
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

/// One family: all memory, the small pool, the large pool.
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
    /// The three, with PyTorch's names for them, in its order.
    #[must_use]
    pub const fn levels(&self) -> [(&'static str, &Stat); 3] {
        [("all", &self.all), ("small_pool", &self.small), ("large_pool", &self.large)]
    }

    /// The one that PyTorch calls `name`.
    fn level_mut(&mut self, name: &str) -> Option<&mut Stat> {
        match name {
            "all" => Some(&mut self.all),
            "small_pool" => Some(&mut self.small),
            "large_pool" => Some(&mut self.large),
            _ => None,
        }
    }

    #[inline]
    fn class_mut(&mut self, class: PoolClass) -> &mut Stat {
        match class {
            PoolClass::Small => &mut self.small,
            PoolClass::Large => &mut self.large,
        }
    }
}

/// Everything in `torch.cuda.memory_stats()`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    families: [Counters; 9],
    /// Allocations of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// Attempts to take memory from the device after the cache was released.
    pub num_alloc_retries: i64,
    /// Requests that failed for lack of memory.
    pub num_ooms: i64,
    /// Waits for all events.
    pub num_sync_all_streams: i64,
    /// Segments taken from the device, and mappings.
    pub num_device_alloc: i64,
    /// Segments released to the device, and unmappings.
    pub num_device_free: i64,
    /// Requests rejected before the device was asked; 0 in releases that never do.
    pub num_oom_rejections: i64,
    /// Bytes taken from the device by each private pool, including former ones, in releases that count them.
    pub reserved_by_pool: BTreeMap<PoolId, StatSet>,
    /// `max_split_size` when the allocator was made; -1 is unlimited. Later settings do not change it
    /// (spec 6.2).
    pub max_split_size: i64,
}

impl Stats {
    /// The statistics of a family.
    #[must_use]
    pub fn family(&self, family: Family) -> StatSet {
        self.families[family as usize].set()
    }

    /// Adds `amount` to the family, for all memory and for `class`.
    #[inline]
    pub(crate) fn increase(&mut self, family: Family, class: PoolClass, amount: i64) {
        let counters = &mut self.families[family as usize];
        if counters.add(class, amount) < 0 {
            counters.raise_peaks(class);
        }
    }

    /// Subtracts `amount` from the family, for all memory and for `class`.
    #[inline]
    pub(crate) fn decrease(&mut self, family: Family, class: PoolClass, amount: i64) {
        self.families[family as usize].subtract(class, amount);
    }

    /// Counts a block of `size` bytes that is handed out for a request.
    #[inline(always)]
    pub(crate) fn count_handed_out(&mut self, class: PoolClass, size: i64, requested: i64) {
        let mut add = |family, amount| self.families[family as usize].add(class, amount);
        let sign = add(Family::Allocation, 1)
            | add(Family::AllocatedBytes, size)
            | add(Family::Active, 1)
            | add(Family::ActiveBytes, size)
            | add(Family::RequestedBytes, requested);
        if sign < 0 {
            self.raise_peaks_of_blocks(class);
        }
    }

    /// Counts a block of `size` bytes that is given back.
    #[inline(always)]
    pub(crate) fn count_given_back(&mut self, class: PoolClass, size: i64) {
        self.decrease(Family::Allocation, class, 1);
        self.decrease(Family::AllocatedBytes, class, size);
    }

    /// Counts free blocks of together `bytes` bytes that are split off a whole segment.
    #[inline(always)]
    pub(crate) fn count_split_off(&mut self, class: PoolClass, blocks: i64, bytes: i64) {
        let mut add = |family, amount| self.families[family as usize].add(class, amount);
        if add(Family::InactiveSplit, blocks) | add(Family::InactiveSplitBytes, bytes) < 0 {
            self.raise_peaks_of_splits(class);
        }
    }

    /// Counts an active block that is free from now on.
    #[inline(always)]
    pub(crate) fn count_freed(&mut self, class: PoolClass, size: i64, requested: i64) {
        self.decrease(Family::Active, class, 1);
        self.decrease(Family::ActiveBytes, class, size);
        self.decrease(Family::RequestedBytes, class, requested);
    }

    #[cold]
    #[inline(never)]
    fn raise_peaks_of_splits(&mut self, class: PoolClass) {
        for family in [Family::InactiveSplit, Family::InactiveSplitBytes] {
            self.families[family as usize].raise_peaks(class);
        }
    }

    #[cold]
    #[inline(never)]
    fn raise_peaks_of_blocks(&mut self, class: PoolClass) {
        use Family::{Active, ActiveBytes, AllocatedBytes, Allocation, RequestedBytes};
        for family in [Allocation, AllocatedBytes, Active, ActiveBytes, RequestedBytes] {
            self.families[family as usize].raise_peaks(class);
        }
    }

    /// Adds a positive amount, subtracts a negative one, and leaves everything alone at zero (spec 3.4,
    /// step 6).
    #[inline]
    pub(crate) fn change(&mut self, family: Family, class: PoolClass, amount: i64) {
        if amount > 0 {
            self.increase(family, class, amount);
        } else {
            self.decrease(family, class, amount.wrapping_neg());
        }
    }

    /// Counts bytes that a private pool took from the device, or released if they are negative.
    pub(crate) fn change_reserved_by(&mut self, pool: PoolId, class: PoolClass, amount: i64) {
        let set = self.reserved_by_pool.entry(pool).or_default();
        let change = |stat: &mut Stat| if amount < 0 { stat.decrease(amount.wrapping_neg()) } else { stat.increase(amount) };
        change(&mut set.all);
        change(set.class_mut(class));
    }

    /// Sets every peak to its current value (`reset_peak_memory_stats`).
    pub fn reset_peaks(&mut self) {
        self.families.iter_mut().for_each(Counters::reset_peaks);
        self.for_each_stat(Stat::reset_peak);
    }

    /// Sets every sum and the `num_` counters to zero (`reset_accumulated_memory_stats`).
    pub fn reset_accumulated(&mut self) {
        self.families.iter_mut().for_each(Counters::reset_sums);
        self.for_each_stat(Stat::reset_accumulated);
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
        self.num_oom_rejections = 0;
    }

    /// Those that are kept as they are.
    fn for_each_stat(&mut self, act: impl Fn(&mut Stat)) {
        for set in self.reserved_by_pool.values_mut() {
            act(&mut set.all);
            act(&mut set.small);
            act(&mut set.large);
        }
        act(&mut self.oversize_allocations);
        act(&mut self.oversize_segments);
    }

    /// The scalar counters with PyTorch's names, in its order.
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

    /// Reads entries as [`Stats::entries`] and `torch.cuda.memory_stats()` list them. Missing keys are zero;
    /// for a repeated key the last value counts.
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
        stats.families = families.map(|set| Counters::of(&set));
        Ok(stats)
    }

    /// The number for a key of [`Stats::entries`]; those of families are in `families`.
    fn place_mut<'a>(&'a mut self, families: &'a mut [StatSet; 9], key: &str) -> Option<&'a mut i64> {
        let mut words = key.split('.');
        let place = match (words.next()?, words.next(), words.next()) {
            ("num_alloc_retries", None, None) => &mut self.num_alloc_retries,
            ("num_ooms", None, None) => &mut self.num_ooms,
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
