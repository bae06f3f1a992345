#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod bounds;
pub mod study;
pub mod workload;

pub use parkade_packing as packing;
use parkade_packing::random;
