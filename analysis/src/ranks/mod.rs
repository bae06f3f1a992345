//! The ranks of one job beside each other: which ran out of memory first, which is unlike the others, and whether they are alike at all.
//!
//! [`RankRun`] is what is compared of one device of one file: a few numbers, whatever the file's size. [`compare`] compares any number
//! of them. [`one_setting`] advises on one setting for all ranks.

mod compare;
mod differences;
mod job;
mod measure;
mod odd;
mod request_sizes;
mod run;
#[cfg(test)]
mod tests;

pub use compare::{Comparison, FailsFirst, compare};
pub use differences::{Difference, Variant};
pub use job::{JobAdvice, RankAdvice, Standing, Tried, one_setting, still_to_try};
pub use measure::Measure;
pub use odd::{LEAST_RANKS, Odd};
pub use request_sizes::RequestSizes;
pub use run::{Failure, RankRun};
