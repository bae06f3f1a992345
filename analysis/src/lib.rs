//! Answers about a recorded run: which settings would have fitted, why memory ran out, and what was where at which moment.
#![forbid(unsafe_code)]

pub mod advise;
pub mod annotations;
pub mod caution;
pub mod diagnose;
pub mod fragmentation;
pub mod timeline;

mod recorded_heap;
mod reserved;
mod stacks;

pub use stacks::StackUse;
