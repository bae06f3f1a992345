//! What `torch.cuda.memory_stats()` returned at the end of the recorded run.

use std::collections::BTreeMap;

use parkade::stats::Stats;
use thiserror::Error;

/// Keys that came with PyTorch 2.3.
const SINCE_2_3: [&str; 3] = ["num_sync_all_streams", "num_device_alloc", "num_device_free"];

/// A key that came with PyTorch 2.12, beside those of 2.11.
pub(crate) const SINCE_2_12: &str = "num_oom_rejections";

/// The contents of a `memory_stats()` dictionary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatsFile {
    /// The keys of PyTorch 2.11, and num_oom_rejections.
    pub(crate) known: BTreeMap<String, i64>,
    /// Keys that parkade does not know.
    pub unknown: Vec<String>,
}

/// Why a stats file cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StatsFileError {
    /// A required key is missing.
    #[error("the key {0:?} is missing: is this the output of torch.cuda.memory_stats()?")]
    Missing(String),
}

impl StatsFile {
    /// The stats in a dictionary; keys that parkade does not know are kept apart.
    ///
    /// # Errors
    /// [`StatsFileError::Missing`] if one of the 119 keys is missing that every release since 2.1 has.
    pub fn new(mut entries: BTreeMap<String, i64>) -> Result<StatsFile, StatsFileError> {
        let mut known = BTreeMap::new();
        for (key, _) in Stats::default().entries() {
            match entries.remove(&key) {
                Some(value) => drop(known.insert(key, value)),
                None if SINCE_2_3.contains(&key.as_str()) => {}
                None => return Err(StatsFileError::Missing(key)),
            }
        }
        known.extend(entries.remove_entry(SINCE_2_12));
        Ok(StatsFile { known, unknown: entries.into_keys().collect() })
    }

    /// Whether the file has this key.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.known.contains_key(key) || self.unknown.iter().any(|unknown| unknown == key)
    }

    /// The stats in the form that the core keeps.
    pub(crate) fn stats(&self) -> Stats {
        let entries = self.known.iter().map(|(key, &value)| (key.as_str(), value));
        // Cannot fail: the keys are the core's own.
        Stats::from_entries(entries).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_of_2_12_is_known() {
        let mut entries: BTreeMap<String, i64> = Stats::default().entries().into_iter().collect();
        entries.extend([(SINCE_2_12.to_owned(), 3), ("a_key_of_tomorrow".to_owned(), 4)]);
        let file = StatsFile::new(entries).expect("the stats of 2.12");
        assert_eq!((file.stats().num_oom_rejections, file.unknown), (3, vec!["a_key_of_tomorrow".to_owned()]));
    }

    #[test]
    fn the_counters_of_2_3_may_be_missing_and_no_others() {
        let entries: BTreeMap<String, i64> = Stats::default().entries().into_iter().collect();
        let without = |key: &str| {
            let mut entries = entries.clone();
            entries.remove(key).expect("a key");
            StatsFile::new(entries)
        };
        let older = without("num_device_alloc").expect("the stats of 2.2");
        assert!(!older.has("num_device_alloc") && older.has("num_ooms"));
        assert_eq!(without("num_ooms"), Err(StatsFileError::Missing("num_ooms".to_owned())));
    }
}
