//! Sweeps: workloads x policies x capacities x seeds, each combination an independent job with a row of numbers.
//!
//! A [`Plan`] says which jobs there are and in which order; [`Plan::job`] says what a job is from its number alone, so that any machine can
//! do any part. [`work`] does some of them on several threads and hands the [`Row`]s over in order; [`Summary`] is
//! what all rows together say. A row holds whole numbers and depends on its job alone.

mod beside;
mod plan;
mod row;
mod summary;
#[cfg(test)]
mod tests;
mod work;

pub use beside::{Beside, beside};
pub use plan::{BadPlan, Capacity, Job, MOST_JOBS, Plan, PlannedWorkload, Share};
pub use row::{PROGRAM, Program, Row};
pub use summary::{Cell, Comparison, Level, PolicySummary, Summary};
pub use work::{Source, work};
