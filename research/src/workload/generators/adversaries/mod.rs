//! Adversaries: workloads made to need much more memory than is live at once.
//!
//! [`robson`] reacts to where a policy places buffers. It plays against a real allocator and returns the resulting
//! [`Workload`](crate::workload::Workload), which can then be run under other policies. The others do not depend
//! on the policy: three patterns that were reported against PyTorch ([`fence`], [`comb`], [`stream_per_buffer`]).
//! docs/bounds.md says what each of them forces, and on which policies.

mod attack;
pub(super) mod options;
mod patterns;
mod probe;
mod robson;
#[cfg(test)]
mod tests;

pub use attack::{Attack, AttackError};
pub use patterns::{comb, fence, stream_per_buffer};
pub use robson::{Robson, robson};
