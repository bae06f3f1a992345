//! What the program's own annotations say about its run: `torch.profiler.record_function` scopes, the profiler's and the optimizers' steps.
//!
//! A snapshot lists the starts and ends of scopes with their times (`external_annotations`); the times of trace entries place them in
//! the trace. [`scopes`] gives each scope as a range of moments, [`phase_at`] those around one point in time, [`steps`] the ends of
//! training steps.

mod phase;
mod scopes;
mod steps;

pub use phase::{Phase, phase_at};
pub use scopes::{Scope, scopes};
pub use steps::{Step, StepError, Steps, steps};
