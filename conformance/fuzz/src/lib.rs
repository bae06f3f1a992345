#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod choices;
pub mod driver;
mod pickle;
mod recordings;
pub mod targets;
mod texts;
