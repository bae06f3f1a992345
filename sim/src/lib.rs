//! parkade's simulated GPU, recordings of real PyTorch runs, and their replay on the core.
//!
//! ```
//! use parkade::{Allocator, policy::PyTorch, settings::Settings, units::{Bytes, StreamId}};
//! use parkade_sim::device::{SimDevice, SimOptions};
//!
//! let device = SimDevice::new(SimOptions::new(Bytes::mib(1024)));
//! let mut allocator = Allocator::new(device, PyTorch::new(Settings::default()), ());
//! let block = allocator.allocate(Bytes(3_000_000), StreamId::DEFAULT)?;
//! assert_eq!(allocator.heap().reserved(), Bytes::mib(20));
//! allocator.free(block)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod advise;
pub mod bounds;
pub mod caution;
pub mod device;
pub mod diagnose;
pub mod export;
pub mod frontier;
pub mod measures;
pub mod message;
pub mod ops;
pub mod packing;
mod random;
pub mod recording;
pub mod replay;
pub mod study;
pub mod timeline;
pub mod workload;
