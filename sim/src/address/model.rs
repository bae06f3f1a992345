//! The rule for addresses as a trait.

use std::any::Any;
use std::fmt::Debug;

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
