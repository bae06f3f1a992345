//! Physical memory, and what cudaMalloc makes of it.
//!
//! [`page`] has pages and bytes by number, [`physical`] how much there is and who has it, [`contents`] what is written in it,
//! [`shared_pages`] the rule by which small cudaMallocs share a page, [`ranges`] the names of what was given out.

mod contents;
mod page;
mod physical;
mod ranges;
mod shared_pages;

pub(crate) use contents::Stretch;
pub use contents::UNWRITTEN;
pub(crate) use page::{ByteRange, PageRuns, bytes_of};
pub use page::{PAGE_BYTES, PageId, PageRun};
pub(crate) use physical::PhysicalMemory;
pub(crate) use ranges::{Range, Ranges};
pub(crate) use shared_pages::{SMALL_BYTES, SPACING_BYTES, SmallPages, spaced_bytes};
