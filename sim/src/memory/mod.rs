//! Physical memory, and the ranges that cudaMalloc makes of it.
//!
//! [`page`] has pages and bytes by number, [`physical`] how much memory there is and who holds it,
//! [`contents`] what is written in it, [`shared_pages`] how small cudaMallocs share a page, [`ranges`] which
//! ranges cudaMalloc returned and their names in the log.

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
pub(crate) use shared_pages::{SMALL_BYTES, SPACING_BYTES, SharedPages, spaced_bytes};
