//! Scripts of allocator operations, run on the core over a simulated device, with the answers as the real allocator's harness
//! prints them: one JSON object a line.
//!
//! This is the far end of the differential test: the same script goes through PyTorch's own allocator, and the lines must be
//! the same. Operations, answers and the meaning of every field are the harness's.

mod checkpoint;
mod failure;
mod look;
mod render;
mod runner;
mod state;
mod steer;
mod words;

pub use runner::{Addresses, OpsOptions, OpsRunner};
