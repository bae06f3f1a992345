#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod best_fit;
mod bfc;
mod breaking_handles;
mod catalogue;
mod cuda_async;
mod first_fit;
mod floating_handles;
mod gmlake;
mod growing_region;
mod handles;
mod next_fit;
mod plain_ladder;
mod rmm_pool;
mod seen_sizes;
mod stalloc;
mod stream_needs;
mod worst_fit;

pub use best_fit::{Best, BestFit};
pub use bfc::Bfc;
pub use breaking_handles::BreakingHandles;
pub use catalogue::{BESIDE, CATALOGUE, Named, named, needs_serial_work, pools_are_allocators, removed, renamed};
pub use cuda_async::CudaAsync;
pub use first_fit::{First, FirstFit};
pub use floating_handles::FloatingHandles;
pub use gmlake::GmLake;
pub use growing_region::{Fit, GrowingRegion};
pub use handles::why_unknown;
pub use next_fit::{Next, NextFit};
pub use rmm_pool::RmmPool;
pub use stalloc::{FirstStep, Plan, Stalloc, Traced};
pub use worst_fit::{Worst, WorstFit};
