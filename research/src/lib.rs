#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod bounds;
pub mod packing;
pub mod policies;
pub mod study;
pub mod workload;
