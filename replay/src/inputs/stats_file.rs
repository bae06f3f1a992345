//! What `torch.cuda.memory_stats()` returned at the end of the recorded run.

use std::collections::BTreeMap;

use parkade::stats::Stats;
use thiserror::Error;

/// The contents of a `memory_stats()` dictionary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatsFile {
    /// The keys of PyTorch 2.11.
    pub(crate) known: BTreeMap<String, i64>,
    /// Keys that PyTorch 2.11 does not have.
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
    /// The stats in a dictionary; keys that PyTorch 2.11 does not have are kept apart.
    ///
    /// # Errors
    /// [`StatsFileError::Missing`] if one of the 122 keys of PyTorch 2.11 is missing.
    pub fn new(mut entries: BTreeMap<String, i64>) -> Result<StatsFile, StatsFileError> {
        let mut known = BTreeMap::new();
        for (key, _) in Stats::default().entries() {
            let value = entries.remove(&key).ok_or_else(|| StatsFileError::Missing(key.clone()))?;
            known.insert(key, value);
        }
        Ok(StatsFile { known, unknown: entries.into_keys().collect() })
    }

    /// Whether there is a key that only releases after 2.11 have.
    #[must_use]
    pub fn has_newer_names(&self) -> bool {
        self.unknown.iter().any(|key| key == "num_oom_rejections")
    }

    /// The stats in the form that the core keeps.
    pub(crate) fn stats(&self) -> Stats {
        let entries = self.known.iter().map(|(key, &value)| (key.as_str(), value));
        // Cannot fail: the keys are the core's own.
        Stats::from_entries(entries).unwrap_or_default()
    }
}
