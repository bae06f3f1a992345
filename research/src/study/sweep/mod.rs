//! Sweeps: workloads x policies x capacities x seeds; each combination is an independent job with a row of numbers.
//!
//! A [`Plan`] lists the jobs in order. [`Plan::job`] gives a job by its number alone, so any machine can do any
//! part. [`run_jobs`] does some of them on several threads and returns their [`Row`]s in order; [`Summary`]
//! summarizes all rows. A row holds integers and depends only on its job.

mod bounds;
mod by_construction;
mod course;
mod jobs;
mod levels;
mod outlier;
mod plan;
mod prepared;
mod row;
mod seeds;
mod summary;
#[cfg(test)]
mod tests;

pub use bounds::{BoundRatios, bound_ratios};
pub use by_construction::{needs_by_construction, takes_a_share_at_first};
pub use course::{Course, CourseOfAll};
pub use jobs::{Source, run_jobs};
pub use levels::Level;
pub use outlier::Without;
pub use plan::{BadPlan, Capacity, Job, MOST_JOBS, Plan, PlannedWorkload, Share};
pub use prepared::PreparedWorkload;
pub use row::{BUILD, Row};
pub use seeds::SeedComparison;
pub use summary::{Cell, Comparison, PolicySummary, Summary};
