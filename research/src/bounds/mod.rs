//! How little memory a program could do with, and how much the worst one of its kind would need: what stands beside a policy's result.
//!
//! From what nothing undercuts to what nobody can promise to keep:
//!
//! 1. **Load**: the most bytes that live at once, as asked for and rounded to blocks of 512 bytes.
//! 2. **Page ideal** ([`pages`]): what an allocator needs that takes memory by pages and remaps them as it likes.
//! 3. **Packing** ([`crate::packing`]): addresses in one region, every lifetime known beforehand, nothing ever moved.
//! 4. **Robson's bounds** ([`robson`]): what the worst program with this load and these sizes forces upon any allocator that learns of
//!    requests one by one and never moves memory, and what the best of them, first fit and any fit get by with.
//!
//! Streams and private pools are ignored: any memory may be used for any buffer. A buffer lives from its allocation until it is given
//! back, which is the earliest that its memory can be used again: work of other streams only makes it longer. docs/bounds.md has the
//! definitions, the proofs and what was looked up.

mod lifetimes;
pub mod pages;
pub mod robson;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::packing::{self, Effort, Fault, Found, Instance, InstanceError};
use crate::workload::Workload;

pub use lifetimes::buffers;
pub use pages::PageIdeal;
pub use robson::Robson;

/// Blocks are multiples of this many bytes, whatever the settings (spec 1.1).
pub const BLOCK_BYTES: u64 = 512;

/// All bounds of one program, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The most bytes that live at once, as they were asked for.
    pub load_bytes: u64,
    /// The same with every request rounded up to [`BLOCK_BYTES`].
    pub load_512_bytes: u64,
    /// What remapping pages would need.
    pub pages: PageIdeal,
    /// The best packing that was found of the rounded requests, checked.
    pub packing: Found,
    /// What sizes and load alone allow; `None` for a program without buffers.
    pub robson: Option<Robson>,
}

/// Why a program has no bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BoundsError {
    /// Its buffers cannot be packed.
    Instance(InstanceError),
    /// The packer made a packing that is none: a bug of parkade.
    Packing(Fault),
}

impl fmt::Display for BoundsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BoundsError::Instance(error) => write!(f, "the workload has no bounds: {error}"),
            BoundsError::Packing(fault) => write!(f, "the packing found is none, a bug of parkade: {fault:?}"),
        }
    }
}

impl std::error::Error for BoundsError {}

impl Bounds {
    /// All bounds of a program. The packers work for at most about twice the steps of `effort`: once for all buffers, once for those that
    /// are smaller than a page.
    ///
    /// # Errors
    /// [`BoundsError`]: a buffer of no bytes, or sizes that add up to more than 2^62 bytes.
    pub fn of(workload: &Workload, effort: &Effort) -> Result<Bounds, BoundsError> {
        let rounded = buffers(workload, BLOCK_BYTES);
        let pages = PageIdeal::of(&rounded, pages::PAGE_BYTES, effort)?;
        let robson = Robson::of(&rounded);
        let instance = Instance::new(rounded).map_err(BoundsError::Instance)?;
        Ok(Bounds {
            load_bytes: workload.load_bytes(1),
            load_512_bytes: instance.load(),
            pages,
            packing: pack_checked(&instance, effort)?,
            robson,
        })
    }
}

/// The best packing found, held against the checker.
fn pack_checked(instance: &Instance, effort: &Effort) -> Result<Found, BoundsError> {
    let found = packing::pack(instance, effort);
    packing::check(instance, &found.packing).map_err(BoundsError::Packing)?;
    Ok(found)
}
