//! The allocator's statistics, in PyTorch's families and with PyTorch's names (spec section 6).
//!
//! Every family exists three times: for all memory, for the small pool and for the large pool.
//! [`Stats::entries`] lists all 122 keys of `torch.cuda.memory_stats()`, sorted as PyTorch sorts them.

mod active;
mod counters;
mod counting;
mod entries;

use alloc::collections::BTreeMap;

use crate::units::{PoolClass, PoolId};
use active::Beyond;
use counters::Counters;

pub use entries::UnknownStatistic;

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

    /// Changes the statistic for all memory and that of a pool.
    fn each_of(&mut self, class: PoolClass, change: impl Fn(&mut Stat)) {
        change(&mut self.all);
        change(match class {
            PoolClass::Small => &mut self.small,
            PoolClass::Large => &mut self.large,
        });
    }

    /// The three, to change.
    fn all_mut(&mut self) -> [&mut Stat; 3] {
        [&mut self.all, &mut self.small, &mut self.large]
    }
}

/// Everything in `torch.cuda.memory_stats()`.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// By [`Family`]; those of active blocks are not used.
    families: [Counters; 9],
    /// What the families of active blocks have beyond those of allocated ones: in blocks, in bytes.
    active: [Beyond; 2],
    /// Whether increases must be noted for one of these.
    is_apart: bool,
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
        let set = |family: Family| self.families[family as usize].set();
        match family {
            Family::Active => self.active[0].set(&set(Family::Allocation)),
            Family::ActiveBytes => self.active[1].set(&set(Family::AllocatedBytes)),
            _ => set(family),
        }
    }

    /// What the active blocks have beyond the allocated ones, where the family is of either.
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

    /// Adds a positive amount and subtracts a negative one.
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
    }

    /// Those that are kept as they are.
    fn for_each_stat(&mut self, act: impl Fn(&mut Stat)) {
        self.reserved_by_pool.values_mut().flat_map(StatSet::all_mut).for_each(&act);
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
}

/// Equal if every statistic has the same value.
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
