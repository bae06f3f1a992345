//! parkade's core: a GPU caching allocator, generic over the device, that decides exactly as PyTorch's does.
//!
//! The flow ([`Allocator`]) and the decisions ([`policy::Policy`]) are apart: PyTorch's rules ([`policy::PyTorch`]) are one policy. The core
//! does no I/O, reads no clock, draws no random number, never iterates a hash map, and contains no unsafe code: the same
//! requests give the same decisions, always.
//!
//! References of the form "spec 2.4" name sections of the project's specification of PyTorch's allocator.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
// Tests here and tests of the whole share a device, which names the crate.
#[cfg(test)]
extern crate self as parkade;
#[cfg(test)]
extern crate std;

pub mod checkpoint;
pub mod device;
pub mod error;
pub mod policy;
pub mod profile;
pub mod settings;
pub mod snapshot;
pub mod stats;
pub mod sweep;
pub mod texts;
pub mod trace;
pub mod units;

mod allocator;
mod block;
mod heap;
mod index;
mod pending;
mod reservation;

pub use allocator::{
    AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment, Allocation, Allocator, FreeMemoryCallback, InvalidFraction,
    Restored,
};
pub use block::BlockId;
pub use checkpoint::{CheckpointError, PoolCheckpoint};
pub use error::{AllocError, FreeError};
pub use heap::{BlockView, Heap, PoolError, PoolFilter, PoolSlot};
