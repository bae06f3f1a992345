#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod each;
pub mod ranks;
pub mod recordings;

// Every module finds what it shares with others under `crate::`, as in the binary.
use parkade_terminal::{json_struct, output, progress, recording, runner, size, table};
