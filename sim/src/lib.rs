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

pub mod address;
mod calls;
mod costs;
mod device;
mod faults;
mod kernel;
mod memory;
mod race;
mod range_maps;
mod streams;
mod virtual_memory;

pub use calls::{AddressName, Call, CallName, CallSubject, LogLevel};
pub use costs::{CallTotals, CostModel, MeasuredH200, NoCost};
pub use device::{SimDevice, SimOptions};
pub use faults::{Fault, FaultError, FaultPlan, When};
pub use kernel::{Access, AccessError, AccessKind, Kernel};
pub use memory::{PAGE_BYTES, PageId, PageRun, UNWRITTEN};
pub use race::{Race, RaceAccess, RaceUse};
pub use streams::{EventTiming, SimEvent};
pub use virtual_memory::SimPhysical;
