#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod beside;
pub mod merge;
pub mod policy_names;
pub mod replay;
pub mod sweep;
