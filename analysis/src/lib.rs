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

#[cfg(test)]
mod drawn_runs;
mod frame_kind;
mod stacks;

pub use frame_kind::FrameKind;
pub use stacks::{StackName, StackNames, StackUse};
