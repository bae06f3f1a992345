//! Statistics: means with confidence intervals, tests of pairs, and the correction for many comparisons.
//!
//! They are for values that are drawn at random, such as those of the seeds of a generated workload. Workloads that are
//! chosen by hand are no sample of anything.
//!
//! What statrs has is statrs's: the normal distribution, and geometric means. It has neither the signed-rank test, nor
//! Holm's correction, nor the bootstrap. Its mean is updated value by value and its quantiles are of another kind (the
//! eighth of Hyndman and Fan), so figures would differ in their last digits; its ranks tell infinite values apart, which
//! here share a rank: they are programs that did not fit.

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
