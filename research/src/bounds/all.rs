//! All bounds of a workload.

use super::lifetimes::buffers;
use super::packed::{BoundsError, pack_checked};
use super::pages::{self, PageIdeal};
use super::robson::Robson;
use crate::packing::{Effort, Found, Instance};
use crate::workload::Workload;

/// Blocks are multiples of this many bytes under any settings (spec 1.1).
pub const BLOCK_BYTES: u64 = 512;

/// All bounds of a workload, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The most bytes live at once, as requested.
    pub load_bytes: u64,
    /// The same with every request rounded up to [`BLOCK_BYTES`].
    pub load_512_bytes: u64,
    /// What is needed if pages can be remapped.
    pub pages: PageIdeal,
    /// The best packing found of the rounded requests, checked.
    pub packing: Found,
    /// What follows from sizes and load alone; `None` for a workload without buffers, or if 64 bits cannot hold it.
    pub robson: Option<Robson>,
}

impl Bounds {
    /// Computes all bounds. The packer does at most about twice the steps of `effort`: once for all buffers, once
    /// for those smaller than a page.
    ///
    /// # Errors
    /// [`BoundsError`] for a buffer of 0 bytes, or sizes that add up to more than 2^62 bytes.
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
