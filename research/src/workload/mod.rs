//! Workloads: what a program asks of an allocator, as plain data.
//!
//! A [`Workload`] is a list of [`Event`]s. It comes from a generator ([`generators`], by description with
//! [`parse`]), from the [`CATALOGUE`], or from a [recording](recorded). It is the same for every policy: what a
//! program would do differently with less memory is not part of it.
//!
//! To add a generated workload, see [`generators`].

mod curve;
mod event;
pub mod generators;
mod halves;
mod parse;
mod pooled_load;
pub mod recorded;
mod step;
mod study_workloads;
mod well_formed;

pub use event::{Event, Workload};
pub use parse::{generator_names, keys, parse, transformer};
pub use step::{RepeatingStep, Requested};
pub use study_workloads::{CATALOGUE, NamedWorkload, named};
pub use well_formed::Malformed;

#[cfg(test)]
mod packed;
#[cfg(test)]
mod tables;
#[cfg(test)]
mod tests;
