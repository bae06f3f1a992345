//! Statistics: means with confidence intervals, tests of pairs, and the correction for many comparisons.
//!
//! The unit is the workload. The seeds of one workload are averaged first, since they say nothing about other
//! workloads.

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
