#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod advise;
pub mod annotations;
pub mod caution;
pub mod continuation;
pub mod diagnose;
pub mod diff;
pub mod ending;
pub mod fragmentation;
pub mod holders;
pub mod ranks;
pub mod timeline;

mod capacity_hint;
mod recorded_heap;
mod recorded_limit;
mod repeated_steps;
mod reserved;
mod stacks;

pub use recorded_limit::{find_limit, verify_finding_limit};
pub use stacks::{StackUse, is_library, own_frame, shown_frame};
