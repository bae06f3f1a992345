//! Bounds: how little memory could serve a workload, and how much the worst workload of its kind would need. A policy's result
//! is compared with them.
//!
//! In order, from a limit that no allocator can beat to one that none can promise:
//!
//! 1. **Load**: the most bytes live at once, as requested and rounded to blocks of 512 bytes.
//! 2. **Page ideal** ([`pages`]): the need of an allocator that takes memory in pages and remaps them at will.
//! 3. **Packing** ([`crate::packing`]): addresses in one region, every lifetime known in advance, nothing ever moved.
//! 4. **Robson's bounds** ([`robson`]): what the worst workload with this load and these sizes forces on any allocator that
//!    sees requests one by one and never moves memory; and what is enough for the best such allocator, for first fit and for
//!    any fit.
//!
//! Streams and private pools are ignored: any memory may serve any buffer. A buffer is live from its allocation
//! until it is freed, the earliest time at which its memory can be used again; work on other streams only delays
//! that. docs/bounds.md has the definitions, the proofs and the sources.

mod all;
pub mod pages;
pub mod robson;

pub use all::{BLOCK_BYTES, Bounds, buffers};
pub use pages::{BoundsError, PageIdeal};
pub use robson::Robson;
