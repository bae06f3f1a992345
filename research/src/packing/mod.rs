//! The offline packer: assigns addresses to buffers whose sizes and lifetimes are all known, using as little memory as a good
//! solver can find.
//!
//! A policy that sees requests one by one cannot be expected to need less. A policy's result is therefore compared with the
//! packing found, which is what an ideal allocator achieves, and with the load (the most bytes live at once), which no
//! allocator can beat. A recording's requests are rounded only to the multiple that all blocks have under any settings
//! ([`Recorded`]). The problem is dynamic storage allocation, which is NP-hard: the result is a packing, which [`check`]
//! verifies, but not always the best one.
//!
//! | file | what it does |
//! |---|---|
//! | `solve` | divides the budget between the modules below, and decides their order if there are many buffers |
//! | `heuristics` | for any number of buffers: places each buffer when it begins, without knowledge of the others, for the
//! smallest budgets; places buffers one after the other at the lowest free address, in many orders, and repairs an order by
//! moving buffers that ended too high forward; repairs a packing in place: a buffer that is too high pushes others out of its
//! way |
//! | `search` | searches systematically for a packing of a given height, for up to a few hundred buffers |
//!
//! All of these modules count steps, and none reads a clock: the same instance, seed and budget produce the same packing.

mod csv;
mod heuristics;
mod instance;
pub mod random;
mod recorded;
mod search;
mod solve;

pub use csv::{CsvError, CsvFile, CsvLine, is_csv, read_csv, write_csv};
pub use instance::{Buffer, COMPARED_STEPS, DEFAULT_STEPS, Effort, Fault, Found, Instance, InstanceError, Packing, check};
pub use recorded::{Recorded, Refused};
pub use solve::{pack, pack_watched};
