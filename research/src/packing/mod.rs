//! The offline packer: addresses for buffers whose sizes and lifetimes are all known, in as little memory as a good solver finds.
//!
//! No policy that learns of requests one by one can be expected to need less, so the packing found stands beside a policy's
//! result as a bound that can be reached, and the load (the most bytes that live at once) as one that nothing undercuts: a
//! recording's requests are rounded by no setting, only to the multiples that all blocks have ([`Recorded`]). The problem is
//! dynamic storage allocation, which is NP-hard: what is found is a packing, checked by [`check`], not always the best.
//!
//! [`place`] puts buffers one after the other at the lowest address that is free; [`greedy`] does it in many orders, and repairs
//! an order by moving forward what lay too high; [`eject`] repairs a packing in place, for any number of buffers: what lies too
//! high pushes others out of its way; [`search`] looks for a packing of a given height systematically, and is for some hundreds
//! of buffers. All of them count steps and none looks at a clock: the same instance, seed and budget give the same packing.

mod check;
mod csv;
mod eject;
mod greedy;
mod instance;
mod lives;
mod orders;
mod place;
mod recorded;
mod relations;
mod search;
mod solve;
#[cfg(test)]
mod tests;

pub use check::{Fault, check};
pub use csv::{CsvError, CsvFile, CsvLine, is_csv, read_csv, write_csv};
pub use instance::{Buffer, Instance, InstanceError};
pub use recorded::{Recorded, Refused};
pub use solve::{DEFAULT_STEPS, Effort, Found, pack, pack_watched};

/// An address for each buffer, from 0 on, and the memory that they need together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packing {
    /// The address of each buffer, in the order of the instance.
    pub offsets: Vec<u64>,
    /// The end of the highest buffer, in bytes.
    pub height: u64,
}

impl Packing {
    /// Everything at address 0, to begin with.
    fn of(instance: &Instance) -> Packing {
        Packing { offsets: vec![0; instance.buffers().len()], height: 0 }
    }
}
