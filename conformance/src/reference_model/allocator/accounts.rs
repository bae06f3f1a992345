//! A second, independent count of the statistics (spec section 6).

use std::collections::BTreeMap;

use parkade::stats::{Family, Stat, Stats};
use parkade::units::{PoolClass, PoolId};

/// A statistic for all memory, the small pool and the large pool.
type Levels = [Stat; 3];

/// All statistics.
#[derive(Clone, Debug)]
pub(super) struct Accounts {
    families: BTreeMap<Family, Levels>,
    pub(super) oversize_allocations: Stat,
    pub(super) oversize_segments: Stat,
    by_pool: BTreeMap<PoolId, Levels>,
    pub(super) retries: i64,
    pub(super) ooms: i64,
    pub(super) waits: i64,
    pub(super) taken: i64,
    pub(super) given: i64,
    pub(super) rejections: i64,
    max_split: i64,
}

/// Adds to a statistic, or subtracts.
pub(super) fn add(stat: &mut Stat, amount: i64) {
    stat.current = stat.current.wrapping_add(amount);
    // Sums wrap around beyond 63 bits, as in PyTorch.
    if amount >= 0 {
        stat.allocated = stat.allocated.wrapping_add(amount);
        stat.peak = stat.peak.max(stat.current);
    } else {
        stat.freed = stat.freed.wrapping_sub(amount);
    }
}

fn add_both(levels: &mut Levels, class: PoolClass, amount: i64) {
    add(&mut levels[0], amount);
    add(&mut levels[if class == PoolClass::Small { 1 } else { 2 }], amount);
}

impl Accounts {
    pub(super) fn new(max_split: i64) -> Accounts {
        let families = Family::ALL.into_iter().map(|family| (family, Levels::default())).collect();
        let (by_pool, none) = (BTreeMap::new(), Stat::default());
        Accounts {
            families,
            oversize_allocations: none,
            oversize_segments: none,
            by_pool,
            retries: 0,
            ooms: 0,
            waits: 0,
            taken: 0,
            given: 0,
            rejections: 0,
            max_split,
        }
    }

    pub(super) fn change(&mut self, family: Family, class: PoolClass, amount: i64) {
        add_both(self.families.entry(family).or_default(), class, amount);
    }

    pub(super) fn change_pool(&mut self, pool: PoolId, class: PoolClass, amount: i64) {
        add_both(self.by_pool.entry(pool).or_default(), class, amount);
    }

    pub(super) fn current(&self, family: Family) -> i64 {
        self.families[&family][0].current
    }

    fn for_each(&mut self, act: impl Fn(&mut Stat)) {
        self.families.values_mut().chain(self.by_pool.values_mut()).flatten().for_each(&act);
        act(&mut self.oversize_allocations);
        act(&mut self.oversize_segments);
    }

    pub(super) fn reset_peaks(&mut self) {
        self.for_each(|stat| stat.peak = stat.current);
    }

    pub(super) fn reset_sums(&mut self) {
        self.for_each(|stat| (stat.allocated, stat.freed) = (0, 0));
        for counter in
            [&mut self.retries, &mut self.ooms, &mut self.waits, &mut self.taken, &mut self.given, &mut self.rejections]
        {
            *counter = 0;
        }
    }

    /// Returns the first statistic that differs.
    pub(super) fn difference(&self, stats: &Stats) -> Option<String> {
        for (family, levels) in &self.families {
            for ((name, seen), expected) in stats.family(*family).levels().into_iter().zip(levels) {
                if seen != expected {
                    return Some(format!("{}.{name} is {seen:?}, expected {expected:?}", family.name()));
                }
            }
        }
        for ((name, seen), expected) in stats.oversize().into_iter().zip([self.oversize_allocations, self.oversize_segments]) {
            if *seen != expected {
                return Some(format!("{name} is {seen:?}, expected {expected:?}"));
            }
        }
        let expected = [self.retries, self.ooms, self.max_split, self.waits, self.taken, self.given, self.rejections];
        let seen = stats.scalars().into_iter().chain([("num_oom_rejections", stats.num_oom_rejections)]);
        for ((name, seen), expected) in seen.zip(expected) {
            if seen != expected {
                return Some(format!("{name} is {seen}, expected {expected}"));
            }
        }
        let by_pool = stats.reserved_by_pool.iter().map(|(id, set)| (*id, set.levels().map(|(_, stat)| *stat)));
        let by_pool: BTreeMap<PoolId, Levels> = by_pool.collect();
        (by_pool != self.by_pool).then(|| format!("reserved_by_pool is {by_pool:?}, expected {:?}", self.by_pool))
    }
}
