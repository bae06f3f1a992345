//! The statistics of an answer: those that changed since they were printed last, or all of them as numbers.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parkade::profile::Profile;
use parkade::stats::{Family, Stats};

/// Calls `each` for the stats that come before those of private pools, in the harness's order: with the name in two parts, and the numbers.
fn each(stats: &Stats, profile: &Profile, mut each: impl FnMut(&'static str, &'static str, &[i64])) {
    for family in Family::ALL {
        let set = stats.family(family);
        for (level, stat) in [(".all", set.all), (".small", set.small), (".large", set.large)] {
            each(family.name(), level, &stat.values());
        }
    }
    for (name, stat) in stats.oversize() {
        each(name, "", &stat.values());
    }
    each("num_alloc_retries", "", &[stats.num_alloc_retries]);
    each("num_ooms", "", &[stats.num_ooms]);
    if profile.shows.device_counters {
        each("num_sync_all_streams", "", &[stats.num_sync_all_streams]);
        each("num_device_alloc", "", &[stats.num_device_alloc]);
        each("num_device_free", "", &[stats.num_device_free]);
    }
    if profile.counts_rejections {
        each("num_oom_rejections", "", &[stats.num_oom_rejections]);
    }
}

/// The numbers of all stats but those of private pools.
pub(super) fn values(stats: &Stats, profile: &Profile) -> Vec<i64> {
    let mut all = Vec::with_capacity(128);
    each(stats, profile, |_, _, values| all.extend(values));
    all.push(stats.max_split_size);
    all
}

/// The bytes that each private pool has reserved, by name.
fn by_private_pool(stats: &Stats, profile: &Profile) -> BTreeMap<String, [i64; 4]> {
    let mut all = BTreeMap::new();
    for (pool, set) in stats.reserved_by_pool.iter().filter(|_| profile.counts_private_pools) {
        for (level, stat) in [("all", set.all), ("small", set.small), ("large", set.large)] {
            let name = format!("reserved_bytes_by_private_pools.{}.{}.{level}", pool.0, pool.1);
            all.insert(name, stat.values());
        }
    }
    all
}

/// The values of the stats that were printed last. A stat that was never printed counts as zero.
#[derive(Debug, Default)]
pub(super) struct Printed {
    /// Of those before the stats of private pools.
    values: Vec<i64>,
    max_split_size: i64,
    of_pools: BTreeMap<String, [i64; 4]>,
}

impl Printed {
    /// All stats.
    pub(super) fn all(&mut self, stats: &Stats, profile: &Profile) -> String {
        format!("{{{}}}", self.print(stats, profile, false))
    }

    /// The stats that changed since they were last printed; empty if none did.
    pub(super) fn changes(&mut self, stats: &Stats, profile: &Profile) -> String {
        self.print(stats, profile, true)
    }

    /// Those of private pools that changed.
    pub(super) fn changes_of_pools(&mut self, stats: &Stats, profile: &Profile) -> String {
        let mut out = String::new();
        self.print_pools(&mut out, stats, profile, true);
        out
    }

    fn print(&mut self, stats: &Stats, profile: &Profile, only_changes: bool) -> String {
        let mut out = String::new();
        let mut place = 0;
        each(stats, profile, |name, level, values| {
            let end = place + values.len();
            self.values.resize(end.max(self.values.len()), 0);
            let printed = &mut self.values[place..end];
            place = end;
            if !only_changes || printed != values {
                printed.copy_from_slice(values);
                stat(&mut out, name, level, values);
            }
        });
        self.print_pools(&mut out, stats, profile, only_changes);
        if !only_changes || self.max_split_size != stats.max_split_size {
            self.max_split_size = stats.max_split_size;
            stat(&mut out, "max_split_size", "", &[stats.max_split_size]);
        }
        out
    }

    fn print_pools(&mut self, out: &mut String, stats: &Stats, profile: &Profile, only_changes: bool) {
        for (name, values) in by_private_pool(stats, profile) {
            let printed = self.of_pools.entry(name.clone()).or_default();
            if !only_changes || *printed != values {
                *printed = values;
                stat(out, &name, "", &values);
            }
        }
    }
}

/// Appends a stat to those in `out`.
fn stat(out: &mut String, name: &str, level: &str, values: &[i64]) {
    let separator = if out.is_empty() { "" } else { "," };
    // Writing to a string cannot fail.
    let _ = match values {
        [value] => write!(out, "{separator}\"{name}{level}\":{value}"),
        [current, peak, allocated, freed] => write!(out, "{separator}\"{name}{level}\":[{current},{peak},{allocated},{freed}]"),
        _ => Ok(()),
    };
}
