//! Virtual memory: which addresses are reserved, which memory was created, and what is mapped where.
//!
//! Which operation is refused, and with which code, is decided here (facts: Virtual memory calls). A refused
//! operation changes nothing. Time, faults and the log are added by the calls in `device/mapping_calls.rs`.

mod handles;
mod mappings;
mod page_map;

pub use handles::SimPhysical;
pub(crate) use mappings::{AffectedMappings, VirtualMemory, is_whole_pages};
