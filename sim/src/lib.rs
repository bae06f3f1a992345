#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod address;
mod calls;
mod costs;
mod device;
mod faults;
mod memory;
mod race;
mod range_maps;
mod ranges;
mod streams;
mod virtual_memory;

pub use calls::{AddressName, Call, CallName, CallSubject, LogLevel};
pub use costs::{CallTotals, CostModel, MeasuredH200, NoCost};
pub use device::{SimDevice, SimOptions};
pub use faults::{Fault, FaultError, FaultPlan, When};
pub use memory::{PAGE_BYTES, PageId, PageRun, UNWRITTEN};
pub use race::{Access, AccessError, AccessKind, Kernel, Race, RaceAccess, RaceUse};
pub use streams::{EventTiming, SimEvent};
pub use virtual_memory::SimPhysical;
