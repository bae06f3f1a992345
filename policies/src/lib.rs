#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bfc;
mod catalogue;
mod compaction;
mod cuda_async;
mod entry;
mod gmlake;
mod growing_region;
mod parameter;
mod pools;
mod pytorch;
mod rescue;
mod rmm_pool;
mod shared_steps;
mod sight;
mod stalloc;

pub use bfc::{Bfc, BfcKind};
pub use catalogue::{BESIDE, CATALOGUE, ENTRIES, Policies, Unknown, named, needs_serial_work};
pub use compaction::Compaction;
pub use cuda_async::CudaAsync;
pub use entry::{Entry, Named, base, items};
pub use gmlake::GmLake;
pub use growing_region::{Fit, GrowingRegion};
pub use parameter::{Accepts, Parameter, Values};
pub use pools::pools_are_allocators;
pub use rescue::{NEEDS_EXPANDABLE, Reach, Rescue, settings_to_rescue};
pub use rmm_pool::RmmPool;
pub use stalloc::{FirstStep, Plan, Stalloc, Traced};
