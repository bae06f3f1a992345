//! Where cudaMalloc puts a range, and where cuMemAddressReserve does: the rule as an object, so that devices can be made that
//! answer like the fake driver, like a recording, or like the real driver as far as recordings show it.
//!
//! A model decides addresses only. Memory is counted elsewhere, and the device checks every answer before it believes it.

mod driver;
mod linear;
mod reservations;
mod reuse;
mod scripted;

use std::any::Any;
use std::fmt::Debug;

pub use driver::{DriverLike, Learned, PlacedStep};
pub use linear::{Ascending, Descending};
pub use reservations::AscendingReservations;
pub use reuse::Reuse;
pub use scripted::{FALLBACK_START, RESERVATION_FALLBACK_START, Scripted};

/// Where the fake driver's ascending addresses begin.
pub const ASCENDING_START: u64 = 0x1000_0000_0000;
/// Where the fake driver's descending addresses end.
pub const DESCENDING_END: u64 = 0x1f00_0000_0000;
/// Where the fake driver's reservations begin.
pub const RESERVATION_START: u64 = 0x2000_0000_0000;

/// A rule for addresses. A device has one for cudaMalloc and another one for cuMemAddressReserve.
///
/// Held by the device: a range that `place` returned is given back through `release` with the same address and size, at most
/// once; a range that the device refused to believe (it overlaps a live one, or is not on a boundary of 512 bytes, for a
/// reservation of 2 MiB) is not.
pub trait AddressModel: Any + Debug + Send + Sync {
    /// The start of a new range of `bytes_reserved` bytes (a whole number of 2 MiB pages) for a cudaMalloc of `request` bytes;
    /// for one that shares a page this is the page. For a reservation the two sizes are the same. `None` when the model has no address left.
    fn place(&mut self, bytes_reserved: u64, request: u64) -> Option<u64>;

    /// Takes a range back.
    fn release(&mut self, address: u64, bytes_reserved: u64);

    /// Says how far the program is, on a scale of the caller's. For models that know what happens in a process when; the others do
    /// not care.
    fn set_moment(&mut self, _moment: u64) {}

    /// A copy that decides on its own from now on; a device is cloned to try two continuations.
    fn boxed_clone(&self) -> Box<dyn AddressModel>;
}

impl Clone for Box<dyn AddressModel> {
    fn clone(&self) -> Self {
        // Through the object itself: a call on the box would find this very implementation's type again.
        (**self).boxed_clone()
    }
}
