//! Statistics: means with confidence intervals, tests of pairs, and the correction for many comparisons.
//!
//! They are for values that are drawn at random, such as those of the seeds of a generated workload. Workloads that are
//! chosen by hand are no sample of anything.

mod bootstrap;
mod holm;
mod mean;
mod signed_rank;
#[cfg(test)]
mod tests;

pub use bootstrap::{Interval, RESAMPLES, interval_of_mean};
pub use holm::holm;
pub use mean::mean;
pub use signed_rank::{SignedRank, signed_rank};
