#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod check;
mod csv;
mod effort;
mod eject;
mod greedy;
mod instance;
mod live_index;
mod orders;
mod place;
pub mod random;
mod recorded;
mod relations;
mod search;
mod solve;
#[cfg(test)]
mod tests;

pub use check::{Fault, check};
pub use csv::{CsvError, CsvFile, CsvLine, is_csv, read_csv, write_csv};
pub use effort::{DEFAULT_STEPS, Effort, Found};
pub use instance::{Buffer, Instance, InstanceError, Packing};
pub use recorded::{Recorded, Refused};
pub use solve::{pack, pack_watched};
