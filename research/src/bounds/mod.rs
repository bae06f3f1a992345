//! Bounds: the smallest memory that could serve a workload, and the memory that the worst workload of its kind would need. A
//! policy's result is compared with these.
//!
//! In order, from a limit that no allocator can beat to one that no allocator can guarantee:
//!
//! 1. **Load**: the most bytes live at once, as requested and rounded to blocks of 512 bytes.
//! 2. **Page ideal** ([`pages`]): the memory needed by an allocator that takes memory in pages and remaps them at will.
//! 3. **Packing** ([`crate::packing`]): addresses in one region, with every lifetime known in advance and nothing ever moved.
//! 4. **Robson's bounds** ([`robson`]): the memory that the worst workload with this load and these sizes forces on any
//!    allocator that sees requests one by one and never moves memory, and the memory that is enough for the best of these
//!    allocators, for first fit, and for any fit.
//!
//! Streams and private pools are ignored: any memory may serve any buffer. A buffer is live from its allocation until it is
//! freed, the earliest time at which its memory can be reused; work on other streams only delays this. docs/bounds.md
//! contains the definitions, proofs and sources.

mod all;
pub mod pages;
pub mod robson;

pub use all::{BLOCK_BYTES, Bounds, buffers};
pub use pages::{BoundsError, PageIdeal};
pub use robson::Robson;
