//! Fragmentation over time: how a heap's bytes are used, at chosen moments of a run.
//!
//! [`Fragmentation`] describes one heap. [`sample_recorded_run`] takes it, together with PyTorch's statistics, at chosen entries of a
//! recorded run; [`sample_replayed_run`] does so for the same requests under other settings.

mod heap;
mod samples;

pub use heap::Fragmentation;
pub use samples::{ReplayOptions, Sample, SampledRun, sample_recorded_run, sample_replayed_run};
