//! Studies: a program under a policy on a simulated device, and how much memory it needs there.
//!
//! [`run`] carries a [`Workload`](crate::workload::Workload) out and says what came of it; [`smallest_capacity`] searches the least memory
//! in which it fits; [`curves`] says how much was reserved over its length. All is arithmetic on a device made fresh for
//! each run: the same arguments give the same answers, on every machine.

pub(crate) mod border;
mod capacity;
mod curve;
mod options;
mod run;
pub mod statistics;
pub mod sweep;
#[cfg(test)]
mod tests;

pub use capacity::{LOAD_UNIT_BYTES, Smallest, smallest_capacity};
pub use curve::{Curves, curves, live_curve};
pub use options::{Addresses, PLENTY_BYTES, RunOptions};
pub use run::{Ending, Outcome, run};
