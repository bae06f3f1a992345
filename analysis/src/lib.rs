#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod advise;
pub mod annotations;
pub mod caution;
pub mod diagnose;
pub mod fragmentation;
pub mod holders;
pub mod timeline;

mod recorded_heap;
mod reserved;
mod stacks;

pub use stacks::StackUse;
