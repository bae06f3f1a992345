//! The statistics as PyTorch lists them: 122 numbers, each with its key.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::active::Beyond;
use super::counters::Counters;
use super::{Family, Stat, StatSet, Stats};

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

    /// Reads entries as [`Stats::entries`] and `torch.cuda.memory_stats()` list them, and the num_oom_rejections that
    /// 2.12 added. Missing keys are zero;
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
        let beyond = |active: Family, allocated: Family| Beyond::of(&families[active as usize], &families[allocated as usize]);
        stats.active = [beyond(Family::Active, Family::Allocation), beyond(Family::ActiveBytes, Family::AllocatedBytes)];
        stats.note_apart();
        stats.families = families.map(|set| Counters::of(&set));
        Ok(stats)
    }

    /// The number for a key of [`Stats::entries`]; those of families are in `families`.
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

impl Stat {
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
}

impl StatSet {
    /// The one that PyTorch calls `name`.
    fn level_mut(&mut self, name: &str) -> Option<&mut Stat> {
        match name {
            "all" => Some(&mut self.all),
            "small_pool" => Some(&mut self.small),
            "large_pool" => Some(&mut self.large),
            _ => None,
        }
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
