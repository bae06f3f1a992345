//! The file of `torch.cuda.memory_stats()` that was written at the end of the recorded run.

use std::collections::BTreeMap;

use parkade::stats::Stats;
use thiserror::Error;

/// The contents of a `memory_stats()` dictionary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatsFile {
    /// Every key that this version of PyTorch has.
    pub(crate) known: BTreeMap<String, i64>,
    /// Keys that it does not have.
    pub unknown: Vec<String>,
}

/// Why a file of statistics cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StatsFileError {
    /// A key that must be there is not.
    #[error("the statistics lack the key {0:?}: is this the output of torch.cuda.memory_stats()?")]
    Missing(String),
}

impl StatsFile {
    /// Sorts the entries of a dictionary into keys that are compared and others.
    ///
    /// # Errors
    /// If one of the 122 keys is missing.
    pub fn new(mut entries: BTreeMap<String, i64>) -> Result<StatsFile, StatsFileError> {
        let mut known = BTreeMap::new();
        for (key, _) in Stats::default().entries() {
            let value = entries.remove(&key).ok_or_else(|| StatsFileError::Missing(key.clone()))?;
            known.insert(key, value);
        }
        Ok(StatsFile { known, unknown: entries.into_keys().collect() })
    }

    /// Whether there are names that only versions after 2.11 have.
    pub(crate) fn has_newer_names(&self) -> bool {
        self.unknown.iter().any(|key| key == "num_oom_rejections")
    }

    /// The statistics as the core keeps them.
    pub(crate) fn stats(&self) -> Stats {
        let entries = self.known.iter().map(|(key, &value)| (key.as_str(), value));
        // All keys are the core's own.
        Stats::from_entries(entries).unwrap_or_default()
    }
}
