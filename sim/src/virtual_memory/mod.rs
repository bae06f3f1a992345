//! Virtual memory as books: which addresses are reserved, which memory was created, and what is mapped where.

mod handles;
mod mappings;
mod page_map;

pub use handles::SimPhysical;
pub(crate) use mappings::{AffectedMappings, VirtualMemory, is_whole_pages};
