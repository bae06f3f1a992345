//! A statistic with its history, and the families of statistics, with PyTorch's names (spec 6.1, 6.2).

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
