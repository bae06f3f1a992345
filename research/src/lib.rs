//! Research on allocation policies: workloads, studies, packing, bounds and the frontier of what fits.
#![forbid(unsafe_code)]

pub mod bounds;
pub mod frontier;
pub mod packing;
mod random;
pub mod study;
pub mod workload;
