//! Scripts of allocator operations, run on the core over a simulated device.
//!
//! The same script goes through PyTorch's own allocator in the harness, the program that `pytorch_harness/` builds. Both print one JSON
//! object per operation, and the lines must be equal. Operations, answers and the meaning of each field are defined by the
//! harness, `pytorch_harness/src/oracle.cpp`.

mod controls;
mod digest;
mod failure;
mod line;
mod pools;
mod printed;
mod queries;
mod render;
mod requests;
mod runner;
mod session;
mod state;

pub use runner::OpsRunner;
pub use session::{Addresses, OpsOptions};
