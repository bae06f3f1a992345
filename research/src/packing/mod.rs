//! The offline packer: addresses for buffers whose sizes and lifetimes are all known, in as little memory as a good solver finds.
//!
//! A policy that learns of requests one by one cannot be expected to need less.
//! So the packing found stands beside a policy's result as what an ideal allocator reaches, and the load (the most bytes live at once) as what nothing can undercut.
//! A recording's requests are rounded only to the multiples that all blocks have, by no setting ([`Recorded`]).
//! The problem is dynamic storage allocation, which is NP-hard: the result is a packing, which [`check`] verifies, but not always the best one.
//!
//! | file | what it does |
//! |---|---|
//! | `solve` | shares the budget between everything below, and decides which comes first for many buffers |
//! | `online` | places each buffer when it begins, knowing nothing of the others: for budgets too small for `greedy` |
//! | `greedy` | puts buffers one after the other at the lowest free address, in many orders, and repairs an order by moving forward what ended too high |
//! | `eject` | repairs a packing in place, for any number of buffers: what is too high pushes others out of its way |
//! | `search` | searches systematically for a packing of a given height, for some hundreds of buffers |
//!
//! All of them count steps and none looks at a clock: the same instance, seed and budget give the same packing.

mod check;
mod csv;
mod eject;
mod greedy;
mod instance;
mod online;
pub mod random;
mod recorded;
mod search;
mod solve;

pub use check::{Fault, check};
pub use csv::{CsvError, CsvFile, CsvLine, is_csv, read_csv, write_csv};
pub use instance::{Buffer, DEFAULT_STEPS, Effort, Found, Instance, InstanceError, Packing};
pub use recorded::{Recorded, Refused};
pub use solve::{pack, pack_watched};
