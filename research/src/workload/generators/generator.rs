//! What a generator is to a description: options that are set by key, and a workload that is made of them.

use super::error::WorkloadError;
use crate::workload::Workload;

/// The key of an option.
pub(super) type Key = &'static str;
/// Whether an option could be set.
pub(super) type Done = Result<(), WorkloadError>;

/// Configured by key and value; then makes a workload.
pub(super) trait Generator {
    /// The keys of the options. One of them is `seed`.
    fn keys(&self) -> Vec<Key>;
    /// Sets the option of one of the keys.
    fn set(&mut self, key: Key, value: &str) -> Done;
    /// Makes the workload.
    fn make(&self) -> Result<Workload, WorkloadError>;
}

/// A model that is trained for some steps.
pub(super) struct Trained<M> {
    pub(super) model: M,
    pub(super) steps: u64,
}
