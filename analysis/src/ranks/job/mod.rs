//! One setting for all ranks of a job, which has one `PYTORCH_CUDA_ALLOC_CONF`.
//!
//! Each rank is advised on alone first ([`RankAdvice`]). What is best for one rank may never have been tried on another:
//! [`still_to_try`] says what to try there. Then [`one_setting`] chooses, by the rules of the advice on one recording, but the margin that
//! counts is that of the tightest rank.

mod choose;
#[cfg(test)]
mod tests;
mod tried;

pub use choose::{JobAdvice, Standing, one_setting, still_to_try};
pub use tried::{RankAdvice, Tried};
