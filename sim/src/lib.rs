//! The simulated device: a GPU made of arithmetic, which behaves as the measured CUDA driver does.
//!
//! [`SimDevice`] implements the core's [`DeviceBackend`](parkade::device::DeviceBackend). It has physical memory in 2 MiB pages,
//! which cudaMalloc gives an address or cuMemMap puts behind reserved ones, with contents byte for byte, an address space whose
//! placement rule can be exchanged, streams with declared kernels, a detector of races between these, events whose completion an
//! adversary makes visible, a clock in nanoseconds that only calls move, prices of calls, other processes, and faults on demand.
//! Nothing in it reads a clock or draws a random number: the same calls give the same answers, always.
//!
//! Its rules come from measurements on one H200; "facts" in the documentation of items means that page of measurements.
//! Unless a module says otherwise it has one owner and no locks, and no input makes it panic.

#![forbid(unsafe_code)]

mod access;
pub mod address;
mod adversary;
mod backend;
mod call;
mod clock;
mod contents;
mod control;
mod cost;
mod events;
mod fault;
mod holes;
mod intervals;
mod log;
mod mapping;
mod memory;
mod options;
mod page_map;
pub mod pages;
mod pieces;
mod program;
mod race;
mod ranges;
mod sim;
mod small;
mod streams;
mod virtual_memory;

pub use access::AccessError;
pub use adversary::Adversary;
pub use call::{CallName, LogLevel};
pub use clock::{CallTotals, Clock};
pub use contents::UNWRITTEN;
pub use cost::{CostModel, MeasuredH200, NoCost};
pub use events::SimEvent;
pub use fault::{Fault, FaultError, FaultPlan, When};
pub use log::{AddressName, Call, CallSubject};
pub use options::SimOptions;
pub use program::{Access, AccessKind, Kernel};
pub use race::{Race, RaceAccess, Use};
pub use sim::SimDevice;
pub use virtual_memory::SimPhysical;

/// Size of a physical page, in bytes (facts: Sizes and addresses, VMM granularity).
pub const PAGE_BYTES: u64 = 2 << 20;
/// Largest cudaMalloc that shares a page with others, in bytes (facts: Sizes and addresses).
pub const SMALL_BYTES: u64 = 1 << 20;
/// Spacing of cudaMallocs that share a page, in bytes (facts: Sizes and addresses).
pub const SPACING_BYTES: u64 = 512;
