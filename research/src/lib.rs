#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod bounds;
pub mod frontier;
pub mod packing;
mod random;
pub mod study;
pub mod workload;
