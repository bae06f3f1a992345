//! Sweeps: workloads x policies x capacities x seeds; each combination is an independent job with a row of numbers.
//!
//! A [`Plan`] lists the jobs in order. [`Plan::job`] derives a job from its number alone, so any machine can run any part.
//! [`run_jobs`] runs some of the jobs on several threads and returns their [`Row`]s in order, and [`Summary`] summarizes all
//! rows. A row contains integers and depends only on its job.

mod by_construction;
mod plan;
mod row;
mod summary;

pub use by_construction::{needs_by_construction, takes_a_share_at_first};
pub use plan::{BadPlan, Capacity, Job, MOST_JOBS, Plan, PlannedWorkload, Share};
pub use row::{BUILD, PreparedWorkload, Row, Source, run_jobs};
pub use summary::{
    BoundRatios, Cell, Comparison, Course, CourseOfAll, Level, PolicySummary, SeedComparison, Summary, Without, bound_ratios,
};
