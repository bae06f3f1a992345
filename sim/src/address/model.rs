//! The interface of an address model.

use std::any::Any;
use std::fmt::Debug;

/// A rule that places ranges. A device has one for cudaMalloc and one for cuMemAddressReserve.
///
/// The device promises: a range that [`place`](AddressModel::place) returned is passed to
/// [`release`](AddressModel::release) with the same address and size, at most once. A range that the device
/// rejected is not: one that overlaps a live range, or does not start on a multiple of 512 bytes (of 2 MiB
/// for a reservation).
pub trait AddressModel: Any + Debug + Send + Sync {
    /// The address of a new range of `bytes_reserved` bytes, a whole number of 2 MiB pages, for a cudaMalloc
    /// of `request` bytes. For a cudaMalloc that shares a page, the range is the page. For a reservation the
    /// two sizes are equal. `None` if the model has no address left.
    fn place(&mut self, bytes_reserved: u64, request: u64) -> Option<u64>;

    /// Frees a range.
    fn release(&mut self, address: u64, bytes_reserved: u64);

    /// Tells the model how far the program has come, on the caller's scale. Used by models that know what
    /// else happens in the process at which moment; by default it does nothing.
    fn set_moment(&mut self, _moment: u64) {}

    /// An independent copy, for a clone of the device.
    fn boxed_clone(&self) -> Box<dyn AddressModel>;
}

impl Clone for Box<dyn AddressModel> {
    fn clone(&self) -> Self {
        // On the object, not on the box.
        (**self).boxed_clone()
    }
}
