//! Workloads: a program's requests to an allocator, as plain data.
//!
//! A [`Workload`] is a list of [`Event`]s. It is created by a generator ([`generators`], by description with [`parse`]) or
//! taken from the [`CATALOGUE`] or from a [recording](recorded). It is the same for every policy: a workload does not model
//! what a program would do differently with less memory.
//!
//! To add a generated workload, see [`generators`].

mod catalogue;
mod event;
pub mod generators;
pub mod recorded;
mod step;

pub use catalogue::{CATALOGUE, NamedWorkload, generator_names, keys, named, parse, transformer};
pub use event::{Event, Malformed, Workload};
pub use step::{RepeatingStep, Requested};
