//! Address models: the rules by which cudaMalloc and cuMemAddressReserve place ranges. This file contains their
//! interface and the fake driver's models.
//!
//! A model is an object, so a device can place ranges like the fake driver ([`Ascending`], [`Descending`], [`Reuse`],
//! [`AscendingReservations`]), as a recording lists them ([`Scripted`]), or like NVIDIA's driver, as far as recordings
//! show its rules ([`ObservedDriver`]). A model only chooses addresses. A different module counts physical memory, and
//! the device checks every answer before using it.
//!
//! [`Ascending`] and [`Descending`] never reuse an address: each range is placed directly above or directly below the
//! previous one. [`Reuse`] fills holes: freed ranges coalesce, and it uses the lowest hole that is long enough.
//! [`AscendingReservations`] places reservations: ascending, on multiples of 1 GiB, at least 1 GiB apart.

mod observed_driver;
mod observed_layout;
mod scripted;

pub use observed_driver::{LearnedAddressSpace, ObservedDriver, PlacementStep};
pub use scripted::{FALLBACK_START, RESERVATION_FALLBACK_START, Scripted};

use std::any::Any;
use std::fmt::Debug;

use crate::range_maps::Holes;

/// A rule that places ranges. A device has one for cudaMalloc and one for cuMemAddressReserve.
///
/// The device guarantees that it passes each range from [`place`](AddressModel::place) to
/// [`release`](AddressModel::release) at most once, with the same address and size. It never passes a range that it
/// rejected because the range overlaps a live one or does not start at a multiple of 512 bytes (2 MiB for a
/// reservation).
pub trait AddressModel: Any + Debug + Send + Sync {
    /// Returns the address of a new range of `bytes_reserved` bytes (a whole number of 2 MiB pages) for a cudaMalloc of
    /// `request` bytes. For a cudaMalloc that shares a page, the range is the page. For a reservation, the two sizes
    /// are equal. Returns `None` if the model has no address left.
    fn place(&mut self, bytes_reserved: u64, request: u64) -> Option<u64>;

    /// Frees a range.
    fn release(&mut self, address: u64, bytes_reserved: u64);

    /// Tells the model how far the program has progressed, on the caller's scale. This is for models that know what
    /// other code in the process does, and when; the default does nothing.
    fn set_moment(&mut self, _moment: u64) {}

    /// Returns an independent copy, for a clone of the device.
    fn boxed_clone(&self) -> Box<dyn AddressModel>;
}

impl Clone for Box<dyn AddressModel> {
    fn clone(&self) -> Self {
        // This calls the method of the object, not of the box.
        (**self).boxed_clone()
    }
}

/// The address at which the fake driver's ascending addresses start.
pub const ASCENDING_START: u64 = 0x1000_0000_0000;
/// The address at which the fake driver's descending addresses end.
pub const DESCENDING_END: u64 = 0x1f00_0000_0000;

/// Addresses that only ascend, like those of the fake driver's policy `up`.
#[derive(Clone, Debug)]
pub struct Ascending {
    next: u64,
    gap_bytes: u64,
}

impl Ascending {
    /// Starts at [`ASCENDING_START`], without gaps.
    #[must_use]
    pub fn new() -> Self {
        Ascending::starting_at(ASCENDING_START, 0)
    }

    /// Starts at `start` and leaves `gap_bytes` free above every range. Both must be multiples of 2 MiB for addresses
    /// to be on page boundaries.
    #[must_use]
    pub fn starting_at(start: u64, gap_bytes: u64) -> Self {
        Ascending { next: start, gap_bytes }
    }
}

impl Default for Ascending {
    fn default() -> Self {
        Ascending::new()
    }
}

impl AddressModel for Ascending {
    fn place(&mut self, bytes_reserved: u64, _request: u64) -> Option<u64> {
        let address = self.next;
        self.next = address.checked_add(bytes_reserved)?.checked_add(self.gap_bytes)?;
        Some(address)
    }

    fn release(&mut self, _address: u64, _bytes_reserved: u64) {}

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

/// Addresses that only descend, like those of the fake driver's policy `down`.
#[derive(Clone, Debug)]
pub struct Descending {
    next_end: u64,
    gap_bytes: u64,
}

impl Descending {
    /// Starts below [`DESCENDING_END`], without gaps.
    #[must_use]
    pub fn new() -> Self {
        Descending::ending_at(DESCENDING_END, 0)
    }

    /// Starts below `end` and leaves `gap_bytes` free above every range. Both must be multiples of 2 MiB for addresses
    /// to be on page boundaries.
    #[must_use]
    pub fn ending_at(end: u64, gap_bytes: u64) -> Self {
        Descending { next_end: end, gap_bytes }
    }
}

impl Default for Descending {
    fn default() -> Self {
        Descending::new()
    }
}

impl AddressModel for Descending {
    fn place(&mut self, bytes_reserved: u64, _request: u64) -> Option<u64> {
        let needed = bytes_reserved.checked_add(self.gap_bytes)?;
        // Address zero is the null pointer.
        self.next_end = self.next_end.checked_sub(needed).filter(|&address| address > 0)?;
        Some(self.next_end)
    }

    fn release(&mut self, _address: u64, _bytes_reserved: u64) {}

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

/// First fit in freed ranges; if none fits, new addresses above all others, as in the fake driver's policy `reuse`.
#[derive(Clone, Debug)]
pub struct Reuse {
    holes: Holes,
    next: u64,
}

impl Reuse {
    /// Starts new addresses at [`ASCENDING_START`].
    #[must_use]
    pub fn new() -> Self {
        Reuse::starting_at(ASCENDING_START)
    }

    /// Starts new addresses at `start`, which must be a multiple of 2 MiB for addresses to be on page boundaries.
    #[must_use]
    pub fn starting_at(start: u64) -> Self {
        Reuse { holes: Holes::default(), next: start }
    }
}

impl Default for Reuse {
    fn default() -> Self {
        Reuse::new()
    }
}

impl AddressModel for Reuse {
    fn place(&mut self, bytes_reserved: u64, _request: u64) -> Option<u64> {
        if let Some(address) = self.holes.take_first_fit(bytes_reserved) {
            return Some(address);
        }
        let address = self.next;
        self.next = address.checked_add(bytes_reserved)?;
        Some(address)
    }

    fn release(&mut self, address: u64, bytes_reserved: u64) {
        self.holes.insert(address, bytes_reserved);
    }

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

/// The address at which the fake driver's reservations start.
pub const RESERVATION_START: u64 = 0x2000_0000_0000;

/// The minimum distance between two reservations and the alignment of each one, in bytes.
const SPACING_BYTES: u64 = 1 << 30;

/// Addresses that only ascend, each time by the size rounded up to 1 GiB, plus 1 GiB.
#[derive(Clone, Debug)]
pub struct AscendingReservations {
    next: u64,
}

impl AscendingReservations {
    /// Starts at [`RESERVATION_START`].
    #[must_use]
    pub fn new() -> Self {
        AscendingReservations { next: RESERVATION_START }
    }
}

impl Default for AscendingReservations {
    fn default() -> Self {
        AscendingReservations::new()
    }
}

impl AddressModel for AscendingReservations {
    fn place(&mut self, bytes_reserved: u64, _request: u64) -> Option<u64> {
        let address = self.next;
        let step = bytes_reserved.checked_next_multiple_of(SPACING_BYTES)?.checked_add(SPACING_BYTES)?;
        self.next = address.checked_add(step)?;
        Some(address)
    }

    fn release(&mut self, _address: u64, _bytes_reserved: u64) {}

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;

    #[test]
    fn starts_and_steps_are_the_fake_drivers() {
        let mut up = Ascending::new();
        assert_eq!(up.place(10 * PAGE, 1), Some(17_592_186_044_416));
        assert_eq!(up.place(PAGE, 1), Some(17_592_207_015_936));
        let mut down = Descending::new();
        assert_eq!(down.place(10 * PAGE, 1), Some(34_084_839_489_536));
        assert_eq!(down.place(10 * PAGE, 1), Some(34_084_818_518_016));
    }

    #[test]
    fn gaps_lie_above_a_range() {
        let mut up = Ascending::starting_at(PAGE, PAGE);
        assert_eq!((up.place(PAGE, 1), up.place(PAGE, 1)), (Some(PAGE), Some(3 * PAGE)));
        let mut down = Descending::ending_at(10 * PAGE, PAGE);
        assert_eq!((down.place(PAGE, 1), down.place(PAGE, 1)), (Some(8 * PAGE), Some(6 * PAGE)));
    }

    #[test]
    fn an_exhausted_address_space_is_reported_and_nothing_moves() {
        let mut up = Ascending::starting_at(u64::MAX - 3 * PAGE, 0);
        assert_eq!(up.place(4 * PAGE, 1), None);
        assert_eq!(up.place(PAGE, 1), Some(u64::MAX - 3 * PAGE));
        let mut down = Descending::ending_at(2 * PAGE, 0);
        assert_eq!(down.place(2 * PAGE, 1), None);
        assert_eq!(down.place(PAGE, 1), Some(PAGE));
    }

    /// The expected addresses were printed by the fake driver with `FAKE_ADDR_POLICY=reuse`.
    #[test]
    fn holes_join_and_the_lowest_is_used_first() {
        const PAGE: u64 = 2 << 20;
        let mut model = Reuse::new();
        let placed: Vec<u64> = [10, 10, 10, 20].map(|pages| model.place(pages * PAGE, 0).unwrap()).to_vec();
        assert_eq!(placed, [17_592_186_044_416, 17_592_207_015_936, 17_592_227_987_456, 17_592_248_958_976]);
        model.release(placed[1], 10 * PAGE);
        model.release(placed[2], 10 * PAGE);
        assert_eq!(model.place(15 * PAGE, 0), Some(17_592_207_015_936));
        assert_eq!(model.place(5 * PAGE, 0), Some(17_592_238_473_216));
        assert_eq!(model.place(10 * PAGE, 0), Some(17_592_290_902_016));
    }

    #[test]
    fn steps_are_the_fake_drivers() {
        const GIB: u64 = 1 << 30;
        let mut model = AscendingReservations::new();
        let sizes = [1_207_959_552, GIB, 2 << 20];
        assert_eq!(sizes.map(|bytes| model.place(bytes, bytes).unwrap() - RESERVATION_START), [0, 3 * GIB, 5 * GIB]);
        assert_eq!(model.place(u64::MAX, 0), None);
        assert_eq!(model.place(1 << 63, 0), Some(RESERVATION_START + 7 * GIB), "a refusal moves nothing");
    }
}
