#![doc = include_str!("README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
// Unit tests and integration tests share a device, which refers to this crate by its name.
#[cfg(test)]
extern crate self as parkade;
#[cfg(test)]
extern crate std;

pub mod device;
pub mod error;
pub mod policy;
pub mod profile;
pub mod settings;
pub mod snapshot;
pub mod stats;
pub mod texts;
pub mod trace;
pub mod units;

mod allocator;
mod block;
mod device_ranges;
mod flat_table;
mod heap;
mod index;
mod pending;
#[cfg(test)]
#[path = "../tests/common/device.rs"]
mod plain_device;
mod reservation;

pub use allocator::{
    AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment, Allocation, Allocator, FreeMemoryCallback, InvalidFraction,
    Restored,
};
pub use allocator::{checkpoint, heap_check};
pub use block::BlockId;
pub use checkpoint::{CheckpointError, PoolCheckpoint};
pub use device_ranges::{AnswerProblem, WrongAnswer};
pub use error::{AllocError, FreeError};
pub use heap::{
    BlockView, FreePair, GrowthView, HandleView, Heap, LiveBlock, Neighbour, PartlyFreeView, PoolError, PoolFilter, PoolSlot,
};
